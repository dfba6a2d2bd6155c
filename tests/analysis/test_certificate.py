import dataclasses
import json
import math
import statistics

import pytest
import timm
import torch
from torch import nn

import pidformer as pf
from pidformer.analysis import certify, input_response, suggest_gains, transient_growth
from pidformer.analysis.certificate import LEAVES_OUT
from pidformer.analysis.controllers import Controllers
from pidformer.analysis.inspection import visit_attention
from pidformer.control import PIDGains, as_feedback, closed_loop, simulate, spectral_radius
from pidformer.control.feedback import acting_law
from pidformer.errors import InputError
from pidformer.nn import set_gain_share
from tests.analysis.test_similarity import SIZE
from tests.analysis.test_tokens import hugging_face
from tests.kernels import softmax_kernel

N = 17


@pytest.fixture
def images():
    return torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(1))


def make(gains=None, sharpness=0.6, **options):
    torch.manual_seed(0)
    model = timm.create_model("pid_deit_tiny_patch16_224", gains=gains, **SIZE | options).eval()
    for block in model.blocks:
        nn.init.normal_(block.attn.qkv.weight, std=0.6)
        with torch.no_grad():
            block.attn.qkv.weight[:32] *= sharpness / 0.6  # queries and keys
    return model


@pytest.mark.parametrize(
    ("preset", "radius", "outside"), [("deit", 1.1617, (N - 1) / N), ("segmenter", 0.8126, 0.0)]
)
def test_uniform_attention_has_the_radius_of_kappa_zero(preset, radius, outside, images):
    found = certify(make(preset, sharpness=0.0), images)
    assert found.worst_radius == pytest.approx(radius, abs=5e-5)
    assert found.outside == pytest.approx(outside) and found.stable is (outside == 0)
    assert found.radius[0].isnan().all() and found.radius.shape == (3, 2)  # the first is free
    word = "unstable in the idealised" if outside else "stable: every"
    assert found.verdict.startswith(word)
    assert (found.settling_depth is None) is bool(outside)


def test_radii_are_those_of_the_measured_eigenvalues(images):
    model = make("0.6,0.3,0.05")
    found = certify(model, images, batch_size=2)
    gains = model.gains
    for layer in (1, 2):
        for head in range(2):
            points = found.spectrum.kappas[layer][:, head]
            radii = spectral_radius(points, gains)
            assert found.radius[layer, head] == pytest.approx(float(radii.max()))
            share = float((radii >= 1).double().mean())
            assert found.share_outside[layer, head] == pytest.approx(share)
    layer, head, kappa = found.worst
    assert float(spectral_radius(kappa, gains)) == pytest.approx(found.worst_radius)
    assert found.worst_radius == pytest.approx(float(found.radius.nan_to_num(0).max()))
    assert kappa in found.spectrum.kappas[layer][:, head]
    loop = torch.cat([k.flatten() for k in found.spectrum.kappas[1:]])
    for factor, is_inside in ((0.99, True), (1.01, False)):
        scaled = gains.scaled(found.gain_margin * factor)
        assert bool((spectral_radius(loop, scaled) < 1).all()) is is_inside


def test_layers_without_control_set_no_limit_to_the_gains(images):
    """P control p of uniform attention, kappa 1 and 0, has the poles 1 - p and -p: p < 1."""
    model = make([PIDGains(), PIDGains(), PIDGains(p=0.6)], sharpness=1.5)
    with torch.no_grad():
        model.blocks[2].attn.qkv.weight[:32] = 0
    found = certify(model, images)
    assert found.spectrum.summary(1).min_real < -0.9  # where p could not even be 0.1
    assert found.stable and found.worst_radius == pytest.approx(0.6)
    assert found.gain_margin == pytest.approx(1 / 0.6)
    assert found.suggested == found.suggested_for_most
    radius = max(abs(1 - found.suggested.p), found.suggested.p)
    assert found.suggested_radius == pytest.approx(radius) and radius == pytest.approx(0.5)


def test_a_mode_on_the_unit_circle_is_outside(images):
    """Of D control, kappa = 1 has the pole 1, wherever rounding puts it: one mode a matrix."""
    found = certify(make("0,0,0.1"), images)
    torch.testing.assert_close(found.share_outside[1:], torch.full((2, 2), 1 / N).double())
    assert found.stable is False and found.worst_radius == pytest.approx(1)


def test_growth_up_to_the_last_values_under_uniform_attention(images):
    """U U = U, so T_2 = U T_1 + p (1 - T_1) = p 1 + (1 - p) U, and its norm follows."""
    p = 1.3
    found = certify(make(f"{p},0,0", sharpness=0.0), images)
    assert found.final_growth == pytest.approx(2 * p - 1 - 2 * (p - 1) / N)
    assert found.peak_growth > found.final_growth  # in the last layer


