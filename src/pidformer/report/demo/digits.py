"""A few digits of the demonstration, and the same digits attacked, with the models' answers."""
# N images

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from pidformer.report.demo.models import MODELS
from pidformer.report.panels import png_uri

COUNT = 5


class Answers(NamedTuple):
    """What one model says of N images, before and after they were changed to mislead it."""

    attacked: Tensor
    """(N, 1, height, width), pixels in [0, 1]."""
    before: Sequence[int]
    after: Sequence[int]


def chosen(labels: Sequence[int], answers: Mapping[str, Answers]) -> list[int]:
    """The first images on which a twin with residual, softmax or PID, is misled; then others.

    Both twins are asked, so the choice favours neither.
    """

    def is_misled(place: int) -> bool:
        return any(
            answers[name].before[place] == labels[place] != answers[name].after[place]
            for name in ("softmax", "pid")
        )

    return sorted(range(len(labels)), key=lambda place: not is_misled(place))[:COUNT]


def digits_view(
    images: Tensor, labels: Sequence[int], answers: Mapping[str, Answers]
) -> dict[str, Any]:
    """The chosen images and, for each model, a line of them as attacked."""
    places = chosen(labels, answers)
    lines = []
    for name, found in answers.items():
        cells = [
            {
                "uri": png_uri(found.attacked[place]),
                "before": found.before[place],
                "after": found.after[place],
                "is_wrong": found.after[place] != labels[place],
            }
            for place in places
        ]
        lines.append({"label": MODELS[name], "cells": cells})
    heads = [{"uri": png_uri(images[place]), "label": labels[place]} for place in places]
    return {"heads": heads, "lines": lines}
