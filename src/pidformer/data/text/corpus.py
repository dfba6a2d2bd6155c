"""A text as one file of numbers: made once, found again by what is in it, mapped into memory."""

import hashlib
import json
import os
import re
from codecs import BOM_UTF8
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np

from pidformer.data.text.files import find_text, text_blocks
from pidformer.data.text.tokenizers import (
    Split,
    Tokenizer,
    WordVocabulary,
    count_words,
    load_tokenizer,
    tokenizer_from,
)
from pidformer.display import advancing
from pidformer.errors import InputError, cut
from pidformer.fields import read_json, typed
from pidformer.files import atomic_folder, locked, write_whole

Item = TypeVar("Item")
Result = TypeVar("Result")
FORMAT = 1
_HEADING = re.compile(r"^\s*= [^=].* =\s*$")
LONG = 8 * 2**20  # bytes that are worth a progress bar
WORTH_IT = 64 * 2**20  # bytes that are worth starting processes for


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """The tokens of a text, in order, with what perplexities need to know of it."""

    tokens: np.ndarray
    """uint16 or uint32 (n,), mapped from disk."""
    documents: np.ndarray
    """Where documents begin, int64: at lines `= Title =`, and at each file."""
    characters: int
    """Characters of the text as the tokenizer reads it."""
    unknown: int
    """Tokens that are `<unk>`."""
    fingerprint: str
    """A hash of the files and the tokenizer."""


def open_corpus(
    location: str | Path,
    split: str,
    tokenizer: Tokenizer,
    *,
    cache: str | Path | None = None,
    workers: int | None = None,
) -> Corpus:
    """The tokens of a split, from the cache when these files were tokenised this way before."""
    paths = find_text(location, split)
    key = _key(paths, tokenizer.fingerprint, {"documents": 1})
    folder = cache_folder(cache) / f"tokens-{key}"

    def make() -> None:
        _tokenise(paths, tokenizer, folder, workers or choose_workers(paths))

    return _kept(folder, make, lambda: _read_corpus(folder, tokenizer.size))


@dataclass(frozen=True, kw_only=True)
class _About:
    """about.json, beside tokens.bin."""

    dtype: Literal["uint16", "uint32"]
    tokens: int
    characters: int
    unknown: int
    documents: tuple[int, ...]
    files: tuple[str, ...] = ()


def _read_corpus(folder: Path, words: int) -> Corpus:
    """What `_tokenise` wrote, if it is whole and its tokens are of this vocabulary."""
    about = typed(_About, read_json(folder / "about.json"), key_of="key")
    tokens = np.memmap(folder / "tokens.bin", dtype=about.dtype, mode="r")
    starts = np.array(about.documents, dtype=np.int64)
    if len(tokens) != about.tokens or (len(tokens) and int(tokens.max()) >= words):
        raise InputError(f"tokens.bin must hold {about.tokens} tokens below {words}")
    if not len(starts) or starts[0] < 0 or (np.diff(starts) <= 0).any() or starts[-1] > len(tokens):
        raise InputError("documents must begin one after the other")
    return Corpus(
        tokens=tokens,
        documents=starts,
        characters=about.characters,
        unknown=about.unknown,
        fingerprint=folder.name.removeprefix("tokens-"),
    )


def text_tokenizer(
    location: str | Path,
    name: str = "words",
    *,
    split: Split = "spaces",
    min_count: int = 1,
    max_words: int | None = None,
    cache: str | Path | None = None,
    workers: int | None = None,
) -> Tokenizer:
    """The tokenizer `name`: the words of the training text at `location`, or Hugging Face's."""
    if name != WordVocabulary.kind:
        return load_tokenizer(name)
    paths = find_text(location, "train")
    options = {"split": split, "min_count": min_count, "max_words": max_words}
    file = cache_folder(cache) / f"words-{_key(paths, '', options)}.json"

    def make() -> None:
        counts: Counter[str] = Counter()
        with _progress(paths, "counting words") as advance:
            count = partial(count_words, split=split)
            blocks = text_blocks(paths, advance)
            for part in ordered_map(count, blocks, workers or choose_workers(paths)):
                counts.update(part)
        found = WordVocabulary.from_counts(counts, split, min_count, max_words)
        write_whole(file, json.dumps(found.to_dict()))

    return _kept(file, make, lambda: tokenizer_from(read_json(file)))


def cache_folder(given: str | Path | None = None) -> Path:
    """Where token files are kept: as given, $PIDFORMER_CACHE, or the user's cache folder."""
    chosen = given or os.environ.get("PIDFORMER_CACHE")
    if chosen is None:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        chosen = Path(base) / "pidformer"
    folder = Path(chosen)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(folder, error) from None
    return folder


