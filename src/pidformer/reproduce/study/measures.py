"""How a study measures its runs: suites of threats and curves over budgets, by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pidformer.errors import InputError, shortened, unknown
from pidformer.reproduce.study.fields import check_keys, mapping, seeds, text

_KEYS = ("limit", "domain", "seeds", "curve", "eps")
_DOMAINS = ("pixel", "normalized")


@dataclass(frozen=True, kw_only=True)
class Measure:
    """One evaluation of a run: a suite by its name or file, or a curve."""

    suite: str
    limit: int | None = None
    """Images to measure on; None: all."""
    domain: str = "pixel"
    seeds: tuple[int, ...] | None = None
    """The seeds whose runs are measured; None: all."""
    curve: str | None = None
    """Attacks whose accuracy is measured at each budget of `eps`, in place of a suite."""
    eps: str | None = None

    def covers(self, seed: int) -> bool:
        """Whether the run of `seed` is measured."""
        return self.seeds is None or seed in self.seeds


def read_measures(given: Any) -> dict[str, Measure]:
    """Measures by name; their jobs are told apart by the file names of their suites."""
    found = {
        name: _measure(text("a suite", name), own) for name, own in mapping("suites", given).items()
    }
    stems = [Path(name).stem for name in found]
    for stem in stems:
        if stems.count(stem) > 1:
            raise InputError(f"two suites are called {stem}; rename one of their files")
    return found


def _measure(name: str, given: Any) -> Measure:
    """A number of images, null for all of them, or `key: value` pairs."""
    own: Mapping[str, Any] = given if isinstance(given, Mapping) else {"limit": given}
    check_keys(f"suite {name}", own, _KEYS)
    limit = own.get("limit")
    if limit is not None and (type(limit) is not int or limit < 1):
        raise InputError(
            f"suite {name} takes a number of images, or null: all; got {shortened(limit)}"
        )
    domain = own.get("domain", "pixel")
    if domain not in _DOMAINS:
        raise unknown(f"domain of suite {name}", str(domain), _DOMAINS)
    if ("curve" in own) != ("eps" in own):
        raise InputError(f"suite {name} needs both `curve` and `eps`, or neither")
    return Measure(
        suite=name,
        limit=limit,
        domain=domain,
        seeds=None if "seeds" not in own else seeds(f"suite {name}", own["seeds"]),
        curve=None if "curve" not in own else text(f"curve of suite {name}", own["curve"]),
        eps=None if "eps" not in own else text(f"eps of suite {name}", own["eps"]),
    )
