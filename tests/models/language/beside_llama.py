"""Models, and Llama with our weights beside them, for the tests of what clients do."""

import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
)

from tests.models.language.conftest import paper_like, tiny_model

GAINS = "0.4,0.3,0.1,0.5"
BUILDS = {
    "tied": lambda: tiny_model(GAINS),
    "untied": lambda: tiny_model(GAINS, tie_word_embeddings=False),
    "bias": lambda: tiny_model(GAINS, output_bias=True),
    "paper": lambda: paper_like(GAINS, hidden_dropout=0.0),
    "paper untied": lambda: paper_like(GAINS, tie_word_embeddings=False, hidden_dropout=0.0),
}


def full(tokens):
    """A batch as clients hand it over."""
    return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}


def llama_of(model):
    """Llama with the weights of our softmax twin, whose architecture it has."""
    ours = model.config
    names = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")
    names += ("num_key_value_heads", "intermediate_size", "tie_word_embeddings")
    names += ("bos_token_id", "eos_token_id", "pad_token_id")
    config = LlamaConfig(
        rms_norm_eps=ours.norm_eps, **{name: getattr(ours, name) for name in names}
    )
    renamed = {"attention_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"}
    weights = {}
    for name, tensor in model.state_dict().items():
        parts = [renamed.get(part, part) for part in name.split(".")]
        weights[".".join(parts)] = tensor
    llama = LlamaForCausalLM(config).eval()
    assert not llama.load_state_dict(weights, strict=False).unexpected_keys
    llama.tie_weights()
    return llama


def twins(**options):
    model = tiny_model(None, **options)
    return model, llama_of(model)


def same(ours, theirs):
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
