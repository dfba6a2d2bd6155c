import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from pidformer.control.gains import PIDGains
from pidformer.control.pid import pid_step
from pidformer.ops import token
from pidformer.ops.attention import add_control
from pidformer.ops.token import ROWS, TokenControl

ROWS_OF_TOKENS, HEADS, SIZE, WIDTH = 3, 2, 4, 5


def compare(gains, first="free", dtype=torch.float64, query_heads=HEADS, digits=None, **linear):
    """Both ways through the layers; their largest difference, over the values' size.

    `digits`: a type that factors of the projection are rounded to first.
    """
    device = linear.get("device", "cpu")
    torch.manual_seed(0)
    state, token, worst = None, None, 0.0
    for of_layer in gains:
        project = nn.Linear(WIDTH, HEADS * SIZE, dtype=dtype, **linear)
        x = torch.randn(ROWS_OF_TOKENS, 1, WIDTH, dtype=dtype, device=device)
        if digits is not None:
            project, x = project.to(digits).to(dtype), x.to(digits).to(dtype)
        out = torch.randn(ROWS_OF_TOKENS, query_heads, 1, SIZE, dtype=dtype, device=device)
        with torch.no_grad():
            value = project(x).view(ROWS_OF_TOKENS, HEADS, 1, SIZE)
            control, state = pid_step(value, state, of_layer, first)
            expected = add_control(out, control)
            if token is None:
                token = TokenControl(ROWS_OF_TOKENS, HEADS, SIZE, x, first)
            found = token.values(project, x, of_layer)
            token.add_(out)
        assert out.dtype == expected.dtype
        torch.testing.assert_close(found, value)
        worst = max(worst, float((out - expected).abs().max() / expected.abs().max()))
    for mine, theirs in zip(token.state(), state, strict=True):
        torch.testing.assert_close(mine, theirs.to(mine.dtype), rtol=1e-4, atol=1e-4)
    return worst


gains_of_a_layer = st.builds(
    PIDGains,
    p=st.floats(0, 1),
    i=st.floats(0, 1),
    d=st.floats(0, 1),
    beta=st.floats(0.05, 1),
)


@settings(deadline=None, max_examples=25)
@given(
    gains=st.lists(gains_of_a_layer, min_size=1, max_size=6),
    first=st.sampled_from(["free", "controlled"]),
    bias=st.booleans(),
)
def test_a_token_is_controlled_as_by_the_controller(gains, first, bias):
    assert compare(gains, first, bias=bias) < 1e-12


@pytest.mark.parametrize("depth", [ROWS - 1, ROWS, ROWS + 1, 3 * ROWS])
@pytest.mark.parametrize("first", ["free", "controlled"])
def test_the_sum_is_folded_when_rows_are_used_up(depth, first):
    assert compare([PIDGains(p=0.4, i=0.5, d=0.1, beta=0.3)] * depth, first) < 1e-11


def test_as_many_layers_as_rows_fold_nothing():
    """16, as the paper's language model has: a fold is two operations more."""
    folds, step = [], token._start("free", torch.float64, torch.device("cpu"))
    for _ in range(ROWS + 1):
        step = step.then(PIDGains(p=0.4, i=0.5, d=0.1, beta=0.3))
        folds.append(step.fold is not None)
    assert folds == [False] * ROWS + [True]


@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 1e-5), (torch.bfloat16, 1e-2)])
@pytest.mark.parametrize("query_heads", [HEADS, 3 * HEADS])
def test_groups_of_queries_and_types(dtype, limit, query_heads):
    gains = [PIDGains(p=0.4, i=0.5, d=0.1, beta=0.3)] * 20
    assert compare(gains, dtype=dtype, query_heads=query_heads) < limit


def test_a_sum_in_half_precision_is_kept_wide():
    """300 errors of -0.5: in bfloat16 the sum would stand still at -128."""
    gains, project = PIDGains(i=1.0, beta=0.5), nn.Linear(1, 1, bias=False)
    nn.init.ones_(project.weight)
    project.bfloat16()
    x = torch.ones(1, 1, 1, dtype=torch.bfloat16)
    with torch.no_grad():
        token = TokenControl(1, 1, 1, x, "free")
        for _ in range(301):
            token.values(project, x, gains)
    assert float(token.state().integral) == -150.0


def test_a_projection_with_a_hook_or_of_another_class_is_called():
    calls = []

    class Twice(nn.Linear):
        def forward(self, x):
            calls.append("class")
            return 2 * super().forward(x)

    hooked = nn.Linear(WIDTH, HEADS * SIZE)
    hooked.register_forward_hook(lambda module, args, out: calls.append("hook") or 3 * out)
    before = nn.Linear(WIDTH, HEADS * SIZE)
    before.register_forward_pre_hook(lambda module, args: calls.append("pre") or (4 * args[0],))
    gains, x = PIDGains(p=0.5), torch.randn(ROWS_OF_TOKENS, 1, WIDTH)
    with torch.no_grad():
        for project in (Twice(WIDTH, HEADS * SIZE), hooked, before):
            token = TokenControl(ROWS_OF_TOKENS, HEADS, SIZE, x, "free")
            found = token.values(project, x, gains)
            torch.testing.assert_close(found, project(x).view_as(found))
            torch.testing.assert_close(token.state().initial, found)
    assert calls == ["class"] * 2 + ["hook"] * 2 + ["pre"] * 2


def test_many_gains_do_not_pile_up():
    from pidformer.ops.token import MAX_NEXT, _start

    for k in range(3 * MAX_NEXT):
        compare([PIDGains(p=k / 100)] * 2)
    start = _start("free", torch.float64, torch.device("cpu"))
    assert len(start._next) <= MAX_NEXT


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_tf32_does_not_touch_the_control():
    from pidformer.devices import tf32

    gains = [PIDGains(p=0.4, i=0.5, d=0.1, beta=0.3)] * 40
    with tf32():  # which takes factors of bfloat16's digits as they are
        exact = compare(gains, dtype=torch.float32, device="cuda", digits=torch.bfloat16)
    assert exact < 1e-5


def test_steps_survive_that_another_thread_clears_them():
    class Cleared(dict):
        def __setitem__(self, key, value):
            super().__setitem__(key, value)
            self.clear()  # as another thread does, whose gains are one too many

    step = token._Step("free", torch.float64, torch.device("cpu"), -1, [0.0] * ROWS, None, None)
    step._next = Cleared()
    assert step.then(PIDGains(p=0.5)).row == 0
