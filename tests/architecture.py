"""The picture of the rooms in docs/architecture.md; `python -m tests.architecture` draws it anew.

An arrow is an import, lazy ones included. Those that follow from others are left out: where cli
imports training and training imports runs, an arrow from cli to runs says nothing new.
"""

import sys
import tomllib
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "architecture.md"
BEGIN, END = "```mermaid\n", "```\n"


def layers() -> list[list[str]]:
    """The rooms, top to bottom, as pyproject's contract has them."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    names = settings["contracts"][0]["layers"]
    return [[room.strip() for room in layer.split("|")] for layer in names]


def imports() -> dict[str, set[str]]:
    """The rooms that each room imports, in any of its modules, at the top or in a function."""
    graph = grimp.build_graph("pidformer")
    found: dict[str, set[str]] = {room: set() for layer in layers() for room in layer}
    for module in graph.modules:
        for imported in graph.find_modules_directly_imported_by(module):
            here, there = (name.split(".")[1:2] for name in (module, imported))
            if here and there and here != there:
                found[here[0]].add(there[0])
    return found


def _reachable(edges: dict[str, set[str]], start: str) -> set[str]:
    seen: set[str] = set()
    waiting = list(edges[start])
    while waiting:
        room = waiting.pop()
        if room not in seen:
            seen.add(room)
            waiting += edges[room]
    return seen


def picture() -> str:
    """The rooms and the imports that follow from no others, in Mermaid's words."""
    edges = imports()
    shown = {
        here: {
            there
            for there in rooms
            if not any(there in _reachable(edges, other) for other in rooms - {there})
        }
        for here, rooms in edges.items()
        if here != "__main__"
    }
    lines = ["graph TD"]
    lines += [f"  {here} --> {there}" for here in shown for there in sorted(shown[here])]
    return BEGIN + "\n".join(lines) + "\n" + END


def drawn(page: str) -> str:
    """The page with the picture of today's imports."""
    before, rest = page.split(BEGIN, 1)
    after = rest.split(END, 1)[1]
    return before + picture() + after


if __name__ == "__main__":
    PAGE.write_text(drawn(PAGE.read_text()))
    print(f"wrote {PAGE}", file=sys.stderr)
