"""Tools of others that look into a network: torch.fx, timm's extractors, captum, fvcore."""

import pytest
import timm
import torch
from timm.models._features_fx import GraphExtractNet
from timm.utils.attention_extract import AttentionExtract

import pidformer as pf

GAINS = pf.PIDGains(p=0.4, i=0.2, d=0.1, beta=0.8)
SMALL = {"img_size": 32, "embed_dim": 32, "depth": 3, "num_heads": 2, "num_classes": 5}
SMALL |= {"patch_size": 8}


def ours(**options):
    return timm.create_model("pid_deit_tiny_patch16_224", **SMALL, **options)


def converted(name):
    return pf.convert(timm.create_model(name, **SMALL), GAINS)


MODELS = {
    "softmax": ours,
    "pid": lambda: ours(gains=GAINS),
    "learned": lambda: ours(gains=GAINS, learn_gains=True),
    "value residual": lambda: ours(value_residual=0.5),
    "converted vit": lambda: converted("deit_tiny_patch16_224"),
    "converted eva": lambda: converted("eva02_tiny_patch14_224"),
    "converted beit": lambda: converted("beit_base_patch16_224"),
}
CONTROLLED = [name for name in MODELS if name != "softmax"]


def made(name):
    torch.manual_seed(0)
    model = MODELS[name]().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


@pytest.fixture
def images():
    return torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def unfused():
    timm.layers.set_fused_attn(False)
    yield
    timm.layers.set_fused_attn(True)


def test_without_a_controller_a_block_gives_one_tensor(images):
    model = made("softmax")
    block, tokens = model.blocks[0], model.embed(images)
    assert isinstance(block(tokens), torch.Tensor)
    model.set_grad_checkpointing(True)
    assert model.train()(images).shape == (2, 5)


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_a_symbolic_trace_equals_the_network_on_batches_of_another_size(name, images):
    model = made(name)
    graph = torch.fx.symbolic_trace(model)
    assert torch.equal(graph(images), model(images))
    assert torch.equal(graph(images[:1]), model(images[:1]))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pid", "learned", "converted vit", "converted beit"])
@torch.no_grad()
def test_torch_export_takes_what_torchscript_does_not(name, images):
    model = made(name)
    with pytest.raises((RuntimeError, OSError, AssertionError, ValueError)):
        torch.jit.script(model)
    batch = torch.export.Dim("batch", min=2, max=8)
    program = torch.export.export(model, (images,), dynamic_shapes=({0: batch},))
    three = torch.cat([images, images[:1] * 0.5])
    torch.testing.assert_close(program.module()(three), model(three), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_a_symbolic_trace_has_the_gradients_of_the_network(name, images):
    model = made(name)
    graph = torch.fx.symbolic_trace(model)
    found = []
    for network in (model, graph):
        network.zero_grad()
        network(images).square().sum().backward()
        found.append({n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None})
    assert found[0].keys() == found[1].keys()
    assert all(torch.equal(found[0][key], found[1][key]) for key in found[0])


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_timm_extracts_the_output_of_a_block_by_its_graph(name, images):
    model, seen = made(name), []
    handle = model.blocks[1].register_forward_hook(lambda _, __, out: seen.append(out))
    model(images)
    handle.remove()
    wanted = seen[0][0] if isinstance(seen[0], tuple) else seen[0]
    found = GraphExtractNet(model, ["blocks.1.out"])(images)
    assert torch.equal(found, wanted)


@pytest.mark.usefixtures("unfused")
@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_timm_extracts_the_attention_that_mixes_the_values(name, images):
    """Both ways, and the logits are those of fused attention."""
    model = made(name)
    unfused = model(images)
    by_node = AttentionExtract(model, method="fx")(images)
    by_hook = AttentionExtract(model, method="hook")(images)
    assert [key.split(".")[1] for key in by_node] == [key.split(".")[1] for key in by_hook]
    for a, b in zip(by_node.values(), by_hook.values(), strict=True):
        torch.testing.assert_close(a, b)
        torch.testing.assert_close(a.sum(-1), torch.ones_like(a.sum(-1)))
    assert len(by_node) == 3
    for module in model.modules():
        if hasattr(module, "fused_attn"):
            module.fused_attn = True
    torch.testing.assert_close(unfused, model(images), rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("unfused")
@torch.no_grad()
def test_the_attention_seen_obeys_a_causal_mask(images):
    model = made("pid")
    with_mask = model.forward_features(images, is_causal=True)
    for module in model.modules():
        if hasattr(module, "fused_attn"):
            module.fused_attn = True
    fused = model.forward_features(images, is_causal=True)
    torch.testing.assert_close(with_mask, fused, rtol=1e-5, atol=1e-5)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["softmax", "pid", "converted vit"])
def test_tensorboard_draws_the_graph(name, images, tmp_path):
    tensorboard = pytest.importorskip("torch.utils.tensorboard")
    with tensorboard.SummaryWriter(tmp_path) as writer:
        writer.add_graph(made(name), images)
    assert next(tmp_path.iterdir()).stat().st_size > 10_000


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["softmax", "pid", "converted vit"])
def test_fvcore_counts_the_operations_of_timm(name, images):
    fvcore = pytest.importorskip("fvcore.nn")
    plain = timm.create_model("deit_tiny_patch16_224", **SMALL).eval()
    counts = [fvcore.FlopCountAnalysis(m, images[:1]) for m in (made(name), plain)]
    for count in counts:
        count.unsupported_ops_warnings(False).uncalled_modules_warnings(False)
    assert counts[0].total() == counts[1].total() > 0


@pytest.mark.parametrize("name", MODELS)
def test_captum_attributes_to_the_output_of_a_block(name, images):
    """Its gradient is that of the residual stream, by hand."""
    captum = pytest.importorskip("captum.attr")
    model = made(name)
    found = captum.LayerGradientXActivation(model, model.blocks[1].out).attribute(images, target=1)
    seen = []
    handle = model.blocks[1].out.register_forward_hook(lambda _, __, out: seen.append(out))
    logits = model(images)[:, 1].sum()
    handle.remove()
    (gradient,) = torch.autograd.grad(logits, seen[0])
    torch.testing.assert_close(found, gradient * seen[0])
