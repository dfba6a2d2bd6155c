"""The exported page: a file, a browser, and the numbers of pidformer.control."""

import math

import numpy as np
import pytest

from pidformer import control
from pidformer.cli import main
from pidformer.lab.knobs import Knobs
from pidformer.lab.static import export_page, page
from tests.lab.oracle import look
from tests.report.browser import axe_source

pytestmark = pytest.mark.slow

SETTINGS = [
    Knobs(),
    Knobs(p=0, i=0, d=0),
    Knobs(p=0.8, i=0.5, d=0.05, beta=0.1),
    Knobs(p=0.6, i=0, d=0, causal=True, tokens=17, seed=42),
    Knobs(p=0.5, i=0.5, d=0, kappa_min=-0.35, sharpness=3.2, depth=30),
    Knobs(p=1.2, i=2.0, d=0.4, depth=40, tokens=3),
    Knobs(p=0, i=0.4, d=0.1, sharpness=0, seed=99),
    Knobs(p=0.3, i=0, d=0.2, kappa_min=0.5, tokens=24, causal=True),
    Knobs(p=0, i=0, d=0.6, kappa_min=-1),
    Knobs(p=0.5, i=0.3, kappa_min=-1),
    Knobs(p=0.8, i=0.5, d=0.05, beta=0.1, implicit=True),
    Knobs(p=0.8, i=0.5, d=0.05, beta=0.1, step=0.5, kappa_min=-1),
    Knobs(p=1.3, i=2.2, d=0.3, step=0.7, implicit=True, kappa_min=-0.4, depth=20),
    Knobs(p=0.6, i=0, d=0, step=0.6),
    Knobs(p=1.4, i=2.0, d=0.55, step=0.8),
    Knobs(p=0.4, i=0, d=0.5, implicit=True, kappa_min=-1),
]


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    return export_page(tmp_path_factory.mktemp("lab") / "page").as_uri()


@pytest.fixture
def opened(watch, exported):
    return lambda knobs, **options: watch(exported + "#" + knobs.to_query().lstrip("?"), **options)


def numbers(page):
    return page.evaluate(
        """() => ({
            facts: Object.fromEntries([...document.querySelectorAll('#facts tr')].map(
                (row) => [row.cells[0].textContent, row.cells[1].dataset.value])),
            layers: [...document.querySelectorAll('#layers tbody tr')].map(
                (row) => [...row.cells].slice(1).map((cell) => cell.dataset.value)),
            verdict: [...document.querySelectorAll('#verdict p')].map((p) => p.textContent),
        })"""
    )


def test_the_page_has_the_stability_of_the_family(opened):
    """The intervals are those of docs/family.md; the radii are roots of NumPy's."""
    page = opened(Knobs()).page
    rows = page.evaluate(
        """() => [...document.querySelectorAll('#methods tbody tr')].map(
            (row) => [...row.cells].map((cell) => cell.textContent))"""
    )
    shown = {name: cells for name, *cells in rows}
    assert list(shown) == list(control.RELATIVES)
    assert shown["xsa"] == shown["gated"] == ["not linear: measured only", "-", "-"]
    assert shown["laplacian"] == ["(0, 2)", "1.000", "2.000"]  # |kappa - 1|
    assert shown["resformer"] == ["(-2, 2)", "0.500", "0.500"]  # |kappa / 2|
    circle = np.exp(1j * np.linspace(0, np.pi, 181))
    p, i, d = 0.4, 0.1, 0.05

    def radius(kappa):
        return abs(np.roots([1, p + i + d - 1 - kappa, kappa - p - 2 * d, d])).max()

    for cell, kappas in zip(shown["pid"][1:], (np.linspace(0, 1, 101), circle), strict=True):
        assert float(cell) == pytest.approx(max(map(radius, kappas)), abs=1e-3)


