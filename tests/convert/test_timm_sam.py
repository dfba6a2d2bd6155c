"""SAM with a controller, beside the definition in float64, window by window."""

import pytest
import torch
import torch.nn.functional as F
from timm.layers import DropPath

import pidformer as pf
from pidformer.analysis import token_similarity
from pidformer.analysis.inspection import visit_attention
from pidformer.control.feedback import Feedback
from pidformer.errors import InputError
from tests.convert.families import controls, timm_model

GAINS = pf.PIDGains(p=0.4, i=0.2, d=0.1, beta=0.8)
BY_LAYER = [GAINS, GAINS, pf.PIDGains(p=0.1, i=0.3, d=0.2, beta=0.8), GAINS]
GRID = 5
"""Rows and columns: no multiple of the windows, which are padded at two sides."""


def images():
    return torch.randn(2, 3, 8 * GRID, 8 * GRID, generator=torch.Generator().manual_seed(1))


def attended(attention, tokens, rows, columns):
    """softmax(q k^T / sqrt(D) + bias) v of one window (N, C), and its values; (H, N, D)."""
    packed = tokens @ attention.qkv.weight.double().T + attention.qkv.bias.double()
    q, k, v = packed.unflatten(-1, (3, attention.num_heads, -1)).permute(1, 2, 0, 3)
    scores = q @ k.mT * q.shape[-1] ** -0.5
    down, across = attention.rel_pos_h.double(), attention.rel_pos_w.double()
    for a in range(rows * columns):
        for b in range(rows * columns):
            (y, x), (to_y, to_x) = divmod(a, columns), divmod(b, columns)
            place = down[y - to_y + len(down) // 2] + across[x - to_x + len(across) // 2]
            scores[:, a, b] += q[:, a] @ place
    return scores.softmax(-1) @ v, v


def layer(attention, side, grid):
    """The same of all tokens of an image (Y, X, C), each in its window; (H, Y, X, D)."""
    out, value = (grid.new_zeros(attention.num_heads, GRID, GRID, 16) for _ in range(2))
    side = side or GRID
    for top in range(0, GRID, side):
        for left in range(0, GRID, side):
            here = grid[top : top + side, left : left + side]
            window = grid.new_zeros(side, side, grid.shape[-1])
            window[: here.shape[0], : here.shape[1]] = here
            for kept, found in zip(
                (out, value), attended(attention, window.flatten(0, 1), side, side), strict=True
            ):
                part = found.unflatten(1, (side, side))[:, : here.shape[0], : here.shape[1]]
                kept[:, top : top + side, left : left + side] = part
    return out, value


@pytest.mark.parametrize("first_layer", ["free", "controlled"])
@torch.no_grad()
def test_control_of_windows_is_the_definition(first_layer):
    model = timm_model("sam", img_size=8 * GRID)
    converted = pf.convert(model, BY_LAYER, first_layer=first_layer)
    seen, merged = [], []
    for block in converted.blocks:
        block.attn.register_forward_pre_hook(lambda _, args: seen.append(args[0].double()))
        block.attn.proj.register_forward_pre_hook(lambda _, args: merged.append(args[0].double()))
    x = images()
    assert not torch.allclose(converted(x), model(x), atol=1e-3)
    sides = [block.window_size for block in model.blocks]
    assert sides == [3, 3, 0, 3]
    for image in range(2):
        found = [
            layer(b.attn, side, grid[image])
            for b, side, grid in zip(model.blocks, sides, seen, strict=True)
        ]
        wanted = controls([value for _, value in found], BY_LAYER, first_layer)
        for (out, _), control, side, given in zip(found, wanted, sides, merged, strict=True):
            direct = (out + control).permute(1, 2, 0, 3).flatten(2)  # (Y, X, C)
            ours = given[image : image + 1] if not side else given[4 * image : 4 * image + 4]
            ours = ours.unflatten(0, (-1, 2 if side else 1)).transpose(1, 2).flatten(2, 3)
            ours = ours.flatten(0, 1)[:GRID, :GRID]
            torch.testing.assert_close(ours, direct, rtol=1e-5, atol=1e-5)


def test_training_draws_what_timm_draws():
    """Dropout and stochastic depth, which timm draws window by window, with the same seed."""
    model = timm_model("sam", img_size=8 * GRID).train()
    for block in model.blocks:
        block.attn.proj_drop.p = block.attn.attn_drop.p = 0.2
        block.drop_path1 = block.drop_path2 = DropPath(0.3)
    x, found = images(), []
    for one in (model, pf.convert(model, pf.PIDGains())):
        torch.manual_seed(3)
        found.append(one(x))
    assert torch.equal(*found)


@torch.no_grad()
def test_a_law_that_mixes_in_the_first_values_leaves_padding_its_own(monkeypatch):
    converted = pf.convert(timm_model("sam", img_size=8 * GRID), Feedback(first=0.3, own=0.7))
    own, real = [], F.scaled_dot_product_attention
    for block in converted.blocks[:2]:  # both of windows
        block.attn.qkv.register_forward_hook(lambda _, args, out: own.append(out))
    calls = []

    def watch(q, k, v, **options):
        calls.append(v)
        return real(q, k, v, **options)

    monkeypatch.setattr(F, "scaled_dot_product_attention", watch)
    converted(images())
    first, second = (
        packed.unflatten(-1, (3, 2, 16))[:, :, 2].transpose(1, 2).flatten(0, 1) for packed in own
    )  # values (windows H, 9, D)
    places = torch.arange(6).lt(GRID)
    real_places = (places[:, None] & places).view(2, 3, 2, 3).transpose(1, 2).reshape(4, 9)
    is_real = real_places.repeat(2, 1).repeat_interleave(2, 0)[..., None]
    torch.testing.assert_close(
        calls[1], torch.where(is_real, 0.3 * first + 0.7 * second, second), rtol=1e-5, atol=1e-6
    )


@torch.no_grad()
def test_analysis_refuses_a_grid_in_one_line():
    converted = pf.convert(timm_model("sam"), GAINS)
    x = torch.rand(2, 3, 32, 32)
    with pytest.raises(InputError, match=r"not tokens \(B, N, C\)"):
        token_similarity(converted, x)
    with pytest.raises(InputError, match="cannot be read"):
        visit_attention(converted, x, lambda found: None)
