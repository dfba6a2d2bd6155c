import errno
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pidformer.files import temporary_beside
from pidformer.reproduce.claims import JobClaims


def claim_file(folder, job, number, **changes):
    """A claim that another process made."""
    holder = {"job": job, "host": "elsewhere", "place": "another machine", "pid": 1, "born": "1"}
    path = folder / f"{job}.{number}.json"
    path.write_text(json.dumps(holder | {"beat": 0} | changes))
    return path


def mine(folder):
    """What a claim of this process says."""
    claim = JobClaims(folder).take("probe")
    with claim:
        return json.loads((folder / "probe.1.json").read_text())


def dead_pid():
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return child.pid


def test_only_one_holds_a_claim_and_lets_go(tmp_path):
    one, two = JobClaims(tmp_path), JobClaims(tmp_path)
    claim = one.take("job")
    with claim:
        assert two.take("job") is None and one.take("job") is None
        assert two.holder("job")["pid"] == os.getpid()
        other = two.take("job.more")  # another job, though its name begins alike
        assert other is not None
        with other:
            pass
    assert two.holder("job") is None and list(tmp_path.iterdir()) == []
    assert two.take("job") is not None


@pytest.mark.parametrize("job", ["evaluate.a[1]", "evaluate.a*", "evaluate.a?b"])
def test_a_job_may_have_any_name_that_a_file_may(tmp_path, job):
    one, two = JobClaims(tmp_path), JobClaims(tmp_path)
    with one.take(job):
        assert two.holder(job)["pid"] == os.getpid() and one.is_latest(tmp_path / f"{job}.1.json")
        assert two.take("evaluate.a1") is not None  # no pattern for others
    assert one.holder(job) is None


def test_letting_go_shows_no_claim_that_was_overtaken(tmp_path, monkeypatch):
    """Its holder, asleep until now, would take it for its own again."""
    for number in (1, 2, 3):
        claim_file(tmp_path, "job", number)
    claims, seen, unlink = JobClaims(tmp_path), [], Path.unlink

    def watched(path, missing_ok=False):
        unlink(path, missing_ok=missing_ok)
        seen.append(claims._latest("job"))

    monkeypatch.setattr(Path, "unlink", watched)
    claims.clear(tmp_path / "job.3.json")
    assert seen == [3, 3, 0]


@pytest.mark.slow
def test_a_dead_process_of_this_machine_is_seen_at_once(tmp_path):
    about = mine(tmp_path)
    claim_file(tmp_path, "job", 1, place=about["place"], pid=dead_pid(), born=about["born"])
    claims = JobClaims(tmp_path)
    assert claims.holder("job") is None
    with claims.take("job"):
        assert (tmp_path / "job.2.json").exists()
    assert list(tmp_path.iterdir()) == []


def test_a_later_process_of_the_same_number_is_another(tmp_path):
    about = mine(tmp_path)
    claim_file(tmp_path, "job", 1, place=about["place"], pid=os.getpid(), born="12345")
    assert JobClaims(tmp_path).take("job") is not None


def test_elsewhere_the_heartbeat_decides(tmp_path, monkeypatch):
    now = 1000.0
    monkeypatch.setattr("pidformer.reproduce.claims.time.monotonic", lambda: now)
    claims = JobClaims(tmp_path, stale=60)
    claim_file(tmp_path, "job", 1)
    assert claims.take("job") is None  # seen for the first time: who knows
    now += 59
    assert claims.take("job") is None
    claim_file(tmp_path, "job", 1, beat=1)  # alive after all
    now += 59
    assert claims.take("job") is None
    now += 61
    assert claims.take("job") is not None


def test_an_empty_claim_is_alive_until_it_has_not_moved(tmp_path):
    (tmp_path / "job.1.json").write_text("")
    claims = JobClaims(tmp_path, stale=0.0)
    assert claims.take("job") is None and claims.take("job") is not None


@pytest.mark.parametrize("name", ["write", "link"])
def test_a_full_disk_or_a_killed_process_leaves_nothing_beside_the_claims(
    tmp_path, monkeypatch, name
):
    left = temporary_beside(tmp_path / "job.1.json")
    left.write_text("half")
    left.rename(tmp_path / left.name.replace(f".{os.getpid()}-", f".{dead_pid()}-"))
    claims = JobClaims(tmp_path)
    assert list(tmp_path.iterdir()) == []

    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(*((Path, "write_text") if name == "write" else (os, "link")), full)
    if name == "link":  # as on a disk without links, with no room for a name either
        monkeypatch.setattr(os, "open", full)
    with pytest.raises(OSError, match="No space left"):
        claims.take("job")
    assert list(tmp_path.iterdir()) == []


def test_a_disk_without_links_has_claims_too(tmp_path, monkeypatch):
    def link(*_):
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", link)
    one, two = JobClaims(tmp_path), JobClaims(tmp_path)
    with one.take("job"):
        assert two.take("job") is None and two.holder("job")["pid"] == os.getpid()
    assert list(tmp_path.iterdir()) == []


def test_the_heartbeat_moves_and_tells(tmp_path):
    told = []
    claim = JobClaims(tmp_path, beat=0.02).take("job", on_beat=lambda: told.append(1))
    with claim:
        for _ in range(200):
            if len(told) > 2:
                break
            time.sleep(0.02)
        assert json.loads((tmp_path / "job.1.json").read_text())["beat"] >= 2


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_the_heartbeat_outlives_a_disk_that_is_full_for_a_moment(tmp_path):
    told = []

    def write():
        told.append(1)
        if len(told) == 1:
            raise OSError(28, "No space left on device")

    with JobClaims(tmp_path, beat=0.02).take("job", on_beat=write):
        for _ in range(200):
            if len(told) > 2:
                break
            time.sleep(0.02)
    assert len(told) > 2


def test_a_holder_that_was_overtaken_stops(tmp_path):
    claim = JobClaims(tmp_path, beat=0.02).take("job")
    claim_file(tmp_path, "job", 2)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in background jobs
    try:
        with pytest.raises(KeyboardInterrupt), claim:
            time.sleep(10)
    finally:
        signal.signal(signal.SIGINT, before)
    assert claim.is_lost and (tmp_path / "job.2.json").exists()  # the other one's stays


def grab(folder, gate, wins):
    claims = JobClaims(folder)
    gate.wait()
    for number in range(20):
        if claims.take(f"job{number}") is not None:  # never let go: who is first keeps it
            wins.put((number, os.getpid()))
    gate.wait()  # alive until all have tried


@pytest.mark.slow
def test_of_many_processes_one_gets_each_claim(tmp_path):
    stale = mine(tmp_path) | {"pid": dead_pid()}
    for number in range(0, 20, 2):  # half of them are taken over
        (tmp_path / f"job{number}.1.json").write_text(json.dumps(stale))
    context = multiprocessing.get_context("fork")
    gate, wins = context.Barrier(4), context.Queue()
    pool = [context.Process(target=grab, args=(tmp_path, gate, wins)) for _ in range(4)]
    for process in pool:
        process.start()
    won = [wins.get(timeout=30) for _ in range(20)]
    for process in pool:
        process.join()
    assert wins.empty() and sorted(number for number, _ in won) == list(range(20))
