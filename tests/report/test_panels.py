"""One colour for softmax, one for the controller, one look of tables, wherever they are."""

import ast
import re
from pathlib import Path
from types import SimpleNamespace

from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from pidformer.control import PIDGains
from pidformer.display import plain_table
from pidformer.report import stability
from pidformer.report.panels import PID, SOFTMAX
from pidformer.tune import figure as tune_figure

SOURCE = Path(__file__).parents[2] / "src" / "pidformer"


def colors_by_label(axes):
    lines = {line.get_label(): to_hex(line.get_color()) for line in axes.lines}
    dots = {d.get_label(): to_hex(d.get_facecolor()[0]) for d in axes.collections}
    return lines | dots


def test_a_search_for_gains_draws_softmax_as_the_report_does():
    def trial(clean, gains):
        return SimpleNamespace(metrics={"clean": clean, "pgd": clean}, details={"gains": gains})

    trials = [trial(1.0, {}), trial(2.0, PIDGains(p=0.4).to_dict())]
    axes = Figure().subplots()
    tune_figure._draw(axes, SimpleNamespace(trials=trials, front=trials[1:]), "pgd")
    found = colors_by_label(axes)
    assert found["softmax"] == SOFTMAX and found["front"] == PID


def test_tokens_over_depth_have_the_colours_of_their_models():
    axes = Figure().subplots()
    stability._draw_tokens(axes, PIDGains(p=0.4, i=0.1), None, seed=0)
    found = colors_by_label(axes)
    assert found["layer 12, softmax"] == SOFTMAX and found["layer 12, PI"] == PID


def test_the_two_colours_are_written_once_and_the_lab_has_the_same():
    written = [p.name for p in SOURCE.rglob("*.py") if re.search(f"{SOFTMAX}|{PID}", p.read_text())]
    assert written == ["panels.py"]
    light = (SOURCE / "lab" / "charts.css").read_text().splitlines()[0]
    assert f"--free: {SOFTMAX};" in light and f"--held: {PID};" in light


def test_all_tables_on_a_terminal_are_made_in_one_place():
    made = []
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", None) == "Table":
                made.append(path.name)
    assert made == ["display.py"]
    assert plain_table("a", title="b").title_justify == "left"
