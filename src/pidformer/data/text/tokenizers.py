"""What a tokenizer must offer, and Hugging Face's tokenizers in that shape."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from pidformer.data.text.vocabulary import WordVocabulary
from pidformer.errors import InputError, cut, shortened
from pidformer.fields import TEXTS, read_text

_ENDS = ("<|endoftext|>", "</s>", "<eos>", "<|end_of_text|>", "[SEP]")


class Tokenizer(Protocol):
    """Text to numbers and back."""

    kind: str
    eos_id: int | None
    unknown_id: int | None

    @property
    def size(self) -> int: ...
    @property
    def fingerprint(self) -> str:
        """The same for the same numbers, to find token files by."""
        ...

    def to_dict(self) -> dict[str, Any]:
        """All of it as JSON, to be kept with a model."""
        ...

    def encode_lines(self, lines: Iterable[str]) -> list[np.ndarray]: ...
    def encode(self, text: str) -> list[int]: ...
    def decode(self, numbers: Sequence[int]) -> str: ...
    def characters(self, line: str) -> int: ...
    def token_text(self, number: int) -> str: ...
    def encode_token(self, text: str) -> list[int]: ...


class SubwordTokenizer:
    """A fast Hugging Face tokenizer. A line keeps its newline; nothing is added to the text."""

    kind = "subwords"

    def __init__(self, definition: str) -> None:
        from tokenizers import Tokenizer as Fast

        try:
            self._inner = Fast.from_str(definition)
            self._inner.encode("\u2603 a word that it may not know")
        except Exception as error:  # the library raises bare Exception
            raise InputError(f"this is not a tokenizer definition ({cut(error)})") from None
        self._definition = definition
        self._inner.no_padding()
        self._inner.no_truncation()
        found = (self._inner.token_to_id(end) for end in _ENDS)
        self.eos_id = next((number for number in found if number is not None), None)
        self.unknown_id = self._inner.token_to_id("<unk>")

    @property
    def size(self) -> int:
        return self._inner.get_vocab_size()

    @property
    def fingerprint(self) -> str:
        return hashlib.sha256(self._definition.encode()).hexdigest()

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "definition": json.loads(self._definition)}

    def encode_lines(self, lines: Iterable[str]) -> list[np.ndarray]:
        texts = [f"{line}\n" for line in lines]
        encoded = self._inner.encode_batch(texts, add_special_tokens=False)
        return [np.array(one.ids, dtype=np.int64) for one in encoded]

    def encode(self, text: str) -> list[int]:
        return self._inner.encode(text, add_special_tokens=False).ids

    def decode(self, numbers: Sequence[int]) -> str:
        return self._inner.decode(list(numbers), skip_special_tokens=False)

    def characters(self, line: str) -> int:
        return len(line) + 1

    def token_text(self, number: int) -> str:
        return self._inner.decode([number], skip_special_tokens=False)

    def encode_token(self, text: str) -> list[int]:
        return self.encode(text)


_DESCRIBED: dict[Any, set[str]] = {
    WordVocabulary.kind: {"words", "split"},
    SubwordTokenizer.kind: {"definition"},
}


def tokenizer_from(fields: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer that `to_dict` described."""
    kind = fields.get("kind") if isinstance(fields, Mapping) else None
    is_whole = isinstance(kind, str) and _DESCRIBED.get(kind, set()) <= {*fields}
    if not is_whole or not TEXTS.takes(fields.get("words", [])):
        raise InputError(
            "a tokenizer is described by its kind and its words (with their split) or its "
            "definition; the file that holds it is damaged"
        )
    if kind == WordVocabulary.kind:
        return WordVocabulary(fields["words"], fields["split"])
    if kind == SubwordTokenizer.kind:
        return SubwordTokenizer(json.dumps(fields["definition"]))
    raise InputError(f"unknown kind of tokenizer {shortened(kind)}; known: words, subwords")


def load_tokenizer(name: str) -> SubwordTokenizer:
    """A Hugging Face tokenizer by folder, by tokenizer.json, or by a name in the local cache."""
    path = Path(name)
    for file in (path, path / "tokenizer.json"):
        if file.is_file():
            return SubwordTokenizer(read_text(file, "tokenizer"))
    try:
        from transformers import AutoTokenizer

        local = {"local_files_only": True, "trust_remote_code": False}
        fast = AutoTokenizer.from_pretrained(name, **local).backend_tokenizer
        return SubwordTokenizer(fast.to_str())
    except InputError:
        raise
    except ImportError:
        raise InputError(f"tokenizer {name!r} is no file; by name it needs pidformer[lm]") from None
    except Exception as error:  # not found, not readable: all the same to the user
        raise InputError(
            f"unknown tokenizer {shortened(name)} ({cut(str(error) or type(error).__name__)}); give"
            " 'words', a folder with tokenizer.json, or a name in Hugging Face's local cache"
        ) from None
