"""One network of `pidformer bench model`, since to compile all of them takes ten minutes.

    python -m benchmarks model tiny-graphs|tiny-compiled|tiny-eager|small-compiled|base-compiled
        [--device cuda] [--rounds 7] [--out DIR] [--json]

The same rows; on a CPU, which has one small network, that.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator

from benchmarks._measure import measured
from pidformer.bench import model
from pidformer.bench.timing import BenchSetting, Timing
from pidformer.errors import unknown

NETWORKS = {f"{size.name}-{size.mode}": size for size in model.LARGE}


def main() -> None:
    name = sys.argv.pop(1) if len(sys.argv) > 1 else ""
    if name not in NETWORKS:
        raise unknown("network", name, NETWORKS)

    def chosen(setting: BenchSetting) -> Iterator[list[Timing]]:
        return model.model(setting, [NETWORKS[name]] if setting.is_gpu else None)

    done, options = measured(__doc__, {"model": chosen}, name=f"model {name}")
    if options.json:
        print(json.dumps(done.to_dict()))


if __name__ == "__main__":
    main()
