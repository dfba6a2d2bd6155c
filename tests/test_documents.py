"""The documents: what they link to, name and show exists."""

import ast
import re
import shlex
from pathlib import Path

import pytest
import typer
from PIL import Image

import pidformer as pf
from pidformer.cli import app
from pidformer.convert.families import FAMILIES
from pidformer.data import open_images, sample_images
from pidformer.training import load_recipe
from pidformer.training.run import train

ROOT = Path(__file__).parents[1]
MADE = [ROOT / "docs" / "results.md", *sorted((ROOT / "docs" / "results").glob("*.md"))]
"""By a command, from records."""
WRITTEN = [path for path in sorted((ROOT / "docs").glob("*.md")) if path not in MADE]
OTHERS = [ROOT / name for name in ("README.md", "SECURITY.md", "CONTRIBUTING.md")]
PAGES = [*OTHERS, ROOT / "examples" / "README.md", *WRITTEN, *MADE]
COMMAND = re.compile(r"^    (?:\$ |torchrun .* -m )?pidformer (.+)$", flags=re.MULTILINE)
INLINE = re.compile(r"`pidformer ([^`]+)`")
BENCHMARK = re.compile(r"python -m (benchmarks[. ]\w+)((?: +\[?(?:--)?[\w./-]+\]?)*)")


def anchors(page: Path) -> set[str]:
    """Headings as links name them: small letters, words joined by dashes."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def shown_commands(page: Path) -> list[list[str]]:
    """The arguments of every `pidformer ...`, without comments and brackets of choices."""
    text = page.read_text()
    found = COMMAND.findall(text) + INLINE.findall(text)
    lines = [re.sub(r"\s# .*", "", line) for line in found]
    return [shlex.split(re.sub(r"\[(.*?)\]", r"\1", line)) for line in lines]


def named_command(arguments: list[str]):
    """The command that the arguments name, and what is left of them."""
    command = typer.main.get_command(app)
    while arguments and hasattr(command, "commands"):
        assert arguments[0] in command.commands, f"no command {arguments[0]!r}"
        command, arguments = command.commands[arguments[0]], arguments[1:]
    return command, arguments


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)]+)\)", page.read_text()):
        name, _, anchor = target.partition("#")
        place = page.parent / name if name else page
        assert place.exists(), target
        assert not anchor or anchor in anchors(place), target


def test_the_tests_and_files_that_they_name_exist():
    written = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("*.py"))
    named = 0
    for page in PAGES:
        text = page.read_text()
        for name in re.findall(r"`(test_\w+)`", text):
            named += 1
            assert f"def {name}(" in written, f"{page.name} names {name}"
        for path in re.findall(r"\b(?:tests|benchmarks|src)/[\w/.-]*\w", text):
            assert (ROOT / path).exists(), f"{page.name} names {path}"
    assert named > 40


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", [page for page in PAGES if page not in MADE], ids=lambda page: page.name
)
def test_shown_commands_have_their_options_and_recipes(page):
    for arguments in shown_commands(page):
        command, rest = named_command(arguments)
        options = {
            name for param in command.params for name in (*param.opts, *param.secondary_opts)
        }
        unknown = {word for word in rest if word.startswith("--")} - options
        assert not unknown, f"{' '.join(arguments)}: no {unknown}"
        if command.name == "train" and rest[0] != "RECIPE":
            overrides = [word for word in rest[1:] if re.match(r"[\w.]+=", word)]
            assert load_recipe(rest[0], overrides)


@pytest.mark.slow
def test_the_page_on_your_own_data_says_what_is_on_a_photograph(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name, level in {"dark": 0, "light": 255}.items():
        (tmp_path / "photos" / name).mkdir(parents=True)
        for index in range(10):
            picture = Image.new("RGB", (120, 100), (level,) * 3)
            picture.save(tmp_path / "photos" / name / f"{index}.png")
    small = ["model.options.depth=1", "schedule.epochs=1", "schedule.warmup_epochs=0"]
    recipe = load_recipe("custom/photos", [*small, "data.batch_size=8"])
    run = tmp_path / "runs/custom/photos-seed0"
    train(recipe, run, data=tmp_path / "photos", device="cpu", is_shown=False)
    picture.save("photo.jpg")
    text = (ROOT / "docs/your-data.md").read_text()
    shown = text.split("was trained at:\n\n")[1]
    code = "".join(line[4:] for line in shown.splitlines(keepends=True))
    exec(compile(code, "your-data.md", "exec"), {})
    chances = ast.literal_eval(capsys.readouterr().out)
    assert {*chances} == {"dark", "light"} and sum(chances.values()) == pytest.approx(1, abs=0.01)
    held_out = open_images(tmp_path / "photos", "val")
    images, labels = sample_images(held_out, image_size=96)
    light = pf.load(run)(images)[labels == 1].softmax(1)[0, 1].item()
    assert chances["light"] == pytest.approx(light, abs=0.002)


@pytest.mark.parametrize("page", ["README.md", "docs/index.md", "docs/convert.md"])
def test_pages_count_the_model_types_that_can_be_converted(page):
    counts = re.findall(r"\b(\d+) (?:Hugging Face )?model types", (ROOT / page).read_text())
    assert counts
    assert set(counts) == {str(len(FAMILIES))}


def test_shown_benchmarks_have_their_options():
    shown = [found for page in PAGES for found in BENCHMARK.findall(page.read_text())]
    for module, options in shown:
        source = (ROOT / f"{re.sub('[. ]', '/', module)}.py").read_text()
        if "_measure" in source:  # which reads the options of several
            source += (ROOT / "benchmarks/_measure.py").read_text()
        for option in re.findall(r"--[\w-]+", options):
            assert f'"{option}"' in source, f"{module} has no {option}"
    assert len(shown) > 10


def test_the_page_on_performance_stays_short():
    """Its history is performance-log.md."""
    assert len((ROOT / "docs" / "performance.md").read_text().split()) <= 1500
