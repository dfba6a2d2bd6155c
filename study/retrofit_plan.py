"""Rows and hypotheses of docs/study.md, part 6, which `study.retrofit` runs."""

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
RETROFIT = StudyPlan(
    name="retrofit",
    recipe="",
    data=("novels", "wikitext"),
    rows=tuple(
        StudyRow(name=name, group="finetuned", overrides=(), seeds=(10, 11, 12), suites={})
        for name in ("softmax", "pid")
    ),
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
    about={"finetuned": "1,000 steps from trained weights"},
    halves={"finetuned": None},
)
