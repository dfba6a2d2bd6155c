"""`pf.convert` over every name in timm, counted: `python -m tests.suites.names`.

Models are built without memory (on torch's meta device). The counts go to names.json beside this
file, and from there to docs/compatibility.md.
"""

import json
from collections import Counter
from pathlib import Path

import timm
import torch

import pidformer as pf
from pidformer.errors import InputError
from tests.suites.compatibility import NAMES, write_page


def outcome(name: str) -> str:
    """What a timm model meets: accepted, refused in one line, or crashed."""
    with torch.device("meta"):
        model = timm.create_model(name)
    try:
        pf.convert(model, "0.4,0.1,0.05", inplace=True)
    except InputError as error:
        return "crashed" if "\n" in str(error) else "refused"
    except Exception as error:
        print(f"{name}: {error!r}", flush=True)
        return "crashed"
    return "accepted"


def theirs() -> list[str]:
    """The names in timm that are not ours."""
    return [name for name in timm.list_models() if not name.startswith("pid_")]


def first_of_each_module() -> list[str]:
    """A name of each of timm's files of models."""
    found: dict[str, str] = {}
    for name in theirs():
        found.setdefault(timm.models.model_entrypoint(name).__module__, name)
    return [*found.values()]


def main() -> None:
    counts = Counter(outcome(name) for name in theirs())
    found = {"version": timm.__version__, "all": counts.total()}
    found |= {kind: counts[kind] for kind in ("accepted", "refused", "crashed")}
    Path(NAMES).write_text(json.dumps(found, indent=1) + "\n")
    write_page()


if __name__ == "__main__":
    main()