@pytest.mark.parametrize("knobs", SETTINGS, ids=lambda knobs: knobs.to_query()[17:] or "defaults")
def test_the_page_has_the_numbers_of_python(opened, knobs):
    watched = opened(knobs)
    shown, expected = numbers(watched.page), look(knobs)
    facts = {name: float(value) for name, value in shown["facts"].items()}
    report = control.stability_report(knobs.gains, knobs.kappa_min)
    assert facts["stable"] == control.is_stable(knobs.gains, knobs.kappa_min)
    assert facts["worst radius"] == pytest.approx(report.worst_radius, abs=1e-6)
    there = float(control.spectral_radius(facts["worst kappa"], knobs.gains))
    assert there == pytest.approx(report.worst_radius, abs=1e-6)
    assert facts["gain margin"] == pytest.approx(report.gain_margin, rel=1e-9)
    settling = math.nan if report.settling_depth is None else report.settling_depth
    assert facts["settling depth"] == pytest.approx(settling, nan_ok=True)
    assert facts["smallest eigenvalue"] == pytest.approx(expected.eigenvalues[0], abs=1e-7)
    for name, values in (
        ("first token ends at x", expected.held),
        ("and without control", expected.free),
    ):
        assert facts[name] == pytest.approx(values[-1][0][0], rel=1e-6, abs=1e-9)
    columns = [expected.free_similarity, expected.similarity, expected.free_rank, expected.rank]
    for line, row in zip(shown["layers"], zip(*columns, strict=True), strict=True):
        assert [float(value) for value in line] == pytest.approx(row, abs=2e-5, nan_ok=True)
    assert shown["verdict"] == expected.verdict
    said = watched.page.text_content("#facts td")
    assert said == ("yes" if control.is_stable(knobs.gains, knobs.kappa_min) else "no")
    assert watched.complaints == []


@pytest.mark.parametrize(("p", "i", "d"), [(0.4, 0.3, 0.1), (0.8, 0, 0.05), (0.5, 0, 0)])
def test_its_poles_are_the_roots_for_any_kappa(opened, p, i, d):
    gains = control.PIDGains(p=p, i=i, d=d)
    watched = opened(Knobs())
    for kappa in (-1, -0.3, 0, 0.2, 0.77, 1):
        found = watched.page.evaluate(f"pidlab.poles({kappa}, {{p: {p}, i: {i}, d: {d}}})")
        for z in control.poles(kappa, gains).tolist():  # each has a partner, in any order
            assert min(abs(complex(*other) - z) for other in found) < 1e-6


@pytest.mark.parametrize(("p", "i", "d"), [(0.4, 0.3, 0.1), (0.8, 0, 0.05), (1.4, 1.2, 0)])
def test_its_responses_are_those_of_python(opened, p, i, d):
    gains, kappas = control.PIDGains(p=p, i=i, d=d), [-0.3, 0.0, 0.77, 1.0]
    page = opened(Knobs()).page
    ask = f"(kappas) => kappas.map((kappa) => pidlab.%s(kappa, {{p: {p}, i: {i}, d: {d}}}, %s))"
    step = page.evaluate(ask % ("respond", "24, 1, 0"), kappas)
    disturbance = page.evaluate(ask % ("respond", "24, 0, 1"), kappas)
    for found, expected in (
        (step, control.step_response(gains, kappas, 24)),
        (disturbance, control.disturbance_response(gains, kappas, 24)),
    ):
        for row, wanted in zip(found, expected.tolist(), strict=True):
            assert row == pytest.approx(wanted, rel=1e-9, abs=1e-12)
    for omega in (0.01, 0.5, math.pi):
        sizes = page.evaluate(ask % ("frequency", omega), kappas)
        wanted = control.frequency_response(gains, kappas, omega)
        tracking, sensitivity = wanted.tracking.abs()[:, 0], wanted.sensitivity.abs()[:, 0]
        assert [s["tracking"] for s in sizes] == pytest.approx(tracking.tolist(), rel=1e-9)
        assert [s["sensitivity"] for s in sizes] == pytest.approx(sensitivity.tolist(), rel=1e-9)


def discretisation(step, derivative):
    return f"step: {step}, implicit: {'true' if derivative == 'implicit' else 'false'}"


@pytest.mark.parametrize(("step", "derivative"), [(0.5, "explicit"), (0.7, "implicit")])
def test_its_loop_follows_the_discretisation(opened, step, derivative):
    gains = control.discretised("0.8,0.5,0.1", derivative=derivative, step=step)
    given = f"{{p: 0.8, i: 0.5, d: 0.1, {discretisation(step, derivative)}}}"
    page = opened(Knobs()).page
    for kappa in (-1, 0.2, 1):
        found = page.evaluate(f"pidlab.poles({kappa}, {given})")
        for z in control.poles(gains, kappa).tolist():
            assert min(abs(complex(*other) - z) for other in found) < 1e-6
        for name, call in (
            ("1, 0", control.step_response),
            ("0, 1", control.disturbance_response),
        ):
            row = page.evaluate(f"pidlab.respond({kappa}, {given}, 24, {name})")
            assert row == pytest.approx(call(gains, kappa).tolist(), rel=1e-9, abs=1e-12)
        size = page.evaluate(f"pidlab.frequency({kappa}, {given}, 0.5)")
        wanted = control.frequency_response(gains, kappa, 0.5)
        assert size["tracking"] == pytest.approx(float(wanted.tracking.abs()), rel=1e-9)
        assert size["sensitivity"] == pytest.approx(float(wanted.sensitivity.abs()), rel=1e-9)


