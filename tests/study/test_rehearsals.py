"""The cost of the paper in docs/reproduce.md is that of the records in results/rehearsals/."""

import json
from pathlib import Path

import pytest

from pidformer.errors import InputError
from pidformer.reproduce.rehearsal import Rehearsal, Rehearsed
from study.pages import filled
from study.rehearsals import BEGIN, END, PAGE, rehearsals_text

ROOT = Path(__file__).parents[2]
FOUND = Rehearsal(
    device="one GPU, 16 CPU core(s)",
    is_made_up=True,
    kinds=(
        Rehearsed(kind="train", title="train a/b-seed0", count=2, seconds=7200, speed="9 images/s"),
        Rehearsed(kind="evaluate", title="evaluate a/b-seed0: c", count=2, failure="no set | here"),
    ),
    plan="0",
    longest=3.0,
    is_whole=True,
)


def write(root, name="paper-gpu", **changes):
    path = root / "rehearsals" / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(FOUND.to_dict() | changes))


def test_the_guide_of_the_repository_has_its_rehearsals():
    guide = (ROOT / "docs" / PAGE).read_text(encoding="utf-8")
    assert BEGIN in guide
    made = filled(guide, rehearsals_text([ROOT / "results"]), BEGIN, END)
    assert made == guide, "run: python -m study"


def test_a_table_is_made_of_each_record(tmp_path):
    assert rehearsals_text([tmp_path]) == ""
    write(tmp_path)
    write(tmp_path, "small-gpu")
    first, second = rehearsals_text([tmp_path]).split("`results/rehearsals/small-gpu.json`")
    assert first.startswith("`results/rehearsals/paper-gpu.json`: 4.0 h of one GPU, 16 CPU core(s)")
    assert "made-up data (3.0 h or more with eight such)" in first
    lines = first.strip().splitlines()[-4:]
    assert lines[2] == "| train a/b | 2 | 9 images/s |  |  | 2.0 h | 4.0 h |"
    assert lines[3] == r"| evaluate a/b: c | 2 | fails: no set \| here |  |  |  |  |"
    assert second.count("\n| ") == 4


@pytest.mark.parametrize("changes", [{"is_whole": False}, {"kinds": 3}])
def test_a_part_of_a_rehearsal_is_not_published(tmp_path, changes):
    write(tmp_path, **changes)
    with pytest.raises(InputError, match="no rehearsal that came to its end"):
        rehearsals_text([tmp_path])


def test_a_page_without_records_has_nothing_between_its_marks():
    text = f"a\n\n{BEGIN}\nold\n{END}\n\nb\n"
    assert filled(text, "", BEGIN, END) == f"a\n\n{BEGIN}\n{END}\n\nb\n"
