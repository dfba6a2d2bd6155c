import numpy as np
import pytest
import timm
import torch
import torch.nn.functional as F
from torch import nn

import pidformer
from pidformer.errors import InputError
from pidformer.models.backbone import load_backbone
from pidformer.models.build import build_segmenter
from pidformer.models.patches import resize_positions
from pidformer.models.segmenter import MaskTransformer
from pidformer.nn.gains import LearnedGains

TINY = {
    "name": "pid_deit_tiny_patch16_224",
    "options": {"patch_size": 4, "embed_dim": 16, "depth": 3, "num_heads": 2, "mlp_ratio": 2},
}
GAINS = "0.5,0.3,0.05,1"


def tiny(gains=None, decoder=None, *, classes=5, size=16, **model):
    torch.manual_seed(0)
    config = TINY | {"gains": gains} | model
    return build_segmenter(config, decoder, num_classes=classes, image_size=size)


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def test_parameter_counts_are_the_published_ones():
    config = {"name": "pid_deit_tiny_patch16_224", "gains": "segmenter"}
    model = build_segmenter(config, num_classes=150, image_size=512)
    unused_head = 192 * 1000 + 1000
    assert count(model.encoder) + unused_head == 5_876_392
    assert count(model.decoder) == 1_029_996
    linear = build_segmenter(config, {"name": "linear"}, num_classes=150, image_size=512)
    assert count(linear.decoder) == 192 * 150 + 150


def test_layer_norm_is_segmenters():
    model = tiny()
    norms = [m for m in model.modules() if isinstance(m, nn.LayerNorm)]
    assert len(norms) == 7 + 6 and {norm.eps for norm in norms} == {1e-5}


@pytest.mark.parametrize("decoder", ["mask", "linear"])
@pytest.mark.parametrize("size", [(16, 16), (9, 13), (40, 24), (1, 5)])
def test_logits_have_the_size_of_any_image(decoder, size):
    model = tiny(GAINS, {"name": decoder}).eval()
    assert model(torch.randn(2, 3, *size)).shape == (2, 5, *size)


def test_an_odd_image_is_padded_with_zeros_at_the_right_and_the_bottom():
    model = tiny(GAINS).eval()
    image = torch.randn(1, 3, 13, 22)
    padded = torch.zeros(1, 3, 16, 24)
    padded[..., :13, :22] = image
    assert torch.equal(model(image), model(padded)[..., :13, :22])


@pytest.mark.parametrize("decoder", ["mask", "linear"])
def test_zero_gains_are_the_softmax_twin(decoder):
    plain, zero = tiny(None, {"name": decoder}).eval(), tiny("0,0,0", {"name": decoder}).eval()
    assert list(plain.state_dict()) == list(zero.state_dict())
    zero.load_state_dict(plain.state_dict())
    images = torch.randn(2, 3, 20, 16)
    assert torch.equal(plain(images), zero(images))


def test_the_controller_acts_in_the_encoder_and_in_the_decoder():
    images = torch.randn(2, 3, 16, 16)
    models = {
        "neither": tiny(None),
        "both": tiny(GAINS),
        "encoder": tiny(GAINS, {"gains": None}),
        "decoder": tiny(None, {"gains": GAINS}),
    }
    state = models["neither"].state_dict()
    outputs = []
    for model in models.values():
        model.load_state_dict(state)
        # the values are small at the start: enlarge them, so that their control is seen
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "qkv.weight" in name:
                    parameter.mul_(20)
        outputs.append(model.eval()(images))
    for i, a in enumerate(outputs):
        for b in outputs[:i]:
            assert not torch.allclose(a, b, atol=1e-4)


