"""The source itself: nothing in it unpickles, evaluates or starts a shell, but for a named list."""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "pidformer"
PICKLES = {"pickle", "_pickle", "cPickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
CALLS = {"eval", "exec", "__import__"}
MEMBERS = {
    "yaml": {"load", "load_all", "unsafe_load", "full_load"},
    "os": {"system", "popen"},
    "torch": {"load"},
}
MUST_BE_FALSE = ("shell", "allow_pickle", "trust_remote_code")
ALLOWED = {
    (
        "data/formats/cifar.py",
        "import pickle",
    ): "CIFAR is published as pickles; the reader resolves "
    "arrays and plain values alone, and refuses every other name before it is looked up",
    ("fields.py", "yaml.load"): "the loader is a subclass of SafeLoader that also reads "
    "1e-3 as a number; safe_load takes no loader",
}


def _is(node: ast.expr, value: bool) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


def dangers(code: str) -> list[str]:
    """What is dangerous in a module, by name."""
    found = []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            names = [alias.name.partition(".")[0] for alias in node.names]
            found += [f"import {name}" for name in names if name in PICKLES]
        elif isinstance(node, ast.ImportFrom):
            module = (node.module or "").partition(".")[0]
            found += [f"import {module}"] if module in PICKLES else []
            taken = {alias.name for alias in node.names} & MEMBERS.get(node.module or "", set())
            found += [f"from {module} import {name}" for name in sorted(taken)]
        elif isinstance(node, ast.Call):
            found += _calls(node)
    return found


def _calls(node: ast.Call) -> list[str]:
    options = {option.arg: option.value for option in node.keywords}
    found = [
        f"{name}={ast.unparse(options[name])}"
        for name in MUST_BE_FALSE
        if name in options and not _is(options[name], False)
    ]
    if isinstance(node.func, ast.Name) and node.func.id in CALLS:
        found.append(node.func.id)
    if isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name):
        module, name = node.func.value.id, node.func.attr
        is_safe = module == "torch" and _is(options.get("weights_only", node.func), True)
        if name in MEMBERS.get(module, set()) and not is_safe:
            found.append(f"{module}.{name}")
    return found


@pytest.mark.slow
def test_nothing_unpickles_evaluates_or_starts_a_shell():
    found = {
        (path.relative_to(SOURCE).as_posix(), danger)
        for path in SOURCE.rglob("*.py")
        for danger in dangers(path.read_text())
    }
    assert found == set(ALLOWED)


@pytest.mark.parametrize(
    "code",
    [
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "torch.load(path, weights_only=safe)",
        "from torch import load",
        "import pickle",
        "from pickle import loads",
        "import dill as json",
        "yaml.load(text, Loader)",
        "yaml.unsafe_load(text)",
        "eval(text)",
        "exec(text)",
        "subprocess.run(command, shell=True)",
        "os.system(command)",
        "np.load(path, allow_pickle=True)",
        "AutoModel.from_pretrained(name, trust_remote_code=True)",
        "AutoModel.from_pretrained(name, trust_remote_code=given)",
    ],
)
def test_the_search_finds_what_it_is_for(code):
    assert len(dangers(code)) == 1


@pytest.mark.parametrize(
    "code",
    [
        "torch.load(path, weights_only=True)",
        "yaml.safe_load(text)",
        "model.eval()",
        "np.load(path, allow_pickle=False)",
        "AutoModel.from_pretrained(name, trust_remote_code=False)",
    ],
)
def test_the_search_lets_pass_what_is_safe(code):
    assert not dangers(code)
