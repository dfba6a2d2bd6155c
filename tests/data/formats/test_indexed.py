"""Shards in an object store, read by an index: the same batches as from the files themselves."""

from __future__ import annotations

import functools
import http.server
import json
import os
import threading
from pathlib import Path

import fsspec
import numpy as np
import pytest
import torch

from pidformer.data import Augment, TrainImages, open_images
from pidformer.data.check import check_data
from pidformer.data.formats import indexed
from pidformer.data.formats.indexed import FILE, index_images
from pidformer.data.views import sample
from tests.data.sets import refused, refused_images, write_tars

LABELS = {"train": [1, 0, 1, 1, 0, 2, 0, 1, 2, 2, 1], "val": [0, 1]}


class Ranges(http.server.SimpleHTTPRequestHandler):
    """A plain server of files that answers requests for ranges of bytes, and keeps them."""

    asked: list[str]
    answers = True

    def do_GET(self):
        wanted = self.headers.get("Range")
        path = self.translate_path(self.path)
        if wanted is None or os.path.isdir(path) or not self.answers:
            return super().do_GET()
        type(self).asked.append(f"{self.path} {wanted}")
        if not os.path.exists(path):
            return self.send_error(404)
        data = Path(path).read_bytes()
        first, _, last = wanted.removeprefix("bytes=").partition("-")
        part = data[int(first) : int(last) + 1 if last else None]
        self.send_response(206)
        self.send_header("Content-Length", str(len(part)))
        self.send_header("Content-Range", f"bytes {first}-{int(first) + len(part) - 1}/{len(data)}")
        self.end_headers()
        self.wfile.write(part)

    def end_headers(self):
        self.send_header("Accept-Ranges", "bytes" if self.answers else "none")
        super().end_headers()

    def log_message(self, *arguments):
        pass


@pytest.fixture
def stored(tmp_path):
    """A set of tars on disk and in memory://."""
    local = write_tars(tmp_path / "set", LABELS)
    (local / "classnames.txt").write_text("cat\ndog\nhen\n")
    memory = fsspec.filesystem("memory")
    for path in local.rglob("*"):
        memory.pipe_file(f"/{tmp_path.name}/{path.relative_to(local)}", path.read_bytes())
    yield local, f"memory://{tmp_path.name}"
    memory.rm(f"/{tmp_path.name}", recursive=True)


@pytest.fixture
def server(tmp_path):
    """An HTTP server of `tmp_path`/set, and its handler."""
    pytest.importorskip("aiohttp", reason="fsspec reads http:// with aiohttp")
    handler = type("Handler", (Ranges,), {"asked": []})
    made = functools.partial(handler, directory=str(tmp_path / "set"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), made) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", handler, server
        server.shutdown()


def batches(source, start=0, workers=0, rank=0, world_size=1):
    images = TrainImages(source, image_size=8, batch_size=4, mean=(0.5,) * 3, std=(0.5,) * 3,
                         augment=Augment(rand_augment="rand-m9-mstd0.5-inc1"), resident=False,
                         num_workers=workers, rank=rank, world_size=world_size)  # fmt: skip
    return [batch.images for batch in images.epoch(1, start)]


def same(ours, theirs):
    return len(ours) == len(theirs) and all(map(torch.equal, ours, theirs))


def check_batches(local, index):
    """Those of the files: shuffled over all shards, from any step, for any workers and ranks."""
    ours, theirs = (open_images(place, "train") for place in (index, local))
    assert ours.classes == theirs.classes == ("cat", "dog", "hen")
    assert ours.labels.tolist() == LABELS["train"]
    assert [ours.name(k) for k in range(11)] == [theirs.name(k) for k in range(11)]
    expected = batches(theirs)
    assert len(expected) == 2 and same(batches(ours), expected)
    assert same(batches(ours, start=1), expected[1:])
    assert same(batches(ours, workers=2), expected)
    assert same(batches(sample(ours, 9)), batches(sample(theirs, 9)))
    parts = [batches(ours, rank=rank, world_size=2) for rank in range(2)]
    assert same([torch.cat(pair) for pair in zip(*parts, strict=True)], expected)
    assert open_images(index, "val").decode(1).tobytes() == (
        open_images(local, "val").decode(1).tobytes()
    )


def test_a_set_in_memory_gives_the_batches_of_its_files(stored, tmp_path):
    local, url = stored
    index_images(url, tmp_path / "index")
    check_batches(local, tmp_path / "index")
    found = check_data(tmp_path / "index")
    assert found.is_sound and [split.count for split in found.splits] == [11, 2]


