"""Every further type in the table, by the same battery; each test builds one small model."""

import inspect
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
import transformers as hf

import pidformer as pf
from pidformer.convert.families import DECODERS, ENCODERS, FAMILIES, PROJECTIONS, REFUSED, VISION
from pidformer.convert.interface import NAME
from pidformer.errors import InputError
from tests.convert.families import controls
from tests.convert.hugging_face import FAMILIES as CORE
from tests.convert.hugging_face import batch, build
from tests.convert.hugging_face_types import T5, TYPES, WHISPER

GAINS = pf.PIDGains(p=0.4, i=0.2, d=0.1, beta=0.8)
BY_LAYER = [GAINS, GAINS, pf.PIDGains(p=0.1, i=0.3, d=0.2, beta=0.8)]


def run(model, x, **options):
    """The first output: logits, or the last hidden state of models without a head."""
    torch.manual_seed(0)  # vit_mae shuffles its patches
    return model(**x, **options)[0]


@pytest.fixture(params=TYPES)
def family(request):
    return TYPES[request.param]


@pytest.fixture
def calls(monkeypatch):
    """Every call of our attention: what it was given, and what it gave."""
    interface = hf.modeling_utils.ALL_ATTENTION_FUNCTIONS
    real, seen = interface[NAME], []

    def watch(module, query, key, value, mask, **options):
        out = real(module, query, key, value, mask, **options)
        seen.append((module, query, key, value, mask, options, out[0]))
        return out

    monkeypatch.setitem(interface._global_mapping, NAME, watch)
    return seen


