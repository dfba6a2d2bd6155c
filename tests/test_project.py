"""The package as a thing to install: imports, wheel, documents."""

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
HEAVY = {"transformers", "accelerate", "gradio", "matplotlib", "plotly", "pandas", "tensorboard"}
HEAVY |= {"scipy.stats", "scipy.optimize", "scipy.spatial"}


def python(code: str, **options) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_loads_models_but_no_data_readers():
    loaded = python("import pidformer, sys; print(*sys.modules)").split()
    assert HEAVY.isdisjoint(loaded)
    rooms = {name.split(".")[1] for name in loaded if name.startswith("pidformer.")}
    assert rooms == {"control", "errors", "models", "nn", "ops"}


@pytest.mark.parametrize("imports", ["import pidformer, timm", "import timm, pidformer"])
def test_timm_makes_our_models_whichever_is_imported_first(imports):
    code = f"{imports}; print(timm.create_model('pid_deit_tiny_patch16_224', depth=1).gains)"
    assert python(code) == "None\n"


def test_every_public_name_is_there_and_is_what_it_was():
    import pidformer as pf
    from pidformer.convert.convert import convert

    for name in pf.__all__:
        assert getattr(pf, name) is not None and name in dir(pf)
    import pidformer.convert.timm  # binds the subpackage, whose name is the function's

    assert pf.convert is convert and pf.data.open_images and pf.ops.kernels
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        pf.nothing  # noqa: B018


@pytest.mark.parametrize(
    ("arguments", "code"),
    [("--version", 0), ("--help", 0), ("train --help", 0), ("trian", 2), ("", 0)],
)
def test_help_version_and_typos_load_no_library(arguments, code):
    """As the console script does it, and as `python -m pidformer` does."""
    script = (
        "import atexit, sys; sys.argv[0] = '/bin/pidformer';"
        "atexit.register(lambda: print(*sys.modules, file=sys.stderr));"
        "from pidformer.cli import main; main()"
    )
    for how in (["-c", script], ["-X", "importtime", "-m", "pidformer"]):
        line = [sys.executable, *how, *arguments.split()]
        done = subprocess.run(line, capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stderr
        loaded = set(done.stderr.split())
        assert "pidformer.cli.train" in loaded
        assert loaded.isdisjoint({"torch", "timm", "torchvision", "numpy", "scipy", "pyarrow"})


@pytest.mark.parametrize(("asked", "code"), [("nonsense", 2), ("", 0), ("auto", 0)])
def test_kernels_that_do_not_exist_end_the_command_with_one_line(asked, code):
    done = subprocess.run(
        [sys.executable, "-m", "pidformer", "--version"],
        capture_output=True,
        text=True,
        env=os.environ | {"PIDFORMER_KERNELS": asked},
    )
    assert done.returncode == code
    expected = "pidformer: unknown PIDFORMER_KERNELS 'nonsense'; known: auto, torch, triton\n"
    assert done.stderr == (expected if code else "")


def test_imports_go_one_way():
    from importlinter.cli import EXIT_STATUS_SUCCESS, lint_imports

    assert lint_imports(str(ROOT / "pyproject.toml")) == EXIT_STATUS_SUCCESS


@pytest.mark.slow
def test_the_wheel_builds_checks_and_works_elsewhere(tmp_path):
    run = {"check": True, "capture_output": True, "text": True}
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--outdir", str(tmp_path), str(ROOT)], **run
    )
    (wheel,) = tmp_path.glob("*.whl")
    checked = subprocess.run(
        [sys.executable, "-m", "twine", "check", "--strict", str(wheel)], **run
    )
    assert "PASSED" in checked.stdout
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
        names = archive.namelist()
    data = (
        "py.typed",
        "data/digits.npz",
        "data/digits.txt",
        "data/imagenet_classes.json",
        "report/page.css",
        "report/demo/page.html.j2",
        "report/page.html.j2",
        "robustness/corruptions/severities.json",
        "evaluation/suites/digits.yaml",
    )
    assert {f"pidformer/{name}" for name in data} <= set(names)
    assert not [name for name in names if name.startswith(("tests", "benchmarks", "study"))]
    where = python(
        "import pidformer; print(pidformer.__file__)",
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path / "site"), "PATH": "/usr/bin:/bin"},
    )
    assert str(tmp_path) in where


def python_blocks(path: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", path.read_text(), flags=re.DOTALL)


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))], ids=lambda page: page.name
)
def test_the_python_in_the_documents_runs_as_written(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace: dict = {}
    for block in python_blocks(page):  # the blocks of a page share their names, as a reader would
        exec(compile(block, str(page), "exec"), namespace)
