import pytest
import pidformer as pf
from tests.security.tricks import Trap, copy, edit, pickled
from tests.training.tiny import tiny_recipe
from pidformer.training.run import train

@pytest.fixture(scope="module")
def images(tmp_path_factory):
    run = tmp_path_factory.mktemp("runs") / "images"
    train(tiny_recipe("schedule.epochs=1"), run, device="cpu", is_shown=False)
    return run

@pytest.fixture
def trap(tmp_path):
    with Trap(tmp_path) as trap:
        yield trap

def test_the_weights_that_a_run_names_are_not_unpickled(run, images, trap, tmp_path):
    folder = copy(images, tmp_path / "run")
    pickled(folder / "w.pth", trap)
    edit(folder / "recipe.yaml", model__options__pretrained=True, model__options__cache_dir=str(folder),
      model__options__pretrained_cfg_overlay={"url": "http://localhost/w.pth", "hf_hub_id": None})
    code, _, err = tell(run, "evaluate", folder, "--device", "cpu")
    print(code, err)
    trap.check()
    assert code == 2 and err.count("\n") == 1 and "model.options.pretrained" in err

def test_nothing_connects(run, images, trap, tmp_path):
    folder = copy(images, tmp_path / "run")
    edit(folder / "recipe.yaml", model__options__pretrained=True,
      model__options__pretrained_cfg_overlay={"url": f"http://127.0.0.1:{trap.port}/w.pth", "hf_hub_id": None})
    code, _, err = tell(run, "evaluate", folder, "--device", "cpu")
    print(code, err)
    trap.check()
    assert code == 2

def test_checkpoint_path(run, images, trap, tmp_path):
    folder = copy(images, tmp_path / "run")
    edit(folder / "recipe.yaml", model__options__checkpoint_path=str(trap.secret))
    code, _, err = tell(run, "evaluate", folder, "--device", "cpu")
    print(code, err)
    trap.check()
    assert code == 2

def tell(run, *arguments):
    try:
        return run(*arguments)
    except Exception as error:
        return 1, "", f"{type(error).__name__}: {error}"
