"""Runs and published records from strangers: nothing in them runs, connects or reaches out."""

import json
import shutil

import pytest
import torch

import pidformer as pf
from pidformer.cli import main
from pidformer.errors import InputError
from pidformer.runs.open import open_subject
from tests.security.tricks import copy, edit, pickled

pytestmark = pytest.mark.slow

OVERLAY = "model__options__pretrained_cfg_overlay"
DECODER = "segmentation__decoder"
REFUSED = "never what to load, fetch or run"


def _cached_pickle(folder, trap):
    """The proof: timm finds `w.pth` in its cache, which is the run, and reads it a second time."""
    pickled(folder / "w.pth", trap)
    overlay = {"url": "http://localhost/w.pth", "hf_hub_id": None}
    edit(
        folder / "recipe.yaml",
        model__options__pretrained=True,
        model__options__cache_dir=str(folder),
        **{OVERLAY: overlay},
    )
    return REFUSED


def _address(folder, trap):
    overlay = {"url": f"http://127.0.0.1:{trap.port}/w.pth", "hf_hub_id": None}
    edit(folder / "recipe.yaml", model__options__pretrained=True, **{OVERLAY: overlay})
    return REFUSED


def _option(key, value="{outside}", said=None):
    """One option, whose line names it."""

    def trick(folder, trap):
        given = value.format(outside=trap.secret) if isinstance(value, str) else value
        edit(folder / "recipe.yaml", **{f"model__options__{key}": given})
        return said or f"model.options.{key} "

    return trick


def _section(said, **changes):
    def trick(folder, trap):
        edit(folder / "recipe.yaml", **changes)
        return said

    return trick


def _info(said, **changes):
    def trick(folder, trap):
        edit(folder / "model.json", **changes)
        return said

    return trick


def _link(name, is_there=True):
    """A file or folder of the run that is a link to its good self, outside."""

    def trick(folder, trap):
        target = trap.outside / name
        if is_there:
            shutil.move(folder / name, target)
        elif "." in name:
            target.write_text("")
        else:
            target.mkdir()
        (folder / name).symlink_to(target)
        return "leads out of its folder"

    return trick


def _yaml_tag(folder, trap):
    text = (folder / "recipe.yaml").read_text()
    call = f"!!python/object/apply:os.system ['touch {trap.canary}']"
    (folder / "recipe.yaml").write_text(f"{text}evil: {call}\n")
    return "recipe.yaml is damaged"


def _text(name, text):
    """A file that its parser gives up on."""

    def trick(folder, trap):
        (folder / name).write_text(text)
        return f"{name} is damaged"

    return trick


TRICKS = {
    "cached pickle": _cached_pickle,
    "address": _address,
    "checkpoint_path": _option("checkpoint_path"),
    "checkpoint_path upwards": _option("checkpoint_path", "../outside/secret.yaml"),
    "pretrained file": _option("pretrained_cfg", {"file": "../outside/secret.yaml"}),
    "pretrained": _option("pretrained", True),
    "cache_dir": _option("cache_dir"),
    "norm_layer": _option("norm_layer", "os.system"),
    "act_layer": _option("act_layer", "os.system"),
    "embed_layer": _option("embed_layer", "os.system"),
    "block_fn": _option("block_fn", "os.system"),
    "features_only": _option("features_only", True),
    "auto_map": _option("auto_map", {"AutoModel": "evil.Model"}),
    "near miss": _option("dropp_path_rate", 0.1, "is not known; did you mean"),
    "options that are a list": _section("must be a section", model__options=["pretrained"]),
    "hub name": _section("model.name must be", model__name="timm:hf-hub:some/model"),
    "folder name": _section("model.name must be", model__name="timm:local-dir:../outside"),
    "name that is a number": _section("must be a section with a name", model__name=7),
    "task": _section("unknown task", task="os.system"),
    "yaml tag": _yaml_tag,
    "yaml without end": _text("recipe.yaml", "[" * 500),
    "yaml of one number": _text("recipe.yaml", "seed: " + "9" * 9999),
    "linked recipe": _link("recipe.yaml"),
    "linked model.json": _link("model.json"),
    "linked weights": _link("model.safetensors"),
    "linked records": _link("results.jsonl"),
    "linked checkpoints": _link("checkpoints", is_there=False),
    "linked lock": _link(".lock", is_there=False),
}
VISION = {
    "depth without end": _option("depth", 10**9),
    "depth that is text": _option("depth", "8"),
    "width that is true": _option("embed_dim", True),
    "ratio that is no number": _option("mlp_ratio", float("nan")),
}
SEGMENTS = {
    "decoder of classes": _section("decoder.norm_layer is refused", **{DECODER: {"norm_layer": 1}}),
    "decoder without end": _section("decoder.layers must be", **{DECODER: {"layers": 10**9}}),
    "no decoder": _section("segmentation.decoder must be a section", segmentation=None),
}
LANGUAGE = {
    "depth without end": _option("num_hidden_layers", 10**9),
    "attention kernel": _option("attn_implementation", "some/kernel"),
    "_name_or_path": _option("_name_or_path"),
    "quantization_config": _option("quantization_config", {"quant_method": "gptq"}),
}
LOADED = {
    "json without end": _text("model.json", "[" * 99999),
    "build that loads": _info("model.json: build.pretrained ", build__pretrained=True),
    "build of text": _info("model.json: build.", build__image_size="8", build__length="8"),
}
"""Tricks of model.json, for those who build the model."""