def test_growth_images_are_spread_over_all(images):
    model = make("0.6,0.3,0.05")
    two, three = (certify(model, images, growth_images=n).growth for n in (2, 3))
    for few, all_of_them in zip(two, three, strict=True):
        torch.testing.assert_close(few, all_of_them[[0, 2]])
    norms = certify(model, images).to_dict()["growth_values"]
    last = three.values[..., -1].flatten().tolist()
    assert (norms["max"][-1], norms["median"][-1]) == (max(last), statistics.median_low(last))


def test_the_limit_of_stable_control_is_beta(images):
    """With i and d the mode of kappa = 1 decays without p too: e = 0 is where the sum rests."""
    found = certify(make("0,0.3,0.1,0.25", sharpness=0.0), images)
    assert found.stable and "its limit 0.25" in str(found)
    kernels = [torch.full((1, 1, 4, 4), 0.25)] * 2000
    growth = transient_growth(kernels, Controllers(((found.controllers.shared,),) * 2000))
    assert float(growth.values[..., -1]) == pytest.approx(0.25, abs=1e-6)


def test_suggested_gains_hold_what_they_promise(images):
    found = certify(make("deit", sharpness=0.4), images)
    loop = torch.cat([k.flatten() for k in found.spectrum.kappas[1:]])
    radii = spectral_radius(loop, found.suggested)
    assert (
        float(radii.max()) == pytest.approx(found.suggested_radius) and found.suggested_radius < 1
    )
    most = spectral_radius(loop, found.suggested_for_most)
    assert float((most < 1).double().mean()) >= 0.99
    assert found.suggested_for_most.p >= found.suggested.p > 0
    assert found.suggested.beta == 0.1
    assert suggest_gains(torch.tensor([-1.0 + 0j, 1.0])) is None


def test_an_eigenvalue_at_minus_one_leaves_no_gains_for_all(images):
    found = certify(make("deit", sharpness=1.5), images)
    assert found.spectrum.summary().min_real < -0.9999 and found.gain_margin < 1e-3
    assert found.suggested is None and found.suggested_for_most is not None
    assert "none found for all" in str(found)


def test_a_softmax_model_gets_its_spectra_and_gains_to_try(images):
    found = certify(make(), images)
    assert not found.is_controlled and found.stable is None and found.worst is None
    assert found.verdict.startswith("no control") and found.suggested.kind == "PI"
    torch.testing.assert_close(found.growth.values, torch.ones_like(found.growth.values))
    torch.testing.assert_close(found.growth.bound, torch.ones_like(found.growth.bound))


def test_other_gains_can_be_asked_for(images):
    model = make()
    asked = certify(model, images, gains="0.6,0.3,0.05")
    same = certify(make("0.6,0.3,0.05"), images)
    assert asked.controllers == same.controllers
    by_layer = certify(model, images, gains=["deit", "0.6,0.3,0.05", "lm"])
    assert by_layer.controllers.shared is None and by_layer.gain_margin is None
    radii = spectral_radius(by_layer.spectrum.kappas[2], PIDGains.paper("lm"))
    assert by_layer.radius[2].max() == pytest.approx(float(radii.max()))
    assert "by layer and head" in str(by_layer)


def test_learned_gains_are_read_by_head(images):
    model = make("0.4,0.1,0.05", learn_gains=True)
    with torch.no_grad():
        model.blocks[1].attn.gains.raw_load += torch.tensor([-1.0, 1.0])
    found = certify(model, images)
    assert found.controllers.layers[1] == tuple(model.blocks[1].attn.gains.values())
    first, second = found.controllers.layers[1]
    assert first.p < second.p


def test_gains_that_are_ramped_up_are_certified_as_they_act(images):
    for text in ("0.4,0.3,0.1", "0.8,0.5,0.05,0.1,implicit,step=0.5"):
        model = make(gains=text)
        set_gain_share(model, 0.5)
        found = certify(model, images).controllers
        assert found.shared == acting_law(as_feedback(text)).scaled(0.5)


def test_a_coefficient_learned_out_of_its_range_gets_one_line(images):
    model = make(gains={"skip": -0.5, "p": 0.3}, learn_gains=True)
    with torch.no_grad():
        model.blocks[1].attn.gains.raw_terms.fill_(-0.2)
    with pytest.raises(
        InputError, match=r"learned out of its range: gain p must be >= 0, got -0\.2"
    ):
        certify(model, images)


def test_the_literal_reading_controls_the_first_layer(images):
    found = certify(make("0.4,0.1,0.05,0.5", first_layer="controlled"), images)
    assert not found.radius.isnan().any() and found.growth.state.shape[-1] == 3


