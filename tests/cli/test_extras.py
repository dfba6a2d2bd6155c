"""What a plain `pip install` leaves out is asked for in one line, whatever the command."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import pidformer

ALONE = """
import contextlib, io, json, sys
for name in {missing!r}:
    sys.modules[name] = None
from pidformer.cli import main
for line in json.loads(sys.argv[1]):
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
        try:
            main(line)
        except SystemExit as end:
            code = end.code
    print(json.dumps([code, said.getvalue()]))
"""
LM = ("transformers", "tokenizers")


@pytest.mark.slow
def test_commands_without_transformers_say_which_extra_they_need(tmp_path):
    run = Path(pidformer.__file__).parent / "lab" / "examples" / "novels-pid"
    texts, llama = tmp_path / "texts", tmp_path / "llama"
    for folder in (texts, llama):
        folder.mkdir()
    for split in ("train", "valid", "test"):
        (texts / f"{split}.txt").write_text("It was a grey day. " * 200)
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}
    (llama / "config.json").write_text(json.dumps(config))
    lines = [
        f"train novels/pid --data {texts} --out {tmp_path / 'run'}",
        f"generate {run} --prompt It",
        f"evaluate {run} --data {texts}",
        f"analyze {run} --data {texts}",
        f"analyze hf:{llama} --data {texts}",
        f"export {run} --out {tmp_path / 'a.pt2'}",
        f"publish {run} --out {tmp_path / 'published'}",
        f"tune {run} --data {texts}",
        f"tune hf:{llama} --data {texts} --out {tmp_path / 'tuned'}",
        f"convert {llama} --gains 0.4,0,0 --out {tmp_path / 'converted'}",
    ]
    words = json.dumps([line.split() for line in lines])
    code = ALONE.format(missing=LM)
    done = subprocess.run([sys.executable, "-c", code, words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    for line, (code, said) in zip(lines, answers, strict=True):
        wanted = ": pip install 'pidformer[lm]'\n"
        assert code == 2 and said.startswith("pidformer: ") and said.endswith(wanted), (line, said)
    assert not [
        name for name in ("run", "a.pt2", "published", "converted") if (tmp_path / name).exists()
    ]
