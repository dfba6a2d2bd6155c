"""The other benchmarks, one table each: `python -m benchmarks`; costs: `pidformer bench`."""

from __future__ import annotations

import pkgutil
import runpy

import benchmarks

for module in sorted(m.name for m in pkgutil.iter_modules(benchmarks.__path__)):
    if not module.startswith("_"):
        print(f"\n## {module}\n", flush=True)
        runpy.run_module(f"benchmarks.{module}", run_name="__main__")
