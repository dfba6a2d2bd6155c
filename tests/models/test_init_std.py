import pytest
import timm
import torch

from pidformer import InputError  # registers the models, too


def test_init_std_scales_linear_weights_positions_and_class_token_alone():
    tiny = {"img_size": 32, "patch_size": 8, "depth": 2, "num_classes": 10}
    torch.manual_seed(0)
    deit = timm.create_model("pid_deit_tiny_patch16_224", **tiny)
    torch.manual_seed(0)
    wide = timm.create_model("pid_deit_tiny_patch16_224", init_std=0.1, **tiny)
    for (name, a), b in zip(deit.named_parameters(), wide.parameters(), strict=True):
        is_drawn = (a.ndim == 2 and "patch_embed" not in name) or name in ("pos_embed", "cls_token")
        torch.testing.assert_close(b, 5 * a if is_drawn else a)
    assert float(wide.blocks[0].mlp.fc1.weight.detach().std()) == pytest.approx(0.1, rel=0.02)


def test_value_and_output_projections_start_as_told_and_the_rest_as_ever():
    tiny = {"img_size": 32, "patch_size": 8, "depth": 2, "num_classes": 3}
    torch.manual_seed(0)
    plain = timm.create_model("pid_deit_tiny_patch16_224", **tiny).state_dict()
    torch.manual_seed(0)
    options = {"value_init": 0.25, "proj_init": 2.0}
    scaled = timm.create_model("pid_deit_tiny_patch16_224", **options, **tiny).state_dict()
    for name, weight in plain.items():
        expected = weight.clone()
        if name.endswith("attn.proj.weight"):
            expected *= 2.0
        if name.endswith("attn.qkv.weight"):
            expected[2 * 192 :] *= 0.25
        assert torch.equal(scaled[name], expected), name


@pytest.mark.parametrize("name", ["init_std", "value_init", "proj_init"])
@pytest.mark.parametrize("given", ["abc", -0.5, float("nan"), float("inf"), True, [1.0]])
def test_a_start_that_is_no_number_from_zero_on_is_refused(name, given):
    with pytest.raises(InputError, match=f"{name} must be a number that is not negative.*; got"):
        timm.create_model("pid_deit_tiny_patch16_224", depth=1, **{name: given})
