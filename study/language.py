"""Language: perplexity by text and protocol, under noise, at longer windows, on other text."""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from pidformer.report.collect import PublishedRun
from pidformer.report.figures import mean_points
from pidformer.report.metrics import Metric, block_losses, compare_loss
from pidformer.report.panels import Panel
from pidformer.results import Record
from pidformer.robustness.compare import Pairs, paired_runs
from pidformer.statistics import Crossed, mean_over_seeds
from study.comparisons import compare_all
from study.frozen_section import frozen_sections
from study.pictures import Point, lines_panel, points_panel
from study.records import Study, Variant
from study.registered import registered_sections
from study.retrofit_plan import ALLOWED, allowed
from study.section import Section, metrics_section
from study.sentence_section import KIND, sentence_sections
from study.tables import by_metric, by_seed

_PROTOCOLS = {
    "sliding": "every token is scored after a full window",
    "strided": "the window moves on by some tokens, and these last ones are scored",
    "segments": "windows side by side, all tokens are scored",
    "documents": "each document on its own",
}
_COUNTS = {3: "three", 5: "five"}
_NOISE = {"characters": "letters changed", "swaps": "words swapped", "drops": "words dropped"}


class Key(NamedTuple):
    """Which record of a run."""

    data: str
    row: str
    limit: int | None
    stride: int | None

    @property
    def title(self) -> str:
        protocol, split, *rest = self.row.split("/")
        moved = f"strided by {self.stride}" if protocol == "strided" and self.stride else protocol
        words = [self.data, split, *([" ".join(rest)] if rest else [moved])]
        words += [f"first {self.limit} tokens"] if self.limit is not None else []
        return ", ".join(words)


def language_sections(study: Study) -> list[Section]:
    """Plain perplexity; noise; longer windows; other text. Or sentences, where these were asked."""
    if any(run.of(KIND) for run in study.runs):
        return sentence_sections(study)
    own = str(study.runs[0].header.settings["data"])
    keys = _keys(study)
    home = [key for key in keys if key.data == own]
    plain = [key for key in home if len(key.row.split("/")) == 2]
    noisy = [key for key in home if key not in plain and "/window/" not in key.row]
    longer = [key for key in home if "/window/" in key.row]
    away = [key for key in keys if key.data != own]
    used = dict.fromkeys(key.row.split("/")[0] for key in plain)
    words = "Perplexity; differences of the loss in nats per token, lower is better. " + "; ".join(
        f"{name}: {_PROTOCOLS.get(name, name)}" for name in used
    )
    sections = [_section(study, "", f"{words}.", plain, is_first=True)] if plain else []
    sections += registered_sections(study, _registered_metrics(study))
    sections += _learning_curves(study)
    if noisy:
        kinds = {key.row.split("/")[2] for key in noisy}
        what = ", ".join(_NOISE.get(kind, kind) for kind in sorted(kinds))
        count = len({key.row.split("/")[3] for key in noisy})
        text = (
            f"Noise in the context at {_COUNTS.get(count, count)} strengths ({what}); the "
            "words to be predicted are left as they are."
        )
        found = _section(study, "Under noise", text, noisy)
        sections.append(replace(found, panels=_noise_panels(study, noisy)))
    if longer:
        text = (
            "Windows longer than those of training, strided by half a window; and what is lost by "
            "them, each run's loss minus its own at the length of training."
        )
        found = _section(study, "Longer windows", text, longer)
        lost = [*_lost_metrics(study).values()]
        body = (
            [*found.body, by_metric(study, lost, compare_all(study, lost))] if lost else found.body
        )
        sections.append(replace(found, body=body))
    if away:
        sections.append(_other_text(study, away))
    return [*sections, *frozen_sections(study)]


def _section(
    study: Study, title: str, words: str, keys: Sequence[Key], is_first: bool = False
) -> Section:
    metrics = [_metric(key) for key in keys]
    seeds = ["By seed:", by_seed(study, metrics)] if is_first else []
    return metrics_section(study, title, words, metrics, more=seeds)


