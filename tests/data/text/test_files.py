import lzma

import pytest

from pidformer.data.text import (
    find_text,
    open_corpus,
    text_tokenizer,
)
from pidformer.data.text.files import text_blocks
from pidformer.errors import InputError
from tests.data.text.texts import TEXT, written


def test_a_file_may_stand_for_a_split(tmp_path):
    (tmp_path / "any.md").write_text(TEXT)
    assert find_text(tmp_path / "any.md", "test") == [tmp_path / "any.md"]
    with pytest.raises(InputError, match="training needs a folder"):
        find_text(tmp_path / "any.md", "train")


def test_blocks_are_whole_lines_and_all_of_the_text(tmp_path, monkeypatch):
    from pidformer.data.text import files

    text = "".join(f"line {n} ä\n" for n in range(200)) + "no newline at the end"
    written(tmp_path, train=text)
    monkeypatch.setattr(files, "BLOCK", 37)
    blocks = list(text_blocks([tmp_path / "train.txt"]))
    assert len(blocks) > 20 and "".join(blocks) == text + "\n"
    assert all(block.endswith("\n") for block in blocks)


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path):
    (tmp_path / "marked" / "train").mkdir(parents=True)
    for name in ("a.txt", "b.txt"):
        (tmp_path / "marked" / "train" / name).write_text(TEXT, encoding="utf-8-sig")
    plain = written(tmp_path / "plain", train=TEXT + TEXT)
    words = [text_tokenizer(place, cache=tmp_path) for place in (tmp_path / "marked", plain)]
    assert words[0].words == words[1].words
    marked = open_corpus(tmp_path / "marked", "train", words[0], cache=tmp_path)
    assert marked.tokens.tolist() == open_corpus(plain, "train", words[0]).tokens.tolist()
    (tmp_path / "bare.txt").write_bytes(b"\xef\xbb\xbf\n")
    with pytest.raises(InputError, match=r"bare\.txt holds no text"):
        list(text_blocks([tmp_path / "bare.txt"]))


def test_bad_texts_get_one_clear_line(tmp_path):
    (tmp_path / "train.txt").write_text("")
    with pytest.raises(InputError, match=r"train.txt holds no text"):
        text_tokenizer(tmp_path, cache=tmp_path)
    (tmp_path / "train.txt").write_bytes(b"\x00\x01" * 50)
    with pytest.raises(InputError, match=r"train.txt is not text"):
        text_tokenizer(tmp_path, cache=tmp_path)
    (tmp_path / "train.txt").write_bytes(b"\xff\xfe words\n")
    with pytest.raises(InputError, match=r"train.txt is not UTF-8 text"):
        text_tokenizer(tmp_path, cache=tmp_path)
    (tmp_path / "train.txt").unlink()
    (tmp_path / "train.txt.xz").write_bytes(b"a b c")
    with pytest.raises(InputError, match=r"train.txt.xz is damaged"):
        text_tokenizer(tmp_path, cache=tmp_path)
    (tmp_path / "train.txt.xz").write_bytes(lzma.compress(TEXT.encode() * 99)[:-20])
    with pytest.raises(InputError, match=r"train.txt.xz is damaged"):
        text_tokenizer(tmp_path, cache=tmp_path)
    with pytest.raises(InputError, match=r"no valid text in"):
        find_text(tmp_path, "valid")
    with pytest.raises(InputError, match="unknown split 'dev2'"):
        find_text(tmp_path, "dev2")
    with pytest.raises(InputError, match="does not exist"):
        find_text(tmp_path / "gone", "valid")
    with pytest.raises(InputError, match=r"unknown tokenizer 'no/such-tokenizer'"):
        text_tokenizer(tmp_path, "no/such-tokenizer")
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot keep token files"):
        text_tokenizer(tmp_path, cache=tmp_path / "file")
