import json
import math
import shutil

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import pidformer as pf
from pidformer import results
from pidformer.errors import InputError
from pidformer.models.causal_lm import PIDformerForCausalLM
from pidformer.report.hub import fast_tokenizer, publish_run
from pidformer.runs.folder import load_weights, save_weights
from pidformer.runs.model import load_language
from pidformer.training import load_recipe, shipped_recipes
from pidformer.training.converted import convert_run
from pidformer.training.loop import Trainer
from pidformer.training.run import build_task, train
from pidformer.training.tasks import Place
from tests.processes import COMMAND, ends_well, two
from tests.training.tiny_language import tiny_language

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def whole(texts, tmp_path_factory):
    run = tmp_path_factory.mktemp("runs") / "pid"
    return run, train(tiny_language(), run, data=texts, device="cpu", is_shown=False)


def same_weights(a, b, name="model"):
    one, two = (load_weights(run / f"{name}.safetensors") for run in (a, b))
    return one.keys() == two.keys() and all(torch.equal(one[k], two[k]) for k in one)


def curve(run):
    return [r.metrics["loss"] for r in results.read(run) if r.kind == "train"]


def test_a_run_learns_and_says_so(whole):
    run, scores = whole
    assert scores["ppl"] == pytest.approx(math.exp(scores["loss"]))
    assert scores["ppl"] < 30  # of 48 words
    logged = [r.metrics for r in results.read(run) if r.kind == "train"]
    assert logged[-1]["loss"] < logged[0]["loss"] and logged[-1]["tokens_per_second"] > 0
    assert json.loads((run / "model.json").read_text())["tokenizer"]["words"][0] == "<eos>"


@pytest.mark.parametrize("step", [7, 23])
def test_a_run_cut_in_the_middle_of_a_stream_ends_with_the_same_weights(
    whole, texts, tmp_path, monkeypatch, step
):
    run, inner = tmp_path / "run", Trainer._train_step

    def crash(self, batch, rate):
        if self.step == step:
            raise RuntimeError("crash")
        return inner(self, batch, rate)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_train_step", crash)
        with pytest.raises(RuntimeError, match="crash"):
            train(tiny_language(), run, data=texts, device="cpu", is_shown=False)
    assert train(tiny_language(), run, data=texts, device="cpu", is_shown=False) == whole[1]
    assert same_weights(run, whole[0]) and same_weights(run, whole[0], "best")
    assert curve(run) == curve(whole[0])


def test_a_schedule_in_steps_ends_and_evaluates_there(texts, tmp_path):
    recipe = tiny_language(
        "schedule={steps: 17, warmup_steps: 4, warmup_lr: 0.0, min_lr: 0.0}",
        "train.evaluate_steps=6",
        "train.log_steps=1",
    )
    train(recipe, tmp_path / "run", data=texts, device="cpu", is_shown=False)
    records = results.read(tmp_path / "run")
    assert [r.step for r in records if r.kind == "evaluate"] == [6, 12, 17]
    rates = [r.metrics["lr"] for r in records if r.kind == "train"]
    peak = recipe.optim.lr
    expected = [peak * s / 4 if s < 4 else peak * (1 + math.cos(math.pi * s / 17)) / 2
                for s in range(17)]  # fmt: skip
    assert rates == pytest.approx(expected)


def test_on_a_gpu_the_softmax_is_promised_what_no_batch_breaks(texts, monkeypatch):
    monkeypatch.setattr("pidformer.data.text.streams.as_device", lambda _: torch.device("cpu"))
    options = ("model.options.cutoffs=[12, 30]", "model.options.hidden_dropout=0.0")
    task = build_task(tiny_language(*options, name="gutenberg/softmax.yaml"), texts)
    streams = task.train_data(Place(0, 1, torch.device("cuda")))
    model, seen = task.build(), []
    model.lm_head.register_forward_pre_hook(lambda _, given: seen.append(given[2]))
    for batch in streams.epoch(0):
        expected = model(input_ids=batch.inputs, targets=batch.targets).loss
        torch.testing.assert_close(task.loss(model, batch), expected)
    assert seen[0] is None and seen[1] == [64, 64]


@pytest.mark.parametrize("first", [5.0, math.nan])
def test_the_best_weights_are_kept(texts, tmp_path, monkeypatch, first):
    held = []

    def evaluate(self):
        held.append({k: v.clone() for k, v in self.model.state_dict().items()})
        return {"ppl": [first, 3.0, 3.0, 4.0][len(held) - 1]}

    monkeypatch.setattr(Trainer, "evaluate", evaluate)
    run = tmp_path / "run"
    train(tiny_language("schedule.epochs=4"), run, data=texts, device="cpu", is_shown=False)
    last = load_weights(run / "model.safetensors")
    loaded = load_language(run).model.state_dict()
    assert len(held) == 4 and all(torch.equal(held[1][k], loaded[k]) for k in loaded)
    assert all(torch.equal(held[3][k], last[k]) for k in last)
    assert any(not torch.equal(last[k], loaded[k]) for k in last)


