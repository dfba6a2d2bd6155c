"""A language recipe that trains in a second or two."""

from pidformer.training import Recipe, load_recipe


def tiny_language(*overrides: str, name: str = "novels/pid.yaml") -> Recipe:
    return load_recipe(
        name,
        [
            "model.options={hidden_size: 16, num_hidden_layers: 2, num_attention_heads: 2, "
            "intermediate_size: 32, hidden_dropout: 0.1, initializer_range: 0.1}",
            "data.batch_size=8",
            "text.length=16",
            "text.split=spaces",
            "text.min_count=1",
            "schedule.epochs=2",
            "optim.lr=3e-2",
            "train.precision=fp32",
            "train.checkpoint_steps=5",
            "train.log_steps=5",
            *overrides,
        ],
    )