def _other_text(study: Study, keys: Sequence[Key]) -> Section:
    """Known words first: what a vocabulary lacks says little of the model. Then all tokens.

    Of a vocabulary that lacks nothing, all tokens alone.
    """
    title, text = "Another kind of text", "Text of another kind, never trained on: perplexity"
    records = [r for run in study.runs for key in keys if (r := _find(run, key)) is not None]
    if not any(record.metrics["unknown"] for record in records):
        return _section(study, title, f"{text}; differences in nats per token.", keys)
    metrics = [
        Metric(
            title=key.title,
            find=partial(_find, key=key),
            read=lambda record: record.metrics["ppl_known"],
            contrast=lambda record: math.log(record.metrics["ppl_known"]),
            better=-1,
            difference_digits=4,
            unit="nats per known word",
        )
        for key in keys
    ]
    shares = [
        mean_over_seeds(
            [r.metrics["unknown"] for run in study.runs if (r := _find(run, key)) is not None]
        ).mean
        for key in keys
    ]
    unknown = ", ".join(f"{k.title} {s:.1f} %" for k, s in zip(keys, shares, strict=True))
    words = (
        f"{text} of the targets that the vocabulary "
        f"knows (unknown and left out: {unknown}). Differences in nats per known word, over seeds "
        "alone."
    )
    all_words = (
        "All tokens, the unknown ones among them as one word (which is why this perplexity is the "
        "lower one), differences of the loss in nats per token:"
    )
    known = metrics_section(study, title, words, metrics)
    whole = metrics_section(study, "", all_words, [_metric(key) for key in keys])
    said = [f"All tokens: {line[:1].lower()}{line[1:]}" for line in whole.findings]
    return replace(known, body=[*known.body, *whole.body], findings=[*known.findings, *said])


def _metric(key: Key) -> Metric:
    return Metric(
        title=key.title,
        find=partial(_find, key=key),
        read=lambda record: record.metrics["ppl"],
        compare=compare_loss,
        better=-1,
        difference_digits=4,
        unit="nats per token",
    )


def language_metrics(study: Study) -> dict[str, Metric]:
    """Perplexity over all tokens, by title."""
    return {key.title: _metric(key) for key in _keys(study)}


def _registered_metrics(study: Study) -> dict[str, Metric]:
    """Those above, and each with what a hypothesis allows taken off."""
    own = language_metrics(study) | _lost_metrics(study)
    less = [replace(m, title=allowed(t), compare=_compare_allowed) for t, m in own.items()]
    return own | {metric.title: metric for metric in less}


def _lost_metrics(study: Study) -> dict[str, Metric]:
    """What a longer window loses: the loss there minus that at the length of training, by title."""
    keys = _keys(study)
    half = study.runs[0].recipe["text"]["length"] // 2
    found = {}
    for key in keys:
        if "/window/" in key.row:
            row = key.row.partition("/window/")[0]
            if (own := Key(key.data, row, key.limit, half)) in keys:
                metric = Metric(
                    title=f"{key.title}, what it loses",
                    find=partial(_lost, key=key, own=own),
                    read=lambda record: record.metrics["loss"],
                    compare=compare_loss,
                    better=-1,
                    digits=4,
                    difference_digits=4,
                )
                found[metric.title] = metric
    return found


def _lost(run: PublishedRun, key: Key, own: Key) -> Record | None:
    """One record of two texts that are block by block the same."""
    far, near = _find(run, key), _find(run, own)
    if far is None or near is None:
        return None
    blocks = block_losses(far) - block_losses(near)
    metrics = {"loss": float(blocks.mean())}
    return replace(far, metrics=metrics, details={"block_nll": blocks.tolist()})