def test_a_converted_run_has_the_weights_that_the_run_is_evaluated_with(whole, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(whole[0], run)
    best = load_weights(run / "best.safetensors")
    save_weights(run / "best.safetensors", {key: 2 * value for key, value in best.items()})
    convert_run(str(run), "0.1,0,0", tmp_path / "converted")
    used = load_language(run).model.state_dict()
    converted = load_language(tmp_path / "converted").model
    assert converted.gains == pf.PIDGains(p=0.1)
    assert all(torch.equal(used[k], value) for k, value in converted.state_dict().items())


def test_scores_of_processes_add_up(texts):
    task = build_task(tiny_language(), texts)
    torch.manual_seed(0)
    model = task.build().eval()
    with torch.no_grad():
        whole = task.count(model, Place(0, 1, torch.device("cpu")))
        parts = [task.count(model, Place(r, 3, torch.device("cpu"))) for r in range(3)]
    torch.testing.assert_close(whole, sum(parts))


def test_load_gives_model_and_tokenizer(whole):
    run, _ = whole
    loaded = load_language(run)
    assert isinstance(pf.load(run), PIDformerForCausalLM) and not loaded.model.training
    assert loaded.length == 16 and loaded.tokenizer.size == loaded.model.config.vocab_size
    with pytest.warns(UserWarning, match=r"trained with gains .*p=0.4.*loaded with .*p=0.1"):
        assert load_language(run, gains="0.1,0,0").model.gains == pf.PIDGains(p=0.1)


def test_a_vocabulary_of_another_size_is_named_with_both_sizes(whole, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(whole[0], run)
    info = json.loads((run / "model.json").read_text())
    size = len(info["tokenizer"]["words"])
    info["tokenizer"]["words"].append("more")
    (run / "model.json").write_text(json.dumps(info))
    with pytest.raises(InputError, match=rf"vocabulary of {size}, its tokenizer has {size + 1}"):
        load_language(run)


def test_a_run_does_not_go_on_with_another_text(whole, texts, tmp_path):
    other = tmp_path / "texts"
    shutil.copytree(texts, other)
    with open(other / "train.txt", "a") as file:
        file.write("one more\n")
    recipe = tiny_language("schedule.epochs=2")
    with pytest.raises(InputError, match=r"on other data \(vocab_size: 48 -> 50\)"):
        train(recipe, whole[0], data=other, device="cpu", is_shown=False)


class StopHere(Exception):
    pass


@pytest.mark.parametrize(
    "name", [n for n in shipped_recipes() if n.startswith(("novels/", "wikitext103/"))]
)
def test_two_steps_of_every_language_recipe(name, texts, tmp_path, monkeypatch):
    inner = Trainer._save_or_stop

    def stop(self, at_end=False):
        inner(self, at_end)
        if self.step == 2:
            raise StopHere

    monkeypatch.setattr(Trainer, "_save_or_stop", stop)
    small = ["data.batch_size=8", "text.length=8", "text.min_count=1"]
    small += ["model.options.num_hidden_layers=2", "model.options.intermediate_size=32"]
    with pytest.raises(StopHere):
        train(load_recipe(name, small), tmp_path / "run", data=texts, device="cpu", is_shown=False)


def test_the_papers_recipe_is_the_papers():
    softmax, pid = (load_recipe(f"wikitext103/lm_small_{kind}.yaml") for kind in ("softmax", "pid"))
    assert (softmax.data.batch_size, softmax.text.length, softmax.seed) == (96, 256, 1111)
    assert (softmax.schedule.steps, softmax.schedule.warmup_steps) == (500_000, 2000)
    assert (softmax.optim.lr, softmax.optim.clip, softmax.optim.weight_decay) == (2.5e-4, 0.25, 0)
    assert softmax.train.evaluate_steps == 4000 and softmax.train.keep_best
    assert softmax.model.gains is None and pid.model.gains == "lm"


def test_learned_gains_bf16_and_checkpointing_train(texts, tmp_path):
    recipe = tiny_language(
        "train.precision=bf16",
        "model.learn_gains=true",
        "train.grad_checkpointing=true",
        "train.ema=0.9",
        "schedule.epochs=1",
    )
    scores = train(recipe, tmp_path / "run", data=texts, device="cpu", is_shown=False)
    assert np.isfinite(scores["loss"]) and np.isfinite(scores["ema_ppl"])
    learned = load_language(tmp_path / "run").model.model.layers[1].self_attn.gains.values()
    assert all(pf.control.is_stable(g) for g in learned)
    load_language(tmp_path / "run", weights="ema")


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("data.batch_size=4096", "shorter than one batch"),
        ("text.tokenizer=no/such-thing", "unknown tokenizer 'no/such-thing'"),
        ("model.name=causal_ml", "did you mean 'causal_lm'"),
        ("model.options.hiden_size=3", "did you mean 'hidden_size'"),
        ("model.options.hidden_dropout=2", r"hidden_dropout must be in \[0, 1\), got 2"),
        ("model.options.initializer_range=-1", "initializer_range must be from 0 to 100, got -1"),
        ("text.min_count=100000", r"no word of .* occurs 100000 times; lower text.min_count"),
        ("model.options.num_attention_heads=3", "multiple of num_attention_heads"),
        ("text.spilt=spaces", "did you mean 'text.split'"),
        ("task=classification", "the section text needs task: language"),
    ],
)
def test_settings_that_do_not_fit_get_one_clear_line(texts, tmp_path, override, words):
    with pytest.raises(InputError, match=words):
        train(tiny_language(override), tmp_path / "run", data=texts, device="cpu", is_shown=False)
    assert not (tmp_path / "run").exists()


