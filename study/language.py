"""Language: perplexity by text and protocol, under noise, at longer windows, on other text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from pidformer.report.collect import PublishedRun
from pidformer.report.metrics import Metric, compare_loss
from pidformer.report.panels import Panel
from pidformer.results import Record
from pidformer.statistics import mean_over_seeds
from study.comparisons import compare_all, findings
from study.pictures import lines_panel
from study.records import Study
from study.section import Section
from study.tables import by_metric, by_seed

_PROTOCOLS = {
    "sliding": "every token after a full window (sliding)",
    "strided": "the last tokens of each window, which moves on by as many (strided)",
    "segments": "windows side by side (segments)",
    "documents": "each document on its own",
}


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
    """Plain perplexity; noise; longer windows; other text."""
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
    if noisy:
        text = (
            "Noise in the context at five strengths (characters, swapped or dropped words); the "
            "words to be predicted are left as they are."
        )
        found = _section(study, "Under noise", text, noisy)
        sections.append(replace(found, panels=_noise_panels(study, noisy)))
    if longer:
        text = "Windows longer than those of training, strided by half a window."
        sections.append(replace(_section(study, "Longer windows", text, longer), front=1))
    if away:
        sections.append(_other_text(study, away))
    return sections


def _section(
    study: Study, title: str, words: str, keys: Sequence[Key], is_first: bool = False
) -> Section:
    metrics = [_metric(key) for key in keys]
    compared = compare_all(study, metrics)
    body = [words, by_metric(study, metrics, compared)]
    body += ["By seed:", by_seed(study, metrics)] if is_first else []
    said = findings(compared)
    shown = 2 if is_first else 0
    return Section(title=title, body=body, findings=said, compared=compared, front=shown)


def _other_text(study: Study, keys: Sequence[Key]) -> Section:
    """Known words first: what a vocabulary lacks says little of the model. Then all tokens."""
    metrics = [
        Metric(
            title=key.title,
            find=partial(_find, key=key),
            read=lambda record: record.metrics["ppl_known"],
            contrast=lambda record: math.log(record.metrics["ppl_known"]),
            better=-1,
            difference_digits=4,
        )
        for key in keys
    ]
    compared = compare_all(study, metrics)
    whole = [_metric(key) for key in keys]
    over_all = compare_all(study, whole)
    shares = [
        mean_over_seeds(
            [r.metrics["unknown"] for run in study.runs if (r := _find(run, key)) is not None]
        ).mean
        for key in keys
    ]
    unknown = ", ".join(f"{k.title} {s:.1f} %" for k, s in zip(keys, shares, strict=True))
    words = (
        "Text of another kind, never trained on: perplexity of the targets that the vocabulary "
        f"knows (unknown and left out: {unknown}). Differences in nats per known word, over seeds "
        "alone."
    )
    all_words = (
        "All tokens, the unknown ones among them as one word (which is why this perplexity is the "
        "lower one), differences of the loss in nats per token:"
    )
    return Section(
        title="Another kind of text",
        body=[
            words,
            by_metric(study, metrics, compared),
            all_words,
            by_metric(study, whole, over_all),
        ],
        findings=[
            *findings(compared),
            *(f"All tokens: {line[:1].lower()}{line[1:]}" for line in findings(over_all)),
        ],
        compared=compared,
    )


def _metric(key: Key) -> Metric:
    return Metric(
        title=key.title,
        find=partial(_find, key=key),
        read=lambda record: record.metrics["ppl"],
        compare=compare_loss,
        better=-1,
        difference_digits=4,
    )


def language_metrics(study: Study) -> dict[str, Metric]:
    """Perplexity over all tokens, by title."""
    return {key.title: _metric(key) for key in _keys(study)}


def _keys(study: Study) -> list[Key]:
    return list(dict.fromkeys(_key(r) for run in study.runs for r in run.of("language")))


def _key(record: Record) -> Key:
    s = record.settings
    return Key(str(s["data"]), str(s["row"]), s.get("limit"), s.get("stride"))


def _find(run: PublishedRun, key: Key) -> Record | None:
    return next((r for r in run.of("language") if _key(r) == key), None)


def _noise_panels(study: Study, keys: Sequence[Key]) -> list[tuple[Panel, str]]:
    """Perplexity over the strength, a panel for each kind of noise (of the first split)."""
    split = keys[0].row.split("/")[1]
    kinds: dict[str, list[tuple[int, Key]]] = {}
    for key in keys:
        _, own, kind, strength = key.row.split("/")
        if own == split:
            kinds.setdefault(kind, []).append((int(strength), key))
    found = []
    for kind, places in kinds.items():
        lines = {}
        for variant in study.variants:
            means = [(x, _metric(key).mean(variant)) for x, key in sorted(places)]
            lines[variant.name] = [(float(x), m.mean) for x, m in means if m is not None]
        title = f"{kind} noise"
        panel = lines_panel(
            lines, title, "strength", "perplexity", [v.is_plain for v in study.variants]
        )
        found.append((panel, title))
    return found
