"""The model types of Hugging Face that can be converted."""

FAMILIES = {
    "llama": "LlamaAttention",
    "mistral": "MistralAttention",
    "qwen2": "Qwen2Attention",
    "qwen3": "Qwen3Attention",
    "gemma": "GemmaAttention",
    "gpt2": "GPT2Attention",
    "gpt_neox": "GPTNeoXAttention",
    "vit": "ViTAttention",
    "dinov2": "Dinov2Attention",
    "dinov2_with_registers": "Dinov2WithRegistersAttention",
    "bert": "BertSelfAttention",
    "roberta": "RobertaSelfAttention",
}
"""Model types, and the class that attends in each."""
