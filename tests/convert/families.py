"""Small timm models with random weights, and the direct definition they are compared with."""

import pytest
import timm
import torch
import torch.nn.functional as F
from timm.models.vision_transformer import ResPostBlock
from timm.models.vision_transformer_relpos import ResPostRelPosBlock

TIMM = {
    "vit": ("vit_tiny_patch16_224", {}),
    "deit": ("deit_tiny_patch16_224", {}),
    "deit distilled": ("deit_tiny_distilled_patch16_224", {}),
    "deit3": ("deit3_small_patch16_224", {}),
    "dinov2 reg4": ("vit_small_patch14_reg4_dinov2", {}),
    "post-norm": ("vit_tiny_patch16_224", {"block_fn": ResPostBlock}),
    "eva02": ("eva02_tiny_patch14_224", {}),
    "eva02 post-norm": ("eva02_tiny_patch14_224", {"use_post_norm": True}),
    "rope mixed": ("vit_small_patch16_rope_mixed_224", {}),
    "dinov3": ("vit_small_patch16_dinov3", {}),
    "beit": ("beit_base_patch16_224", {}),
    "beitv2 shared": (
        "beitv2_base_patch16_224",
        {"use_rel_pos_bias": False, "use_shared_rel_pos_bias": True, "use_abs_pos_emb": True},
    ),
    "relative": ("vit_relpos_small_patch16_224", {}),
    "relative post-norm": ("vit_srelpos_small_patch16_224", {"block_fn": ResPostRelPosBlock}),
    "naflex": ("naflexvit_base_patch16_gap", {}),
    "naflex factorised": ("naflexvit_base_patch16_parfac_gap", {}),
    "sam": ("samvit_base_patch16_224", {"window_size": 3, "global_attn_indexes": (2,)}),
    "sam rotated": (
        "samvit_base_patch16",
        {"window_size": 2, "global_attn_indexes": (0, 3), "neck_chans": 8, "head_hidden_size": 8}
        | {"use_rel_pos": False, "use_rope": True, "init_values": 0.5},
    ),
    "sapiens2": ("vit_base_patch16_sapiens2", {"num_kv_heads": (2, 1, 1, 2)}),  # not in timm 1.0.29
}
SMALL = {"img_size": 32, "embed_dim": 32, "depth": 4, "num_heads": 2, "num_classes": 5}


def timm_model(family: str, **sizes: int) -> torch.nn.Module:
    """Small, in evaluation mode, with weights large enough that attention is not flat."""
    name, options = TIMM[family]
    if not timm.is_model(name):
        pytest.skip(f"timm {timm.__version__} has no {name}")
    torch.manual_seed(0)
    model = timm.create_model(name, patch_size=8, **(SMALL | options | sizes)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def controls(values, gains, first_layer="free"):
    """p e + i sum e + d (e - e_before) of every layer, in float64, from the values alone."""
    values = [v.double() for v in values]
    reference, found = values[0], []
    errors = [g.beta * reference - v for v, g in zip(values, gains, strict=True)]
    for layer, (error, g) in enumerate(zip(errors, gains, strict=True)):
        if layer == 0 and first_layer == "free":
            found.append(torch.zeros_like(error))
            continue
        start = 1 if first_layer == "free" else 0
        # e_l - e_{l-1} with one reference: beta cancels, whatever gains the layers have
        change = values[layer - 1] - values[layer] if layer else torch.zeros_like(error)
        found.append(g.p * error + g.i * sum(errors[start : layer + 1]) + g.d * change)
    return found


def attention_calls(model, x, monkeypatch):
    """Every (q, k, v) of attention before the control is added, and what is added to the scores."""
    seen, real = [], F.scaled_dot_product_attention

    def watch(q, k, v, **options):
        seen.append((q, k, v, options.get("attn_mask")))
        return real(q, k, v, **options)

    with monkeypatch.context() as patched:
        patched.setattr(F, "scaled_dot_product_attention", watch)
        model(x)
    return seen


def check_definition(converted, x, gains, first_layer, monkeypatch) -> None:
    """What attention gives is softmax(q k^T) v plus the control, in float64 from q, k and v."""
    merged = []
    for block in converted.blocks:
        after = getattr(block.attn, "norm", block.attn.proj)
        after.register_forward_pre_hook(lambda _, args: merged.append(args[0]))
    calls = attention_calls(converted, x, monkeypatch)
    wanted = controls([v for _, _, v, _ in calls], gains, first_layer)
    assert len(calls) == len(merged) == 4
    for (q, k, v, bias), control, found in zip(calls, wanted, merged, strict=True):
        scores = q.double() @ k.double().mT * q.shape[-1] ** -0.5
        scores = scores if bias is None else scores + bias.double()
        direct = (scores.softmax(-1) @ v.double() + control).transpose(1, 2).flatten(2)
        torch.testing.assert_close(found.double(), direct, rtol=1e-5, atol=1e-5)
