"""The benchmarks of this repository; what the controller costs a user is `pidformer bench`.

python -m benchmarks                    # all of them, one after the other
python -m benchmarks NAME [OPTION...]   # one, the same as python -m benchmarks.NAME
"""

from __future__ import annotations

import pkgutil
import runpy
import sys

import benchmarks
from pidformer.errors import InputError, unknown


def main() -> None:
    modules = sorted(m.name for m in pkgutil.iter_modules(benchmarks.__path__))
    names = [name for name in modules if not name.startswith("_")]
    try:
        if len(sys.argv) > 1:
            name = sys.argv.pop(1)
            if name not in names:
                raise unknown("benchmark", name, names)
            _run(name)
            return
        for name in names:
            print(f"\n## {name}\n", flush=True)
            _run(name)
    except InputError as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        sys.exit(2)


def _run(name: str) -> None:
    sys.argv[0] = f"{name}.py"  # what a usage line and the records show
    runpy.run_module(f"benchmarks.{name}", run_name="__main__")


main()
