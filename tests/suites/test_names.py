"""`pf.convert` takes a timm model or refuses it in one line, whatever it is."""

import pytest

from tests.suites.names import first_of_each_module, outcome

KNOWN = {
    "beit_base_patch16_224": "accepted",
    "cait_m36_384": "refused",
    "deit_tiny_patch16_224": "accepted",
    "resnet18": "refused",
    "swin_tiny_patch4_window7_224": "refused",
    "vit_base_patch16_18x2_224": "refused",
}


@pytest.mark.parametrize("name", KNOWN)
def test_what_a_name_meets(name):
    assert outcome(name) == KNOWN[name]


@pytest.mark.slow
@pytest.mark.parametrize("name", first_of_each_module())
def test_no_kind_of_model_crashes(name):
    assert outcome(name) in ("accepted", "refused")
