"""The language model's public names; importing this registers them with the Auto classes.

import pidformer.models.causal_lm
AutoModelForCausalLM.from_pretrained(folder)
"""

from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

from pidformer.models.language.causal import PIDformerForCausalLM
from pidformer.models.language.config import PIDformerConfig
from pidformer.models.language.model import PIDformerModel

AutoConfig.register(PIDformerConfig.model_type, PIDformerConfig, exist_ok=True)
AutoModel.register(PIDformerConfig, PIDformerModel, exist_ok=True)
AutoModelForCausalLM.register(PIDformerConfig, PIDformerForCausalLM, exist_ok=True)

__all__ = ["PIDformerConfig", "PIDformerForCausalLM", "PIDformerModel"]