def test_the_command_line_trains_and_writes(run, texts, tmp_path):
    import yaml

    recipe, out = tmp_path / "tiny.yaml", tmp_path / "run"
    recipe.write_text(yaml.safe_dump(tiny_language("schedule.epochs=1").to_dict()))
    arguments = ["train", recipe, "--data", texts, "--out", out, "--device", "cpu"]
    code, text, _ = run(*arguments)
    assert code == 0 and "perplexity" in text and "bits/character" in text
    options = ["--max-tokens", 9, "--device", "cpu"]
    code, text, _ = run("generate", out, "--prompt", "w1 w2", *options)
    assert (code == 0 and text.startswith("w1 w2 ")) or text.startswith("w1 w2\n")
    assert len(text.split()) > 3 and "<unk>" not in text
    code, again, _ = run("generate", out, "--prompt", "w1 w2", *options, "--json")
    assert "w1 w2" + json.loads(again)["text"] + "\n" == text  # the seed decides
    code, other, _ = run("generate", out, "--prompt", "w1 w2", *options, "--seed", 1)
    assert other != text
    code, text, _ = run("generate", out, *options, "--temperature", 0)
    assert code == 0


def test_bad_input_gets_one_line_and_exit_code_2(run, whole, texts, tmp_path):
    import yaml

    recipe = tmp_path / "tiny.yaml"
    recipe.write_text(yaml.safe_dump(tiny_language().to_dict()))
    binary, empty = tmp_path / "binary", tmp_path / "empty"
    for folder, content in ((binary, b"\x00\xff" * 99), (empty, b"")):
        folder.mkdir()
        (folder / "train.txt").write_bytes(content)
    learned = tmp_path / "learned"
    options = "model.options.position_type=learned"
    train(tiny_language(options), learned, data=texts, device="cpu", is_shown=False)
    for arguments, words in [
        (["train", recipe, "--data", binary, "--out", tmp_path / "x"], "is not text"),
        (["train", recipe, "--data", empty, "--out", tmp_path / "x"], "holds no text"),
        (["train", recipe, "--out", tmp_path / "x"], "--data DIR"),
        (["train", recipe, "text.tokenizer=gone/gone", "--data", texts], "unknown tokenizer"),
        (["train", recipe, "data.batch_size=999", "--data", texts], "shorter than one batch"),
        (["generate", tmp_path / "gone"], "not a run folder"),
        (["generate", learned, "--prompt", "w1 " * 20], "20 tokens and 100 more do not fit"),
        (["generate", whole[0], "--max-tokens", "0"], "max_tokens must be >= 1"),
        (["generate", whole[0], "--device", "tpu"], "device"),
        (["generate", whole[0], "--temperature", "nan"], "0.001 and more, got nan"),
        (["generate", whole[0], "--temperature", "inf"], "0.001 and more, got inf"),
        (["generate", whole[0], "--temperature", "1e-300"], "0.001 and more, got 1e-300"),
        (["generate", whole[0], "--top-k", "-1"], "top_k must be >= 0, got -1"),
        (["generate", whole[0], "--top-p", "nan"], "top_p must be in (0, 1], got nan"),
        (["generate", whole[0], "--top-p", "0"], "top_p must be in (0, 1], got 0.0"),
        (["generate", whole[0], "--seed", 2**70], "seed must be a whole number from 0 to"),
    ]:
        code, out, err = run(*arguments)
        assert code == 2 and out.strip() in ("", " ".join(map(str, arguments[3:4])).strip()), out
        assert err.startswith("pidformer: ") and err.count("\n") == 1 and words in err, err


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda info: info.pop("tokenizer"), "model.json is damaged .it does not say tokenizer"),
        (lambda info: info["build"].pop("length"), "model.json is damaged .it does not say length"),
        (lambda info: info.update(tokenizer=[]), "the file that holds it is damaged"),
        (lambda info: info["tokenizer"].pop("words"), "the file that holds it is damaged"),
        (lambda info: info["tokenizer"].update(kind="letters"), "unknown kind of tokenizer"),
    ],
)
def test_a_damaged_vocabulary_is_named_in_one_line(whole, tmp_path, change, words):
    run = tmp_path / "run"
    shutil.copytree(whole[0], run)
    info = json.loads((run / "model.json").read_text())
    change(info)
    (run / "model.json").write_text(json.dumps(info))
    with pytest.raises(InputError, match=words):
        load_language(run)


