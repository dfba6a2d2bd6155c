"""What analysis reads from a language model: tokens, attention, certificates."""

import pytest
import torch

from pidformer import analysis
from tests.models.language.conftest import paper_like, some_tokens, tiny_model


@pytest.mark.parametrize("build", [tiny_model, paper_like])
@pytest.mark.parametrize("options", [{}, {"num_key_value_heads": 2}])
def test_token_similarity_reads_the_residual_stream(build, gains, options):
    """Every layer's output, the last one's too, which Hugging Face shows normalised."""
    model, tokens, states = build(gains, **options), some_tokens(3, 7), []
    hooks = [
        layer.register_forward_hook(lambda _, __, out: states.append(out[0]))
        for layer in model.model.layers
    ]
    with torch.no_grad():
        model(tokens, attention_mask=torch.ones_like(tokens))
    for hook in hooks:
        hook.remove()
    found = analysis.token_similarity(model, tokens)
    for layer, x in zip(found, states, strict=True):
        unit = torch.nn.functional.normalize(x, dim=-1)
        cosines = unit @ unit.mT
        pairs = cosines[:, ~torch.eye(7, dtype=torch.bool)]
        assert float(layer) == pytest.approx(float(pairs.mean()), abs=1e-5)


def test_a_certificate_has_causal_spectra_the_diagonals_of_attention():
    model, tokens = tiny_model("0.4,0.3,0.1,0.5"), some_tokens(2, 6)
    spectrum = analysis.attention_spectrum(model, tokens)
    with torch.no_grad():
        kernels = model(tokens, output_attentions=True).attentions
    for kappas, kernel in zip(spectrum.kappas, kernels, strict=True):
        diagonal = kernel.diagonal(dim1=-2, dim2=-1)
        torch.testing.assert_close(
            kappas.real.flatten().sort().values.float(),
            diagonal.flatten().sort().values.float(),
            rtol=1e-4,
            atol=1e-5,
        )
        assert kappas.imag.abs().max() < 1e-6
    certificate = analysis.certify(model, tokens)
    assert certificate.is_controlled and certificate.controllers.shared == model.gains
    assert len(certificate.spectrum.kappas) == 3
    assert not analysis.certify(tiny_model(None), tokens).is_controlled
