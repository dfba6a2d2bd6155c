"""How fast the lab answers, alone and with ten visitors; and its pictures for the documents.

python -m benchmarks.lab                            the table, about two minutes
python -m benchmarks.lab --screenshots docs/images  the pictures
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

from pidformer.lab.knobs import Knobs
from pidformer.lab.server import open_lab
from pidformer.lab.static import export_page
from tests import chromium

_MOVE = """async (value) => {
    const before = window.labDrawn, slider = document.querySelector('#knob-p input[type=range]');
    const begun = performance.now();
    slider.value = value;
    slider.dispatchEvent(new Event('input', { bubbles: true }));
    while (window.labDrawn === before && performance.now() - begun < 10000)
        await new Promise(requestAnimationFrame);
    return performance.now() - begun;
}"""
"""Move a slider, and wait for the frame in which the charts have been drawn."""
_REDRAW = """(count) => {
    const begun = performance.now();
    for (let k = 0; k < count; k++) { knobs = { ...knobs, p: 0.3 + 0.4 * k / count }; show(); }
    return (performance.now() - begun) / count;
}"""


def slider_to_picture(page: Page, moves: int = 30) -> list[float]:
    """Milliseconds from a slider to the picture, in a browser."""
    values = [round(0.2 + 0.6 * k / moves, 3) for k in range(moves)]
    random.Random(0).shuffle(values)
    found = []
    for value in values:
        found.append(page.evaluate(_MOVE, value))
        page.wait_for_timeout(50)
    return found[2:]


class Visitor(threading.Thread):
    """Moves sliders as the page does, until `ends`; keeps the seconds of each answer."""

    def __init__(self, address: str, number: int, event: int, ends: float) -> None:
        super().__init__(daemon=True)
        self.address, self.event, self.ends = address, event, ends
        self.chance = random.Random(number)
        self.session = f"visitor{number}"
        self.open = urllib.request.build_opener(urllib.request.HTTPCookieProcessor()).open
        self.seconds: list[float] = []
        self.errors = 0

    def run(self) -> None:
        self.open(self.address, timeout=60).close()  # the page gives the cookie that events need
        while time.monotonic() < self.ends:
            begun = time.perf_counter()
            try:
                answer = self._ask()
                self.errors += "view=controller" not in str(answer["data"][0])
            except Exception:
                self.errors += 1
            self.seconds.append(time.perf_counter() - begun)
            time.sleep(0.2 * self.chance.random())  # a hand on a slider

    def _ask(self) -> dict[str, Any]:
        knobs = Knobs(p=round(self.chance.random(), 2), i=round(self.chance.random(), 2))
        names = list(Knobs.__dataclass_fields__)
        body = {
            "data": [getattr(knobs, name) for name in names],
            "fn_index": self.event,
            "session_hash": self.session,
        }
        request = urllib.request.Request(
            f"{self.address}gradio_api/run/predict",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with self.open(request, timeout=60) as answer:
            return json.load(answer)


def slider_event(address: str) -> int:
    """Number of the event that a slider of the Controller view raises."""
    with urllib.request.urlopen(f"{address}config") as answer:
        config = json.load(answer)
    sliders = {c["id"] for c in config["components"] if c["props"].get("elem_id") == "knob-p"}
    return next(
        d["id"]
        for d in config["dependencies"]
        if d["backend_fn"]
        and any(target in sliders and name == "input" for target, name in d["targets"])
    )


def measure(seconds: float, visitors: int) -> dict[str, float]:
    """The table."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = _browser(playwright)
        still = browser.new_page()
        still.goto(export_page(folder).as_uri())
        exported = still.evaluate(_REDRAW, 40)
        with open_lab(port=0, home=folder) as lab:
            page = browser.new_page()
            page.goto(lab.address)
            page.wait_for_function("window.labDrawn")
            page.wait_for_timeout(1000)
            alone = slider_to_picture(page)
            page.close()
            event, ends = slider_event(lab.address), time.monotonic() + seconds
            crowd = [Visitor(lab.address, n, event, ends) for n in range(visitors)]
            for visitor in crowd:
                visitor.start()
            for visitor in crowd:
                visitor.join()
        browser.close()
    times = sorted(1000 * t for visitor in crowd for t in visitor.seconds)
    return {
        "exported page, slider to picture, ms": round(exported, 1),
        "one visitor, slider to picture, median ms": round(statistics.median(alone), 1),
        "one visitor, slider to picture, slowest ms": round(max(alone), 1),
        "visitors": visitors,
        "seconds": seconds,
        "answers": len(times),
        "errors": sum(visitor.errors for visitor in crowd),
        "answer, median ms": round(statistics.median(times), 1),
        "answer, 95 % below ms": round(times[int(0.95 * len(times))], 1),
    }


def screenshots(folder: Path) -> None:
    """One PNG a view, of the examples that come with the lab."""
    folder.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as place,
        open_lab([], port=0, home=place) as lab,
        sync_playwright() as playwright,
    ):
        browser = _browser(playwright)
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.goto(lab.address + "?view=controller&p=0.5&i=0.4&tokens=12")
        page.wait_for_function("window.labDrawn")
        _save(page, folder / "lab-controller.png")
        page.goto(lab.address + "?view=attack")
        page.wait_for_selector("#attack-shown .attacked")
        _save(page, folder / "lab-attack.png")
        page.goto(lab.address + "?view=text&strength=1")
        page.wait_for_selector("#text-right .read")
        _save(page, folder / "lab-text.png")
        page.goto(lab.address + "?view=results")
        page.wait_for_selector("#results-charts .tip")
        page.hover("#results-charts .tip >> nth=4")
        _save(page, folder / "lab-results.png")
        dark = browser.new_page(viewport={"width": 1280, "height": 900}, color_scheme="dark")
        dark.goto(export_page(place).as_uri() + "#p=0.5&i=0.4&tokens=12")
        _save(dark, folder / "lab-exported.png")
        browser.close()


def _browser(playwright: Any) -> Browser:
    where = chromium.find()
    if where is None:
        raise SystemExit("needs chromium on the PATH, or named by PIDFORMER_CHROMIUM")
    return playwright.chromium.launch(executable_path=where, args=["--no-sandbox"])


def _save(page: Page, path: Path) -> None:
    from PIL import Image

    page.wait_for_timeout(1200)
    page.screenshot(path=str(path), full_page=True)
    with Image.open(path) as image:
        fewer = image.convert("RGB").point(lambda level: 5 * round(level / 5))  # half the bytes
        fewer.save(path, optimize=True)
    print(f"{path}: {path.stat().st_size / 1000:.0f} kB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--visitors", type=int, default=10)
    parser.add_argument("--screenshots", type=Path, help="write the pictures here instead")
    options = parser.parse_args()
    if options.screenshots:
        screenshots(options.screenshots)
        return
    for name, value in measure(options.seconds, options.visitors).items():
        print(f"{name:<44} {value}")


if __name__ == "__main__":
    main()
