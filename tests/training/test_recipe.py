import pytest

from pidformer.data.loaders import BatchPlan
from pidformer.errors import InputError
from pidformer.training import Recipe, load_recipe, recipe_from, shipped_recipes
from pidformer.training.recipe import difference, recipe_name


def test_every_recipe_loads_and_round_trips():
    assert len(shipped_recipes()) >= 10
    for name in shipped_recipes():
        recipe = load_recipe(name)
        assert recipe_from(recipe.to_dict()) == recipe
        assert recipe_name(name) == name.removesuffix(".yaml")


def test_overrides_reach_their_place_and_type():
    recipe = load_recipe(
        "digits/softmax.yaml",
        [
            "optim.lr=1e-3",
            "model.gains=0.4,0.1,0.05,1",
            "data.mean=[0.5]",
            "train.ema=null",
            "optim.betas=[0.9, 0.95]",
            "model.options.depth=3",
            "schedule.epochs=5",
        ],
    )
    assert recipe.optim.lr == 1e-3 and recipe.model.gains == "0.4,0.1,0.05,1"
    assert recipe.data.mean == (0.5,) and recipe.optim.betas == (0.9, 0.95)
    assert recipe.model.options["depth"] == 3 and recipe.schedule.epochs == 5


def test_a_recipe_extends_another(tmp_path):
    base, top = tmp_path / "base.yaml", tmp_path / "top.yaml"
    base.write_text("optim: {lr: 1e-3, clip: 1}\nmodel: {gains: {p: 1, i: 1}}\n")
    top.write_text("extends: base.yaml\noptim: {lr: 2e-3}\nmodel: {gains: {p: 2}}\n")
    recipe = load_recipe(top)
    assert recipe.optim.lr == 2e-3 and recipe.optim.clip == 1.0
    assert recipe.model.gains == {"p": 2}  # one value, replaced whole


def test_learning_rate_scales_with_the_batch_when_asked():
    recipe = load_recipe(
        "digits/softmax.yaml", ["optim.lr=5e-4", "optim.lr_batch=512", "data.batch_size=1024"]
    )
    assert recipe.peak_lr == pytest.approx(1e-3)
    assert load_recipe("digits/softmax.yaml", ["optim.lr=5e-4"]).peak_lr == 5e-4


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["optim.lrate=1"], "unknown recipe key 'optim.lrate'; did you mean 'optim.lr'"),
        (["optm.lr=1"], "did you mean 'optim'"),
        (["optim.lr=fast"], "optim.lr must be a number, got 'fast'"),
        (["optim.lr"], "key=value"),
        (["optim=3"], "section of keys"),
        (["optim.lr.x=3"], "not a section"),
        (["schedule.epochs=1.5"], "schedule.epochs must be a whole number"),
        (["train.precision=int8"], "train.precision must be one of fp32, bf16, fp16"),
        (["optim.betas=[1]"], "2 entries"),
        (["augment.flip=2"], "flip"),
        (["data.mean=0.5"], "must be a list"),
        (["model.learn_gains=1"], "must be true or false"),
        (["optim.lr=[1"], "not YAML"),
        (["train.log_steps=0"], "train.log_steps must be at least 1, got 0"),
        (["train.evaluate_every=0"], "train.evaluate_every must be at least 1"),
        (["train.evaluate_steps=0"], "train.evaluate_steps must be at least 1"),
        (["train.checkpoint_steps=0"], "train.checkpoint_steps must be at least 1"),
        (["train.accumulate=0"], "train.accumulate must be at least 1"),
        (["train.ema=2"], "train.ema must be in [0, 1), got 2"),
        (["schedule.steps=1e18"], "schedule.steps must be at most 1e+09"),
        (["schedule.epochs=0"], "schedule.epochs must be at least 1"),
        (["schedule.warmup_epochs=-1"], "schedule.warmup_epochs must be at least 0"),
        (["optim.lr=-1"], "optim.lr must be at least 0, got -1.0"),
        (["optim.lr=.nan"], "optim.lr must be finite and at least 0, got nan"),
        (["optim.clip=0"], "optim.clip must be above 0, or null for none, got 0.0"),
        (["optim.lr_batch=0"], "optim.lr_batch must be at least 1, got 0"),
        (["data.mean=[.nan]"], "data.mean must be finite, got [nan]"),
        (["data.crop_ratio=0"], "data.crop_ratio must be in (0, 1], got 0.0"),
        (["seed=-1"], "seed must be a whole number from 0 to 2**63 - 1, got -1"),
        ([f"seed={2**63}"], "seed must be a whole number from 0 to 2**63 - 1"),
        (["task=language", "text.min_count=0"], "text.min_count must be at least 1, got 0"),
        (["task=language", "text.max_words=-1"], "text.max_words must be at least 3, got -1"),
        (["task=language", "text.length=0"], "text.length must be at least 1, got 0"),
        (["model=3"], "model must be a section of keys, got 3"),
        (["optim.betas=[2, 0.9]"], "optim.betas must be in [0, 1)"),
        (["data.std=[0]"], "data.std must be above 0"),
        (["data.workers=.inf"], "data.workers must be a whole number, got inf"),
        (["data.workers=.nan"], "data.workers must be a whole number, got nan"),
    ],
)
def test_a_typo_gets_one_clear_line(overrides, words):
    with pytest.raises(InputError) as caught:
        load_recipe("digits/softmax.yaml", overrides)
    assert words in " ".join(str(caught.value).split())


