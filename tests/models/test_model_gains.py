"""The ways to name gains."""

import pytest
import torch

from pidformer import InputError, PIDAttention, PIDBlock, PIDGains, pid_attention
from pidformer.models import as_gains, layer_gains, resolve_gains
from pidformer.training import load_recipe

GAINS = PIDGains(p=0.4, i=0.1, d=0.05, beta=0.5)


@pytest.mark.parametrize(
    "given",
    [GAINS, "0.4,0.1,0.05,0.5", GAINS.to_dict(), (0.4, 0.1, 0.05, 0.5), [0.4, 0.1, 0.05, 0.5]],
)
def test_all_spellings_agree(given):
    assert as_gains(given) == resolve_gains(given, 3) == GAINS
    assert resolve_gains([given] * 3, 3) == (GAINS,) * 3


def test_presets_are_the_papers():
    assert as_gains("lm") == PIDGains.paper("lm")


def test_layers_share_one_controller_or_have_their_own():
    assert layer_gains(None, 2) == (None, None)
    assert layer_gains(GAINS, 2) == (GAINS, GAINS)
    assert layer_gains((GAINS, PIDGains()), 2) == (GAINS, PIDGains())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("diet", "unknown preset 'diet'; did you mean 'deit'"),
        ("0.1,0.2", "gains must be P,I,D"),
        ({"k": 1.0}, "unknown gain 'k'"),
        ([GAINS] * 2, "gains for 2 layers do not fit a model of 3 layers"),
        ([GAINS, None, GAINS], r"got None; PIDGains\(\) is a layer without control"),
        (0.5, "gains must be PIDGains"),
        ((0.4, 0.1), "gains must be PIDGains"),
        ((0.4,) * 12, "gains must be PIDGains"),
    ],
)
def test_bad_gains_are_refused_in_one_line(given, message):
    with pytest.raises(InputError, match=message) as caught:
        resolve_gains(given, 3)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("given", ["0.4,0.1,0.05,0.5", (0.4, 0.1, 0.05, 0.5), GAINS.to_dict()])
def test_layers_and_the_operator_read_gains_as_models_do(given):
    torch.manual_seed(0)
    x = torch.randn(1, 5, 12)
    layer, same = PIDAttention(12, 3, given), PIDAttention(12, 3, GAINS)
    assert layer.gains == PIDBlock(12, 3, given).attn.gains == GAINS
    same.load_state_dict(layer.state_dict())
    first = layer(x)[1]
    assert torch.equal(layer(x, first)[0], same(x, first)[0])
    q = torch.randn(1, 3, 5, 4)
    assert torch.equal(*(pid_attention(q, q, q, first, g)[0] for g in (given, GAINS)))


@pytest.mark.parametrize("wrong", ["0.4", "0.4,0.1", (0.4, 0.1), 0.4, ["0.4,0.1,0.05"]])
def test_layers_refuse_what_is_no_controller_when_they_are_made(wrong):
    with pytest.raises(InputError):
        PIDAttention(12, 3, wrong)


def test_a_recipe_reads_a_row_of_numbers_as_one_controller():
    found = load_recipe("digits/pid", ["model.gains=[0.4, 0.1, 0.05]"])
    assert as_gains(found.model.gains) == PIDGains(p=0.4, i=0.1, d=0.05)