def own_calls(model, x):
    """The same of attention past the interface: weights, values (B, H, N, D), merged heads."""
    merged = []
    for module in [m for m in model.modules() if hasattr(m, "pid_layer")]:
        after = getattr(module, PROJECTIONS[type(module).__name__])
        after.register_forward_pre_hook(lambda _, args: merged.append(args[0]))
    out = model(**x, use_cache=True, output_attentions=True)
    kept = [layer.values for layer in out.past_key_values.layers]
    heads = out.attentions[0].shape[1]
    values = [v.repeat_interleave(heads // v.shape[1], 1) for v in kept]
    return list(zip(out.attentions, values, merged, strict=True))


def definition(call, control):
    """softmax(q k^T) v + control in float64, (B, N, H, D)."""
    module, query, key, value, mask, options, _ = call
    groups = query.shape[1] // key.shape[1]
    k, v = (part.repeat_interleave(groups, 1).double() for part in (key, value))
    scores = query.double() @ k.mT * options["scaling"]
    if (cap := options.get("softcap")) is not None:
        scores = cap * torch.tanh(scores / cap)
    if (bias := options.get("position_bias")) is not None:
        scores = scores + bias
    is_causal = options.get("is_causal")
    is_causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    if mask is not None and mask.dtype != torch.bool:
        scores = scores + mask
    elif mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    elif is_causal:
        lower = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        scores = scores.masked_fill(~lower, -torch.inf)
    return (scores.softmax(-1) @ v + control).transpose(1, 2)


@torch.no_grad()
def test_zero_gains_change_no_bit_and_others_are_the_definition(family, calls):
    model, x = build(family), batch(family)
    plain = run(model, x)
    pf.convert(model, pf.PIDGains(), inplace=True)
    assert torch.equal(run(model, x), plain)
    calls.clear()
    pf.convert(model, BY_LAYER, inplace=True)
    assert not torch.allclose(run(model, x), plain, atol=1e-3)
    if not calls:
        _check_own(model, x)
        pf.revert(model)
        assert torch.equal(run(model, x), plain)
        return
    assert len(calls) == 3
    heads = calls[0][1].shape[1]
    values = [call[3].repeat_interleave(heads // call[3].shape[1], 1) for call in calls]
    for call, control in zip(calls, controls(values, BY_LAYER), strict=True):
        wanted = definition(call, control)
        torch.testing.assert_close(call[-1].double(), wanted, rtol=1e-5, atol=1e-5)
    pf.revert(model)
    assert torch.equal(run(model, x), plain)


def _check_own(model, x):
    calls = own_calls(model, x)
    assert len(calls) == 3
    wanted = controls([value for _, value, _ in calls], BY_LAYER)
    for (weights, value, found), control in zip(calls, wanted, strict=True):
        direct = (weights.double() @ value.double() + control).transpose(1, 2).flatten(2)
        torch.testing.assert_close(found.double(), direct, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", [n for n in TYPES if TYPES[n].is_causal])
@torch.no_grad()
def test_decoding_with_a_cache_equals_the_whole_text(name):
    model, x = pf.convert(build(TYPES[name]), GAINS, inplace=True), batch(TYPES[name])
    ids = x["input_ids"]
    whole = model(ids, use_cache=False).logits
    caches = [None, hf.StaticCache(config=model.config, max_cache_len=16)]
    if getattr(model.config, "alibi", False):  # Falcon's mask does not fit one, converted or not
        with pytest.raises(RuntimeError, match="must match"):
            build(TYPES[name])(ids[:, :3], past_key_values=caches.pop())
    for given in caches:
        steps = []
        for part in (ids[:, :3], ids[:, 3:5], ids[:, 5:6], ids[:, 6:]):
            out = model(part, past_key_values=given, use_cache=True)
            given = out.past_key_values
            steps.append(out.logits)
        torch.testing.assert_close(torch.cat(steps, 1), whole, rtol=1e-4, atol=1e-5)
    options = {"max_new_tokens": 4, "do_sample": False}
    assert torch.equal(
        model.generate(**x, **options), model.generate(**x, use_cache=False, **options)
    )


def gradients(model, x):
    model.zero_grad()
    run(model, x).square().sum().backward()
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def test_checkpointing_keeps_gradients_and_a_saved_model_loads(family, tmp_path):
    """With learned gains, whose heads must fit the values'."""
    model, x = pf.convert(build(family), GAINS, learn_gains=True, inplace=True), batch(family)
    model.train()
    plain = gradients(model, x)
    assert sum(".gains." in name for name in plain) == 4  # two parameters in two layers
    model.gradient_checkpointing_enable({"use_reentrant": False})
    checkpointed = gradients(model, x)
    assert plain.keys() == checkpointed.keys()
    for name, gradient in plain.items():
        torch.testing.assert_close(checkpointed[name], gradient, rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        for name, parameter in model.eval().named_parameters():
            if ".gains." in name:  # as after training: in each layer others
                parameter += torch.randn_like(parameter)
        model.save_pretrained(tmp_path)
        torch.testing.assert_close(run(pf.from_pretrained(tmp_path), x), run(model, x))


def test_the_battery_covers_the_table():
    core = {name.replace("registers", "with_registers").replace(" ", "_") for name in CORE}
    types = {name.partition(" ")[0] for name in TYPES}
    assert (core - {"mistral_sliding"}) | types == set(FAMILIES)


def test_the_class_named_for_a_type_attends_through_the_interface():
    for kind, name in FAMILIES.items():
        module = inspect.getmodule(hf.AutoConfig.for_model(kind).__class__).__name__
        code = Path(inspect.getfile(__import__(module, fromlist="_"))).parent
        source = "".join(path.read_text() for path in code.glob("modeling_*.py"))
        assert re.search(rf"class {name}\(", source), kind


def test_the_documentation_lists_the_types():
    page = (Path(__file__).parents[2] / "docs/convert.md").read_text()
    for title, table in (("Decoders", DECODERS), ("Encoders", ENCODERS), ("Vision", VISION)):
        row = next(line for line in page.splitlines() if line.startswith(f"| {title}"))
        assert re.findall(r"`([^`]+)`", row) == list(table), title
    refused = page[page.index("Refused, and why") :]
    for kind in REFUSED:
        assert f"`{kind}`" in refused, kind


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("AlbertModel", "model type 'albert'.*all its layers are one module"),
        ("MptModel", "does not go through the attention interface"),
        ("StableLmModel", "hand no keyword arguments to attention"),
        ("GptOssModel", "has a sink"),
    ],
)
def test_what_stays_refused_says_why(kind, words):
    config = getattr(hf, kind).config_class(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, vocab_size=9
    )
    config.intermediate_size, config.pad_token_id = 16, 0
    with torch.device("meta"):
        model = getattr(hf, kind)(config)
    with pytest.raises(InputError, match=words):
        pf.convert(model, GAINS)


def test_bloom_is_refused_where_it_passes_its_projection_by():
    model = build(TYPES["bloom"], slow_but_exact=True)
    with pytest.raises(InputError, match="slow_but_exact=True cannot be converted"):
        pf.convert(model, GAINS)


@pytest.mark.parametrize("name", ["bloom", "falcon", "gptj", "gpt_neo", "xglm"])
@torch.no_grad()
def test_transformers_does_not_load_own_attention_without_its_controller(name, tmp_path):
    model = pf.convert(build(TYPES[name]), GAINS)
    model.save_pretrained(tmp_path)
    with pytest.raises((InputError, ValueError, KeyError), match=r"pidformer|from_pretrained"):
        getattr(hf, TYPES[name].model).from_pretrained(tmp_path)(**batch(TYPES[name]))
    attention = next(m for m in model.modules() if hasattr(m, "pid_layer"))
    with pytest.raises(InputError, match="runs without the controller"):
        attention(torch.zeros(1, 2, 32))


@pytest.mark.parametrize(
    ("name", "projection"), [("bloom", "query_key_value"), ("siglip_vision_model", "q_proj")]
)
@torch.no_grad()
def test_threads_that_share_a_model_keep_their_states_apart(name, projection):
    """Each layer is called by both before it attends for either."""
    model, x = pf.convert(build(TYPES[name]), GAINS), batch(TYPES[name])
    other = {key: part.flip(0) for key, part in x.items()}
    wanted = run(model, x)
    both = threading.Barrier(2, timeout=60)

    def meet(*_):
        both.wait()

    for module in model.modules():
        if hasattr(module, "pid_layer"):
            module.get_submodule(projection).register_forward_hook(meet)

    @torch.no_grad()  # which each thread says for itself
    def last(given):
        return model(**given)[0]

    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(last, (x, other)))
    torch.testing.assert_close(found, [wanted, wanted.flip(0)])


@torch.no_grad()
def test_an_adapter_around_the_projection_is_given_the_control():
    """Merged into the weights it gives what it gave beside them."""
    peft = pytest.importorskip("peft")
    model, x = pf.convert(build(TYPES["falcon"]), GAINS), batch(TYPES["falcon"])
    before = run(model, x)
    lora = peft.LoraConfig(r=2, target_modules=["dense"], init_lora_weights=False)
    adapted = peft.get_peft_model(model, lora).eval()
    beside = run(adapted, x)
    assert not torch.allclose(beside, before, atol=1e-3)
    torch.testing.assert_close(run(adapted.merge_and_unload(), x), beside, rtol=1e-4, atol=1e-4)


def two_models():
    """CLIP, T5, MAE and Whisper as a whole, the part that can be converted, and a batch."""
    words = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    words |= {"num_attention_heads": 4, "vocab_size": 50}
    pixels = words | {"image_size": 16, "patch_size": 4}
    ids, images = torch.arange(3, 9)[None], torch.randn(1, 3, 16, 16)
    decoder = {"decoder_attention_heads": 4, "decoder_ffn_dim": 16}
    mae = {f"decoder_{key}": words[key] for key in [*words][:4]}
    sound = {"input_features": torch.randn(1, 16, 16), "decoder_input_ids": ids}
    return {
        "clip": (
            hf.CLIPModel(hf.CLIPConfig(text_config=words, vision_config=pixels)),
            ("text_model", "vision_model"),
            {"input_ids": ids, "pixel_values": images},
        ),
        "t5": (
            hf.T5ForConditionalGeneration(hf.T5Config(**T5)),
            ("encoder",),
            {"input_ids": ids, "decoder_input_ids": ids},
        ),
        "mae": (
            hf.ViTMAEForPreTraining(hf.ViTMAEConfig(**pixels, **mae)),
            ("vit",),
            {"pixel_values": images, "noise": torch.arange(16.0)[None]},
        ),
        "whisper": (hf.WhisperModel(hf.WhisperConfig(**WHISPER, **decoder)), ("encoder",), sound),
    }


@pytest.mark.parametrize("name", ["clip", "t5", "mae", "whisper"])
@torch.no_grad()
def test_a_model_of_two_is_refused_with_the_parts_that_can_be_converted(name):
    """And these work where they stand: zero gains change no bit of the whole."""
    torch.manual_seed(0)
    model, parts, x = two_models()[name]
    with pytest.raises(InputError, match=f"by itself, its {' or its '.join(parts)} can be$"):
        pf.convert(model, GAINS)
    for parameter in model.parameters():
        parameter.add_(0.1 * torch.randn_like(parameter))
    plain = run(model.eval(), x)
    for gains in (pf.PIDGains(), GAINS):
        setattr(model, parts[-1], pf.convert(getattr(model, parts[-1]), gains))
        assert torch.equal(run(model, x), plain) == (gains != GAINS)


def test_a_decoder_across_which_nothing_can_be_converted_says_so():
    config = hf.BartConfig(d_model=32, encoder_layers=1, decoder_layers=1, vocab_size=9)
    with torch.device("meta"):
        model = hf.BartModel(config)
    with pytest.raises(InputError, match=r"has no value of its own token$"):
        pf.convert(model, GAINS)
