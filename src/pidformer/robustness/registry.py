"""Threats by name, as a file of settings gives them."""

from dataclasses import Field, fields
from typing import Any

from pidformer.errors import InputError, shortened, unknown
from pidformer.fields import as_type
from pidformer.robustness.attack import Attack
from pidformer.robustness.attacks import FGSM, PGD, SLD, Noise
from pidformer.robustness.autoattack import APGD, FAB, AutoAttack
from pidformer.robustness.black_box import SPSA, Square
from pidformer.robustness.threat import as_budget

_KINDS: tuple[type[Attack], ...] = (FGSM, PGD, SPSA, SLD, Noise, APGD, FAB, Square, AutoAttack)
THREATS = {kind.__name__.lower(): kind for kind in _KINDS}

_READ = (int, bool)
"""Types that a setting is read as; names are checked by the attack itself."""


def threat_from(name: str, **settings: Any) -> Attack:
    """The threat of this name, in any case, with these of its settings.

    >>> threat_from("pgd", eps="8/255", step_size="2/255", steps=10)
    PGD(eps=8/255, steps=10, step_size=2/255, random_start=True, restarts=1, early_stop=False)
    """
    kind = THREATS.get(str(name).lower())
    if kind is None:
        raise unknown("threat", name, THREATS)
    known = {field.name: field for field in fields(kind)}
    for setting in settings:
        if setting not in known:
            allowed = ", ".join(known)
            raise InputError(
                f"{kind.__name__} has no setting {shortened(setting)}; it has {allowed}"
            )
    return kind(**{key: _fitting(kind, known[key], value) for key, value in settings.items()})


def _fitting(kind: type[Attack], field: Field[Any], value: Any) -> Any:
    """The value, checked against the type of the default: a file may give any."""
    wanted = type(field.default)
    if wanted is float:
        return as_budget(value)
    return as_type(wanted, value, f"{kind.__name__}: {field.name}") if wanted in _READ else value
