"""`python -m study`: results/ into docs/results.md, docs/results/*.md, pictures and README.md."""

from __future__ import annotations

import argparse
import sys

from pidformer.errors import InputError
from study.pages import COMMAND, write_results


def main(given: list[str] | None = None) -> int:
    """Exit code 0, or 2 with one line on what is wrong."""
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__)
    parser.add_argument("--records", default="results", help="folder of published records")
    parser.add_argument("--out", default="docs", help="folder for the pages")
    asked = parser.parse_args(given)
    try:
        made = write_results([asked.records], asked.out)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{made.runs} runs of {made.studies} studies; page: {made.page}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
