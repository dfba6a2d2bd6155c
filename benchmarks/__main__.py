"""The benchmarks of this repository; what the controller costs a user is `pidformer bench`.

python -m benchmarks                    # which there are
python -m benchmarks NAME [OPTION...]   # the same as python -m benchmarks.NAME
"""

from __future__ import annotations

import ast
import pkgutil
import runpy
import sys
from pathlib import Path

import benchmarks
from pidformer.errors import InputError, unknown


def main() -> None:
    modules = sorted(m.name for m in pkgutil.iter_modules(benchmarks.__path__))
    names = [name for name in modules if not name.startswith("_")]
    if len(sys.argv) == 1:
        for name in names:
            text = ast.get_docstring(ast.parse((Path(__file__).parent / f"{name}.py").read_text()))
            print(f"{name:14}{(text or '').splitlines()[0]}")
        return
    name = sys.argv.pop(1)
    try:
        if name not in names:
            raise unknown("benchmark", name, names)
        sys.argv[0] = f"{name}.py"  # what a usage line and the records show
        runpy.run_module(f"benchmarks.{name}", run_name="__main__")
    except InputError as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        sys.exit(2)


main()
