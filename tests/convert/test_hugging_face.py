import pickle
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

import pidformer as pf
from pidformer.errors import InputError
from tests.convert.hugging_face import CAUSAL, FAMILIES, batch, build, check_definition

GAINS = pf.PIDGains(p=0.4, i=0.2, d=0.1, beta=0.8)
BY_LAYER = [GAINS, GAINS, pf.PIDGains(p=0.1, i=0.3, d=0.2, beta=0.8)]


@pytest.fixture(params=FAMILIES)
def family(request):
    return request.param


@torch.no_grad()
def test_zero_gains_change_no_bit(family):
    model, x = build(family), batch(family)
    assert torch.equal(pf.convert(model, pf.PIDGains())(**x).logits, model(**x).logits)


@pytest.mark.parametrize("name", ["llama", "gpt2", "vit"])
@torch.no_grad()
def test_zero_gains_change_no_bit_in_half_precision(name):
    model = build(name).bfloat16()
    x = {k: v.bfloat16() if v.is_floating_point() else v for k, v in batch(name).items()}
    plain, found = model(**x).logits, pf.convert(model, pf.PIDGains())(**x).logits
    assert found.dtype == torch.bfloat16 and torch.equal(found, plain)


@pytest.mark.parametrize(
    ("name", "head"),
    [
        ("llama", "LlamaModel"),
        ("llama", "LlamaForSequenceClassification"),
        ("qwen3", "Qwen3ForTokenClassification"),
        ("gpt2", "GPT2ForSequenceClassification"),
        ("vit", "ViTModel"),
        ("dinov2", "Dinov2Backbone"),
        ("bert", "BertModel"),
        ("bert", "BertForSequenceClassification"),
        ("roberta", "RobertaForQuestionAnswering"),
    ],
)
@torch.no_grad()
def test_other_heads(name, head):
    import transformers as hf

    torch.manual_seed(0)
    config, x = build(name).config, batch(name)
    model = getattr(hf, head)(config).eval()
    plain = pf.convert(model, pf.PIDGains())(**x).to_tuple()
    wanted, found = model(**x).to_tuple(), pf.convert(model, GAINS)(**x).to_tuple()
    for a, b, c in zip(plain, wanted, found, strict=True):
        if isinstance(a, tuple):
            a, b, c = a[-1], b[-1], c[-1]
        if isinstance(a, torch.Tensor):
            assert torch.equal(a, b) and not torch.equal(a, c)


@torch.no_grad()
def test_zero_gains_agree_with_eager_attention(family):
    model, x = build(family), batch(family)
    model.set_attn_implementation("eager")
    found = pf.convert(model, pf.PIDGains())(**x).logits
    torch.testing.assert_close(found, model(**x).logits, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("first_layer", ["free", "controlled"])
@torch.no_grad()
def test_control_is_the_definition_computed_from_q_k_v(family, first_layer, monkeypatch):
    converted = pf.convert(build(family), BY_LAYER, first_layer=first_layer)
    check_definition(converted, family, BY_LAYER, first_layer, monkeypatch)


def test_keys_parameters_and_class_stay(family):
    model = build(family)
    converted = pf.convert(model, GAINS)
    ours, theirs = converted.state_dict(), model.state_dict()
    assert list(ours) == list(theirs) and type(converted) is type(model)
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)
    assert model.config._attn_implementation == "sdpa" and not hasattr(model.config, "pidformer")


