import numpy as np
import pytest
from PIL import Image

import pidformer as pf
from pidformer.data.check import contact_sheet
from tests.data.sets import write_folders


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


def test_damage_is_told_where_there_is_no_picture_to_show(run, tmp_path):
    """The command ended with "there is no picture to show" in place of its report."""
    write_folders(tmp_path, {"train": {"cat": 1, "dog": 0}})
    code, out, _ = run("data", "check", tmp_path, "--out", tmp_path / "sheet.png")
    assert code == 1 and "damaged: train: 1 of 2 class folders" in out
    assert "contact sheet: none" in out and not (tmp_path / "sheet.png").exists()


@pytest.mark.parametrize(("name", "words"), [("a.gif", "end in .png"), ("no/a.png", "folder")])
def test_a_place_for_the_sheet_is_refused_before_anything_is_decoded(
    run, tmp_path, monkeypatch, name, words
):
    write_folders(tmp_path, {"train": {"cat": 1}})
    monkeypatch.setattr("pidformer.data.check.check_data", None)
    code, _, err = run("data", "check", tmp_path, "--out", tmp_path / name)
    assert code == 2 and words in err and err.count("\n") == 1