@pytest.mark.parametrize("gains", [PIDGains(p=0.6, i=0.3, d=0.1, beta=0.4), PIDGains(p=0.5)])
def test_growth_of_one_kernel_is_that_of_the_simulation(gains):
    kernel = softmax_kernel(6, sharpness=3.0)
    controllers = Controllers(((gains,),) * 5)
    found = transient_growth([kernel[None, None]] * 5, controllers)
    run = simulate(kernel, torch.eye(6, dtype=torch.float64), gains, 5)
    expected = run[1:].abs().sum(-1).amax(-1)
    torch.testing.assert_close(found.values[0, 0], expected)
    step = closed_loop(kernel, gains, has_integral=gains.i > 0, has_previous=gains.d > 0)
    norm = step.abs().sum(-1).max()
    for layers in range(1, 5):
        power = torch.linalg.matrix_power(step, layers).abs().sum(-1).max()
        torch.testing.assert_close(found.state[0, 0, layers - 1], power)
        torch.testing.assert_close(found.bound[0, 0, layers - 1], norm**layers)
    assert (found.state <= found.bound * (1 + 1e-12)).all()


@pytest.mark.parametrize("text", ["0.8,0.5,0.05,0.1,implicit", "0.4,0.1,0.05,1,step=0.5"])
def test_other_discretisations_are_certified_as_they_run(text, images):
    """Growth is that of the simulation; radii are those of the network's own layers."""
    gains = as_feedback(text)
    kernel = softmax_kernel(6, sharpness=3.0)
    found = transient_growth([kernel[None, None]] * 5, Controllers(((gains,),) * 5))
    run = simulate(kernel, torch.eye(6, dtype=torch.float64), gains, 5)
    torch.testing.assert_close(found.values[0, 0], run[1:].abs().sum(-1).amax(-1))
    certificate = certify(make(text), images[:2], growth_images=1, directions=1)
    kappas = torch.cat([layer.flatten() for layer in certificate.spectrum.kappas[1:]])
    expected = float(spectral_radius(gains, kappas).max())
    assert certificate.worst_radius == pytest.approx(expected, rel=1e-9)
    assert certificate.to_dict()["gains"] == gains.to_dict()
    assert certificate.suggested_for_most.step == gains.step


LINEAR = ["laplacian", "resformer", "neutreno", {"skip": 0.3, "own": 0.6, "p": 0.2, "i": 0.1}]


@pytest.mark.parametrize("law", LINEAR, ids=str)
def test_linear_relatives_are_certified_as_they_run(law, images):
    """Radii of the measured eigenvalues, growth of the simulation, in every layer that acts."""
    given = as_feedback(law)
    kernel = softmax_kernel(6, sharpness=3.0)
    found = transient_growth([kernel[None, None]] * 5, Controllers(((given,),) * 5))
    run = simulate(kernel, torch.eye(6, dtype=torch.float64), given, 5)
    torch.testing.assert_close(found.values[0, 0], run[1:].abs().sum(-1).amax(-1))
    certificate = certify(make(law), images[:2], growth_images=1, directions=1)
    begin = 0 if law == "laplacian" else 1  # it has no reference, so that no layer sets one
    assert certificate.radius.isnan().all(-1).tolist() == [k < begin for k in range(3)]
    kappas = torch.cat([layer.flatten() for layer in certificate.spectrum.kappas[begin:]])
    by_hand = {"laplacian": kappas - 1, "resformer": kappas / 2, "neutreno": kappas - 0.6}
    expected = by_hand[law].abs() if isinstance(law, str) else spectral_radius(given, kappas)
    assert certificate.worst_radius == pytest.approx(float(expected.max()), rel=1e-9)
    assert certificate.stable is bool((expected < 1).all())
    assert certificate.to_dict()["gains"] == given.to_dict()
    same = certify(make(), images[:2], gains=law, growth_images=1, directions=1)
    assert same.controllers == certificate.controllers


def test_learned_coefficients_are_certified_by_head(images):
    model = make("skipinit", learn_gains=True)
    with torch.no_grad():
        model.blocks[2].attn.gains.raw_terms.copy_(torch.tensor([[0.4, -0.9], [0.5, 0.3]]))
    found = certify(model, images[:2], growth_images=1, directions=1)
    for head, (skip, own) in enumerate(((0.4, 0.5), (-0.9, 0.3))):
        expected = (skip + own * found.spectrum.kappas[2][:, head]).abs().max()
        assert found.radius[2, head] == pytest.approx(float(expected), rel=1e-6)
    assert "skip -0.9 to 1" in str(found) and found.controllers.shared is None