def gradients(family, *, checkpointing):
    model = pf.convert(build(family), GAINS).train()
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    model(**batch(family)).logits.square().sum().backward()
    return {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


def test_checkpointing_keeps_gradients(family):
    plain, checkpointed = (
        gradients(family, checkpointing=False),
        gradients(family, checkpointing=True),
    )
    assert plain.keys() == checkpointed.keys()
    for name, gradient in plain.items():
        torch.testing.assert_close(checkpointed[name], gradient, rtol=1e-5, atol=1e-6)


def test_gradients_are_those_of_float64_differences():
    # GPT-2: Llama's norms compute in float32 whatever they are given
    model = pf.convert(build("gpt2").double(), GAINS).train()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    weight, x = model.transformer.h[0].attn.c_attn.weight, batch("gpt2")

    def loss():
        return model(**x).logits.square().mean()

    loss().backward()
    with torch.no_grad():
        for row, column in ((0, 64), (3, 69), (9, 84)):  # into the values
            found, step = float(weight.grad[row, column]), 1e-6
            weight[row, column] += step
            up = float(loss())
            weight[row, column] -= 2 * step
            down = float(loss())
            weight[row, column] += step
            assert found == pytest.approx((up - down) / (2 * step), rel=1e-5, abs=1e-9)


def test_reentrant_checkpointing_is_refused_with_what_to_set():
    model = pf.convert(build("llama"), GAINS).train()
    model.gradient_checkpointing_enable({"use_reentrant": True})
    with pytest.raises(InputError, match="'use_reentrant': False"):
        model(**batch("llama"))


@torch.no_grad()
def test_revert_gives_the_original_back(family):
    model, before, x = build(family), build(family), batch(family)
    pf.convert(model, GAINS, inplace=True)
    assert not torch.equal(model(**x).logits, before(**x).logits)
    pf.revert(model)
    assert torch.equal(model(**x).logits, before(**x).logits)
    assert model.config.to_dict() == before.config.to_dict()
    assert model.config._attn_implementation == "sdpa"
    for ours, theirs in zip(model.modules(), before.modules(), strict=True):
        assert ours.__dict__.keys() == theirs.__dict__.keys()
        assert ours._buffers.keys() == theirs._buffers.keys()
        assert not ours._forward_pre_hooks
    with pytest.raises(InputError, match="nothing to revert"):
        pf.revert(model)


@pytest.mark.parametrize("family", CAUSAL)
@torch.no_grad()
def test_the_future_does_not_change_the_past(family):
    model, x = pf.convert(build(family), GAINS), batch(family)
    other = {name: tensor.clone() for name, tensor in x.items()}
    other["input_ids"][:, 4:] = 7
    here, there = model(**x).logits, model(**other).logits
    torch.testing.assert_close(here[:, :4], there[:, :4])
    assert not torch.allclose(here[:, 4:], there[:, 4:])


@pytest.mark.parametrize("family", CAUSAL)
@torch.no_grad()
def test_cached_decoding_equals_the_full_forward(family):
    model, x = pf.convert(build(family), GAINS), batch(family)["input_ids"]
    full, cache, steps = model(x).logits, None, []
    for part in (x[:, :3], x[:, 3:5], x[:, 5:6], x[:, 6:]):  # a prompt, a part, single tokens
        out = model(part, past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        steps.append(out.logits)
    torch.testing.assert_close(torch.cat(steps, 1), full, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("family", CAUSAL)
@torch.no_grad()
def test_generate_is_the_same_with_every_cache(family):
    model, x = pf.convert(build(family), GAINS), batch(family)
    options = {"max_new_tokens": 6, "do_sample": False}
    uncached = model.generate(**x, use_cache=False, **options)
    assert torch.equal(model.generate(**x, **options), uncached)
    static = model.generate(**x, cache_implementation="static", disable_compile=True, **options)
    assert torch.equal(static, uncached)


@pytest.mark.parametrize("family", CAUSAL)
@pytest.mark.parametrize("cache", [None, "static"])
@torch.no_grad()
def test_left_padding_changes_nothing(family, cache):
    model, x = pf.convert(build(family), GAINS), batch(family, count=1)["input_ids"]
    padded = F.pad(x, (3, 0))
    mask = F.pad(torch.ones_like(x), (3, 0))
    options = {"max_new_tokens": 5, "do_sample": False}
    alone = model.generate(x, attention_mask=torch.ones_like(x), **options)
    if cache:
        options |= {"cache_implementation": cache, "disable_compile": True}
    beside = model.generate(padded, attention_mask=mask, **options)
    assert torch.equal(beside[:, 3:], alone)


@pytest.mark.slow
def test_saved_models_load_in_a_new_process_with_pidformer_alone(tmp_path):
    for family in FAMILIES:
        learned = {"learn_gains": family == "llama"}
        model, x = pf.convert(build(family), BY_LAYER, **learned), batch(family)
        if learned["learn_gains"]:
            with torch.no_grad():
                model.model.layers[1].self_attn.gains.raw_load += torch.tensor([0.3, -0.2])
        folder = tmp_path / family.replace(" ", "_")
        model.save_pretrained(folder)
        with torch.no_grad():
            torch.save({"x": x, "logits": model(**x).logits}, folder / "seen.pt")
    # Close, not equal: convolutions round by the number of threads, one here and all there.
    code = (
        "import sys, torch, pidformer as pf\n"
        "from pathlib import Path\n"
        "for folder in sorted(Path(sys.argv[1]).iterdir()):\n"
        "    print(folder.name)\n"
        "    seen = torch.load(folder / 'seen.pt', weights_only=True)\n"
        "    model = pf.from_pretrained(folder)\n"
        "    with torch.no_grad():\n"
        "        logits = model(**seen['x']).logits\n"
        "    torch.testing.assert_close(logits, seen['logits'], rtol=1e-5, atol=1e-6)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(done.stdout.split()) == len(FAMILIES)


def test_a_folder_without_a_controller_is_refused(tmp_path):
    build("llama").save_pretrained(tmp_path)
    with pytest.raises(InputError, match="holds no converted model"):
        pf.from_pretrained(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", "gpt2", "vit", "bert"])
@torch.no_grad()
def test_compiles_to_one_graph(family):
    model, x = pf.convert(build(family), GAINS), batch(family)
    wanted = model(**x).logits
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(**x).logits, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_lora_trains_around_the_controller(tmp_path):
    peft = pytest.importorskip("peft")
    x = batch("llama")
    model = pf.convert(build("llama"), GAINS)
    with torch.no_grad():
        before = model(**x).logits
    tuned = peft.get_peft_model(
        model, peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    ).train()
    torch.testing.assert_close(tuned(**x).logits, before)
    tuned.gradient_checkpointing_enable({"use_reentrant": False})
    tuned.enable_input_require_grads()
    optimizer = torch.optim.SGD([p for p in tuned.parameters() if p.requires_grad], lr=0.5)
    for _ in range(2):
        tuned(**x, labels=x["input_ids"]).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    merged = tuned.eval().merge_and_unload()
    with torch.no_grad():
        after = merged(**x).logits
        assert not torch.allclose(after, before, atol=1e-4)
        merged.save_pretrained(tmp_path)
        torch.testing.assert_close(pf.from_pretrained(tmp_path)(**x).logits, after)


@pytest.fixture
def one_process(tmp_path):
    store = f"file://{tmp_path}/store"
    torch.distributed.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("name", ["llama", "bert"])
@pytest.mark.usefixtures("one_process")
def test_ddp_gives_the_same_gradients(name):
    plain = gradients(name, checkpointing=False)
    model = pf.convert(build(name), GAINS).train()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    wrapped = torch.nn.parallel.DistributedDataParallel(model)
    wrapped(**batch(name)).logits.square().sum().backward()
    for key, parameter in model.named_parameters():
        if key in plain:
            torch.testing.assert_close(parameter.grad, plain[key], rtol=1e-5, atol=1e-6)


@torch.no_grad()
def test_two_forwards_are_independent():
    model = pf.convert(build("qwen3"), GAINS)
    first = model(**batch("qwen3")).logits
    model(**batch("qwen3", count=3, length=5))
    assert torch.equal(model(**batch("qwen3")).logits, first)


@torch.no_grad()
def test_a_share_of_the_gains():
    model, x = build("llama"), batch("llama")
    converted = pf.convert(model, GAINS)
    pf.nn.set_gain_share(converted, 0.0)
    assert torch.equal(converted(**x).logits, model(**x).logits)
    pf.nn.set_gain_share(converted, [1.0, 0.5, 0.25])
    wanted = pf.convert(model, [GAINS, GAINS.scaled(0.5), GAINS.scaled(0.25)])
    torch.testing.assert_close(converted(**x).logits, wanted(**x).logits)


@torch.no_grad()
def test_converting_again_replaces_the_gains_and_copies_stand_alone():
    model, x = build("gpt2"), batch("gpt2")
    once = pf.convert(model, "0.9,0,0")
    twice = pf.convert(once, GAINS)
    assert torch.equal(twice(**x).logits, pf.convert(model, GAINS)(**x).logits)
    pf.revert(twice)
    assert torch.equal(twice(**x).logits, model(**x).logits)
    assert not torch.equal(once(**x).logits, model(**x).logits)


def test_another_attention_does_not_lose_the_controller_silently():
    model = pf.convert(build("llama"), GAINS)
    model.set_attn_implementation("sdpa")
    with pytest.raises(InputError, match="leaves the controller out"):
        model(**batch("llama"))
    model.set_attn_implementation("pidformer")
    model(**batch("llama"))


def test_what_cannot_be_converted_is_named():
    import transformers as hf

    small = {"d_model": 16, "d_ff": 16, "d_kv": 8, "num_layers": 1, "num_heads": 2}
    t5 = hf.T5Model(hf.T5Config(vocab_size=20, **small))
    with pytest.raises(InputError, match=r"T5Model \(model type 't5'\).*cross-attention"):
        pf.convert(t5, GAINS)
    flash = build("llama")
    flash.config._attn_implementation = "flex_attention"
    with pytest.raises(InputError, match="set_attn_implementation"):
        pf.convert(flash, GAINS)
    with pytest.raises(InputError, match="gains for 2 layers do not fit a model of 3"):
        pf.convert(build("llama"), [GAINS] * 2)
    bert = hf.BertConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, vocab_size=9)
    bert.update({"is_decoder": True, "add_cross_attention": True, "intermediate_size": 16})
    with pytest.raises(InputError, match="add_cross_attention=True"):
        pf.convert(hf.BertLMHeadModel(bert), GAINS)


def test_a_layer_by_itself_is_refused():
    model = pf.convert(build("llama"), GAINS)
    rotation = (torch.ones(1, 7, 8), torch.zeros(1, 7, 8))
    with pytest.raises(InputError, match="LlamaAttention runs without the controller"):
        model.model.layers[1].self_attn(torch.randn(1, 7, 32), rotation)


@pytest.mark.parametrize("is_again", [False, True])
@pytest.mark.parametrize(
    ("gains", "words"),
    [(["0.4,0,0", "0.4,0,0", "0,0,0.5"], "learned gains need p > 0"), ("diet", "'deit'")],
)
@torch.no_grad()
def test_a_refused_conversion_leaves_the_model_as_it_was(gains, words, is_again):
    model, x = build("llama"), batch("llama")
    if is_again:
        model = pf.convert(model, GAINS, learn_gains=True)
    keys, out = list(model.state_dict()), model(**x).logits
    with pytest.raises(InputError, match=words):
        pf.convert(model, gains, learn_gains=True, inplace=True)
    assert list(model.state_dict()) == keys and torch.equal(model(**x).logits, out)
    assert any(hasattr(module, "gains") for module in model.modules()) == is_again


@pytest.mark.slow
def test_a_pickled_model_runs_in_a_process_that_converted_none(tmp_path):
    model, x = pf.convert(build("llama"), GAINS), batch("llama")
    with torch.no_grad():
        out = model(**x).logits
    (tmp_path / "model.pickle").write_bytes(pickle.dumps((model, x, out)))
    code = (
        "import pickle, sys, torch\n"
        "model, x, out = pickle.load(open(sys.argv[1], 'rb'))\n"
        "with torch.no_grad():\n"
        "    logits = model(**x).logits\n"
        "torch.testing.assert_close(logits, out, rtol=1e-5, atol=1e-6)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "model.pickle")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