SHARED = (
    ("evaluate", "RUN", "--device", "cpu", "--data", "DATA"),
    ("analyze", "RUN", "--device", "cpu", "--data", "DATA", "--out", "OUT"),
    ("convert", "RUN", "--gains", "0.1,0,0", "--out", "OUT"),
    ("export", "RUN", "--out", "OUT.pt2"),
    ("train", "RECIPE", "--data", "DATA", "--out", "RUN", "--device", "cpu"),
)
READING = (
    ("report", "RUN", "--out", "OUT"),
    ("report", "RUN", "--publish", "OUT"),
)
COMMANDS = {
    "images": (*SHARED, ("tune", "RUN", "--device", "cpu")),
    "segments": (*SHARED, ("segment", "RUN", "IMAGE", "--out", "OUT")),
    "language": (
        *SHARED,
        ("tune", "RUN", "--metric", "ppl", "--data", "DATA", "--device", "cpu"),
        ("generate", "RUN", "--device", "cpu"),
    ),
}
DATA = {"images": "digits", "segments": "pairs", "language": "texts"}


def fill(command, task, runs, folder, tmp_path):
    places = {
        "RUN": folder,
        "OUT": tmp_path / "out",
        "OUT.pt2": tmp_path / "out.pt2",
        "DATA": "digits" if task == "images" else runs / DATA[task],
        "RECIPE": runs / task / "recipe.yaml",
        "IMAGE": tmp_path / "image.png",
    }
    return [str(places.get(word, word)) for word in command]


def check_refused(arguments, said, trap, capsys, folder):
    """Exit code 2, one line that says it, and the trap untouched."""
    try:
        with pytest.raises(SystemExit) as stopped:
            main(arguments)
    finally:
        trap.check()
    out, err = capsys.readouterr()
    assert stopped.value.code == 2 and not out, (arguments, out, err)
    assert err.startswith("pidformer: ") and err.count("\n") == 1 and said in err, (arguments, err)
    assert len(err.replace(str(folder), "RUN").replace(str(trap.outside), "")) < 300


def cases():
    few = {name: TRICKS[name] for name in ("cached pickle", "address", "linked weights")}
    own_tricks = {
        "images": TRICKS | VISION,
        "segments": few | SEGMENTS,
        "language": few | LANGUAGE | {n: t for n, t in TRICKS.items() if n.startswith("linked")},
    }
    for task, own in own_tricks.items():
        for name, trick in own.items():
            yield pytest.param(task, trick, (*COMMANDS[task], *READING), id=f"{task}, {name}")
        for name, trick in LOADED.items():
            yield pytest.param(task, trick, COMMANDS[task], id=f"{task}, {name}")


@pytest.mark.parametrize(("task", "trick", "commands"), cases())
def test_every_command_refuses_a_run_that_reaches_out(
    task, trick, commands, runs, trap, capsys, tmp_path
):
    folder = copy(runs / task, tmp_path / "run")
    said = trick(folder, trap)
    trap.seen.clear()  # what the trick itself wrote
    (tmp_path / "image.png").write_bytes(b"")
    for command in commands:
        check_refused(fill(command, task, runs, folder, tmp_path), said, trap, capsys, folder)
    with pytest.raises(InputError, match=said):
        pf.load(folder)
    trap.check()
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("trick", ["cached pickle", "address", "checkpoint_path", "linked weights"])
def test_the_lab_refuses_it_too(trick, runs, trap, tmp_path):
    from pidformer.lab.runs import Catalogue

    folder = copy(runs / "images", tmp_path / "run")
    said = TRICKS[trick](folder, trap)
    with pytest.raises(InputError, match=said):
        Catalogue([folder], tmp_path).subject("run")
    trap.check()


def test_a_recipe_of_a_stranger_is_refused_before_training(runs, trap, capsys, tmp_path):
    folder = copy(runs / "images", tmp_path / "run")
    said = _cached_pickle(folder, trap)
    backbone = [f"segmentation.backbone={folder}", "data.batch_size=2"]
    for arguments in (
        [folder / "recipe.yaml"],
        ["digits/pid.yaml", "model.options.pretrained=true"],
        ["camvid/pid.yaml", *backbone, "--data", runs / "pairs"],
    ):
        given = ["train", *map(str, arguments), "--out", str(tmp_path / "new")]
        check_refused(given, said, trap, capsys, folder)
    assert not (tmp_path / "new").exists()