def test_a_set_behind_http_is_read_by_ranges(stored, server, tmp_path):
    local, (url, handler, _) = stored[0], server
    index_images(url, tmp_path / "index")
    handler.asked.clear()
    source = open_images(tmp_path / "index", "train")
    assert not handler.asked  # opening it asks nothing
    first = source.decode(0)
    assert len(handler.asked) == 1 and handler.asked[0].startswith("/train-000000.tar bytes=")
    assert first.tobytes() == open_images(local, "train").decode(0).tobytes()
    check_batches(local, tmp_path / "index")


def test_a_store_that_fails_ends_the_run(stored, server, tmp_path, monkeypatch):
    """A picture that was not delivered is no damaged picture: the batches would differ."""
    monkeypatch.setattr(indexed.time, "sleep", lambda seconds: None)
    url, handler, running = server
    index_images(url, tmp_path / "index")
    source = open_images(tmp_path / "index", "train")
    handler.answers = False
    assert "not answer requests for a range of bytes" in refused(source.decode, 0)
    handler.answers = True
    source.decode(0)
    running.shutdown()
    running.server_close()
    assert "run the same command to go on" in refused(source.decode, 0)
    assert "run the same command to go on" in refused(batches, source)


def test_a_request_that_fails_is_made_again(stored, tmp_path, monkeypatch):
    index_images(stored[1], tmp_path / "index")
    source = open_images(tmp_path / "index", "train")
    waits, memory = [], type(fsspec.filesystem("memory"))
    inner = memory.cat_file

    def flaky(self, *arguments, **options):
        if len(waits) < 2:
            raise TimeoutError("slow")
        return inner(self, *arguments, **options)

    monkeypatch.setattr(memory, "cat_file", flaky)
    monkeypatch.setattr(indexed.time, "sleep", waits.append)
    assert source.decode(3).size and waits == [1, 2]


def test_a_shard_that_cannot_be_read_is_one_line(stored, tmp_path, monkeypatch):
    def broken(self, *arguments, **options):
        raise RuntimeError("connection\nreset")

    monkeypatch.setattr(type(fsspec.filesystem("memory")), "_open", broken)
    said = refused(index_images, stored[1], tmp_path / "index")
    assert "RuntimeError: connection reset" in said and "run the same command" in said


def test_a_stopped_index_goes_on_with_what_it_lacks(stored, tmp_path, monkeypatch):
    _, url = stored
    inner, seen = indexed.read_index, []

    def stopped(path, opened):
        if len(seen) == 2:
            raise KeyboardInterrupt
        seen.append(path)
        return inner(path, opened)

    with monkeypatch.context() as patch:
        patch.setattr(indexed, "read_index", stopped)
        patch.setattr(indexed, "_READERS", 1)
        with pytest.raises(KeyboardInterrupt):
            index_images(url, tmp_path / "index")
    assert "is missing or damaged" in refused_images(tmp_path / "index")
    monkeypatch.setattr(indexed, "read_index", lambda p, o: seen.append(p) or inner(p, o))
    made = index_images(url, tmp_path / "index")
    assert len(made["train"]) == 11 and len(seen) == len({*seen}) == 7


def test_what_is_no_index_is_one_line(stored, tmp_path):
    _, url = stored
    index = tmp_path / "index"
    index_images(url, index)
    assert "its tar files are of train, val" in refused_images(index, "ood")
    assert "no tar file in memory://nothing" in refused(index_images, "memory://nothing", index)
    assert "cannot reach gopher://x" in refused(index_images, "gopher://x", tmp_path / "i")
    memory = fsspec.filesystem("memory")
    memory.rm(f"/{tmp_path.name}/val-000000.tar")
    assert "an index of other shards" in refused(index_images, url, index)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    assert "is not empty (x) and no index" in refused(index_images, url, tmp_path / "full")
    memory.rm(f"/{tmp_path.name}/train-000001.tar")
    assert "but not 1; download" in refused(index_images, url, tmp_path / "gap")
    np.savez(index / "00000.npz", keys=np.array([object()]))
    assert "is missing or damaged" in refused_images(index)
    (index / FILE).write_text(json.dumps({"url": url}))
    assert "tars is missing" in refused_images(index)


def test_the_command(stored, run, tmp_path):
    local, _ = stored
    code, out, _ = run("data", "index", local, "--out", tmp_path / "index")
    assert code == 0 and out.splitlines() == [
        "train: 11 images in 6 shard(s), 3 classes",
        "val: 2 images in 1 shard(s), 3 classes",
    ]
    code, out, _ = run("data", "check", tmp_path / "index", "--json")
    assert code == 0 and json.loads(out)["layout"] == "index of an object store"
    code, _, said = run("data", "index", "s3://bucket/set", "--out", tmp_path / "s3")
    assert code == 2 and said.count("\n") == 1 and "s3fs" in said