def test_a_published_folder_loads_with_auto_classes_and_has_a_card(whole, texts, tmp_path, run):
    from pidformer.evaluation.language import evaluate_language

    command, run, out = run, whole[0], tmp_path / "hub"
    found = evaluate_language(run, data=texts, protocol="segments", device="cpu", split="test")
    code, said, wrong = command("publish", run, "--out", out)
    assert code == 0 and said.startswith(f"{out}: README.md, config.json"), wrong
    code, _, wrong = command("export", run, "--format", "hub", "--out", tmp_path / "b")
    assert code == 2 and "pidformer publish RUN" in wrong and wrong.count("\n") == 1
    loaded = load_language(run)
    model, tokenizer = AutoModelForCausalLM.from_pretrained(out), AutoTokenizer.from_pretrained(out)
    text = "w1 w2 nothing\nw3"
    tokens = tokenizer(text, return_tensors="pt").input_ids
    assert tokens[0].tolist() == loaded.tokenizer.encode(text)
    assert torch.equal(model(tokens).logits, loaded.model(tokens).logits)
    card = (out / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: transformers")
    assert (
        f"| segments/test | perplexity | {found['ppl']:.2f} |" in card and "PIDGains(p=0.4" in card
    )
    again = load_language(out)
    assert again.tokenizer.encode(text) == loaded.tokenizer.encode(text)
    assert torch.equal(again.model(tokens).logits, model(tokens).logits)
    with pytest.raises(InputError, match="not an empty folder"):
        publish_run(run, out)


def test_a_punctuated_vocabulary_is_the_same_for_hugging_face():
    from collections import Counter

    from pidformer.data.text.tokenizers import WordVocabulary, words_of

    text = "“It's well @-@ known,” he said (twice). <unk>\n\n= Next =\nO\u2019Hara's naïve 3.5 £!\n"
    words = [w for line in text.split("\n") for w in words_of(line, "punctuation")]
    vocabulary = WordVocabulary.from_counts(Counter(words), "punctuation")
    assert fast_tokenizer(vocabulary)(text).input_ids == vocabulary.encode(text)


def test_two_processes_have_the_loss_curve_of_one(texts, tmp_path):
    import yaml

    recipe = tmp_path / "tiny.yaml"
    given = tiny_language("model.options.hidden_dropout=0", "train.log_steps=1")
    recipe.write_text(yaml.safe_dump(given.to_dict()))
    train(given, tmp_path / "one", data=texts, device="cpu", is_shown=False)
    one = curve(tmp_path / "one")
    where = ["--data", texts, "--device", "cpu", "--out", tmp_path / "two"]
    ends_well(*two(COMMAND, "train", recipe, "train.parallel=fsdp", *where))
    many = curve(tmp_path / "two")
    assert len(one) > 20 and np.allclose(one, many, rtol=2e-4)
    assert (tmp_path / "two" / "best.safetensors").exists()


def test_table_3_has_a_line_for_each_controller(whole, texts, tmp_path):
    from pidformer.evaluation.language import evaluate_language
    from pidformer.report.collect import collect
    from pidformer.report.details import other_table
    from pidformer.report.table_view import Sources

    twins = [tmp_path / "softmax-seed0", tmp_path / "softmax-seed1"]
    for seed, run in enumerate(twins):
        recipe = tiny_language(f"seed={seed}", name="novels/softmax.yaml")
        train(recipe, run, data=texts, device="cpu", is_shown=False)
    options = {"data": texts, "protocol": "segments", "split": "test", "device": "cpu"}
    found = [evaluate_language(run, **options)["ppl"] for run in [*twins, whole[0]]]
    table = other_table(collect([*twins, whole[0]]), Sources(), kind="language")
    lines = {line.title: line for line in table.lines}
    assert lines["softmax"].small == "no controller; 2 seeds"
    assert lines["softmax"].cells[2].text == f"{np.mean(found[:2]):.2f}"
    controlled = next(line for line in table.lines if line.small.startswith("p 0.4, i 0.5, d 0.1"))
    assert controlled.cells[2].text == f"{found[2]:.2f}"
