"""The verdict in words: each sentence is chosen by the numbers it states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from pidformer.demo.summary import (
    CHANCE,
    SHOWN_BUDGET,
    Difference,
    ModelSummary,
    Score,
    Spread,
    compare,
    pooled,
)

COLLAPSED = 0.99
"""Tokens count as collapsed when their similarity in the last layer is at least this."""
Summaries = Mapping[str, ModelSummary]


class Verdict(NamedTuple):
    """An answer, and what else belongs to it."""

    headline: str
    details: str


def percent(scores: Sequence[Score]) -> str:
    """Mean over seeds, as "97.1 %"."""
    return f"{Spread.of([score.percent for score in scores]).mean:.1f} %"


def fate(model: ModelSummary) -> Literal["all", "some", "none"]:
    """With how many of the seeds the tokens collapsed."""
    similarity = model.last_similarity
    if similarity.low >= COLLAPSED:
        return "all"
    return "some" if similarity.high >= COLLAPSED else "none"


def is_at_chance(model: ModelSummary) -> bool:
    """Not better than guessing, by the 95 % interval."""
    return pooled(model.clean).interval[0] <= CHANCE


def collapse_verdict(found: Summaries) -> Verdict:
    """Without the residual: do the tokens collapse, and does the controller hold them?"""
    softmax, pid = found["softmax_no_residual"], found["pid_no_residual"]
    fates = fate(softmax), fate(pid)
    began = {
        "all": "collapsed",
        "some": "collapsed with some seeds",
        "none": "did not collapse",
    }
    held = {
        ("all", "all"): "collapsed as well",
        ("none", "none"): "did not collapse either",
        ("all", "none"): "kept its tokens apart",
        ("some", "none"): "kept its tokens apart",
    }.get(fates, began[fates[1]])
    order = {
        "higher": "better than softmax",
        "lower": "worse than softmax",
        "level": "no clear difference from softmax",
    }[compare(pid.clean, softmax.clean).order]
    return Verdict(
        f"Without the residual around attention, softmax {began[fates[0]]}: token similarity "
        f"{softmax.last_similarity.mean:.3f} in the last layer, accuracy "
        f"{percent(softmax.clean)}{_chance(softmax)}. The controlled twin {held}: similarity "
        f"{pid.last_similarity.mean:.3f}, accuracy {percent(pid.clean)}{_chance(pid)}, {order}.",
        f"Without the residual, {_onset(softmax)}; {_onset(pid)}.",
    )


def _chance(model: ModelSummary) -> str:
    return f" (chance is {CHANCE:.0f} %)" if is_at_chance(model) else ""


def _onset(model: ModelSummary) -> str:
    """From which layer to the last the tokens are alike."""
    means = [Spread.of(layer).mean for layer in zip(*model.similarity, strict=True)]
    apart = [depth for depth, mean in enumerate(means, 1) if mean < COLLAPSED]
    kind = model.label.split(",")[0]
    if apart and apart[-1] == len(means):
        return f"the tokens of {kind} were not alike in the end (similarity below {COLLAPSED:g})"
    first = apart[-1] + 1 if apart else 1
    return f"the tokens of {kind} were alike (similarity {COLLAPSED:g} or more) from layer {first}"


def residual_verdict(found: Summaries) -> Verdict:
    """With the residual: which twin is more accurate, and are tokens less alike?"""
    softmax, pid = found["softmax"], found["pid"]
    difference = compare(pid.clean, softmax.clean)
    word = {"higher": "PID is ahead", "lower": "PID is behind", "level": "the twins are level"}
    own, other = pid.last_similarity, softmax.last_similarity
    if own.high < other.low:
        alike = "less alike than"
    elif own.low > other.high:
        alike = "more alike than"
    else:
        alike = "about as alike as"
    return Verdict(
        f"With the residual, {word[difference.order]}: PID {percent(pid.clean)}, softmax "
        f"{percent(softmax.clean)}, {_difference(difference)}.",
        f"With the residual, the tokens of PID end {alike} those of softmax: similarity "
        f"{own.mean:.3f} and {other.mean:.3f}.",
    )


def robustness_verdict(found: Summaries) -> Verdict:
    """Under attack, with the residual; and a warning about models at chance."""
    softmax, pid = found["softmax"], found["pid"]
    tried = [key for key in pid.attacks if key[1] > 0]
    orders = [compare(pid.attacks[key], softmax.attacks[key]).order for key in tried]
    ahead, behind, level = (orders.count(order) for order in ("higher", "lower", "level"))
    if ahead == behind == 0:
        headline = "neither twin is clearly more robust"
    elif behind == 0:
        headline = "PID is more robust"
    elif ahead == 0:
        headline = "PID is less robust"
    else:
        headline = "the twins each hold better somewhere"
    parts = []
    for attack in ("FGSM", "PGD"):
        ours, theirs = (m.attacks[attack, SHOWN_BUDGET] for m in (pid, softmax))
        parts.append(
            f"{attack} at eps {SHOWN_BUDGET:g} leaves PID {percent(ours)} and softmax "
            f"{percent(theirs)}, {_difference(compare(ours, theirs))}."
        )
    guessing = [m.label for m in found.values() if is_at_chance(m)]
    if guessing:
        parts.append(
            f"A model at chance ({'; '.join(guessing)}) has nothing left to lose: that its "
            "accuracy hardly falls is no robustness."
        )
    return Verdict(
        f"Under attack, with the residual, {headline}: of {len(tried)} attacks PID is ahead in "
        f"{ahead}, behind in {behind}, level in {level}.",
        " ".join(parts),
    )


def _difference(found: Difference) -> str:
    ending = ", not a clear one" if found.order == "level" else ""
    return (
        f"a difference of {found.points:+.1f} points [{found.low:+.1f}, {found.high:+.1f}]{ending}"
    )


def verdicts(found: Summaries) -> dict[str, Verdict]:
    """The three answers, in the order of the report."""
    return {
        "collapse": collapse_verdict(found),
        "residual": residual_verdict(found),
        "robustness": robustness_verdict(found),
    }
