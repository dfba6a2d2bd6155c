import json

import pytest

pytest.importorskip("transformers")

from pidformer.training.run import train
from tests.training.tiny_language import tiny_language

pytestmark = pytest.mark.slow

WORDS = [f"w{k}" for k in range(16)]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    root = tmp_path_factory.mktemp("language")
    data = root / "data"
    data.mkdir()
    for split, count in (("train", 300), ("valid", 60), ("test", 60)):
        lines = (" ".join(WORDS[(k * j) % len(WORDS)] for j in range(9)) for k in range(count))
        (data / f"{split}.txt").write_text("\n".join(lines) + "\n")
    recipe = tiny_language("schedule.epochs=1", f"text.cache={root / 'cache'}")
    train(recipe, root / "run", data=data, device="cpu", is_shown=False)
    return root / "run", data


def test_evaluate_gives_perplexity(run, trained, monkeypatch, tmp_path):
    monkeypatch.setenv("PIDFORMER_CACHE", str(tmp_path))
    folder, data = trained
    common = ["evaluate", folder, "--data", data, "--device", "cpu", "--limit", 200]
    code, text, err = run(*common, "--split", "valid,test", "--json")
    assert code == 0, err
    (rows,) = json.loads(text)["runs"].values()
    assert list(rows) == ["valid, sliding", "test, sliding"] and rows["test, sliding"]["ppl"] > 1
    assert rows["test, sliding"]["ppl_low"] is None  # one block of text: no interval
    assert "NaN" not in text
    code, text, _ = run(*common, "--protocol", "segments")
    assert code == 0 and "perplexity" in text and "nan" not in text
    code, text, _ = run(*common, "--precision", "bf16", "--json")
    (rounded,) = json.loads(text)["runs"].values()
    exact = json.loads(run(*common, "--json")[1])["runs"][str(folder)]["valid, sliding"]["ppl"]
    assert 0 < abs(rounded["valid, sliding"]["ppl"] / exact - 1) < 0.01
    code, text, _ = run(*common, "--suite", "robustness", "--json")
    assert code == 0 and len(json.loads(text)["runs"][str(folder)]) > 10
    for arguments, words in [
        (["--protocol", "slding"], "did you mean 'sliding'"),
        (["--split", "dev"], "dev"),
        (["--precision", "tf23"], "did you mean 'tf32'"),
    ]:
        code, _, err = run(*common, *arguments)
        assert code == 2 and words in err and err.count("\n") == 1, err


def test_analyze_reads_causal_attention(run, trained, monkeypatch, tmp_path):
    monkeypatch.setenv("PIDFORMER_CACHE", str(tmp_path / "cache"))
    folder, data = trained
    arguments = ["--data", data, "--device", "cpu", "--limit", 6, "--spectrum-limit", 2]
    code, text, err = run("analyze", folder, *arguments, "--out", tmp_path, "--json")
    assert code == 0, err
    (found,) = json.loads(text)["models"]
    assert len(found["similarity"]["blocks"]) == 2 and isinstance(found["certificate"], dict)
    # the eigenvalues of causal attention are its diagonal: real and positive
    assert found["certificate"]["kappa"]["max_imag"] == 0
