import io

import numpy as np
import pytest
import torch
from PIL import Image
from torchmetrics.functional.classification import multiclass_accuracy

from pidformer.errors import InputError
from pidformer.runs.model import build_network
from pidformer.runs.recipe import OptimRecipe
from pidformer.training import load_recipe, shipped_recipes
from pidformer.training.loop import Trainer
from pidformer.training.optimizer import build_optimizer
from pidformer.training.run import build_task, train
from pidformer.training.tasks import Classification, Place
from tests.data.sets import write_parquet
from tests.training.tiny import tiny_recipe
from tests.training.tiny_language import tiny_language


class StopHere(Exception):
    pass


@pytest.fixture
def two_steps(monkeypatch):
    """Training ends after two steps."""
    inner = Trainer._save_or_stop

    def stop(self, at_end=False):
        inner(self, at_end)
        if self.step == 2:
            raise StopHere

    monkeypatch.setattr(Trainer, "_save_or_stop", stop)


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in shipped_recipes() if n.startswith("digits/")])
def test_two_steps_of_every_digits_recipe(name, tmp_path, two_steps):
    with pytest.raises(StopHere):
        train(load_recipe(name), tmp_path / "run", device="cpu", is_shown=False)


def imagenet_tree(root, size=80):
    """ImageNet's layout with a few random pictures."""
    random = np.random.default_rng(0)
    for split, count in (("train", 6), ("val", 3)):
        for wnid in ("n01440764", "n01443537"):
            folder = root / split / wnid
            folder.mkdir(parents=True)
            for index in range(count):
                pixels = random.integers(0, 256, (size, size + 16, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / f"{wnid}_{index}.JPEG")


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in shipped_recipes() if n.startswith("imagenet/")])
def test_two_steps_of_every_imagenet_recipe_on_a_small_tree(name, tmp_path, two_steps):
    imagenet_tree(tmp_path / "data")
    small = [
        "data.image_size=32",
        "data.batch_size=6",
        "data.workers=0",
        "train.compile=none",
        "model.options={depth: 2, patch_size: 16, drop_path_rate: 0.1}",
    ]
    with pytest.raises(StopHere):
        train(
            load_recipe(name, small),
            tmp_path / "run",
            data=tmp_path / "data",
            device="cpu",
            is_shown=False,
        )