def slow_decoder(decoder: MaskTransformer, patches: torch.Tensor, gains) -> torch.Tensor:
    """The mask transformer from its definition, in float64, one image and one head at a time."""
    d = decoder
    outputs = []
    for image in patches.double():
        x = image @ d.proj.weight.T + d.proj.bias
        x = torch.cat([x, d.class_tokens[0]])
        first: list = []
        integral: list = [0.0, 0.0]
        for depth, block in enumerate(d.blocks):
            normed = F.layer_norm(x, x.shape[-1:], block.norm1.weight, block.norm1.bias)
            packed = normed @ block.attn.qkv.weight.T + block.attn.qkv.bias
            q, k, v = packed.chunk(3, dim=-1)
            heads = []
            for head in range(2):
                part = slice(8 * head, 8 * head + 8)
                mixing = (q[:, part] @ k[:, part].T / 8**0.5).softmax(-1)
                out = mixing @ v[:, part]
                if depth == 0:
                    first.append(v[:, part])
                else:  # two blocks: the one before is the first
                    error = gains.beta * first[head] - v[:, part]
                    integral[head] = integral[head] + error
                    change = first[head] - v[:, part]
                    out = out + gains.p * error + gains.i * integral[head] + gains.d * change
                heads.append(out)
            x = x + torch.cat(heads, -1) @ block.attn.proj.weight.T + block.attn.proj.bias
            normed = F.layer_norm(x, x.shape[-1:], block.norm2.weight, block.norm2.bias)
            x = x + block.mlp.fc2(F.gelu(block.mlp.fc1(normed)))
        x = F.layer_norm(x, x.shape[-1:], d.norm.weight, d.norm.bias)
        tokens = x[: len(image)] @ d.proj_patches.weight.T
        classes = x[len(image) :] @ d.proj_classes.weight.T
        tokens = tokens / tokens.norm(dim=-1, keepdim=True)
        classes = classes / classes.norm(dim=-1, keepdim=True)
        masks = tokens @ classes.T
        mean, var = masks.mean(-1, keepdim=True), masks.var(-1, unbiased=False, keepdim=True)
        outputs.append((masks - mean) / (var + 1e-5).sqrt() * d.mask_norm.weight + d.mask_norm.bias)
    return torch.stack(outputs)


def test_the_mask_transformer_is_its_definition():
    gains = pidformer.PIDGains(p=0.5, i=0.3, d=0.05, beta=0.7)
    torch.manual_seed(1)
    decoder = MaskTransformer(16, 5, 2, gains).double().eval()
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    patches = torch.randn(2, 6, 16, dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(decoder(patches), slow_decoder(decoder, patches, gains))


def test_decoder_starts_as_segmenter_has_it():
    torch.manual_seed(0)
    decoder = MaskTransformer(192, 150, 3)
    assert decoder.class_tokens.std().item() == pytest.approx(0.02, rel=0.05)
    assert decoder.proj.weight.std().item() == pytest.approx(0.02, rel=0.05)
    for projection in (decoder.proj_patches, decoder.proj_classes):
        assert projection.bias is None
        assert projection.weight.std().item() == pytest.approx(192**-0.5, rel=0.05)
    assert all(not p.any() for n, p in decoder.named_parameters() if n.endswith(".bias"))
    assert all(block.attn.attn_drop.p == 0.1 for block in decoder.blocks)


def slow_bilinear(plane: np.ndarray, height: int, width: int) -> np.ndarray:
    """Between the centres of the pixels, the border repeated."""
    h, w = plane.shape[:2]
    out = np.zeros((height, width, plane.shape[2]))
    for y in range(height):
        for x in range(width):
            v = min(max((y + 0.5) * h / height - 0.5, 0), h - 1)
            u = min(max((x + 0.5) * w / width - 0.5, 0), w - 1)
            a, b = int(v), int(u)
            c, d = min(a + 1, h - 1), min(b + 1, w - 1)
            s, t = v - a, u - b
            out[y, x] = (1 - s) * ((1 - t) * plane[a, b] + t * plane[a, d]) + s * (
                (1 - t) * plane[c, b] + t * plane[c, d]
            )
    return out


@pytest.mark.parametrize("new", [(4, 4), (7, 5), (2, 3), (1, 9)])
def test_positions_are_resized_bilinear_and_the_prefix_is_copied(new):
    positions = torch.randn(1, 1 + 12, 6, dtype=torch.float64)
    found = resize_positions(positions, (3, 4), new, num_prefix=1)
    assert torch.equal(found[:, :1], positions[:, :1])
    expected = slow_bilinear(positions[0, 1:].reshape(3, 4, 6).numpy(), *new)
    np.testing.assert_allclose(found[0, 1:].reshape(*new, 6).numpy(), expected, atol=1e-12)


def test_the_encoder_adds_resized_positions_at_another_size():
    model = tiny(size=16)
    image = torch.randn(1, 3, 12, 24)
    encoder = model.encoder.eval()
    tokens = encoder.embed(image)
    patches = encoder.patch_embed.proj(image).flatten(2).mT
    positions = resize_positions(encoder.pos_embed, (4, 4), (3, 6), 1)
    expected = torch.cat([encoder.cls_token, patches], 1) + positions
    torch.testing.assert_close(tokens, expected)


def test_checkpointing_changes_no_gradient():
    images = torch.randn(2, 3, 16, 16)
    gradients = []
    for enable in (False, True):
        model = tiny(GAINS, {"dropout": 0.0})
        model.set_grad_checkpointing(enable)
        model(images).square().mean().backward()
        gradients.append([p.grad for p in model.parameters()])
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b)


