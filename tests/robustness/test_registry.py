import pytest

import pidformer as pf
from pidformer.robustness import (
    APGD,
    FAB,
    FGSM,
    PGD,
    SLD,
    SPSA,
    AutoAttack,
    Noise,
    Square,
    threat_from,
)


@pytest.mark.parametrize("kind", [FGSM, PGD, SPSA, SLD, Noise, APGD, FAB, Square, AutoAttack])
def test_every_attack_has_its_name_in_any_case(kind):
    for name in (kind.__name__, kind.__name__.lower(), kind.__name__.upper()):
        assert threat_from(name) == kind()


def test_settings_are_passed_on():
    found = threat_from("pgd", eps="8/255", step_size="2/255", steps=10, early_stop=True)
    assert found == PGD(eps=8 / 255, step_size=2 / 255, steps=10, early_stop=True)
    assert threat_from("square", norm="L2", eps=2, p_init="8e-1") == Square(norm="L2", eps=2.0)
    assert threat_from("fgsm", precision="tf32") == FGSM(precision="tf32")
    assert threat_from("spsa", compat="cleverhans") == SPSA(compat="cleverhans")
    assert threat_from("spsa", compat=None) == SPSA()


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("pdg", {}, "did you mean 'pgd'"),
        ("deepfool", {}, "known: apgd, autoattack, fab"),
        (None, {}, "unknown threat None"),
        ("fgsm", {"step": 3}, "FGSM has no setting 'step'; it has eps, precision"),
        ("pgd", {"steps": "20"}, "steps must be a whole number, got '20'"),
        ("pgd", {"steps": 2.5}, "whole number"),
        ("pgd", {"steps": True}, "whole number"),
        ("pgd", {"early_stop": "yes"}, "true or false"),
        ("pgd", {"eps": 8}, "did you mean 8/255"),
        ("pgd", {"eps": None}, "3/255"),
        ("apgd", {"norm": 2}, "Linf or L2"),
    ],
)
def test_mistakes_are_named_in_one_line(name, settings, words):
    with pytest.raises(pf.InputError, match=words) as error:
        threat_from(name, **settings)
    assert "\n" not in str(error.value)
