"""Small Hugging Face models with random weights, one of each family that can be converted."""

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
import transformers as hf

from tests.convert.families import controls

SIZE = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4}
WORDS = SIZE | {"vocab_size": 50, "intermediate_size": 48, "max_position_embeddings": 64}
PIXELS = SIZE | {"intermediate_size": 48, "image_size": 16, "patch_size": 4, "num_labels": 5}
GROUPED = {"num_key_value_heads": 2}


@dataclass(frozen=True)
class Family:
    model: str
    config: str
    options: dict = field(default_factory=dict)
    merged: str = "o_proj"
    """Where in attention the merged heads go in; empty: they are what attention gives."""
    takes: str = "words"
    is_causal: bool = True


FAMILIES = {
    "llama": Family("LlamaForCausalLM", "LlamaConfig", WORDS | GROUPED),
    "mistral": Family("MistralForCausalLM", "MistralConfig", WORDS | GROUPED),
    "mistral sliding": Family(
        "MistralForCausalLM", "MistralConfig", WORDS | GROUPED | {"sliding_window": 4}
    ),
    "qwen2": Family("Qwen2ForCausalLM", "Qwen2Config", WORDS | GROUPED),
    "qwen3": Family("Qwen3ForCausalLM", "Qwen3Config", WORDS | GROUPED | {"head_dim": 16}),
    "gemma": Family(
        "GemmaForCausalLM",
        "GemmaConfig",
        WORDS | {"num_key_value_heads": 1, "head_dim": 16, "attn_implementation": "sdpa"},
    ),
    "gpt2": Family(
        "GPT2LMHeadModel",
        "GPT2Config",
        {"n_embd": 32, "n_layer": 3, "n_head": 4, "vocab_size": 50, "n_positions": 64}
        | {"bos_token_id": 1, "eos_token_id": 2},
        "c_proj",
    ),
    "gpt_neox": Family("GPTNeoXForCausalLM", "GPTNeoXConfig", WORDS, "dense"),
    "vit": Family("ViTForImageClassification", "ViTConfig", PIXELS, "o_proj", "pixels", False),
    "dinov2": Family(
        "Dinov2ForImageClassification", "Dinov2Config", PIXELS, "o_proj", "pixels", False
    ),
    "dinov2 registers": Family(
        "Dinov2WithRegistersForImageClassification",
        "Dinov2WithRegistersConfig",
        PIXELS | {"num_register_tokens": 2},
        "o_proj",
        "pixels",
        False,
    ),
    "bert": Family("BertForMaskedLM", "BertConfig", WORDS, "", is_causal=False),
    "roberta": Family("RobertaForMaskedLM", "RobertaConfig", WORDS, "", is_causal=False),
}
CAUSAL = [name for name, family in FAMILIES.items() if family.is_causal]


def build(name: str | Family, **sizes: int) -> torch.nn.Module:
    """In evaluation mode, without dropout, with weights large enough to matter."""
    family = FAMILIES[name] if isinstance(name, str) else name
    torch.manual_seed(0)
    config = getattr(hf, family.config)(**(family.options | sizes))
    for key in vars(config):
        if "drop" in key and isinstance(getattr(config, key), float):
            setattr(config, key, 0.0)
    config.pad_token_id = 0
    model = getattr(hf, family.model)(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    if hasattr(model, "generation_config"):
        model.generation_config.eos_token_id = None
    return model


def batch(name: str | Family, count: int = 2, length: int = 7) -> dict:
    random = torch.Generator().manual_seed(1)
    family = FAMILIES[name] if isinstance(name, str) else name
    if family.takes == "pixels":
        return {"pixel_values": torch.randn(count, 3, 16, 16, generator=random)}
    if family.takes == "film":
        return {"pixel_values": torch.randn(count, 2, 3, 16, 16, generator=random)}
    if family.takes == "sound":
        return {"input_values": torch.randn(count, 32, 16, generator=random)}
    if family.takes == "spectrum":
        return {"input_features": torch.randn(count, 16, 16, generator=random)}
    if family.takes == "patches":
        pixels = torch.randn(count, 16, 48, generator=random)
        return {"pixel_values": pixels, "spatial_shapes": torch.tensor([[4, 4]] * count)} | {
            "pixel_attention_mask": torch.ones(count, 16, dtype=torch.long)
        }
    ids = torch.randint(3, 50, (count, length), generator=random)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def check_definition(converted, family, gains, first_layer, monkeypatch) -> None:
    """What attention gives is softmax(q k^T) v plus the control, in float64 from q, k and v."""
    calls, merged, real = [], [], F.scaled_dot_product_attention

    def watch(q, k, v, attn_mask=None, is_causal=False, **options):
        calls.append((q, k, v, attn_mask, is_causal, options["scale"]))
        return real(q, k, v, attn_mask=attn_mask, is_causal=is_causal, **options)

    for module in converted.modules():
        if hasattr(module, "pid_layer"):
            if where := FAMILIES[family].merged:
                module.get_submodule(where).register_forward_pre_hook(
                    lambda _, args: merged.append(args[0])
                )
            else:
                module.register_forward_hook(lambda _, args, out: merged.append(out[0]))
    with monkeypatch.context() as patched:
        patched.setattr(F, "scaled_dot_product_attention", watch)
        converted(**batch(family))
    assert len(calls) == len(merged) == 3
    heads = calls[0][0].shape[1]
    values = [v.repeat_interleave(heads // v.shape[1], 1) for _, _, v, *_ in calls]
    wanted = controls(values, gains, first_layer)
    for call, value, control, found in zip(calls, values, wanted, merged, strict=True):
        q, k, _, mask, is_causal, scale = call
        k = k.repeat_interleave(heads // k.shape[1], 1).double()
        scores = q.double() @ k.mT * scale
        if mask is not None:
            scores = scores.masked_fill(~mask, -torch.inf)
        if is_causal:
            lower = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
            scores = scores.masked_fill(~lower, -torch.inf)
        direct = (scores.softmax(-1) @ value.double() + control).transpose(1, 2).flatten(2)
        torch.testing.assert_close(found.double(), direct, rtol=1e-5, atol=1e-5)