def test_growth_follows_the_real_values_where_nothing_else_acts():
    """Real matrices, layer by layer, against the recursion written out with its sums."""
    gains = PIDGains(p=0.5, i=0.2, d=0.1, beta=0.3)
    kernels = [softmax_kernel(5, seed, sharpness=3.0) for seed in range(4)]
    v = [torch.eye(5, dtype=torch.float64)]
    for depth, kernel in enumerate(kernels):
        error = [gains.beta * v[0] - x for x in v]
        control = 0 if depth == 0 else gains.p * error[-1] + gains.i * sum(error[1:])
        control = control + (gains.d * (error[-1] - error[-2]) if depth else 0)
        v.append(kernel @ v[-1] + control)
    found = transient_growth([k[None, None] for k in kernels], Controllers(((gains,),) * 4))
    expected = torch.stack([x.abs().sum(-1).max() for x in v[1:]])
    torch.testing.assert_close(found.values[0, 0], expected)


@pytest.mark.slow
def test_the_response_is_the_jacobian_times_the_direction(images):
    model = make("0.4,0.1,0.05", depth=2)
    found = input_response(model, images, directions=2, seed=3)
    exact, inputs = make("0.4,0.1,0.05", depth=2).double(), images.double()

    def values(x):
        kept = []
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            tokens, state = exact.embed(x), None
            for block in exact.blocks:
                qkv = block.attn.qkv(block.norm1(tokens))
                kept.append(qkv[..., -16:])
                tokens, state = block(tokens, state)
        return kept[0], kept[-1]

    generator = torch.Generator().manual_seed(3)
    for row in range(2):
        way = torch.randn(images.shape, generator=generator, dtype=torch.float64)
        way = way / way.flatten(1).norm(dim=1)[:, None, None, None]
        _, (first, last) = torch.func.jvp(values, (inputs,), (way,))
        expected = last.flatten(1).norm(dim=1)
        torch.testing.assert_close(found.input_gain[row], expected, rtol=1e-5, atol=0)
        peaks = last.flatten(1).abs().amax(1) / first.flatten(1).abs().amax(1)
        torch.testing.assert_close(found.value_gain[row], peaks, rtol=1e-5, atol=0)


def test_the_model_is_left_as_it_was(images):
    model = make("0.4,0.1,0.05").train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    certify(model, images)
    assert model.training and next(model.parameters()).dtype == torch.float32
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert not any(module._forward_hooks for module in model.modules())


def test_words_and_plain_data(images):
    found = certify(make("deit"), images, growth_images=2)
    text = str(found)
    assert found.verdict in text and text.endswith(LEAVES_OUT) and "sensitivity" in text
    data = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert data["worst_radius"] == found.worst_radius and data["radius"][0] == [None, None]
    assert len(data["growth_values"]["max"]) == 3 and data["images"] == 3
    assert math.isclose(data["response"]["value_gain_max"], float(found.response.value_gain.max()))
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.worst = None


@pytest.mark.slow
def test_a_causal_language_model(images):
    model = hugging_face("Llama", vocab_size=50, num_key_value_heads=1)
    ids = torch.randint(0, 50, (3, 7))
    found = certify(model, ids, gains="lm")
    kappa = found.spectrum.summary()
    assert kappa.min_real > 0 and kappa.max_imag == 0  # causal: real in (0, 1]
    assert found.stable and "not measured" in str(found)


@pytest.mark.slow
def test_values_of_an_eager_model_cannot_be_read(images):
    more = {"image_size": 8, "patch_size": 2, "num_channels": 1}
    model = hugging_face("ViT", attn_implementation="eager", **more)
    found = certify(model, images)
    assert found.spectrum.images == 3 and "scaled_dot_product" in found.response
    kept = []
    visit_attention(model, images, kept.append)
    assert all(call.value is None for call in kept)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda x: certify(nn.Conv2d(1, 2, 3), x), "cannot be read"),
        (lambda x: certify(make(), x[:0]), "at least one"),
        (lambda x: certify(make(), torch.rand(2, 1, 9, 9)), "1, 8, 8"),
        (lambda x: certify(make(), x, gains=["deit"]), "1 layers do not fit"),
        (lambda x: certify(make(), x, growth_images=0), "growth_images"),
        (
            lambda x: transient_growth(
                [softmax_kernel(n)[None, None] for n in (4, 5)], Controllers(())
            ),
            "not one recursion",
        ),
        (lambda x: input_response(make(), x, directions=0), "directions"),
        (lambda x: input_response(lambda y: y, x), "torch module"),
    ],
)
def test_bad_input_gets_one_line(images, call, words):
    with pytest.raises(pf.InputError, match=words) as refused:
        call(images)
    assert "\n" not in str(refused.value)
