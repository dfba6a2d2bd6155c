"""Rows and hypotheses of docs/study.md, parts 6 and 7, which `study.retrofit` runs."""

from typing import Any

from pidformer.reproduce.study import Hypothesis, StudyPlan, StudyRow

ALLOWED = 0.01
"""Nats per token by which a controlled network may be worse and still be called no worse."""
CLEAN = "{}, test, strided by 128, first 200000 tokens"
NOISY = tuple(f"novels, test, characters {s}, first 200000 tokens" for s in (1, 3, 5))
PAIR = ("pid", "softmax")


def allowed(title: str) -> str:
    """The title of a loss from which `ALLOWED` is taken off."""
    return f"{title}, minus {ALLOWED}"


NOVELS, WIKITEXT = (allowed(CLEAN.format(text)) for text in ("novels", "wikitext"))
_NOTE = (
    f"{ALLOWED} nats are taken off the difference: better means that its interval ends below "
    f"{ALLOWED}, so that the controlled network is no worse"
)


def finetuned(about: str) -> dict[str, Any]:
    """What both parts share: two rows, three seeds."""
    return {
        "recipe": "",
        "rows": tuple(
            StudyRow(name=name, group="finetuned", overrides=(), seeds=(10, 11, 12), suites={})
            for name in ("softmax", "pid")
        ),
        "about": {"finetuned": about},
        "halves": {"finetuned": None},
    }


RETROFIT = StudyPlan(
    name="retrofit",
    data=("novels", "wikitext"),
    **finetuned("1,000 steps from trained weights"),
    primary=tuple(("pid", title) for title in (NOVELS, *NOISY)),
    hypotheses=(
        Hypothesis(
            name="R1",
            text="after fine-tuning, a network with a controller is no worse on the text it was "
            "tuned on",
            expects={NOVELS: "better"},
            pairs=(PAIR,),
            note=_NOTE,
        ),
        Hypothesis(
            name="R2",
            text="it is better when letters of the context change",
            expects=dict.fromkeys(NOISY, "better"),
            pairs=(PAIR,),
        ),
        Hypothesis(
            name="R3",
            text="it is no worse on text of another kind",
            expects={WIKITEXT: "better"},
            pairs=(PAIR,),
            note=_NOTE,
        ),
    ),
)
COSINES = tuple(f"novels, test, cosine, characters {s}" for s in (1, 3, 5))
FOUND = "novels, test, found, characters 5"
SENTENCES = StudyPlan(
    name="retrofit-sentences",
    data=("novels",),
    **finetuned("100 steps from trained weights"),
    primary=tuple(("pid", title) for title in (*COSINES, FOUND)),
    hypotheses=(
        Hypothesis(
            name="M1",
            text="after fine-tuning, a sentence stays nearer to itself when its letters change",
            expects=dict.fromkeys(COSINES, "better"),
            pairs=(PAIR,),
        ),
        Hypothesis(
            name="M2",
            text="it is found more often among the clean ones",
            expects={FOUND: "better"},
            pairs=(PAIR,),
        ),
    ),
)
PLANS = {plan.name: plan for plan in (RETROFIT, SENTENCES)}
"""Registered in Python: what they run is no recipe of ours."""