def parquet_set(root):
    """The Hugging Face convention, 64 pixels."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    root.mkdir()
    random = np.random.default_rng(0)
    for split, count in (("train", 24), ("val", 8)):
        images = []
        for _ in range(count):
            buffer = io.BytesIO()
            Image.fromarray(random.integers(0, 256, (64, 64, 3), dtype=np.uint8)).save(
                buffer, "JPEG"
            )
            images.append({"bytes": buffer.getvalue(), "path": None})
        labels = [n % 4 for n in range(count)]
        pq.write_table(pa.table({"image": images, "label": labels}), root / f"{split}.parquet")


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [n for n in shipped_recipes() if n.startswith("tiny_imagenet_100/")]
)
def test_two_steps_of_every_tiny_imagenet_recipe_on_a_small_set(name, tmp_path, two_steps):
    parquet_set(tmp_path / "data")
    small = ["data.batch_size=8", "train.compile=none", "model.options.depth=2"]
    with pytest.raises(StopHere):
        train(
            load_recipe(name, small),
            tmp_path / "run",
            data=tmp_path / "data",
            device="cpu",
            is_shown=False,
        )


def test_scores_equal_torchmetrics():
    task = build_task(tiny_recipe(), None)
    torch.manual_seed(0)
    model = task.build().eval()
    with torch.no_grad():
        scores = task.scores(task.count(model, Place(0, 1, torch.device("cpu"))))
        images = torch.stack(
            [torch.from_numpy(np.array(task.val_source.decode(n)))[None] / 255 for n in range(360)]
        )
        logits = model((images - 0.3053) / 0.3761)
    labels = task.val_source.labels
    for k in (1, 5):
        expected = multiclass_accuracy(logits, labels, 10, average="micro", top_k=k)
        assert scores[f"top{k}"] == pytest.approx(100 * float(expected), abs=1e-4)
    expected = torch.nn.functional.cross_entropy(logits, labels)
    assert scores["loss"] == pytest.approx(float(expected), rel=1e-5)


def test_counts_of_processes_add_up():
    task = build_task(tiny_recipe(), None)
    torch.manual_seed(0)
    model = task.build().eval()
    with torch.no_grad():
        whole = task.count(model, Place(0, 1, torch.device("cpu")))
        parts = [
            build_task(tiny_recipe(), None).count(model, Place(r, 3, torch.device("cpu")))
            for r in range(3)
        ]
    torch.testing.assert_close(whole, sum(parts), rtol=1e-6, atol=1e-4)


def test_vectors_positions_and_class_token_do_not_decay():
    model = build_task(tiny_recipe(), None).build()
    optimizer = build_optimizer(OptimRecipe(weight_decay=0.05), model, 1e-3, torch.device("cpu"))
    decay = {id(p): g["weight_decay"] for g in optimizer.param_groups for p in g["params"]}
    for name, parameter in model.named_parameters():
        exempt = parameter.ndim < 2 or name in ("pos_embed", "cls_token")
        assert decay[id(parameter)] == (0.0 if exempt else 0.05), name


@pytest.mark.parametrize("gains", ["0.4,0.1,0.05,1", "value_embedding"])
def test_gains_that_a_language_model_learns_do_not_decay(gains):
    recipe = tiny_language(f"model.gains={gains}", "model.learn_gains=true")
    model = build_network(recipe.to_dict(), {"vocab_size": 9, "length": 16, "eos_token_id": 0})
    optimizer = build_optimizer(OptimRecipe(weight_decay=0.05), model, 1e-3, torch.device("cpu"))
    decay = {id(p): g["weight_decay"] for g in optimizer.param_groups for p in g["params"]}
    attention = model.model.layers[1].self_attn
    assert {decay[id(parameter)] for parameter in attention.gains.parameters()} == {0.0}
    assert decay[id(attention.q_proj.weight)] == 0.05


def test_sgd_is_nesterov():
    model = torch.nn.Linear(2, 2)
    optimizer = build_optimizer(OptimRecipe(name="sgd"), model, 0.1, torch.device("cpu"))
    assert optimizer.defaults["nesterov"] and optimizer.defaults["momentum"] == 0.9


def test_a_wrong_data_folder_is_refused(tmp_path):
    with pytest.raises(InputError):
        Classification(tiny_recipe(), tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError):
        Classification(tiny_recipe(), tmp_path / "empty")


@pytest.mark.parametrize(
    ("train", "val", "words"),
    [
        ("abcd", "ab", "a, b, c, d, and a, b"),
        ("abcd", "dcba", "different classes, so labels would not match"),
    ],
)
def test_splits_with_other_classes_are_refused(tmp_path, train, val, words):
    for split, names in (("train", train), ("val", val)):
        write_parquet(tmp_path / f"{split}.parquet", list(range(len(names))) * 4, list(names))
    task = Classification(_colour_recipe(), tmp_path)
    with pytest.raises(InputError, match=words):
        task.train_data(Place(0, 1, torch.device("cpu")))


def test_validation_images_of_no_class_are_refused(tmp_path):
    write_parquet(tmp_path / "train.parquet", [0, 1] * 4, ["a", "b"])
    write_parquet(tmp_path / "val.parquet", [0, 1, -1], ["a", "b"])
    with pytest.raises(InputError, match="images of no class"):
        Classification(_colour_recipe(), tmp_path)


def _colour_recipe():
    return load_recipe("digits/softmax.yaml", ["data.mean=[0, 0, 0]", "data.std=[1, 1, 1]"])
