"""The registered names: sizes, checkpoints, initialisation, configuration."""

import pytest
import timm
import torch

from pidformer import InputError, PIDGains, PIDVisionTransformer

SIZES = {"tiny": 5_717_416, "small": 22_050_664, "base": 86_567_656}
TINY = "pid_deit_tiny_patch16_224"


@pytest.fixture(scope="module")
def deit():
    torch.manual_seed(0)
    model = timm.create_model("deit_tiny_patch16_224", depth=3).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # so that biases and the class token count
            parameter.add_(torch.randn_like(parameter), alpha=0.02)
    return model


@pytest.fixture(scope="module")
def photos():
    return torch.randn(2, 3, 224, 224, generator=torch.Generator().manual_seed(1))


def test_zero_gains_equal_timm_deit(deit, photos):
    for gains in ("0,0,0", None):
        model = timm.create_model(TINY, gains=gains, depth=3).eval()
        model.load_state_dict(deit.state_dict())
        torch.testing.assert_close(model(photos), deit(photos), rtol=0, atol=0)


@pytest.mark.parametrize("size", SIZES)
def test_parameter_counts(size):
    ours = timm.create_model(f"pid_deit_{size}_patch16_224", gains="deit", device="meta")
    theirs = timm.create_model(f"deit_{size}_patch16_224", device="meta")
    assert sum(parameter.numel() for parameter in ours.parameters()) == SIZES[size]
    assert {name: p.shape for name, p in ours.state_dict().items()} == {
        name: p.shape for name, p in theirs.state_dict().items()
    }


def test_deit_checkpoint_loads_strictly_both_ways(deit, photos, tmp_path):
    path = tmp_path / "deit.pth"
    torch.save({"model": deit.state_dict()}, path)
    ours = timm.create_model(TINY, checkpoint_path=str(path), gains="deit", depth=3).eval()
    assert not torch.allclose(ours(photos), deit(photos), atol=1e-3)
    torch.save({"state_dict": ours.state_dict()}, path)
    back = timm.create_model("deit_tiny_patch16_224", checkpoint_path=str(path), depth=3).eval()
    torch.testing.assert_close(back(photos), deit(photos), rtol=0, atol=0)


def test_a_checkpoint_file_can_be_fitted_to_another_size(deit, tmp_path):
    path = tmp_path / "deit.pth"
    torch.save({"model": deit.state_dict()}, path)
    options = {"depth": 3, "img_size": 64, "num_classes": 10, "pretrained": True}
    ours, theirs = (
        timm.create_model(name, pretrained_cfg_overlay={"file": str(path)}, **options)
        for name in (TINY, "deit_tiny_patch16_224")
    )
    torch.testing.assert_close(ours.pos_embed, theirs.pos_embed)
    torch.testing.assert_close(ours.blocks[2].mlp.fc1.weight, deit.blocks[2].mlp.fc1.weight)
    assert ours.head.out_features == 10


def test_missing_pretrained_weights_are_refused():
    with pytest.raises(InputError, match=f"{TINY} has no pretrained weights") as caught:
        timm.create_model(TINY, pretrained=True)
    assert "\n" not in str(caught.value)


def test_small_images_and_other_heads():
    model = timm.create_model(
        TINY, pretrained=False, gains="deit", img_size=64, patch_size=8, num_classes=100, depth=2
    )
    assert isinstance(model, PIDVisionTransformer)
    assert model(torch.randn(1, 3, 64, 64)).shape == (1, 100)
    assert model.gains == PIDGains.paper("deit")


def test_names_are_in_timms_registry():
    assert timm.list_models("pid_deit*") == sorted(f"pid_deit_{s}_patch16_224" for s in SIZES)
    assert not timm.list_pretrained("pid_deit*")


def test_evaluation_follows_deit():
    model = timm.create_model(TINY, depth=1)
    config = timm.data.resolve_model_data_config(model)
    assert config["crop_pct"] == 0.875
    assert config["interpolation"] == "bicubic"
    assert config["mean"] == (0.485, 0.456, 0.406)
    assert config["std"] == (0.229, 0.224, 0.225)


def test_initialisation_follows_deit():
    torch.manual_seed(0)
    model = timm.create_model(TINY, gains="deit", depth=2, drop_path_rate=0.1)
    linears = [module for module in model.modules() if isinstance(module, torch.nn.Linear)]
    for weight in [linear.weight for linear in linears] + [model.pos_embed]:
        assert weight.std().item() == pytest.approx(0.02, rel=0.05)
        assert abs(weight.mean().item()) < 1e-3
    assert all((linear.bias == 0).all() for linear in linears)
    assert model.cls_token.std().item() == pytest.approx(0.02, rel=0.2)
    norms = [module for module in model.modules() if isinstance(module, torch.nn.LayerNorm)]
    assert {norm.eps for norm in norms} == {1e-6}
    assert all((norm.weight == 1).all() and (norm.bias == 0).all() for norm in norms)
    bound = (3 * 16 * 16) ** -0.5  # torch's default for a convolution
    patch = model.patch_embed.proj.weight
    assert patch.abs().max().item() == pytest.approx(bound, rel=1e-3)
    assert patch.std().item() == pytest.approx(bound / 3**0.5, rel=0.02)


def test_other_initialisations_stay_timms():
    torch.manual_seed(0)
    model = timm.create_model(TINY, depth=1, weight_init="jax")
    assert model.cls_token.std() < 1e-5
    assert (model.head.weight == 0).all()


def test_drop_path_grows_linearly():
    model = timm.create_model(TINY, depth=3, drop_path_rate=0.1)
    rates = [getattr(block.drop_path2, "drop_prob", 0.0) for block in model.blocks]
    assert rates == pytest.approx([0, 0.05, 0.1])


@pytest.mark.slow
@pytest.mark.filterwarnings(
    "ignore::torch.jit.TracerWarning", "ignore:.*torch.jit:DeprecationWarning"
)
@pytest.mark.parametrize("gains", [None, "0.4,0.1,0.05"])
def test_a_traced_network_equals_itself_on_batches_of_another_size(gains):
    torch.manual_seed(0)
    options = {"img_size": 32, "patch_size": 8, "depth": 3, "num_classes": 5}
    model = timm.create_model("pid_deit_tiny_patch16_224", gains=gains, **options).eval()
    traced = torch.jit.trace(model, torch.randn(2, 3, 32, 32))
    images = torch.randn(4, 3, 32, 32)
    torch.testing.assert_close(traced(images), model(images), rtol=0, atol=1e-6)
