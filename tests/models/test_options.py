"""The closed list of what a recipe may say of a model."""

import time
from inspect import signature

import pytest
from timm.models.vision_transformer import VisionTransformer

from pidformer.errors import InputError
from pidformer.models import PIDVisionTransformer
from pidformer.models.build import build_classifier
from pidformer.models.language.build import build_language_model
from pidformer.models.options import LANGUAGE, TIMM, VISION, WIDE_MARGIN, check_options
from pidformer.training import load_recipe, recipe_from, shipped_recipes

SECTION = {"gains", "learn_gains", "first_layer", "attention_residual"}
DATA = {"img_size", "in_chans", "num_classes"}
SAMPLES = {
    "global_pool": "avg", "pos_embed": "learn", "position_resize": "bilinear", "fc_norm": True,
    "init_values": 0.1, "patch_size": [4, 4], "embed_dim": 16, "depth": 2, "num_heads": 2,
    "reg_tokens": 1, "integral_leak": 0.5, "integral_limit": 1.0, "value_residual": "learned",
    "mlp_ratio": 2, "init_std": 0.1, "value_init": 0.5, "proj_init": 0.5,
}  # fmt: skip
SIZE = {"patch_size": 4, "embed_dim": 16, "depth": 2, "num_heads": 2}
CONFIG = {"name": "pid_deit_tiny_patch16_224", "gains": "0.4,0.1,0"}


def sample(name):
    return SAMPLES.get(name, 0.1 if name.endswith("_rate") else True)


@pytest.mark.parametrize("name", VISION)
def test_every_option_is_one_that_the_model_takes(name):
    given = {"options": SIZE | {name: sample(name)}}
    own = {"num_classes": 3, "channels": 3, "image_size": 8}
    if name in ("scale_attn_norm", "dynamic_img_pad", "class_token", "fix_init"):
        given["options"][name] = (
            name == "class_token"
        )  # the other needs more, or our block has none
    assert build_classifier(CONFIG | given, **own).num_classes == 3


def test_every_keyword_of_the_vision_transformer_is_listed_or_refused_by_name():
    keywords = {
        *signature(VisionTransformer).parameters,
        *signature(PIDVisionTransformer).parameters,
    }
    for name in keywords - set(VISION) - SECTION - DATA - {"options"}:
        with pytest.raises(InputError, match=f"model.options.{name} is refused"):
            check_options({name: True}, "classification")


def test_options_of_timm_models_are_keywords_of_theirs():
    from timm.models.eva import Eva

    known = {*signature(Eva).parameters, "num_kv_heads"}  # not in timm 1.0.29
    assert set(TIMM) - set(VISION) <= known
    check_options({"use_post_norm": True}, "classification", is_timm=True)
    with pytest.raises(InputError, match="use_post_norm is not known"):
        check_options({"use_post_norm": True}, "classification")
    with pytest.raises(InputError, match="norm_layer is refused"):
        check_options({"norm_layer": "x"}, "classification", is_timm=True)


def test_every_keyword_of_the_language_model_is_listed_or_said_elsewhere():
    config = pytest.importorskip("pidformer.models.causal_lm").PIDformerConfig
    keywords = set(signature(config.__init__).parameters) - {"self", "options"}
    of_the_tokenizer = {"vocab_size", "bos_token_id", "eos_token_id", "pad_token_id"}
    assert keywords - SECTION - of_the_tokenizer == set(LANGUAGE)


