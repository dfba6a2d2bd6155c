"""`pidformer recipes`: what can be trained, and what every key means."""

import json
from typing import Any

import typer

from pidformer.cli.options import Json, print_json, tables


def recipes(name: str | None = None, keys: bool = False, as_json: Json = False) -> None:
    """List the recipes that come with the package, or explain one, or the keys of all.

    Example: pidformer recipes
    Example: pidformer recipes custom/photos
    Example: pidformer recipes --keys

    Options:
        name: A recipe, shipped or a file: all its keys and values.
        --keys: Every key, its default and meaning.
    """
    from pidformer.training.recipe import load_recipe, recipe_keys, shipped_recipes

    if name is not None:
        rows = _one(name)
        if not as_json:
            typer.echo(_comment(name))
    elif keys:
        rows = [
            {"key": k.name, "takes": k.kind, "default": k.default, "meaning": k.text}
            for k in recipe_keys()
        ]
    else:
        rows = [
            {"recipe": n, "task": load_recipe(n).task, "what": _comment(n).partition(". ")[0]}
            for n in shipped_recipes()
        ]
        for row in rows:
            row["what"] = row["what"].removesuffix(".")
            if not as_json:  # names stay whole on 80 columns
                row["what"] += f" ({row.pop('task')})"
    if as_json:
        print_json(rows)
    else:
        _print(rows)


def _one(name: str) -> list[dict[str, Any]]:
    """The keys of the sections that a recipe has, with its values."""
    from pidformer.training.recipe import load_recipe, recipe_keys

    fields = load_recipe(name).to_dict()
    rows = []
    for key in recipe_keys():
        value: Any = fields
        for part in key.name.split("."):
            value = None if value is None else value[part]
        section = key.name.partition(".")[0]
        if fields[section] is not None:
            rows.append({"key": key.name, "value": value, "meaning": key.text})
    return rows


def _comment(name: str) -> str:
    """What a recipe's file says first; if nothing, what the one says that it extends."""
    import yaml

    from pidformer.training.recipe import find_recipe

    path = find_recipe(name)
    text = path.read_text(encoding="utf-8")
    lines = []
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.removeprefix("#").strip())
    parent = (yaml.safe_load(text) or {}).get("extends")
    return " ".join(lines) or ("" if parent is None else _comment(str(path.parent / parent)))


def _print(rows: list[dict[str, Any]]) -> None:
    from pidformer.display import plain_table

    table = plain_table()
    for place, column in enumerate(rows[0]):
        wide = column in ("what", "meaning")
        table.add_column(column, overflow="fold", ratio=1 if wide else None, no_wrap=place == 0)
    for row in rows:
        cells = (cell if isinstance(cell, str) else json.dumps(cell) for cell in row.values())
        table.add_row(*cells)
    tables().print(table, markup=False, highlight=False)
