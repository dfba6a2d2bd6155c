"""A plan on a Ray cluster: several nodes, one lost in the middle; addresses of no cluster."""

import os
import signal
import threading
import time

import psutil
import pytest
import yaml

from pidformer import results
from pidformer.errors import InputError
from pidformer.reproduce import run_plan
from pidformer.reproduce.claims import holder
from pidformer.reproduce.cluster import needs, run_on_cluster
from pidformer.reproduce.job_kinds import JobSetting
from pidformer.runs.folder import load_checkpoint
from pidformer.training import load_recipe
from pidformer.training.run import train
from tests.processes import COMMAND, ROOT, Process, ends_well
from tests.reproduce.test_run import without_inputs
from tests.reproduce.tiny import records_of, tiny_plan
from tests.training.tiny import same_weights, tiny_recipe

ray = pytest.importorskip("ray", reason="the extra `cluster` is not installed")
pytestmark = pytest.mark.slow

LONG = JobSetting(device="cpu", overrides=("schedule.epochs=12", "train.checkpoint_steps=10"))
QUICK = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500}
QUICK |= {"health_check_failure_threshold": 3}


@pytest.fixture(scope="module")
def cluster():
    """A head that works on nothing, and two nodes with a core each."""
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("PYTHONPATH", f"{ROOT / 'src'}:{ROOT}")
        head = {"num_cpus": 0, "num_gpus": 0, "object_store_memory": 2**27}
        made = Cluster(initialize_head=True, head_node_args=head | {"_system_config": QUICK})
        made.nodes_given = [
            made.add_node(num_cpus=1, num_gpus=0, object_store_memory=2**27, resources={name: 1})
            for name in ("one", "two")
        ]
        yield made
        ray.shutdown()
        made.shutdown()


def test_a_lost_node_changes_nothing(cluster, tmp_path):
    begun = time.monotonic()
    calm = tiny_plan(tmp_path / "inputs", tmp_path / "calm", analyze=False)
    assert not run_plan(calm, LONG, is_shown=False).failed
    plan = tiny_plan(tmp_path / "inputs", tmp_path / "out", analyze=False)
    lost = []

    def lose():
        """The node of the first run that has saved something."""
        while not (saved := list(plan.out.glob("runs/*/checkpoints/step-*[1-9]*"))):
            time.sleep(0.02)
        run = saved[0].parents[1]
        lost.append((run / "model.safetensors").exists())
        pid = int(holder(plan.out / "claims", f"train.{run.name.split('-')[0]}").split()[-1])
        above = {process.pid for process in psutil.Process(pid).parents()}
        for node in cluster.nodes_given:
            if node.all_processes["raylet"][0].process.pid in above:
                cluster.remove_node(node, allow_graceful=False)
                lost.append(node)

    thread = threading.Thread(target=lose, daemon=True)
    thread.start()
    found = run_on_cluster(plan, LONG, cluster.address, is_shown=False)
    thread.join(5)
    assert len(lost) == 2 and lost[0] is False  # in the middle of its training
    assert not found.failed and {line.state for line in found.lines} == {"done"}
    expected, made = (without_inputs(records_of(p.out)) for p in (calm, plan))
    for run, lines in expected.items():
        told = ("images_per_second", "step_seconds")
        plain = [[{**r, "metrics": {k: v for k, v in r["metrics"].items() if k not in told}}
                  for r in records] for records in (lines, made[run])]  # fmt: skip
        assert plain[0] == plain[1]
        names = ("model.safetensors", "ema.safetensors")
        for name in names:
            ours, theirs = (p.out / "runs" / run / name for p in (calm, plan))
            assert ours.read_bytes() == theirs.read_bytes()
    starts = [path.read_text() for path in (plan.out / "jobs").glob("train.*.json")]
    assert sorted('"starts": 1' in text for text in starts) == [False, True]  # one began anew
    assert time.monotonic() - begun < 120  # of which most is the start of processes