@pytest.mark.parametrize("task", ["classification", "language"])
@pytest.mark.parametrize(
    "name",
    ["pretrained", "pretrained_cfg", "pretrained_cfg_overlay", "pretrained_strict", "cache_dir",
     "checkpoint_path", "norm_layer", "act_layer", "attn_layer", "mlp_layer", "embed_layer",
     "block_fn", "features_only", "feature_cls", "hf_hub_id", "auto_map", "trust_remote_code",
     "scriptable", "weight_init", "kernel_config"],
)  # fmt: skip
def test_what_loads_fetches_or_names_a_class_is_refused_by_name(name, task):
    with pytest.raises(InputError) as caught:
        check_options({name: None}, task)
    assert str(caught.value) == (
        f"model.options.{name} is refused: sizes, rates and switches may be said here, never what "
        "to load, fetch or run"
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"depth": 513}, "model.options.depth must be a whole number from 1 to 512, got 513"),
        ({"depth": 10**400}, "from 1 to 512, got 1000"),
        ({"depth": True}, "got True"),
        ({"depth": 8.0}, "got 8.0"),
        ({"patch_size": [4, 4, 4]}, "from 1 to 1024, got [4, 4, 4]"),
        ({"drop_rate": 1}, "must be in [0, 1), got 1"),
        ({"mlp_ratio": 10**400}, "at most 64, got 1000"),
        ({"qkv_bias": "os.system"}, "must be true or false"),
        ({"global_pool": ["avg"]}, "must be one of"),
        ({"value_residual": "lerned"}, "must be in [0, 1], 'learned' or null"),
        ({"gains": "0.4,0,0"}, "model.options.gains is no option; write model.gains"),
        ({"first_layer": "free"}, "write model.first_layer"),
        ({"dept": 3}, "model.options.dept is not known; did you mean 'depth'?"),
        ({"zzz": 3}, "model.options.zzz is not known; docs/models.md lists the options"),
        ({7: 3}, "model.options.7 is not known"),
        (None, "must be a section of keys"),
    ],
)
def test_values_out_of_range_get_one_short_line(options, words):
    with pytest.raises(InputError) as caught:
        check_options(options, "classification")
    assert words in str(caught.value) and len(str(caught.value)) < 200


def test_a_value_without_end_is_shown_by_its_beginning():
    bomb = ["x"] * 9
    for _ in range(20):  # 9 ** 20 words if written out
        bomb = [bomb] * 9
    with pytest.raises(InputError, match="must be a whole number"):
        check_options({"depth": bomb}, "classification")


def test_recipes_check_options_from_files_overrides_and_data():
    for name in shipped_recipes():
        assert recipe_from(load_recipe(name).to_dict())
    with pytest.raises(InputError, match="cache_dir is refused"):
        load_recipe("digits/pid.yaml", ["model.options.cache_dir=."])
    fields = load_recipe("digits/pid.yaml").to_dict()
    fields["model"]["options"]["checkpoint_path"] = "w.pth"
    with pytest.raises(InputError, match="checkpoint_path is refused"):
        recipe_from(fields)


@pytest.mark.parametrize(
    ("build", "config"),
    [
        (build_classifier, {"name": "pid_deit_tiny_patch16_224"}),
        (build_language_model, {"name": "causal_lm"}),
    ],
)
def test_a_model_far_beyond_this_machine_is_refused_before_it_is_built(build, config):
    """Each size is allowed; together they took all memory, and minutes, before they failed."""
    if build is build_classifier:
        options = {"embed_dim": 16384, "depth": 512, "num_heads": 4}
        sizes = {"num_classes": 10, "channels": 3, "image_size": 224}
    else:
        options = {"hidden_size": 65536, "num_hidden_layers": 512}
        sizes = {"vocab_size": 9, "length": 8, "eos_token_id": None}
    begun = time.monotonic()
    with pytest.raises(
        InputError, match=r"a model of at least .* weights, [\d,]+ GB; this machine"
    ):
        build({**config, "options": options}, **sizes)
    assert time.monotonic() - begun < 1


def test_the_least_number_of_weights_is_no_more_than_a_model_has(monkeypatch):
    """With memory for just what `deit_tiny` has, the estimate must not refuse it."""
    size = {"num_classes": 10, "channels": 3, "image_size": 32}
    config = {"name": "pid_deit_tiny_patch16_224", "options": {"depth": 3}}
    weights = sum(p.numel() for p in build_classifier(config, **size).parameters())
    pages = {"SC_PAGE_SIZE": 1, "SC_PHYS_PAGES": weights * 4 // WIDE_MARGIN}
    monkeypatch.setattr("os.sysconf", pages.__getitem__)
    build_classifier(config, **size)
    pages["SC_PHYS_PAGES"] //= 3
    with pytest.raises(InputError, match="choose smaller ones"):
        build_classifier(config, **size)
