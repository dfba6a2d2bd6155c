import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from pidformer.control import PRESETS, RELATIVES, as_feedback
from tests.kernels import softmax_kernel


@pytest.mark.parametrize("preset", [*PRESETS, *RELATIVES])
def test_every_preset_is_judged_or_said_to_be_measured_only(run, preset):
    code, out, _ = run("stability", "--preset", preset, "--json")
    found, law = json.loads(out), as_feedback(preset)
    assert code == 0
    if preset in ("xsa", "gated"):
        assert found["stable"] is None and "measured only" in found["verdict"]
        assert found["token_bound"] == 1
        return
    kappas = np.linspace(0, 1, 301)  # v_{l+1} of a mode, by the companion matrix of the law
    own, skip = getattr(law, "own", 1.0), getattr(law, "skip", 0.0)
    worst = max(
        np.abs(
            np.linalg.eigvals(
                [[own * k + skip - law.p - law.i - law.d, law.i, law.d], [-1, 1, 0], [1, 0, 0]]
                if law.i
                else [[own * k + skip - law.p - law.d, law.d], [1, 0]]
            )
        ).max()
        for k in kappas
    )
    assert found["worst_radius"] == pytest.approx(worst, abs=1e-6)
    assert found["stable"] is bool(worst < 1 - 1e-9)


@pytest.mark.parametrize(
    ("preset", "stable", "radius", "interval"),
    [
        ("deit", False, 1.1617, (0.15, 1.824)),
        ("segmenter", True, 0.8126, (-0.25, 1.514)),
        ("lm", True, 0.8474, (-0.15, 1.445)),
    ],
)
def test_presets_as_json(run, preset, stable, radius, interval):
    code, out, _ = run("stability", "--preset", preset, "--json")
    found = json.loads(out)
    assert code == 0 and found["stable"] is stable and found["worst_kappa"] == 0
    assert found["worst_radius"] == pytest.approx(radius, abs=5e-5)
    assert found["stable_interval"] == pytest.approx(interval, abs=5e-4)
    assert len(found["poles"]) == 11 and len(found["poles"][0]["poles"]) == 3


def test_design_as_json(run):
    _, out, _ = run("stability", "--design", "PI", "--kappa-min", 0, "--json")
    found = json.loads(out)
    assert found["gains"] == {"p": 0.5, "i": 0.5, "d": 0.0, "beta": 1.0}
    assert found["worst_radius"] == pytest.approx(0.7071, abs=5e-5)


def test_words_and_table(run):
    code, out, _ = run("stability", "--gains", "0.8,0.5,0.05,0.1")
    assert code == 0 and "1.1617" in out and "poles of a layer" in out
    assert "unstable on [0, 1]: the mode at kappa = 0 grows 1.16x per layer" in out
    assert "(PID, explicit D)" in out


def test_the_papers_gains_are_stable_with_an_implicit_derivative(run):
    code, out, _ = run("stability", "--preset", "deit", "--derivative", "implicit", "--json")
    found = json.loads(out)
    assert code == 0 and found["stable"] is True and found["derivative"] == "implicit"
    assert found["worst_radius"] == pytest.approx(0.9457, abs=5e-5)
    assert found["poles"][0]["radius"] == pytest.approx(found["worst_radius"])
    code, out, _ = run("stability", "--design", "PI", "--disc", "--step", "0.5", "--json")
    found = json.loads(out)
    assert found["stable"] and found["worst_radius"] == pytest.approx(0.5**0.5, abs=1e-3)
    _, out, _ = run("stability", "--gains", "0.8,0.5,0.05,0.1,step=0.5", "--disc")
    assert "stable on the unit disc" in out and "explicit D, step 0.5" in out
    _, out, _ = run("stability", "--preset", "deit", "--derivative", "implicit")
    assert "shrinks to 0.946x per layer" in out and "(PID, implicit D)" in out


def test_the_readme_shows_what_is_printed(run):
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    shown = readme.split("    $ pidformer stability --preset deit\n")[1].splitlines()[1].strip()
    _, out, _ = run("stability", "--preset", "deit")
    assert shown.startswith("verdict") and shown in out.splitlines()


def test_a_kernel_is_judged_by_its_own_spectrum(run, tmp_path):
    kernel = softmax_kernel(12, sharpness=3.0)
    np.save(tmp_path / "kernel.npy", kernel.numpy())
    _, out, _ = run("stability", "--kernel", tmp_path / "kernel.npy", "--json")
    found = json.loads(out)
    kappas = torch.linalg.eigvals(kernel)
    from pidformer.control import PIDGains, spectral_radius

    radius = float(spectral_radius(kappas, PIDGains.paper("deit")).max())
    assert found["spectrum"] == "12 eigenvalues"
    assert found["worst_radius"] == pytest.approx(radius)


def test_the_kernel_that_collapse_ends_in(run, tmp_path):
    np.save(tmp_path / "kernel.npy", np.full((65, 65), 1 / 65))  # MKL's eigenvalues give up on it
    code, out, _ = run("stability", "--kernel", tmp_path / "kernel.npy", "--json")
    assert code == 0 and json.loads(out)["spectrum"] == "65 eigenvalues"