@pytest.mark.parametrize("kind", ["P", "PD", "PI", "PID"])
@pytest.mark.parametrize(("step", "derivative"), [(0.5, "explicit"), (0.7, "implicit")])
def test_its_design_for_a_discretisation_is_as_fast_as_ours(opened, kind, step, derivative):
    form = {"derivative": derivative, "step": step}
    form_there = discretisation(step, derivative)
    made = opened(Knobs()).page.evaluate(f"pidlab.design('{kind}', -0.2, 0.1, {{{form_there}}})")
    best = control.design_gains(kind, -0.2, d=0.1 if "D" in kind else None, **form)
    reached = control.worst_radius(control.discretised(control.PIDGains(**made), **form), -0.2)
    assert reached <= control.worst_radius(best, -0.2) + 2e-3


@pytest.mark.parametrize("name", ["p", "i", "d"])
def test_its_root_locus_is_that_of_python(opened, name):
    values, page = [1e-6, 0.2, 0.55], opened(Knobs()).page
    ask = f"(values) => pidlab.locus(0.3, {{p: 0.4, i: 0.3, d: 0.1}}, '{name}', values)"
    wanted = control.root_locus("0.4,0.3,0.1", name, values, kappa=0.3)
    for found, roots in zip(page.evaluate(ask, values), wanted.tolist(), strict=True):
        for z in roots:
            assert min(abs(complex(*other) - z) for other in found) < 1e-6


@pytest.mark.parametrize("kind", ["P", "PD", "PI", "PID"])
def test_its_design_is_as_fast_as_ours(opened, kind):
    watched = opened(Knobs(kappa_min=-0.2, d=0.1))
    made = watched.page.evaluate(f"pidlab.design('{kind}', -0.2, 0.1)")
    best = control.design_gains(kind, -0.2, d=0.1 if "D" in kind else None)
    reached = control.worst_radius(control.PIDGains(**made), -0.2)
    assert reached <= control.worst_radius(best, -0.2) + 2e-3
    watched.page.click(f"[data-design={kind}]")
    watched.page.wait_for_function("document.querySelector('#verdict').classList.contains('good')")


def test_sliders_move_by_keyboard_and_change_verdict_picture_and_address(opened):
    watched = opened(Knobs(p=0.5))
    page = watched.page
    before = page.evaluate("at('chart-tokens').toDataURL()")
    page.focus("#p")
    for _ in range(4):
        page.keyboard.press("PageUp")
    page.wait_for_function("at('verdict').classList.contains('bad')")
    assert "Unstable" in page.inner_text("#verdict")
    assert page.evaluate("at('chart-tokens').toDataURL()") != before
    assert "p=" in page.url
    page.click("[data-preset=softmax]")
    page.wait_for_function("at('verdict').textContent.startsWith('No control')")
    assert page.inner_text("#command") == "pidformer stability --gains 0,0,0 --kappa-min 0"


def test_dragging_in_the_region_sets_the_gains(opened):
    page = opened(Knobs()).page
    box = page.locator("#chart-region").bounding_box()
    page.mouse.click(box["x"] + box["width"] * 0.9, box["y"] + box["height"] * 0.1)
    page.wait_for_function("knobs.p > 1 && knobs.i > 1.8")
    page.wait_for_function("at('verdict').classList.contains('bad')")  # drawn in the next frame
    assert "Unstable" in page.inner_text("#verdict")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_a_phone_and_asks_nobody(opened, scheme):
    watched = opened(
        Knobs(), viewport={"width": 360, "height": 740}, color_scheme=scheme, offline=True
    )
    assert watched.page.evaluate("document.documentElement.scrollWidth") <= 360
    assert watched.outside("file://") == [] and watched.complaints == []


def test_it_breaks_no_rule_of_accessibility(opened):
    if axe_source() is None:
        pytest.skip("needs axe-core-python")
    page = opened(Knobs()).page
    page.add_script_tag(content=axe_source())
    found = page.evaluate(
        "async () => (await axe.run()).violations.map((v) => [v.id, v.nodes[0].html])"
    )
    assert found == []


def test_the_page_names_no_other_host():
    assert "http://" not in page() and "https://" not in page()


def test_export_by_command(tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["lab", "--export", str(tmp_path / "out")])
    assert ended.value.code == 0
    assert (tmp_path / "out" / "index.html").read_text() == page()
    (tmp_path / "file").write_text("")
    with pytest.raises(SystemExit) as ended:
        main(["lab", "--export", str(tmp_path / "file")])
    assert ended.value.code == 2
    assert "is a file; --export names a folder" in capsys.readouterr().err
