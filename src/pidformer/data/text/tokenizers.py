"""Text to numbers and back: words, as in the language models of the literature, or subwords."""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self, get_args

import numpy as np

from pidformer.errors import InputError, check_known, cut, shortened
from pidformer.fields import TEXTS, read_text

EOS, UNKNOWN = "<eos>", "<unk>"
Split = Literal["spaces", "punctuation"]

# A word keeps its apostrophes; every other sign stands alone. WikiText's @-@ is its hyphen.
_SIGNS = re.compile(r"<unk>|@[-,.]@|\w+(?:['\u2019]\w+)*|[^\w\s]")
_CLOSING = set(",.;:!?)]}\u2019\u201d%")
_OPENING = set("([{\u2018\u201c$\u00a3")
_ENDS = ("<|endoftext|>", "</s>", "<eos>", "<|end_of_text|>", "[SEP]")


class WordVocabulary:
    """Words by descending count (ties by first appearance), `<eos>` = 0 at the end of each line.

    `split="spaces"` takes a line's words as they stand, case and all: WikiText's own tokens.
    `split="punctuation"` parts words from the signs around them, for text that is not tokenised.
    """

    kind = "words"

    def __init__(self, words: Sequence[str], split: Split = "spaces") -> None:
        check_known("split", split, get_args(Split))
        if not words or words[0] != EOS:
            raise InputError(f"a vocabulary starts with {EOS}, this one with {list(words[:1])}")
        self.words, self.split = list(words), split
        self._index = {word: number for number, word in enumerate(self.words)}
        self.unknown_id: int | None = self._index.get(UNKNOWN)
        self.eos_id: int | None = 0

    @classmethod
    def from_counts(
        cls,
        counts: Mapping[str, int],
        split: Split = "spaces",
        min_count: int = 1,
        max_words: int | None = None,
    ) -> Self:
        """The vocabulary of counted words, in their order of first appearance.

        `min_count` and `max_words` (the whole size) leave the rarest out. `<unk>` stands for them,
        with their count; a text without any has it last.
        """
        counted = Counter({word: n for word, n in counts.items() if word != EOS})
        ranked = [(w, n) for w, n in counted.most_common() if w != UNKNOWN and n >= min_count]
        if max_words is not None:
            ranked = ranked[: max(0, max_words - 2)]
        rare = sum(counted.values()) - sum(n for _, n in ranked)
        if rare == counted[UNKNOWN]:  # nothing was left out: <unk> is a word like others
            kept = [(w, n) for w, n in counted.most_common() if w == UNKNOWN or n >= min_count]
            kept += [] if UNKNOWN in counted else [(UNKNOWN, 0)]
        else:
            place = next((k for k, (_, n) in enumerate(ranked) if n < rare), len(ranked))
            kept = [*ranked[:place], (UNKNOWN, rare), *ranked[place:]]
        return cls([EOS, *(word for word, _ in kept)], split)

    @property
    def size(self) -> int:
        return len(self.words)

    @property
    def fingerprint(self) -> str:
        """The same for the same numbers, to find token files by."""
        return hashlib.sha256(json.dumps(self.to_dict()).encode()).hexdigest()

    def to_dict(self) -> dict[str, Any]:
        """All of it as JSON, to be kept with a model."""
        return {"kind": self.kind, "split": self.split, "words": self.words}

    def encode_lines(self, lines: Iterable[str]) -> list[np.ndarray]:
        """Numbers of each line's words, and `<eos>`; int64."""
        index, other = self._index, self.unknown_id
        found = []
        for line in lines:
            words = words_of(line, self.split)
            numbers = [index.get(word, other) for word in words]
            if None in numbers:
                word = words[numbers.index(None)]
                raise InputError(
                    f"the word {shortened(word)} is not in the vocabulary, which has no {UNKNOWN}"
                )
            found.append(np.array([*numbers, 0], dtype=np.int64))
        return found

    def encode(self, text: str) -> list[int]:
        """A prompt: its words, with `<eos>` for each line that ends."""
        *whole, last = text.split("\n")
        numbers = [n for line in self.encode_lines(whole) for n in line.tolist()]
        return numbers + self.encode_lines([last])[0].tolist()[:-1]

    def decode(self, numbers: Sequence[int]) -> str:
        text, before = "", ""
        for number in numbers:
            word = self.words[number]
            text += self.piece(before, word)
            before = word
        return text

    def piece(self, before: str, word: str) -> str:
        """A word as it follows another in running text."""
        if word == EOS:
            return "\n"
        is_start = before in ("", EOS)
        joined = self.split == "punctuation" and (word in _CLOSING or before in _OPENING)
        return word if is_start or joined else f" {word}"

    def characters(self, line: str) -> int:
        """Characters of a line as the model reads it: words, one space between, a newline."""
        words = words_of(line, self.split)
        return sum(map(len, words)) + max(0, len(words) - 1) + 1

    def token_text(self, number: int) -> str:
        return self.words[number]

    def encode_token(self, text: str) -> list[int]:
        """One token's text, changed, as tokens again: one word is one number."""
        number = self._index.get(text, self.unknown_id)
        return [0 if number is None else number]


def words_of(line: str, split: Split) -> list[str]:
    """The words of a line, or of many: no word goes beyond its line.

    >>> words_of("It's well-known, @-@ or <unk>.", "punctuation")
    ["It's", 'well', '-', 'known', ',', '-', 'or', '<unk>', '.']
    """
    if split == "spaces":
        return line.split()
    return [w[1] if len(w) == 3 and w[0] == w[2] == "@" else w for w in _SIGNS.findall(line)]


def count_words(block: str, split: Split) -> Counter[str]:
    """Counts of a block of lines, in order of first appearance."""
    return Counter(words_of(block, split))


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


Tokenizer = WordVocabulary | SubwordTokenizer


def tokenizer_from(fields: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer that `to_dict` described."""
    held = fields if isinstance(fields, Mapping) else {}
    kind = held.get("kind")
    if kind == WordVocabulary.kind and TEXTS.takes(held.get("words")) and "split" in held:
        return WordVocabulary(held["words"], held["split"])
    if kind == SubwordTokenizer.kind and "definition" in held:
        return SubwordTokenizer(json.dumps(held["definition"]))
    if isinstance(kind, str) and kind not in (WordVocabulary.kind, SubwordTokenizer.kind):
        raise InputError(f"unknown kind of tokenizer {shortened(kind)}; known: words, subwords")
    raise InputError(
        "a tokenizer is described by its kind and its words (with their split) or its "
        "definition; the file that holds it is damaged"
    )


def load_tokenizer(name: str) -> SubwordTokenizer:
    """A Hugging Face tokenizer by folder, by tokenizer.json, or by a name in the local cache."""
    path = Path(name)
    for file in (path, path / "tokenizer.json"):
        if file.is_file():
            return SubwordTokenizer(read_text(file, "tokenizer"))
    try:
        from huggingface_hub import snapshot_download
        from transformers import AutoTokenizer

        local = {"local_files_only": True, "trust_remote_code": False}
        if not path.is_dir():  # transformers asks the hub about a name, whatever `local` says
            name = snapshot_download(name, local_files_only=True)
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
