from __future__ import annotations

import pytest

from pidformer.bench import reading
from pidformer.data import open_images
from tests.bench.test_sections import CPU
from tests.data.sets import refused, write_photos


def test_every_contender_reads_the_same_number_of_images(tmp_path, monkeypatch):
    """Of a user's own photographs, as of made-up ones; the set itself is not touched."""
    photos = write_photos(tmp_path / "photos", count=8)
    read = []

    class Counted(reading.TrainImages):
        def epoch(self, *place):
            for batch in super().epoch(*place):
                read.append(len(batch.images))
                yield batch

    monkeypatch.setattr(reading, "TrainImages", Counted)
    tables = list(reading.reading(CPU, tmp_path, count=6, photos=photos))
    assert [[row.label for row in rows] for rows in tables] == [
        [reading.PLAIN, reading.TIMM, reading.FILES, reading.CACHE]
    ] * 2
    assert all(row.value and row.value > 0 and not row.note for rows in tables for row in rows)
    assert set(read) == {6}
    assert len(open_images(tmp_path / "cache", "train")) == 8
    assert sorted(path.name for path in photos.iterdir()) == ["train", "val"]


def test_more_images_than_there_are_is_one_line(tmp_path):
    photos = write_photos(tmp_path / "photos", count=2)
    line = refused(lambda: next(reading.reading(CPU, tmp_path, count=9, photos=photos)))
    assert "holds 2 files; 9 are to be read" in line


@pytest.mark.parametrize("clock", [0.0, 5.0])
def test_the_rate_is_of_the_clock_of_the_table(monkeypatch, clock):
    from pidformer.bench.timing import seconds

    ticks = iter([clock, clock + 8.0])
    assert seconds(lambda: None, 4, CPU.device, lambda: next(ticks)) == 2.0