def test_every_parameter_has_a_gradient():
    """What DDP needs: no unused parameter, so no classification head."""
    model = tiny(GAINS)
    model(torch.randn(1, 3, 16, 16)).square().mean().backward()
    assert all(p.grad is not None for p in model.parameters())


def test_positions_and_tokens_do_not_decay():
    names = tiny(GAINS, learn_gains=True).no_weight_decay()
    learned = {"decoder.blocks.1.attn.gains.raw_load", "encoder.blocks.2.attn.gains.raw_load"}
    assert {"encoder.pos_embed", "encoder.cls_token", "decoder.class_tokens"} | learned <= names


def test_learned_gains_reach_the_decoder():
    model = tiny(GAINS, learn_gains=True)
    kinds = [type(block.attn.gains) for block in model.decoder.blocks]
    assert kinds[0] is pidformer.PIDGains and kinds[1] is LearnedGains


def test_gains_by_layer_need_gains_for_the_decoder():
    layers = ["0,0,0", GAINS, "0.1,0,0"]
    with pytest.raises(InputError, match=r"segmentation\.decoder\.gains"):
        tiny(layers)
    assert tiny(layers, {"gains": GAINS}).decoder_gains.p == 0.5


def test_a_timm_deit_becomes_the_backbone():
    torch.manual_seed(3)
    deit = timm.create_model("deit_tiny_patch16_224", depth=2, num_classes=7)
    config = {"name": "pid_deit_tiny_patch16_224", "options": {"depth": 2}}
    model = build_segmenter(config, num_classes=3, image_size=224)
    load_backbone(model.encoder, pidformer.convert(deit, GAINS).state_dict(), "deit")
    image = torch.randn(1, 3, 224, 224)
    model.eval(), deit.eval()
    with torch.no_grad():
        expected = deit.forward_features(image)[:, 1:]
        torch.testing.assert_close(model.encode(image), expected, atol=2e-3, rtol=1e-3)  # eps
    wide = build_segmenter(config, num_classes=3, image_size=512)
    load_backbone(wide.encoder, deit.state_dict(), "deit")
    expected = resize_positions(deit.pos_embed, (14, 14), (32, 32), 1)
    torch.testing.assert_close(wide.encoder.pos_embed, expected)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda w: w.pop("blocks.1.mlp.fc1.weight"), "lacks blocks.1.mlp.fc1.weight"),
        (lambda w: w.update({"extra.weight": torch.zeros(1)}), "unknown extra.weight"),
        (lambda w: w.update({"norm.weight": torch.zeros(3)}), r"norm.weight \(3,\) instead of"),
        (lambda w: w.update({"pos_embed": torch.zeros(1, 9, 16)}), "9 positions"),
        (lambda w: w.clear(), "no vision transformer"),
    ],
)
def test_a_backbone_that_does_not_fit_gets_one_clear_line(change, words):
    model = tiny()
    weights = dict(model.encoder.state_dict())
    change(weights)
    with pytest.raises(InputError, match=words) as caught:
        load_backbone(model.encoder, weights, "run")
    assert "\n" not in str(caught.value) and "run" in str(caught.value)


def test_a_backbone_of_another_width_or_patch_size_is_named():
    model = tiny()
    other = timm.create_model(
        "pid_deit_tiny_patch16_224", patch_size=4, embed_dim=32, depth=3, num_heads=2
    )
    with pytest.raises(InputError, match="backbone run is 32 wide, this encoder 16"):
        load_backbone(model.encoder, other.state_dict(), "run")
    options = TINY["options"] | {"patch_size": 8}
    other = timm.create_model("pid_deit_tiny_patch16_224", img_size=16, **options)
    with pytest.raises(InputError, match=r"patch_embed.proj.weight \(16, 3, 8, 8\) instead of"):
        load_backbone(model.encoder, other.state_dict(), "run")


def test_an_unknown_decoder_or_position_resize_is_named():
    with pytest.raises(InputError, match=r"decoder\.name must be one of mask, linear, got 'masks'"):
        tiny(None, {"name": "masks"})
    with pytest.raises(InputError, match="position_resize"):
        timm.create_model("pid_deit_tiny_patch16_224", position_resize="bilinea", depth=1)
