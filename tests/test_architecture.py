"""The house as docs/architecture.md describes it, and the tests beside it."""

import re
from pathlib import Path

import grimp
import pytest

from tests.architecture import PAGE, ROOT, drawn, imports, layers

PACKAGE = ROOT / "src" / "pidformer"
TESTS = ROOT / "tests"
OTHER_FOLDERS = {"benchmarks", "fuzz", "kills", "security", "study", "suites"}
"""For /benchmarks and /study, and for strangers who go through several rooms."""
OTHER_FILES = {"architecture", "chromium", "documents", "examples", "project", "repository", "site"}
MOST_FILES, STEPS = 12, 2


def test_the_picture_shows_todays_imports():
    page = PAGE.read_text()
    assert drawn(page) == page, "run: python -m tests.architecture"


def test_each_room_has_a_paragraph():
    described = re.findall(r"^- \*\*`(\w+)`\*\*", PAGE.read_text(), re.MULTILINE)
    rooms = [room for layer in layers() for room in layer if room != "__main__"]
    assert sorted(described) == sorted(rooms)


def test_no_modules_import_each_other_in_a_circle():
    graph = grimp.build_graph("pidformer")
    below = {module: graph.find_upstream_modules(module) for module in graph.modules}
    circles = [m for m in sorted(below) if any(m in below[other] for other in below[m] - {m})]
    assert not circles
    assert imports()["cli"]  # the graph is not empty


def walks() -> dict[str, list[str]]:
    """The files of each walk, in the order in which they are met."""
    found: dict[str, list[str]] = {}
    for section in re.split(r"^### ", PAGE.read_text(), flags=re.MULTILINE)[1:]:
        title, text = section.split("\n", 1)
        found[title] = re.findall(r"^\d+\. `([\w/.]+)`", text, re.MULTILINE)
    return found


@pytest.mark.parametrize("start", ["cli/train.py", "cli/evaluate.py", "cli/reproduce.py"])
def test_a_reader_walks_from_a_command_to_its_end_in_few_files(start):
    """Each file on the way is imported by one before it, or by what that one imports."""
    (files,) = [files for files in walks().values() if files[0] == start]
    assert 3 < len(files) <= MOST_FILES
    graph = grimp.build_graph("pidformer")
    names = ["pidformer." + file.removesuffix(".py").replace("/", ".") for file in files]
    names = [name.removesuffix(".__init__") for name in names]
    for place, name in enumerate(names[1:], start=1):
        chains = (graph.find_shortest_chain(before, name) for before in names[:place])
        shortest = min((len(chain) for chain in chains if chain), default=99)
        assert shortest <= STEPS + 1, f"nothing before {name} leads to it"


def module_folders() -> dict[str, set[Path]]:
    """Where the package has a module, or a folder of modules, of this name."""
    found: dict[str, set[Path]] = {}
    for path in PACKAGE.rglob("*.py"):
        module = path.parent if path.name == "__init__.py" else path
        if module != PACKAGE:
            found.setdefault(module.stem, set()).add(module.parent.relative_to(PACKAGE))
    return found


def test_tests_stand_in_the_folder_of_what_they_test():
    folders = module_folders()
    wrong = []
    for path in sorted(TESTS.rglob("test_*.py")):
        where, name = path.parent.relative_to(TESTS), path.stem.removeprefix("test_")
        if where.parts and where.parts[0] in OTHER_FOLDERS:
            continue
        if not (PACKAGE / where).is_dir():
            wrong.append(f"{path}: the package has no folder {where}")
        elif not where.parts and name not in folders and name not in OTHER_FILES:
            wrong.append(f"{path}: the package has no module {name}")
        elif where not in folders.get(name, {where}):
            wrong.append(f"{path}: {name} is a module of {sorted(map(str, folders[name]))}")
    assert not wrong, "\n".join(wrong)


def test_each_room_has_tests():
    rooms = [room for layer in layers() for room in layer if room != "__main__"]
    for room in rooms:
        assert (TESTS / room).is_dir() or (TESTS / f"test_{room}.py").exists(), room


def test_no_file_is_long():
    beside = [TESTS.parent / name for name in ("study", "benchmarks", "examples", "docs")]
    files = [path for folder in (PACKAGE, TESTS, *beside) for path in folder.rglob("*.py")]
    long = [p for p in files if len(p.read_text().splitlines()) > 400]
    assert not long