def test_weights_to_start_from_are_not_followed_out_of_their_run(runs, trap, capsys, tmp_path):
    folder = copy(runs / "images", tmp_path / "run")
    said = _link("model.safetensors")(folder, trap)
    recipe = str(runs / "images" / "recipe.yaml")
    arguments = ["train", recipe, f"model.init={folder}", "--out", str(tmp_path / "new")]
    check_refused(arguments, said, trap, capsys, folder)


def test_pickled_weights_by_another_name_are_not_weights(runs, trap, capsys, tmp_path):
    folder = copy(runs / "images", tmp_path / "run")
    pickled(folder / "model.safetensors", trap)
    for command in COMMANDS["images"][:4]:
        arguments = fill(command, "images", runs, folder, tmp_path)
        check_refused(arguments, "is not a readable safetensors file", trap, capsys, folder)


def test_checksums_name_files_beside_them(runs, trap, tmp_path):
    folder = copy(runs / "images", tmp_path / "run")
    place = folder / "checkpoints" / "step-00000007"
    place.mkdir(parents=True)
    (folder / "model.safetensors").unlink()
    for name in ("../../../outside/secret.yaml", str(trap.secret)):
        (place / "checksums.json").write_text(json.dumps({"state.json": "", name: ""}))
        with (
            pytest.warns(UserWarning, match="names files that are not beside it"),
            pytest.raises(InputError, match="has no model weights yet"),
        ):
            pf.load(folder)
        trap.check()


def test_a_link_within_a_run_and_a_link_to_it_are_followed(runs, tmp_path):
    folder = copy(runs / "images", tmp_path / "run")
    (folder / "model.safetensors").rename(folder / "first.safetensors")
    (folder / "model.safetensors").symlink_to("first.safetensors")
    (tmp_path / "latest").symlink_to(folder)
    assert pf.load(tmp_path / "latest")(torch.rand(1, 1, 8, 8)).shape == (1, 10)


def test_what_a_recipe_says_of_its_making_opens_nothing(runs, trap, tmp_path):
    """model.init, backbone, tokenizer and cache are for training; a trained run needs none."""
    for task, changes in (
        ("images", {"model__init": str(trap.secret)}),
        ("segments", {"segmentation__backbone": str(trap.secret)}),
        ("language", {"text__tokenizer": str(trap.secret), "text__cache": str(trap.outside)}),
    ):
        folder = copy(runs / task, tmp_path / task)
        edit(folder / "recipe.yaml", **changes)
        pf.load(folder)
    trap.check()


@pytest.mark.parametrize("trick", ["options", "name", "link", "about"])
def test_published_records_are_refused_alike(trick, runs, trap, capsys, tmp_path):
    from tests.report.fresh import classifiers

    study = tmp_path / "results" / "study"
    made = classifiers(tmp_path / "made", seeds=(0,), variants={"softmax": "null"})
    with pytest.raises(SystemExit) as stopped:
        main(["report", *map(str, made), "--publish", str(study)])
    assert stopped.value.code == 0
    capsys.readouterr()
    trap.seen.clear()  # publishing asks the machine for its name
    (path,) = study.glob("*.jsonl")
    first, *rest = path.read_text().splitlines()
    header = json.loads(first)
    model = header["settings"]["recipe"]["model"]
    if trick == "options":
        model["options"] |= {"pretrained": True, "cache_dir": str(trap.outside)}
    elif trick == "name":
        model["name"] = "timm:hf-hub:some/model"
    path.write_text("\n".join([json.dumps(header), *rest]) + "\n")
    if trick in ("link", "about"):
        name = path.name if trick == "link" else "about.md"
        (study / name).unlink(missing_ok=True)
        (study / name).symlink_to(trap.secret)
    said = {"options": REFUSED, "name": "model.name must be"}.get(trick, "leads out of its folder")
    out = str(tmp_path / "page")
    check_refused(["report", str(study.parent), "--out", out], said, trap, capsys, study)


def test_the_pickle_of_these_tests_is_a_live_one(trap, tmp_path):
    """Without it the tests above could pass for want of a weapon."""
    path = pickled(tmp_path / "w.pth", trap)
    with pytest.raises(TypeError):
        torch.load(path, weights_only=True)
    trap.check()
    torch.load(path, weights_only=False)
    assert trap.canary.exists()


def test_published_weights_of_timm_are_read_once_and_safely(trap, tmp_path, monkeypatch):
    """timm reads its cached file again, as any pickle, when the safe reader raises TypeError."""
    import timm
    from timm.models import _builder

    name = "tinynet_e.in1k"  # whose file carries no hash
    url = timm.get_pretrained_cfg(name).url
    place = tmp_path / "torch" / "hub" / "checkpoints"
    place.mkdir(parents=True)
    pickled(place / url.rpartition("/")[2], trap)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    monkeypatch.setattr(_builder, "_USE_OLD_CACHE", True)
    with pytest.raises(InputError, match="cannot get the weights"):
        open_subject(f"timm:{name}")
    trap.check()