def _compare_allowed(pairs: Pairs) -> Crossed:
    """The difference of the losses minus `ALLOWED`: below zero where the second is no worse."""
    found = []
    for first, second in pairs:
        details = {"block_nll": (block_losses(second) - ALLOWED).tolist()}
        found.append([first, replace(second, details=details)])
    return compare_loss(found)


def _learning_curves(study: Study) -> list[Section]:
    """Validation loss by epoch, and minus softmax's: does an advantage stay?"""
    lines, ahead = {}, {}
    for variant in study.variants:
        lines[variant.name] = _mean_loss(variant)
        twin, _ = study.twin(variant)
        if twin is not None:
            ahead[variant.name] = _differences(twin, variant)
    if not any(len(points) > 1 for points in lines.values()):
        return []
    is_plain = [variant.is_plain for variant in study.variants]
    what = "validation loss, nats per token"
    panels = [(lines_panel(lines, what, "epoch", "nats", is_plain), f"By epoch: {what}")]
    if any(ahead.values()):
        what = "validation loss minus softmax's"
        panel = points_panel(
            ahead, what, "epoch", "nats", is_plain=[False] * len(ahead), is_line=True
        )
        panels.append((panel, f"{what}, with 95 % intervals over seeds"))
    words = (
        "The validation text in the course of training, windows side by side (segments), mean over "
        "seeds; at the right the difference to softmax of the same seed, 95 % intervals over seeds "
        "alone."
    )
    return [Section(title="Learning curves", body=[words], panels=panels)]


def _mean_loss(variant: Variant) -> list[tuple[float, float]]:
    """The mean over runs of the logarithm of perplexity, at the epochs that all of them have."""
    curves = [run.header.details.get("ppl", []) for run in variant.runs]
    return mean_points([[(x, math.log(y)) for x, y in curve] for curve in curves if curve])


def _differences(twin: Variant, variant: Variant) -> list[Point]:
    """Of the logarithms of perplexity, at the epochs that every pair of runs has."""
    by_seed = [
        {x: math.log(y) - math.log(first[x]) for x, y in second.items() if x in first}
        for a, b in paired_runs(twin, variant)
        if (first := dict(a.header.details.get("ppl", [])))
        and (second := dict(b.header.details.get("ppl", [])))
    ]
    shared = sorted(set.intersection(*map(set, by_seed))) if by_seed else []
    found = {x: mean_over_seeds([own[x] for own in by_seed]) for x in shared}
    return [Point(x, m.mean, m.low, m.high, m.seeds == 1) for x, m in found.items()]


def _keys(study: Study) -> list[Key]:
    return list(dict.fromkeys(_key(r) for run in study.runs for r in run.of("language")))


def _key(record: Record) -> Key:
    s = record.settings
    return Key(str(s["data"]), str(s["row"]), s.get("limit"), s.get("stride"))


def _find(run: PublishedRun, key: Key) -> Record | None:
    return next((r for r in run.of("language") if _key(r) == key), None)


def _noise_panels(study: Study, keys: Sequence[Key]) -> list[tuple[Panel, str]]:
    """Perplexity over the strength, a panel for each kind of noise (of the first text)."""
    kinds: dict[str, dict[int, Key]] = {}
    for key in keys:
        *text, kind, strength = key.row.split("/")
        if (*text, key.limit, key.stride) == (*keys[0].row.split("/")[:-2], *keys[0][2:]):
            kinds.setdefault(kind, {})[int(strength)] = key
    found = []
    for kind, places in kinds.items():
        lines = {}
        for variant in study.variants:
            means = [(x, _metric(places[x]).mean(variant)) for x in sorted(places)]
            lines[variant.name] = [(float(x), m.mean) for x, m in means if m is not None]
        title = _NOISE.get(kind, kind)
        panel = lines_panel(
            lines, title, "strength", "perplexity", [v.is_plain for v in study.variants]
        )
        found.append((panel, title))
    return found
