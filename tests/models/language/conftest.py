import pytest
import torch

pytest.importorskip("transformers")

from pidformer.models.causal_lm import PIDformerConfig, PIDformerForCausalLM

GAINS = {"softmax": None, "pid": "0.4,0.3,0.1,0.5"}


@pytest.fixture(params=list(GAINS))
def gains(request):
    return GAINS[request.param]


def tiny_model(gains=None, seed=0, **options) -> PIDformerForCausalLM:
    """Weights large enough that tokens, positions and gains all matter."""
    torch.manual_seed(seed)
    settings = {
        "vocab_size": 61,
        "hidden_size": 32,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "initializer_range": 0.25,
        "eos_token_id": 0,
        "bos_token_id": 0,
        "pad_token_id": 60,
    }
    return PIDformerForCausalLM(PIDformerConfig(**(settings | options), gains=gains)).eval()


def paper_like(gains=None, **options) -> PIDformerForCausalLM:
    """The paper's architecture, small."""
    torch.manual_seed(0)
    settings = {
        "vocab_size": 61,
        "hidden_size": 32,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "intermediate_size": 48,
        "cutoffs": [20, 40],
        "initializer_range": 0.25,
        "eos_token_id": 0,
        "bos_token_id": 0,
        "pad_token_id": 60,
    }
    config = PIDformerConfig.paper(**(settings | options), gains=gains)
    return PIDformerForCausalLM(config).eval()


def some_tokens(rows=2, count=9, seed=1) -> torch.Tensor:
    return torch.randint(1, 60, (rows, count), generator=torch.Generator().manual_seed(seed))


@pytest.fixture(params=["tied", "untied", "bias", "paper", "paper untied"])
def model(request):
    from tests.models.language.beside_llama import BUILDS

    return BUILDS[request.param]()


@pytest.fixture(params=["tied", "paper"])
def either(request):
    from tests.models.language.beside_llama import BUILDS

    return BUILDS[request.param]()