def test_a_terminated_command_lets_its_jobs_save_and_goes_on(cluster, tmp_path):
    """As Slurm does before the time is up."""
    given = {"schedule": {"epochs": 40}, "train": {"checkpoint_steps": None}}
    recipe, study, out = (tmp_path / name for name in ("tiny.yaml", "own.yaml", "out"))
    fields = tiny_recipe().to_dict()
    recipe.write_text(yaml.safe_dump(fields | {k: fields[k] | v for k, v in given.items()}))
    groups = {"main": {"seeds": [0], "rows": {"pid": {"gains": "0.4,0.1,0.05,1"}}}}
    about = {"recipe": str(recipe), "data": [], "suites": {}, "groups": groups}
    study.write_text(yaml.safe_dump(about))
    command = ("reproduce", "--study", study, "--out", out, "--cluster", cluster.address)
    process, run = Process(COMMAND, *command), out / "runs" / "pid-seed0"
    while not (run / results.FILE_NAME).exists() or len(results.read(run)) < 2:
        time.sleep(0.05)
        assert process.poll() is None, process.stderr
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 143
    assert process.stderr.endswith(f"saved in {out}; run the same command to go on\n")
    saved = load_checkpoint(run)
    assert saved is not None and saved.step > 0 and not (run / "model.safetensors").exists()
    ends_well(Process(COMMAND, *command))
    calm = load_recipe(recipe, ["model.gains=0.4,0.1,0.05,1", "seed=0"])
    train(calm, tmp_path / "calm", device="cpu", is_shown=False)
    assert same_weights(tmp_path / "calm", run)
    steps = [r.step for r in results.read(run) if r.kind == "train"]
    assert steps == sorted(set(steps))  # none was taken twice


def test_a_cluster_without_a_gpu_is_refused_one(cluster, tmp_path):
    plan = tiny_plan(tmp_path / "inputs", tmp_path / "out")
    with pytest.raises(InputError, match=r"none of the cluster's 3 node\(s\) has a GPU|2 node"):
        run_on_cluster(plan, JobSetting(device="cuda"), cluster.address, is_shown=False)
    with pytest.raises(InputError, match="device must be auto, cpu, cuda; got 'cuda:1'"):
        run_on_cluster(plan, JobSetting(device="cuda:1"), cluster.address, is_shown=False)


def test_another_version_of_ray_is_refused(cluster, tmp_path, monkeypatch):
    monkeypatch.setattr(ray, "__version__", "0.0.1")
    plan = tiny_plan(tmp_path / "inputs", tmp_path / "out")
    with pytest.raises(InputError, match=r"ersion mismatch.*same Ray and Python"):
        run_on_cluster(plan, LONG, cluster.address, is_shown=False)


def test_a_head_that_has_died_is_one_line(run, tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text("127.0.0.1:9")
    code, _, said = run("reproduce", "--cluster", "auto", "--out", tmp_path / "out")
    assert code == 2 and "no Ray cluster at 127.0.0.1:9 (Connection refused)" in said


def test_what_is_no_cluster_is_one_line(run, tmp_path):
    for address, words in (
        ("127.0.0.1:9", "no Ray cluster at 127.0.0.1:9 (Connection refused)"),
        ("nowhere.invalid:6379", "no Ray cluster at nowhere.invalid:6379"),
        ("ray://head:10001", "--cluster takes auto, or HOST:PORT"),
        ("head", "--cluster takes auto, or HOST:PORT"),
    ):
        code, _, said = run("reproduce", "--cluster", address, "--out", tmp_path / "out")
        assert code == 2 and words in said and said.count("\n") == 1
    code, _, said = run("reproduce", "--cluster", "auto", "--jobs", "2", "--out", tmp_path / "out")
    assert code == 2 and "--jobs is for one machine" in said
    assert not (tmp_path / "out").exists() and not os.environ.get("RAY_ADDRESS")


def test_a_job_asks_for_what_it_needs(tmp_path):
    plan = tiny_plan(tmp_path / "inputs", tmp_path / "out")
    on_gpus = JobSetting(device="cuda")
    assert needs(plan.by_id["train.pid"], on_gpus) == {
        "num_cpus": 1, "num_gpus": 1, "memory": 2**30
    }  # fmt: skip
    assert needs(plan.by_id["report"], on_gpus)["num_gpus"] == 0
    assert needs(plan.by_id["train.pid"], LONG)["num_gpus"] == 0
