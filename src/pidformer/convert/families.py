"""The model types of Hugging Face that can be converted, and why others cannot."""

from __future__ import annotations

import difflib

from pidformer.errors import InputError

DECODERS = {
    "apertus": "ApertusAttention",
    "arcee": "ArceeAttention",
    "biogpt": "BioGptAttention",
    "bitnet": "BitNetAttention",
    "cohere": "CohereAttention",
    "cohere2": "Cohere2Attention",
    "ernie4_5": "Ernie4_5Attention",
    "exaone4": "Exaone4Attention",
    "gemma": "GemmaAttention",
    "gemma2": "Gemma2Attention",
    "gemma3_text": "Gemma3Attention",
    "glm": "GlmAttention",
    "glm4": "Glm4Attention",
    "gpt2": "GPT2Attention",
    "gpt_neox": "GPTNeoXAttention",
    "granite": "GraniteAttention",
    "granitemoe": "GraniteMoeAttention",
    "helium": "HeliumAttention",
    "hunyuan_v1_dense": "HunYuanDenseV1Attention",
    "llama": "LlamaAttention",
    "ministral": "MinistralAttention",
    "mistral": "MistralAttention",
    "mixtral": "MixtralAttention",
    "modernbert-decoder": "ModernBertDecoderAttention",
    "olmo": "OlmoAttention",
    "olmo2": "Olmo2Attention",
    "olmo3": "Olmo3Attention",
    "olmoe": "OlmoeAttention",
    "opt": "OPTAttention",
    "persimmon": "PersimmonAttention",
    "phi": "PhiAttention",
    "phi3": "Phi3Attention",
    "qwen2": "Qwen2Attention",
    "qwen2_moe": "Qwen2MoeAttention",
    "qwen3": "Qwen3Attention",
    "qwen3_moe": "Qwen3MoeAttention",
    "seed_oss": "SeedOssAttention",
    "smollm3": "SmolLM3Attention",
    "starcoder2": "Starcoder2Attention",
}
ENCODERS = {
    "bert": "BertSelfAttention",
    "camembert": "CamembertSelfAttention",
    "clip_text_model": "CLIPAttention",
    "data2vec-text": "Data2VecTextSelfAttention",
    "distilbert": "DistilBertSelfAttention",
    "electra": "ElectraSelfAttention",
    "ernie": "ErnieSelfAttention",
    "esm": "EsmSelfAttention",
    "eurobert": "EuroBertAttention",
    "modernbert": "ModernBertAttention",
    "nomic_bert": "NomicBertAttention",
    "roberta": "RobertaSelfAttention",
    "roberta-prelayernorm": "RobertaPreLayerNormSelfAttention",
    "xlm-roberta": "XLMRobertaSelfAttention",
}
VISION = {
    "audio-spectrogram-transformer": "ASTAttention",
    "beit": "BeitAttention",
    "clip_vision_model": "CLIPAttention",
    "deit": "DeiTAttention",
    "dinov2": "Dinov2Attention",
    "dinov2_with_registers": "Dinov2WithRegistersAttention",
    "dinov3_vit": "DINOv3ViTAttention",
    "ijepa": "IJepaAttention",
    "mlcd_vision_model": "MLCDAttention",
    "pixio": "PixioAttention",
    "vit": "ViTAttention",
    "vit_mae": "ViTMAEAttention",
    "vit_msn": "ViTMSNAttention",
    "vivit": "VivitAttention",
}
FAMILIES = DECODERS | ENCODERS | VISION
"""Model types, and the class that attends in each."""

_NO_INTERFACE = "its attention does not go through the attention interface of transformers"
_NO_KEYWORDS = "its layers hand no keyword arguments to attention, by which the state travels"
_CROSS = "its decoder attends to an encoder, and cross-attention has no value of its own token"
_TOWERS = "it is two models; convert its text_model or its vision_model"
_LATENT = "its values are packed beside positions, with another width than its queries"
REFUSED = {
    "albert": "all its layers are one module",
    "diffllama": "its attention is a difference of two, each with values of its own",
    "gpt_bigcode": "its heads share one value, which its configuration does not say",
    "gpt_oss": "its softmax has a sink, which scaled dot-product attention does not know",
    **dict.fromkeys(("clip", "siglip", "siglip2", "aimv2"), _TOWERS),
    **dict.fromkeys(("deepseek_v2", "deepseek_v3"), _LATENT),
    **dict.fromkeys(("bart", "mbart", "pegasus", "t5", "umt5", "whisper"), _CROSS),
    **dict.fromkeys(
        (
            *("siglip_text_model", "siglip_vision_model", "siglip2_vision_model"),
            *("aimv2_vision_model", "nemotron", "stablelm", "yolos"),
        ),
        _NO_KEYWORDS,
    ),
    **dict.fromkeys(
        (
            *("bloom", "codegen", "deberta", "deberta-v2", "falcon", "gpt_neo", "gptj"),
            *("mpnet", "mpt", "xglm", "xlnet"),
        ),
        _NO_INTERFACE,
    ),
}
"""Model types that people ask for, and why they cannot be converted."""


def check_family(name: str, given: object) -> str:
    """A model type that can be converted; `name` is what the error line calls the model."""
    if given in FAMILIES:
        return str(given)
    reason = REFUSED.get(str(given))
    if reason is not None:
        raise InputError(f"{name} (model type {given!r}) cannot be converted: {reason}")
    near = difflib.get_close_matches(str(given), FAMILIES, n=1)
    hint = f"did you mean {near[0]!r}?" if near else "docs/convert.md lists them"
    raise InputError(f"{name} (model type {given!r}) is no type that can be converted; {hint}")
