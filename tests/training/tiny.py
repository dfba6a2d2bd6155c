"""A recipe that trains in a second or two, with everything random switched on."""

from pidformer.training import Recipe, load_recipe

OPTIONS = "{patch_size: 4, embed_dim: 16, depth: 2, num_heads: 2, mlp_ratio: 2}"


def tiny_recipe(*overrides: str) -> Recipe:
    return load_recipe(
        "digits/pid.yaml",
        [
            f"model.options={OPTIONS}",
            "model.options.drop_path_rate=0.2",
            "augment={crop: padded, padding: 1, flip: 0.5, erase: 0.25, mixup: 0.8, cutmix: 1.0}",
            "schedule.epochs=3",
            "schedule.warmup_epochs=1",
            "data.batch_size=128",
            "train.ema=0.9",
            "train.checkpoint_steps=4",
            "train.log_steps=5",
            "train.evaluate_every=1",
            *overrides,
        ],
    )