@pytest.mark.parametrize("overrides", [["data.image_size=128"], ["segmentation.stride=0"]])
def test_windows_that_could_not_be_scored_are_refused_before_training(overrides):
    with pytest.raises(InputError, match=r"stride must be from 1 to data\.image_size"):
        load_recipe("camvid/pid.yaml", overrides)
    assert load_recipe("camvid/pid.yaml", ["data.image_size=128", "segmentation.stride=null"])


def test_a_recipe_that_is_not_there_names_the_nearest():
    with pytest.raises(InputError, match=r"did you mean 'digits/pid\.yaml'"):
        load_recipe("digits/pidd.yaml")


def test_a_folder_is_no_recipe_and_that_of_a_run_is_named(tmp_path):
    with pytest.raises(InputError, match=r"is a folder; a recipe is a YAML file$"):
        load_recipe(tmp_path)
    (tmp_path / "recipe.yaml").write_text("")
    with pytest.raises(InputError, match=r"that of this run is .*recipe\.yaml"):
        load_recipe(tmp_path)


def test_bad_recipe_files(tmp_path):
    path = tmp_path / "r.yaml"
    for text, words in (
        ("- 1", "mapping"),
        ("a: [", "not YAML"),
        ("extends: gone.yaml", "extends 'gone.yaml'"),
        ("extends: r.yaml", "extends itself"),
        ("extends: [r.yaml]", "extends"),
        (b"# \xe9", "not text in UTF-8"),
    ):
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        with pytest.raises(InputError, match=words):
            load_recipe(path)


def test_difference_names_the_keys():
    a, b = Recipe().to_dict(), load_recipe("digits/softmax.yaml").to_dict()
    assert "data.batch_size: 1024 -> 64" in difference(a, b)
    assert difference(a, a) == []


@pytest.mark.parametrize("name", shipped_recipes())
@pytest.mark.parametrize("world_size", [1, 8])
def test_every_recipe_has_a_batch_that_its_data_and_eight_processes_allow(name, world_size):
    recipe = load_recipe(name)
    if recipe.task == "language":
        assert recipe.data.batch_size % (world_size * recipe.train.accumulate) == 0
        return
    images = {
        "digits": 1437,
        "imagenet": 1_281_167,
        "tiny-imagenet-100": 42_000,
        "ade20k": 20_210,
        "camvid": 367,
        "photos": 1_000,  # a user's own folder, and a small one
    }
    plan = BatchPlan(
        images=images[recipe.data.name],
        batch_size=recipe.data.batch_size,
        repeats=recipe.augment.repeats,
        seed=recipe.seed,
        rank=0,
        world_size=world_size,
        is_mixing=recipe.augment.is_mixing,
    )
    local = plan.local.stop - plan.local.start
    assert plan.steps_per_epoch > 10 and local % recipe.train.accumulate == 0
