"""What a person sees of an evaluation: bars on a terminal, a line for each row everywhere."""

import time
from collections.abc import Callable
from functools import partial

from pidformer.display import Display
from pidformer.results import Record

Watch = Callable[[int], None]
"""Called with the inputs done so far."""


class EvaluationProgress(Display):
    """One bar over the rows, with the time left for all, and one over the row at work."""

    def __init__(
        self, label: str, rows: int | None, *, inputs: str = "images", is_shown: bool = True
    ) -> None:
        super().__init__(is_shown=is_shown)
        self._label, self._total, self._done = label, rows, 0
        self._scores = _SCORES | {"images": f"{{:.0f}} {inputs}"}
        self._begun = time.perf_counter()
        self._rows, self._inputs = self.bar(label, rows), self.bar("", None)

    def begin(self, row: str, total: int | None = None) -> Watch:
        """A row starts; returns what to call with the inputs done so far."""
        self._begun = time.perf_counter()
        self.bars.reset(self._inputs, total=total, description=f"  {row}")

        def watch(done: int) -> None:
            self.bars.update(self._inputs, completed=done)
            self.bars.update(self._rows, completed=self._done + (done / total if total else 0))

        return watch

    def begin_steps(self, row: str, total: int) -> Watch:
        """The same, to be called with the inputs just done."""
        self.begin(row, total)
        return partial(self.bars.advance, self._inputs)

    def done(self, row: str, record: Record, is_old: bool) -> None:
        self._done += 1
        if is_old:  # its speed would make the time left too short
            self.bars.reset(self._rows, total=self._total, completed=self._done)
        else:
            self.bars.update(self._rows, completed=self._done)
        how = "already there" if is_old else f"{time.perf_counter() - self._begun:.1f} s"
        found = record.metrics
        scores = [text.format(found[name]) for name, text in self._scores.items() if name in found]
        self.say(f"{self._label}  {row}: {', '.join([*scores, how])}")


_SCORES = {"top1": "top-1 {:.2f} %", "aupr": "AUPR {:.2f} %", "miou": "mIoU {:.2f}"}
_SCORES |= {"ppl": "perplexity {:.2f}", "images": "{:.0f} images", "tokens": "{:.0f} tokens"}
