"""`python -m study`: results/ into docs/results.md, docs/results/*.md, pictures, README.md and
the costs in docs/reproduce.md.

`python -m study missing`: the registered runs that are still to be made, group by group.
"""

import argparse
import json
import sys

from pidformer.errors import InputError
from study.missing import HEADS, progress
from study.pages import COMMAND, write_results
from study.records import read_studies
from study.tables import table


def main(given: list[str] | None = None) -> int:
    """Exit code 0, or 2 with one line on what is wrong."""
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__)
    parser.add_argument("what", nargs="?", choices=["pages", "missing"], default="pages")
    parser.add_argument("--records", default="results", help="folder of published records")
    parser.add_argument("--out", default="docs", help="folder for the pages")
    parser.add_argument("--json", action="store_true", help="of what is missing")
    asked = parser.parse_args(given)
    try:
        if asked.what == "missing":
            found = progress(read_studies([asked.records]))
            lines = [one.to_dict() for one in found]
            is_data, rows = asked.json, [one.cells for one in found]
            print(json.dumps(lines, indent=1) if is_data else table(HEADS, rows, left=2))
            return 0
        made = write_results([asked.records], asked.out)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{made.runs} runs of {made.studies} studies; page: {made.page}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
