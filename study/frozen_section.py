"""What a controller does to a trained network without any training: `study.frozen`'s files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pidformer.report.panels import Panel
from pidformer.report.table_view import machine_text, minus, number_text
from pidformer.results import Record
from pidformer.statistics import Mean
from study.frozen import BLOCK, STRETCH, STRETCHES
from study.pictures import lines_panel
from study.records import Study
from study.section import Section
from study.tables import table

_LOOK = (
    "Token similarity, the mean cosine of two tokens of a text, by layer: {count} stretches of "
    "{tokens} tokens of the validation text. Gains of zero change {bits} of the output."
)
_TUNE = (
    "Perplexity with each of the gains tried, the first {valid} tokens of the validation text, "
    "windows of 256 strided by 128; differences to plain attention in nats per token, intervals "
    "over blocks of {block} tokens. {verdict} Plain attention and the controller with the lowest "
    "perplexity there, {gains}, on the first {test} tokens of the test text: {plain:.2f} and "
    "{best:.2f}, a difference of {difference}."
)
_NOISE = (
    "{sentences} sentences of 32 tokens of the validation text with letters changed, gains "
    "{gains}: the cosine to their own clean self, and found, the share whose nearest clean "
    "sentence is their own, in per cent. Intervals over sentences."
)


def frozen_sections(study: Study) -> list[Section]:
    """One section of what was measured; none where nothing was."""
    files = study.frozen
    if not files:
        return []
    body: list[str] = []
    if "look" in files:
        body.append(_look_text(files["look"]["lines"][0]))
    if "tune" in files:
        body += _tune_parts(files["tune"]["lines"][0])
    if "noise" in files:
        body += _noise_parts(files["noise"]["lines"])
    body.append("\n".join(f"- {_command(file)}" for file in files.values()))
    panels = [_panel(files["look"]["lines"][0])] if "look" in files else []
    return [Section(title="Without training", body=body, panels=panels)]


def _look_text(line: Mapping[str, Any]) -> str:
    bits = "no bit" if line["is_identical"] else "bits"
    return _LOOK.format(count=STRETCHES, tokens=STRETCH, bits=bits)


def _panel(line: Mapping[str, Any]) -> tuple[Panel, str]:
    series = {"plain": line["similarity"], f"gains {line['gains']}": line["similarity_controlled"]}
    lines = {
        name: [(float(layer), value) for layer, value in enumerate(values, 1)]
        for name, values in series.items()
    }
    words = "token similarity by layer"
    return lines_panel(lines, words, "layer", "mean cosine", [True, False]), words


def _tune_parts(line: Mapping[str, Any]) -> list[str]:
    """Words, and a row for each trial; the first is plain attention."""
    count = len(line["trials"]) - 1
    better = sum(trial["ppl"] < line["trials"][0]["ppl"] for trial in line["trials"])
    test = line["test"]
    words = _TUNE.format(
        valid=line["valid_tokens"],
        block=BLOCK,
        test=line["test_tokens"],
        verdict=f"{better or 'None'} of the {count} is better than plain attention.",
        gains=_gains(line["best"]),
        plain=test["plain_ppl"],
        best=test["best_ppl"],
        difference=_moved(test),
    )
    rows = [
        [_gains(t), f"{t['ppl']:.2f}", _moved(t) if n else ""] for n, t in enumerate(line["trials"])
    ]
    return [words, table(["gains p, i, d", "perplexity", "minus plain"], rows)]


def _gains(trial: Mapping[str, Any]) -> str:
    return ", ".join(f"{trial['gains'][name]:g}" for name in "pid")


def _noise_parts(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    rows = [
        [
            f"{100 * line['rate']:g} %",
            f"{line['plain']['cosine']:.3f}",
            f"{line['controlled']['cosine']:.3f}",
            _moved(line),
            _share(line["plain"]),
            _share(line["controlled"]),
        ]
        for line in lines
    ]
    heads = ["letters changed", "cosine, plain", "controlled", "difference"]
    heads += ["found, plain", "controlled"]
    words = _NOISE.format(sentences=lines[0]["sentences"], gains=lines[0]["gains"])
    return [words, table(heads, rows)]


def _moved(line: Mapping[str, Any]) -> str:
    mean, low, high = line["difference"]
    return minus(number_text(Mean(mean, low, high, 0), 4, sign="+"))


def _share(found: Mapping[str, float]) -> str:
    return f"{found['found']:.1f} [{found['found_low']:.1f}, {found['found_high']:.1f}]"


def _command(file: Mapping[str, Any]) -> str:
    where = machine_text(Record(kind="frozen", metrics={}, settings={"machine": file["machine"]}))
    return f"`{file['command']}` (DATA: {file['data']}; {where})"
