"""A small model of every further type in the table, with random weights."""

from tests.convert.hugging_face import GROUPED, PIXELS, SIZE, WORDS, Family

TEXT = WORDS | {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
KV = TEXT | GROUPED
HEAD = KV | {"head_dim": 8}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
SPECTRUM = SIZE | {"intermediate_size": 48, "max_length": 32, "num_mel_bins": 16, "patch_size": 8}
SPECTRUM |= {"num_labels": 5, "frequency_stride": 8, "time_stride": 8}
DISTIL = {"dim": 32, "n_layers": 3, "n_heads": 4, "hidden_dim": 48, "vocab_size": 50}
FALCON = TEXT | {"ffn_hidden_size": 48, "bias": True}
T5 = {"d_model": 32, "num_layers": 3, "num_heads": 4, "d_kv": 8, "d_ff": 48, "vocab_size": 50}
XGLM = {"d_model": 32, "num_layers": 3, "attention_heads": 4, "ffn_dim": 48, "vocab_size": 50}

WHISPER = {"d_model": 32, "encoder_layers": 3, "encoder_attention_heads": 4, "num_labels": 5}
WHISPER |= {"encoder_ffn_dim": 48, "num_mel_bins": 16, "max_source_positions": 8}
WHISPER |= {"vocab_size": 50, "decoder_layers": 1, "classifier_proj_size": 16}
WHISPER |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}


def decoder(stem: str, options: dict = KV, config: str = "") -> Family:
    return Family(f"{stem}ForCausalLM", config or f"{stem}Config", options)


def encoder(stem: str, options: dict = TEXT, head: str = "ForMaskedLM") -> Family:
    return Family(f"{stem}{head}", f"{stem}Config", options, is_causal=False)


def vision(
    stem: str, options: dict = PIXELS, head: str = "ForImageClassification", takes: str = "pixels"
) -> Family:
    return Family(f"{stem}{head}", f"{stem}Config", options, takes=takes, is_causal=False)


TYPES = {
    "apertus": decoder("Apertus"),
    "arcee": decoder("Arcee"),
    "biogpt": decoder("BioGpt", TEXT),
    "bitnet": decoder("BitNet"),
    "bloom": decoder("Bloom", TEXT),
    "codegen": decoder("CodeGen", TEXT | {"rotary_dim": 4}),
    "cohere": decoder("Cohere"),
    "cohere2": decoder("Cohere2", KV | {"sliding_window": 4}),
    "ernie4_5": decoder("Ernie4_5", HEAD),
    "exaone4": decoder("Exaone4"),
    "falcon": decoder("Falcon", FALCON),
    "falcon alibi": decoder("Falcon", FALCON | {"alibi": True, "multi_query": False}),
    "falcon eager": decoder("Falcon", FALCON | {"alibi": True, "attn_implementation": "eager"}),
    "falcon grouped": decoder(
        "Falcon", FALCON | {"new_decoder_architecture": True, "num_kv_heads": 2}
    ),
    "falcon serial": decoder("Falcon", FALCON | {"parallel_attn": False}),
    "gemma2": decoder("Gemma2", HEAD | {"attn_implementation": "eager", "sliding_window": 4}),
    "gemma3_text": decoder("Gemma3", HEAD | {"sliding_window": 4}, "Gemma3TextConfig"),
    "glm": decoder("Glm", HEAD),
    "glm4": decoder("Glm4", HEAD),
    "gpt_bigcode": decoder("GPTBigCode", TEXT),
    "gpt_neo": decoder("GPTNeo", TEXT | {"attention_types": [[["global", "local", "global"], 1]]}),
    "gptj": decoder("GPTJ", TEXT | {"rotary_dim": 4}),
    "granite": decoder("Granite"),
    "granitemoe": decoder("GraniteMoe", KV | {"num_local_experts": 4}),
    "helium": decoder("Helium", HEAD),
    "hunyuan_v1_dense": decoder("HunYuanDenseV1", HEAD),
    "ministral": decoder("Ministral", HEAD),
    "mixtral": decoder("Mixtral", KV | {"num_local_experts": 4}),
    "modernbert-decoder": decoder("ModernBertDecoder", TEXT),
    "olmo": decoder("Olmo"),
    "olmo2": decoder("Olmo2"),
    "olmo3": decoder("Olmo3", KV | {"sliding_window": 4}),
    "olmoe": decoder("Olmoe", KV | {"num_experts": 4, "num_experts_per_tok": 2}),
    "opt": decoder("OPT", TEXT | {"ffn_dim": 48, "word_embed_proj_dim": 32}),
    "persimmon": decoder("Persimmon", TEXT),
    "phi": decoder("Phi"),
    "phi3": decoder("Phi3"),
    "qwen2_moe": decoder("Qwen2Moe", KV | EXPERTS | {"shared_expert_intermediate_size": 16}),
    "qwen3_moe": decoder("Qwen3Moe", KV | EXPERTS),
    "seed_oss": decoder("SeedOss", HEAD),
    "smollm3": decoder("SmolLM3"),
    "starcoder2": decoder("Starcoder2"),
    "xglm": decoder("XGLM", XGLM),
    "aimv2_text_model": encoder("Aimv2Text", head="Model"),
    "camembert": encoder("Camembert"),
    "clip_text_model": encoder("CLIPText", head="Model"),
    "data2vec-text": encoder("Data2VecText"),
    "distilbert": encoder("DistilBert", DISTIL | {"max_position_embeddings": 64}),
    "electra": encoder("Electra", TEXT | {"embedding_size": 32}),
    "ernie": encoder("Ernie"),
    "esm": encoder("Esm", TEXT | {"mask_token_id": 3}),
    "eurobert": encoder("EuroBert"),
    "modernbert": encoder("ModernBert"),
    "mt5": encoder("MT5", T5, head="EncoderModel"),
    "nomic_bert": encoder("NomicBert"),
    "roberta-prelayernorm": encoder("RobertaPreLayerNorm"),
    "siglip2_text_model": encoder("Siglip2Text", head="Model"),
    "siglip_text_model": encoder("SiglipText", head="Model"),
    "t5": encoder("T5", T5, head="EncoderModel"),
    "umt5": encoder("UMT5", T5, head="EncoderModel"),
    "xlm-roberta": encoder("XLMRoberta"),
    "aimv2_vision_model": vision("Aimv2Vision", head="Model"),
    "audio-spectrogram-transformer": vision("AST", SPECTRUM, "ForAudioClassification", "sound"),
    "beit": vision("Beit", PIXELS | {"use_relative_position_bias": True}),
    "clip_vision_model": vision("CLIPVision", head="Model"),
    "deit": vision("DeiT"),
    "dinov3_vit": vision("DINOv3ViT", head="Model"),
    "ijepa": vision("IJepa"),
    "mlcd_vision_model": vision("MLCDVision", head="Model"),
    "pixio": vision("Pixio", head="Model"),
    "siglip2_vision_model": vision(
        "Siglip2Vision", PIXELS | {"num_patches": 16}, "Model", "patches"
    ),
    "siglip_vision_model": vision("SiglipVision", head="Model"),
    "vit_mae": vision("ViTMAE", PIXELS | {"mask_ratio": 0.0}, "Model"),
    "vit_msn": vision("ViTMSN"),
    "vivit": vision(
        "Vivit",
        PIXELS | {"num_frames": 2, "tubelet_size": [1, 4, 4]},
        "ForVideoClassification",
        "film",
    ),
    "whisper": vision("Whisper", WHISPER, "ForAudioClassification", "spectrum"),
}
