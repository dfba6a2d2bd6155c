"""docs/compatibility.md, from test runs: `python -m tests.suites.compatibility [ROW ...]`.

Runs the tests of the rows that are named (all of them otherwise), keeps the counts in counts.json
beside this file, and writes the page. A row whose library is missing keeps what it had.
"""

import json
import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

from pidformer.convert.families import DECODERS, ENCODERS, FAMILIES, REFUSED, VISION

ROOT = Path(__file__).parents[2]
COUNTS = Path(__file__).with_name("counts.json")
NAMES = Path(__file__).with_name("names.json")
"""What `tests.suites.names` counted."""
TEXT = Path(__file__).with_name("page.txt")
PAGE = ROOT / "docs" / "compatibility.md"
LANGUAGE = "tests/models/language"


class Row(NamedTuple):
    """A client, the packages whose versions count, and the tests that say whether it works."""

    client: str
    packages: tuple[str, ...]
    tests: tuple[str, ...]
    only: str = ""
    """What pytest's -k chooses among them."""


ROWS = {
    "transformers-default": Row(
        "transformers' common model tests, our language model",
        ("transformers",),
        ("tests/suites/test_transformers.py",),
        "TestDefault",
    ),
    "transformers-paper": Row(
        "transformers' common model tests, the paper's configuration",
        ("transformers",),
        ("tests/suites/test_transformers.py",),
        "TestPaper",
    ),
    "timm": Row(
        "timm's model tests: `pid_deit_tiny`, softmax, PID and learned gains, and a converted DeiT",
        ("timm",),
        ("tests/suites/test_timm.py",),
    ),
    "generate": Row(
        "`generate` of transformers: caches, beams, assistants, padding, continuation",
        ("transformers",),
        (f"{LANGUAGE}/test_generate.py", f"{LANGUAGE}/test_generation_checks.py"),
    ),
    "language": Row(
        "accelerate, PEFT, packing, checkpointing on our language model, beside Llama",
        ("transformers", "accelerate", "peft"),
        tuple(f"{LANGUAGE}/test_{name}.py" for name in ("clients", "outputs", "packing")),
    ),
    "convert": Row(
        "Hugging Face models, converted: each of the types below",
        ("transformers",),
        ("tests/convert/test_hugging_face_types.py",),
    ),
    "vision": Row(
        "torch.fx, timm's extractors, captum, fvcore, TensorBoard on vision transformers",
        ("timm", "captum", "fvcore", "tensorboard"),
        ("tests/models/test_clients.py",),
    ),
    "attacks": Row(
        "torchattacks, foolbox, cleverhans: theirs on our models, ours beside theirs",
        ("torchattacks", "foolbox", "cleverhans"),
        ("tests/robustness/test_oracles.py",),
    ),
    "lightning": Row("Lightning's Trainer", ("lightning",), ("tests/convert/test_lightning.py",)),
    "quantised": Row(
        "8- and 4-bit weights, converted",
        ("torchao", "bitsandbytes"),
        ("tests/convert/test_quantised.py",),
    ),
}


def versions(row: Row) -> dict[str, str]:
    """Of the packages that are installed, and of torch."""
    found = {}
    for name in (*row.packages, "torch"):
        try:
            found[name] = version(name).partition("+")[0]
        except PackageNotFoundError:
            continue
    return found


def measure(row: Row) -> dict[str, int]:
    """How many of its tests passed, were skipped and failed, by pytest's last line."""
    chosen = ["-k", row.only] if row.only else []
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-o", "addopts=-q"]
    done = subprocess.run(
        [*command, *row.tests, *chosen], cwd=ROOT, check=False, capture_output=True, text=True
    )
    last = done.stdout.strip().splitlines()[-1]
    print(last, flush=True)
    found = {kind: int(number) for number, kind in re.findall(r"(\d+) ([a-z]+)", last)}
    failed = sum(found.get(kind, 0) for kind in ("failed", "error", "errors"))
    return {"passed": found.get("passed", 0), "skipped": found.get("skipped", 0), "failed": failed}


def page(counts: dict) -> str:
    """The page of these counts and of the table of families."""
    rows = []
    for name, found in counts.items():
        tried = ", ".join(f"{library} {number}" for library, number in found["versions"].items())
        numbers = " | ".join(str(found[kind]) for kind in ("passed", "skipped", "failed"))
        rows.append(f"| {ROWS[name].client} | {tried} | {numbers} |")
    tables = (FAMILIES, DECODERS, ENCODERS, VISION, REFUSED)
    names = ("types", "decoders", "encoders", "vision", "refused")
    sizes = {name: len(table) for name, table in zip(names, tables, strict=True)}
    sizes |= {f"names_{key}": count for key, count in json.loads(NAMES.read_text()).items()}
    sizes["transformers"] = counts["transformers-default"]["versions"]["transformers"]
    return TEXT.read_text().format(rows="\n".join(rows), **sizes)


def write_page() -> None:
    PAGE.write_text(page(read_counts()))


def read_counts() -> dict:
    return json.loads(COUNTS.read_text()) if COUNTS.is_file() else {}


def main(names: list[str]) -> None:
    for name in names or ROWS:
        found = measure(ROWS[name])
        if found["passed"]:
            counts = read_counts() | {name: found | {"versions": versions(ROWS[name])}}
            ordered = {key: counts[key] for key in ROWS if key in counts}
            COUNTS.write_text(json.dumps(ordered, indent=1) + "\n")
    write_page()


if __name__ == "__main__":
    main(sys.argv[1:])
