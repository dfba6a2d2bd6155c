import gzip
import lzma

import numpy as np
import pytest

from pidformer.data.text import (
    WordVocabulary,
    open_corpus,
    text_tokenizer,
)
from pidformer.data.text.corpus import is_heading
from pidformer.errors import InputError
from tests.data.text.texts import TEXT, written


def test_wikitexts_published_layout_and_counts(tmp_path):
    folder = tmp_path / "wikitext-2"
    folder.mkdir()
    for split in ("train", "valid", "test"):
        (folder / f"wiki.{split}.tokens").write_text(TEXT)
    tokenizer = text_tokenizer(folder, cache=tmp_path / "cache")
    corpus = open_corpus(folder, "valid", tokenizer, cache=tmp_path / "cache")
    assert len(corpus.tokens) == len(TEXT.split()) + TEXT.count("\n")
    assert corpus.tokens.tolist() == [0, 2, 4, 2, 0, 0, 1, 3, 1, 5, 6, 0, 3, 1, 7, 0]
    assert corpus.unknown == 1
    assert corpus.characters == 1 + len("= Title =\n") + 1 + len("a b a <unk> c\n") + len("b a d\n")


def test_plain_xz_gz_and_folders_of_files_give_the_same_tokens(tmp_path):
    for name in ("plain", "xz", "gz", "folder"):
        (tmp_path / name).mkdir()
    (tmp_path / "plain" / "train.txt").write_text(TEXT)
    (tmp_path / "xz" / "train.txt.xz").write_bytes(lzma.compress(TEXT.encode()))
    (tmp_path / "gz" / "wiki.train.tokens.gz").write_bytes(gzip.compress(TEXT.encode()))
    (tmp_path / "folder" / "train").mkdir()
    lines = TEXT.split("\n")
    (tmp_path / "folder" / "train" / "a.txt").write_text("\n".join(lines[:3]))  # no last newline
    (tmp_path / "folder" / "train" / "b.txt").write_text("\n".join(lines[3:]))
    tokenizer = text_tokenizer(tmp_path / "plain", cache=tmp_path / "cache")
    found = [
        open_corpus(tmp_path / name, "train", tokenizer, cache=tmp_path / name).tokens.tolist()
        for name in ("plain", "xz", "gz", "folder")
    ]
    assert found[0] == found[1] == found[2] == found[3]


@pytest.mark.parametrize(("words", "dtype"), [(2**16, "uint16"), (2**16 + 1, "uint32")])
def test_numbers_take_two_bytes_where_they_fit(tmp_path, words, dtype):
    vocabulary = WordVocabulary(["<eos>", *(f"w{n}" for n in range(1, words))])
    written(tmp_path, test=f"w1 w{words - 1} w2\n")
    tokens = open_corpus(tmp_path, "test", vocabulary, cache=tmp_path).tokens
    assert tokens.dtype == dtype and tokens.tolist() == [1, words - 1, 2, 0]


def test_documents_begin_at_titles(tmp_path):
    assert is_heading(" = Title = ") and is_heading("= A =")
    assert not is_heading(" = = Section = = ") and not is_heading("a = b = c")
    text = "\n \n = One = \n\n x y z \n = Two = \n = = Part = = \n x y z \n"
    folder = written(tmp_path / "texts", train=text)
    tokenizer = text_tokenizer(folder, cache=tmp_path)
    corpus = open_corpus(folder, "train", tokenizer, cache=tmp_path)
    titles = [tokenizer.decode(corpus.tokens[s : s + 3].tolist()) for s in corpus.documents]
    assert titles == ["= One =", "= Two ="]


def test_tokens_are_found_again_by_content(tmp_path, monkeypatch):
    from pidformer.data.text import corpus as module

    folder = written(tmp_path / "texts", train=TEXT)
    tokenizer = text_tokenizer(folder, cache=tmp_path / "cache")
    first = open_corpus(folder, "train", tokenizer, cache=tmp_path / "cache")
    calls = []
    inner = module._tokenise
    monkeypatch.setattr(module, "_tokenise", lambda *a: calls.append(1) or inner(*a))
    copied = written(tmp_path / "elsewhere", train=TEXT)
    again = open_corpus(copied, "train", tokenizer, cache=tmp_path / "cache")
    assert not calls and again.fingerprint == first.fingerprint
    assert isinstance(again.tokens, np.memmap)
    written(copied, train=TEXT + "a b\n")
    other = open_corpus(copied, "train", tokenizer, cache=tmp_path / "cache")
    assert calls == [1] and len(other.tokens) == len(first.tokens) + 3


def test_an_interrupted_tokenisation_leaves_nothing_behind(tmp_path, monkeypatch):
    from pidformer.data.text import corpus as module

    folder = written(tmp_path / "texts", train=TEXT)
    tokenizer = text_tokenizer(folder, cache=tmp_path / "cache")
    with monkeypatch.context() as patch:
        patch.setattr(module, "_encode", None)
        with pytest.raises(TypeError):
            open_corpus(folder, "train", tokenizer, cache=tmp_path / "cache")
    assert not list((tmp_path / "cache").glob("*tokens*[!k]"))
    assert len(open_corpus(folder, "train", tokenizer, cache=tmp_path / "cache").tokens) == 16


def _damage_about(folder):
    (folder / "about.json").write_text("{")


def _cut_tokens(folder):
    tokens = folder / "tokens.bin"
    tokens.write_bytes(tokens.read_bytes()[:-2])


def _foreign_token(folder):
    tokens = np.fromfile(folder / "tokens.bin", np.uint16)
    tokens[3] = 8  # the vocabulary has 0 to 7
    tokens.tofile(folder / "tokens.bin")


@pytest.mark.parametrize("damage", [_damage_about, _cut_tokens, _foreign_token])
def test_damaged_token_files_are_named_in_one_line(tmp_path, damage):
    texts = written(tmp_path / "texts", train=TEXT)
    tokenizer = text_tokenizer(texts, cache=tmp_path / "cache")
    open_corpus(texts, "train", tokenizer, cache=tmp_path / "cache")
    (folder,) = (tmp_path / "cache").glob("tokens-*")
    damage(folder)
    with pytest.raises(InputError, match=r"tokens-.* is damaged .*; delete it and run"):
        open_corpus(texts, "train", tokenizer, cache=tmp_path / "cache")
    (words,) = (tmp_path / "cache").glob("words-*.json")
    words.write_text('{"kind": "words", "split": "spaces", "words": [1]}')
    with pytest.raises(InputError, match=r"words-.*json is damaged .*; delete it and run"):
        text_tokenizer(texts, cache=tmp_path / "cache")