def _unwritable(folder: Path, error: OSError) -> InputError:
    return InputError(
        f"cannot keep token files in {folder} ({error.strerror}); set text.cache or "
        "PIDFORMER_CACHE to a folder that can be written"
    )


def _tokenise(paths: list[Path], tokenizer: Tokenizer, folder: Path, workers: int) -> None:
    """Write tokens.bin and about.json beside their place, then move them there together."""
    dtype = "uint16" if tokenizer.size <= 2**16 else "uint32"
    documents: list[int] = []
    total = characters = unknown = 0
    # Hugging Face's tokenizers work on a batch of lines with threads of their own.
    workers = workers if tokenizer.kind == WordVocabulary.kind else 1
    with atomic_folder(folder) as temporary:
        with (
            open(temporary / "tokens.bin", "wb") as out,
            _progress(paths, "tokenising") as advance,
        ):
            for path in paths:
                documents.append(total)
                encode = partial(_encode, tokenizer=tokenizer)
                parts = ordered_map(encode, text_blocks([path], advance), workers)
                for tokens, headings, length in parts:
                    documents += [total + start for start in headings]
                    out.write(tokens.astype(dtype).tobytes())
                    total += len(tokens)
                    characters += length
                    if tokenizer.unknown_id is not None:
                        unknown += int((tokens == tokenizer.unknown_id).sum())
        about = {
            "dtype": dtype,
            "tokens": total,
            "characters": characters,
            "unknown": unknown,
            "documents": _distinct(documents, total),
            "files": [str(path.name) for path in paths],
        }
        (temporary / "about.json").write_text(json.dumps(about))


def _encode(block: str, tokenizer: Tokenizer) -> tuple[np.ndarray, list[int], int]:
    """Tokens of a block, where documents begin in them, and characters."""
    lines = block.split("\n")[:-1]  # a block ends with a newline
    encoded = tokenizer.encode_lines(lines)
    starts = np.cumsum([0, *(len(line) for line in encoded)]).tolist()
    headings = [start for start, line in zip(starts, lines, strict=False) if is_heading(line)]
    return np.concatenate(encoded), headings, sum(map(tokenizer.characters, lines))


def is_heading(line: str) -> bool:
    """Whether a line is the title of a document: `= Title =`, not `= = Section = =`."""
    return _HEADING.match(line) is not None


def _distinct(documents: Sequence[int], total: int) -> list[int]:
    """Starts in order; a few blank tokens before a file's first title are no document."""
    starts = sorted({start for start in documents if start < total})
    ends = [*starts[1:], total]
    return [start for start, end in zip(starts, ends, strict=True) if end - start > 2] or [0]


def _key(paths: list[Path], fingerprint: str, options: dict[str, Any]) -> str:
    found = hashlib.sha256(json.dumps([FORMAT, fingerprint, options], sort_keys=True).encode())
    for path in paths:
        with open(path, "rb") as file:
            if file.read(len(BOM_UTF8)) != BOM_UTF8:  # no part of the text
                file.seek(0)
            found.update(hashlib.file_digest(file, "sha256").digest())
    return found.hexdigest()[:32]


def _kept(place: Path, make: Callable[[], None], read: Callable[[], Result]) -> Result:
    """What is kept in the cache: one process makes it, the others wait and find it."""
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(place.with_name(f".{place.name}.lock")))
        except OSError as error:
            raise _unwritable(place.parent, error) from None
        if not place.exists():
            make()
    try:
        return read()
    except (InputError, OSError, ValueError) as error:
        raise InputError(
            f"{place} is damaged ({cut(error)}); delete it and run the command again"
        ) from None


def _progress(paths: list[Path], label: str) -> AbstractContextManager[Callable[[int], None]]:
    total = sum(path.stat().st_size for path in paths)
    return advancing(label, total, is_shown=total >= LONG)


def choose_workers(paths: list[Path]) -> int:
    """Processes for these files: 1 below 64 MB, else one per core (16 at most)."""
    total = sum(p.stat().st_size * (4 if p.suffix in (".xz", ".gz") else 1) for p in paths)
    return min(16, os.cpu_count() or 1) if total >= WORTH_IT else 1


def ordered_map(
    function: Callable[[Item], Result], items: Iterable[Item], workers: int
) -> Iterator[Result]:
    """function(item) for each, in order. The items are read as they are needed, never all."""
    if workers == 1:
        yield from map(function, items)
        return
    pending: deque[Future[Any]] = deque()
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        for item in items:
            pending.append(pool.submit(function, item))
            if len(pending) > 2 * workers:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
