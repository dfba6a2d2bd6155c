import numpy as np
import pytest
from PIL import Image

import pidformer as pf
from pidformer.data.check import contact_sheet


def test_a_contact_sheet_shows_the_pictures(tmp_path):
    red = Image.new("RGB", (4, 4), (255, 0, 0))
    contact_sheet([("red", red), ("broken", None)], tmp_path / "sheet.png")
    sheet = np.asarray(Image.open(tmp_path / "sheet.png"))
    assert (sheet[8:120, 8:120] == (255, 0, 0)).all()
    assert not (sheet[8:120, 128:240] == (255, 0, 0)).all(-1).any()
    with pytest.raises(pf.InputError, match=r"\.png"):
        contact_sheet([("red", red)], tmp_path / "sheet.gif")
    with pytest.raises(pf.InputError, match="no picture"):
        contact_sheet([], tmp_path / "sheet.png")
