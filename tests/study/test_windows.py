"""Longer windows in a small model: each way changes what it says, and nothing else."""

import pytest
import torch

from study import windows
from study.windows import LENGTH, SWAPS, WAYS, Changed, Tape, seen_keys, table
from tests.models.language.conftest import some_tokens, tiny_model

GAINS = "0.4,0.5,0.1,0.3"
LAYERS = [f"layer {k}" for k in (1, 2, 3)]


def losses(model, way, window):
    ids = some_tokens(2, window + 1)
    with torch.no_grad():
        given = {"input_ids": ids[:, :-1], "targets": ids[:, 1:], "reduction": "none"}
        return Changed(model, way)(**given).loss


def test_at_the_length_of_training_every_way_is_the_model_itself():
    model = tiny_model(GAINS)
    plain = losses(model, None, LENGTH)
    for way in (*WAYS, *LAYERS):
        torch.testing.assert_close(losses(model, way, LENGTH), plain, rtol=1e-4, atol=1e-4)


def test_near_is_attention_that_slides():
    model, slides = tiny_model(GAINS), tiny_model(GAINS, sliding_window=LENGTH)
    near = losses(model, "near", 150)
    torch.testing.assert_close(near, losses(slides, None, 150))
    assert not torch.allclose(near, losses(model, None, 150), atol=1e-3)
    alone = tiny_model(None, num_hidden_layers=1)
    torch.testing.assert_close(losses(alone, "layer 1", 150), losses(alone, None, 150))
    for layer in LAYERS:  # the near keys everywhere but there
        found = losses(model, layer, 150)
        assert not torch.allclose(found, near, atol=1e-3)
        torch.testing.assert_close(found[:, :LENGTH], near[:, :LENGTH])


def test_squeezed_positions_are_those_of_training():
    model = tiny_model(GAINS)
    places = torch.arange(128)[None] / 2
    ids = some_tokens(2, 129)
    with torch.no_grad():
        given = {"input_ids": ids[:, :-1], "targets": ids[:, 1:], "reduction": "none"}
        wanted = model(**given, position_ids=places).loss
    torch.testing.assert_close(losses(model, "squeezed", 128), wanted)


@pytest.mark.parametrize("window", [100, 128, 256])
def test_thinned_keys_are_no_more_than_in_training_and_reach_farther(window):
    seen = seen_keys(window, "thinned")[0, 0]
    assert not seen.triu(1).any() and seen.diagonal().all()
    assert seen.sum(1).max() <= LENGTH + LENGTH // 2 and seen[-1, : window - LENGTH].any()
    if window in (128, 256):  # as many as in training
        assert int(seen[-1].sum()) == LENGTH
    for query in (0, 40, window - 1):  # the nearest half of them without a gap
        first = max(0, query - LENGTH // 2 + 1)
        assert seen[query, first : query + 1].all()


@pytest.mark.parametrize("part", SWAPS)
def test_a_pass_that_reads_its_own_tape_is_itself(part):
    model, tape = tiny_model(GAINS), Tape()
    with tape.written():
        plain = losses(model, None, 100)
    with tape.read(part):
        torch.testing.assert_close(losses(model, None, 100), plain, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(losses(model, None, 100), plain)  # nothing is left behind
    is_same = part == "reference"  # values of the first layer, which no key changes
    assert torch.allclose(losses(model, part, 100), plain, atol=1e-4) == is_same


def test_the_table_takes_off_the_own_length_and_then_softmax():
    rows = {
        ("rope", "softmax", 0): {"64": 4.0, "128": 4.5},
        ("rope", "softmax", 1): {"64": 4.2, "128": 4.6},
        ("rope", "p", 0): {"64": 4.1, "128": 4.9, "control": 5.0},
        ("rope", "p", 1): {"64": 4.0, "128": 4.7, "control": 5.1},
    }
    lines = {tuple(line.split(" | ")[1:4]): line for line in table(rows).splitlines()}
    found = lines["p", "2", "128"].strip("| ").split(" | ")
    assert [cell.split()[0] for cell in found[5:]] == ["+0.750", "+0.300"]  # 0.8, 0.7; 0.3, 0.3
    assert lines["p", "2", "control"].endswith("|  |")  # softmax has none to take off


def test_a_text_that_is_not_there_gets_one_line(tmp_path, capsys):
    given = ["--data", str(tmp_path / "nowhere"), "--out", str(tmp_path), "--seeds", "1"]
    assert windows.main(given) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ") and "nowhere" in said and said.count("\n") == 1
