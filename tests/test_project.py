"""The package as a thing to install: imports, wheel, documents."""

import ast
import email
import os
import re
import subprocess
import sys
import tarfile
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


MADE = "print(timm.create_model('pid_deit_tiny_patch16_224', depth=1).gains)"


@pytest.mark.slow
def test_import_loads_models_but_no_data_readers_and_timm_makes_them():
    code = f"import pidformer, sys; print(*sys.modules); import timm; {MADE}"
    *loaded, made = python(code).split()
    assert HEAVY.isdisjoint(loaded)
    rooms = {name.split(".")[1] for name in loaded if name.startswith("pidformer.")}
    assert rooms == {"control", "errors", "models", "nn", "ops"}
    assert made == "None"


@pytest.mark.slow
def test_timm_makes_our_models_when_it_is_imported_first():
    assert python(f"import timm, pidformer; {MADE}") == "None\n"


def test_every_public_name_is_there_and_is_what_it_was():
    import pidformer as pf
    from pidformer.convert.convert import convert

    for name in pf.__all__:
        assert getattr(pf, name) is not None and name in dir(pf)
    import pidformer.convert.timm  # binds the subpackage, whose name is the function's

    assert pf.convert is convert and pf.data.open_images and pf.ops.kernels
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        pf.nothing  # noqa: B018


@pytest.mark.slow
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


@pytest.mark.slow
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


ALONE = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
ALONE |= {"OMP_NUM_THREADS": "1"}
"""Nothing of ours on the path; one thread, since other tests run beside it."""
RUN = {"check": True, "capture_output": True, "text": True, "env": ALONE}


@pytest.fixture(scope="module")
def distributions(tmp_path_factory):
    """The folder of the source distribution and of the wheel that is built from it."""
    out = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, "-m", "build", "--outdir", str(out), str(ROOT)], **RUN)
    return out


@pytest.fixture(scope="module")
def wheel(distributions):
    (path,) = distributions.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """The programs of a new environment: the wheel, and beside it the libraries of this one."""
    place = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place)], **RUN)
    new = place / "bin" / "python"
    install = ["install", "--quiet", "--no-deps", "--no-index", "--ignore-installed", str(wheel)]
    subprocess.run([sys.executable, "-m", "pip", "--python", str(new), *install], **RUN)
    (packages,) = place.glob("lib/python3*/site-packages")
    libraries = [path for path in sys.path if path.endswith("site-packages")]
    (packages / "libraries.pth").write_text("\n".join(libraries))  # whose own .pth are not read
    return place / "bin"


def in_it(installed: Path, cwd: Path, *line: str) -> str:
    """What a command of the environment prints."""
    done = subprocess.run(
        [str(installed / line[0]), *line[1:]],
        cwd=cwd,
        capture_output=True,
        text=True,
        env=ALONE,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_wheel_has_its_data_and_metadata_that_stand_alone(wheel):
    checked = subprocess.run(
        [sys.executable, "-m", "twine", "check", "--strict", str(wheel)], **RUN
    )
    assert "PASSED" in checked.stdout
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata,) = [name for name in names if name.endswith(".dist-info/METADATA")]
        about = email.message_from_bytes(archive.read(metadata))
    data = (
        "py.typed",
        "data/digits.npz",
        "data/digits.txt",
        "convert/families.json",
        "data/formats/cityscapes.json",
        "data/imagenet_classes.json",
        "report/page.css",
        "report/tips.css",
        "lab/pictures.html.j2",
        "lab/examples/README.md",
        "lab/examples/digits-pid/model.safetensors",
        "lab/examples/digits-softmax/results.jsonl",
        "report/demo/page.html.j2",
        "report/page.html.j2",
        "robustness/corruptions/severities.json",
        "evaluation/suites/digits.yaml",
    )
    assert {f"pidformer/{name}" for name in data} <= set(names)
    others = ("tests", "benchmarks", "examples", "study")
    assert not [name for name in names if name.startswith(others)]
    assert [name for name in names if name.endswith("licenses/LICENSE")]
    text = about.get_payload(decode=True).decode()
    assert "Ten lines" in text and not re.search(r"\]\((?!https?:)|<picture|srcset", text)
    assert about["Summary"] and about["Keywords"] and about["License-Expression"] == "Apache-2.0"
    assert about["Description-Content-Type"] == "text/markdown"


@pytest.mark.slow
def test_the_source_distribution_has_the_package_and_no_part_of_the_tests(distributions):
    (path,) = distributions.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2].partition("/")[0] for name in archive.getnames()}
    assert {"src", "setup.py", "pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE"} <= names
    assert "tests" not in names  # setuptools takes tests/test*.py, without what they import


@pytest.mark.slow
def test_the_readme_runs_top_to_bottom_from_the_installed_wheel(installed, tmp_path):
    assert in_it(installed, tmp_path, "pidformer", "--version").strip()
    short = ["--out", "runs/pid", "schedule.epochs=1", "schedule.warmup_epochs=0"]
    in_it(installed, tmp_path, "pidformer", "train", "digits/pid.yaml", *short)
    more = """
print(pf.load('runs/pid')(torch.rand(2, 1, 8, 8)).shape, pf.__file__)
from pidformer.cli import main
main(['stability', '--preset', 'deit'])
"""
    code = "\n".join([*python_blocks(ROOT / "README.md"), more])
    said = in_it(installed, tmp_path, "python", "-c", code)
    assert "stable on [0, 1]" in said and "[2, 10]" in said
    assert f" {installed.parent}" in said
    shown = (ROOT / "README.md").read_text().split("$ pidformer stability --preset deit\n")[1]
    assert shown.splitlines()[1].strip() in said


def python_blocks(path: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", path.read_text(), flags=re.DOTALL)


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))], ids=lambda page: page.name
)
def test_the_python_in_the_documents_runs_as_written(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace: dict = {}
    for block in python_blocks(page):  # the blocks of a page share their names, as a reader would
        exec(compile(block, str(page), "exec"), namespace)


SHARED_NAMES = {"GainRampCallback"}  # one class, with and without transformers


def test_each_class_has_a_name_of_its_own():
    found = {}
    for path in sorted((ROOT / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(f"{path.relative_to(ROOT)}:{node.lineno}")
    twice = {name: places for name, places in found.items() if len(places) > 1}
    assert not {name: places for name, places in twice.items() if name not in SHARED_NAMES}
