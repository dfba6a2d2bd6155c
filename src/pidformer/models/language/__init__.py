"""The causal language model in parts; `pidformer.models.causal_lm` has the public names."""
