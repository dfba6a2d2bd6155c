"""One reading of device names, for the library and every command."""

from types import SimpleNamespace

import pytest
import torch

from pidformer.devices import as_device
from pidformer.errors import InputError
from pidformer.runs.folder import write_recipe
from pidformer.runs.recipe import TrainRecipe
from pidformer.training.engine import Engine
from pidformer.training.run import train
from tests.training.test_segmentation import recipe as tiny_segmentation
from tests.training.tiny import tiny_recipe

FOREIGN = ("xpu", "mkldnn", "meta", "tpu", "cuda:-1", "cuda:", "CUDA", "")
COMMANDS = (
    ("train", "digits/pid.yaml", "--out", "OUT"),
    ("evaluate", "RUN"),
    ("analyze", "RUN", "--out", "OUT"),
    ("tune", "RUN"),
    ("generate", "RUN"),
    ("segment", "SEGMENTER", "IMAGE", "--out", "OUT"),
    ("bench", "operator"),
    ("reproduce", "--out", "OUT"),
    ("demo", "--out", "OUT"),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "tiny"
    train(tiny_recipe("schedule.epochs=1"), out, device="cpu", is_shown=False)
    return out


def test_devices_of_this_machine():
    assert as_device("cpu") == as_device(torch.device("cpu")) == torch.device("cpu")
    assert as_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.parametrize("name", FOREIGN)
def test_other_kinds_are_refused_in_one_line(name):
    with pytest.raises(InputError, match="device must be auto, cpu or cuda") as caught:
        as_device(name)
    assert "\n" not in str(caught.value) and repr(name) in str(caught.value)


@pytest.mark.parametrize("name", ["cpu:3", "cuda:999"])
def test_a_number_that_the_machine_does_not_have_is_refused(monkeypatch, name):
    """torch reads cuda:999 as cuda:-25."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    kind, last = name.split(":")[0], {"cpu": 0, "cuda": 1}[name.split(":")[0]]
    with pytest.raises(InputError, match=f"not on this machine, whose last is {kind}:{last}"):
        as_device(name)
    assert as_device("cuda:1") == torch.device("cuda", 1)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("name", ["cuda", "cuda:1", "mps"])
def test_a_gpu_that_is_not_there(name):
    for use in (as_device, lambda device: Engine(TrainRecipe(), device)):
        with pytest.raises(InputError, match=f"device '{name}' needs a GPU that torch can use"):
            use(name)


def test_an_engine_started_alone_takes_the_gpu_of_the_number(monkeypatch):
    taken = []
    found = SimpleNamespace(
        process_index=0, num_processes=1, device=torch.device("cuda"), is_main_process=True
    )
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    monkeypatch.setattr("pidformer.training.engine.Accelerator", lambda **options: found)
    assert Engine(TrainRecipe(), "cuda").place.device == torch.device("cuda") and not taken
    assert Engine(TrainRecipe(), "cuda:1").place.device == torch.device("cuda:1")
    assert taken == [torch.device("cuda:1")]
    monkeypatch.setenv("LOCAL_RANK", "0")
    with pytest.raises(InputError, match=r"'cuda:1' is for one process .*: use cuda"):
        Engine(TrainRecipe(), "cuda:1")


def test_more_processes_than_gpus_are_refused_before_they_meet(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    words = r"3 processes and 2 GPU\(s\): start 2, or use --device cpu"
    with pytest.raises(InputError, match=words):
        Engine(TrainRecipe(), "cuda")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_training_takes_a_gpu_by_its_number(tmp_path):
    last = torch.cuda.device_count() - 1
    recipe = tiny_recipe("schedule.epochs=1")
    scores = train(recipe, tmp_path / "run", device=f"cuda:{last}", is_shown=False)
    assert scores["images"] > 0 and torch.cuda.current_device() == last


@pytest.mark.parametrize("name", ["xpu", "mkldnn", "meta"])
@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_every_command_refuses_other_kinds_in_one_line(run, folder, tmp_path, command, name):
    image = tmp_path / "image.png"
    image.write_bytes(b"")
    segmenter = tmp_path / "segmenter"
    segmenter.mkdir()
    write_recipe(segmenter, tiny_segmentation().to_dict())
    places = {"RUN": folder, "SEGMENTER": segmenter, "OUT": tmp_path / "out", "IMAGE": image}
    code, out, err = run(*(places.get(word, word) for word in command), "--device", name)
    assert code == 2 and out == "" and err.count("\n") == 1, err
    assert err == f"pidformer: device must be auto, cpu or cuda (or cuda:1, mps), got {name!r}\n"