@pytest.mark.slow
def test_the_figure_is_written_whole(run, tmp_path):
    path = tmp_path / "figure.png"
    code, out, _ = run("stability", "--preset", "lm", "--plot", path)
    assert code == 0 and str(path) in out
    assert path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 20_000
    assert [p.name for p in tmp_path.iterdir()] == ["figure.png"]  # no temporary left


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--gains", "-1,0,0"], ["gain p", ">= 0"]),
        (["--gains", "nan,0,0"], ["gain p", "finite"]),
        (["--gains", "0.1,0,0,2"], ["beta", "(0, 1]"]),
        (["--gains", "1"], ["P,I,D"]),
        (["--preset", "diet"], ["did you mean 'deit'"]),
        (["--preset", "deit", "--gains", "1,1,1"], ["one of"]),
        (["--design", "X"], ["known: P"]),
        (["--derivative", "implict"], ["unknown derivative", "did you mean 'implicit'"]),
        (["--plot", "figure.png", "--derivative", "implicit"], ["--plot", "PID gains"]),
        (["--plot", "figure.png", "--preset", "laplacian"], ["--plot", "PID gains"]),
        (["--plot", "figure.png", "--preset", "xsa"], ["--plot", "PID gains"]),
        (["--design", "PI", "--disc"], ["at -1 no gains are stable", "step=0.5"]),
        (["--step", "0"], ["step must be in (0, 1]"]),
        (["--kernel", "k.npy", "--disc"], ["one of --kappa-min, --kernel and --disc"]),
        (["--kappa-min", "-0.2", "--disc"], ["one of --kappa-min, --kernel and --disc"]),
        (["--preset", "xsa", "--kappa-min", "3"], ["kappa range"]),
        (["--preset", ""], ["unknown preset ''"]),
        (["--kappa-min", "3"], ["kappa range"]),
        (["--kappa-min", "x"], ["--kappa-min"]),
        (["--kernel", "missing.npy"], ["missing.npy"]),
        (["--plot", "missing/figure.png"], ["missing", "folder"]),
        (["--plot", "figure.bmp"], [".png"]),
        (["--colour"], ["--colour"]),
    ],
)
def test_bad_input_gets_one_line_and_exit_code_2(run, arguments, words):
    code, out, err = run("stability", *arguments)
    assert code == 2 and out == ""
    assert err.startswith("pidformer: ") and err.count("\n") == 1
    assert all(word in err for word in words)


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.ones((2, 3)) / 3, "square"),
        (np.array([[0.5, 0.6], [0.5, 0.5]]), "off by +0.1"),
        (np.array(["a"]), "real numbers"),
        (np.array([{}], dtype=object), "not a readable .npy"),
    ],
)
def test_bad_kernels(run, tmp_path, array, words):
    path = tmp_path / "kernel.npy"
    np.save(path, array, allow_pickle=True)
    code, _, err = run("stability", "--kernel", path)
    assert code == 2 and words in err and err.count("\n") == 1


def test_a_file_that_is_no_array(run, tmp_path):
    path = tmp_path / "kernel.npy"
    path.write_bytes(b"not an array")
    code, _, err = run("stability", "--kernel", path)
    assert code == 2 and "not a readable .npy" in err


@pytest.mark.slow
def test_help_has_an_example_and_the_installed_command_works():
    done = subprocess.run(
        [sys.executable, "-m", "pidformer", "stability", "--help"], capture_output=True, text=True
    )
    assert done.returncode == 0 and "Example: pidformer stability" in done.stdout


def test_the_bare_command_shows_help_and_version(run):
    code, out, _ = run()
    assert code == 0 and "stability" in out
    code, out, _ = run("--version")
    assert code == 0 and out.startswith("pidformer ")


def test_a_long_fact_goes_on_below_its_own_words(capsys):
    from rich.console import Console

    from pidformer.cli.options import print_facts
    from pidformer.control import PIDGains, stability_report

    report = str(stability_report(PIDGains.preset("deit")))
    print_facts(Console(force_terminal=True, width=80, color_system=None), report)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert [line[:16].rstrip() for line in lines[1:4]] == ["verdict", "", "worst radius"]
    assert " ".join(" ".join(lines).split()) == " ".join(report.split())
    print_facts(Console(width=80), report)  # a pipe: one line each
    assert capsys.readouterr().out.rstrip() == report


def test_unstable_is_red_on_a_terminal():
    from io import StringIO

    from rich.console import Console

    from pidformer.cli.options import print_facts

    shown = StringIO()
    print_facts(Console(file=shown, force_terminal=True, width=200), "verdict   unstable on [0, 1]")
    assert "\x1b[1;31munstable\x1b[0m" in shown.getvalue()


@pytest.mark.parametrize("preset", ["p", "laplacian", "resformer"])
def test_a_pole_at_zero_has_one_sign(run, preset):
    _, out, _ = run("stability", "--preset", preset)
    assert "+0.0000" in out and "-0.0000" not in out
