import gzip
import json
import lzma
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pidformer.data.text import (
    Perturbation,
    TextStreams,
    WordVocabulary,
    find_text,
    open_corpus,
    perturb,
    text_tokenizer,
    tokenizer_from,
)
from pidformer.data.text.corpus import is_heading
from pidformer.data.text.files import text_blocks
from pidformer.data.text.parallel import ordered_map
from pidformer.data.text.vocabulary import count_words, words_of
from pidformer.errors import InputError

TEXT = " \n = Title = \n \n a b a <unk> c \n b a  d \n"


def written(folder, **texts):
    folder.mkdir(exist_ok=True)
    for name, text in texts.items():
        (folder / f"{name}.txt").write_text(text)
    return folder


def test_words_are_numbered_by_count_with_eos_first_and_unk_an_ordinary_word():
    vocabulary = WordVocabulary.from_counts(count_words(TEXT, "spaces"))
    # a 3; then = and b with 2, in order of appearance; then Title, <unk>, c, d with 1
    assert vocabulary.words == ["<eos>", "a", "=", "b", "Title", "<unk>", "c", "d"]
    lines = [line.tolist() for line in vocabulary.encode_lines(TEXT.split("\n")[:-1])]
    assert lines == [[0], [2, 4, 2, 0], [0], [1, 3, 1, 5, 6, 0], [3, 1, 7, 0]]
    assert vocabulary.encode("b new\na") == [3, 5, 0, 1]
    assert vocabulary.decode([3, 5, 0, 1]) == "b <unk>\na"


def test_rare_words_become_unk_which_stands_where_its_count_puts_it():
    counts = Counter({"a": 9, "b": 5, "c": 2, "d": 1, "e": 1, "f": 1})
    whole = WordVocabulary.from_counts(counts)
    assert whole.words == ["<eos>", "a", "b", "c", "d", "e", "f", "<unk>"]
    assert WordVocabulary.from_counts(counts, min_count=2).words == [
        "<eos>", "a", "b", "<unk>", "c",
    ]  # fmt: skip
    capped = WordVocabulary.from_counts(counts, max_words=4)
    assert capped.words == ["<eos>", "a", "b", "<unk>"] and capped.size == 4


@settings(deadline=None)
@given(st.dictionaries(st.text("abcde", min_size=1, max_size=2), st.integers(1, 9), min_size=1))
def test_a_vocabulary_is_ordered_by_count_whatever_is_left_out(counts):
    for min_count in (1, 3):
        found = WordVocabulary.from_counts(counts, min_count=min_count)
        rare = sum(n for n in counts.values() if n < min_count)
        order = [rare if word == "<unk>" else counts[word] for word in found.words[1:]]
        assert order == sorted(order, reverse=True) and len(set(found.words)) == found.size
        assert set(found.words) == {w for w, n in counts.items() if n >= min_count} | {
            "<eos>",
            "<unk>",
        }


def test_punctuation_is_parted_and_joined_again():
    words = words_of("“It's well @-@ known,” he said (twice).", "punctuation")
    assert words == [*"“", "It's", "well", "-", "known", ",", "”", "he", "said", "(", "twice",
                     ")", "."]  # fmt: skip
    vocabulary = WordVocabulary.from_counts(Counter(words), "punctuation")
    assert vocabulary.decode(vocabulary.encode("he said (twice).")) == "he said (twice)."


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


def test_a_file_may_stand_for_a_split(tmp_path):
    (tmp_path / "any.md").write_text(TEXT)
    assert find_text(tmp_path / "any.md", "test") == [tmp_path / "any.md"]
    with pytest.raises(InputError, match="training needs a folder"):
        find_text(tmp_path / "any.md", "train")


def test_documents_begin_at_titles(tmp_path):
    assert is_heading(" = Title = ") and is_heading("= A =")
    assert not is_heading(" = = Section = = ") and not is_heading("a = b = c")
    text = "\n = One = \n\n x y z \n = Two = \n = = Part = = \n x y z \n"
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


def test_blocks_are_whole_lines_and_all_of_the_text(tmp_path, monkeypatch):
    from pidformer.data.text import files

    text = "".join(f"line {n} ä\n" for n in range(200)) + "no newline at the end"
    written(tmp_path, train=text)
    monkeypatch.setattr(files, "BLOCK", 37)
    blocks = list(text_blocks([tmp_path / "train.txt"]))
    assert len(blocks) > 20 and "".join(blocks) == text + "\n"
    assert all(block.endswith("\n") for block in blocks)


@pytest.mark.slow
def test_processes_give_the_results_of_one_in_order():
    blocks = [f"a{n} b{n} a{n}\n" for n in range(20)]
    alone = list(ordered_map(len, blocks, 1))
    assert list(ordered_map(len, blocks, 2)) == alone


def bpe(texts, size=80):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    fast = Tokenizer(models.BPE())
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    fast.train_from_iterator(texts, trainer)
    return fast


def test_a_hugging_face_tokenizer_keeps_the_text_to_the_letter(tmp_path):
    text = "A först line.\n\n= Title =\nand more of it, x.\n"
    bpe([text] * 3).save(str(tmp_path / "tokenizer.json"))
    folder = written(tmp_path / "texts", train=text)
    tokenizer = text_tokenizer(folder, str(tmp_path))
    corpus = open_corpus(folder, "train", tokenizer, cache=tmp_path)
    assert tokenizer.decode(corpus.tokens.tolist()) == text
    assert corpus.characters == len(text) and tokenizer.eos_id == 0
    again = tokenizer_from(json.loads(json.dumps(tokenizer.to_dict())))
    assert again.encode(text) == tokenizer.encode(text) and again.size == tokenizer.size
    noisy = perturb(corpus.tokens, Perturbation(kind="characters", strength=5), tokenizer)
    assert len(noisy.inputs) >= len(corpus.tokens) - 1
    assert (noisy.targets[noisy.targets >= 0] == corpus.tokens[1:]).all()


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


def test_streams_are_contiguous_and_targets_follow():
    tokens = np.arange(103, dtype=np.uint16)
    streams = TextStreams(tokens, batch_size=4, length=6)
    assert streams.steps_per_epoch == (103 // 4 - 1) // 6 == 4
    batches = list(streams.epoch(0))
    read = torch.cat([batch.inputs for batch in batches], dim=1)
    expected = torch.arange(4)[:, None] * 25 + torch.arange(24)
    assert torch.equal(read, expected)
    assert all(torch.equal(batch.targets, batch.inputs + 1) for batch in batches)
    later = list(streams.epoch(0, 2))
    assert [b.inputs[0, 0].item() for b in later] == [12, 18]


@pytest.mark.parametrize("resident", [True, False])
def test_batches_depend_on_seed_epoch_and_step_alone(resident):
    tokens = np.random.default_rng(0).integers(0, 9, 1000).astype(np.uint16)
    options = {"batch_size": 8, "length": 10, "seed": 3, "shift": True}
    whole = TextStreams(tokens, **options)
    parts = [
        TextStreams(tokens, **options, rank=r, world_size=2, resident=resident) for r in range(2)
    ]
    for epoch in range(3):
        halves = zip(*(part.epoch(epoch, 1) for part in parts), strict=True)
        for one, (a, b) in zip(list(whole.epoch(epoch))[1:], halves, strict=True):
            assert torch.equal(one.inputs, torch.cat([a.inputs, b.inputs]))
            assert torch.equal(one.targets, torch.cat([a.targets, b.targets]))
    begins = {tuple(next(whole.epoch(e)).inputs.flatten().tolist()) for e in range(6)}
    assert len(begins) > 2  # epochs are cut at other places


def test_a_text_shorter_than_a_batch_is_refused():
    with pytest.raises(InputError, match=r"27 tokens is shorter than one batch: 4 streams x 6"):
        TextStreams(np.arange(27), batch_size=4, length=6)
    TextStreams(np.arange(28), batch_size=4, length=6)


@pytest.mark.parametrize("kind", ["characters", "swaps", "drops"])
def test_noise_changes_the_context_more_with_strength_and_never_the_targets(kind):
    words = ["<eos>", "<unk>", *(f"word{n}" for n in range(40))]
    words += ["wordx1"]
    vocabulary = WordVocabulary(words)
    tokens = np.random.default_rng(1).integers(2, 42, 4000)
    clean = perturb(tokens, None, vocabulary)
    assert (clean.inputs == tokens[:-1]).all() and (clean.targets == tokens[1:]).all()
    amounts = []
    for strength in range(1, 6):
        noise = Perturbation(kind=kind, strength=strength)
        found = perturb(tokens, noise, vocabulary)
        again = perturb(tokens, noise, vocabulary)
        assert (found.inputs == again.inputs).all()
        short = perturb(tokens[:1000], noise, vocabulary)  # a place's fate is its own
        assert (short.inputs[:500] == found.inputs[:500]).all()
        if kind == "drops":
            amounts.append(1 - len(found.inputs) / len(clean.inputs))
            assert amounts[-1] == pytest.approx(noise.rate, abs=0.015)
        else:
            assert (found.targets == clean.targets).all()
            amounts.append((found.inputs != clean.inputs).mean())
        if kind == "swaps":
            assert Counter(found.inputs.tolist()) == Counter(clean.inputs.tolist())
    assert amounts == sorted(amounts) and amounts[0] > 0
    other = perturb(tokens, Perturbation(kind=kind, seed=1), vocabulary)
    same = perturb(tokens, Perturbation(kind=kind), vocabulary)
    assert len(other.inputs) != len(same.inputs) or (other.inputs != same.inputs).any()


def test_character_noise_hits_letters_at_its_rate():
    """P(a word of n letters survives) = (1 - rate)^n."""
    vocabulary = WordVocabulary(["<eos>", "<unk>", "ab", "abcdefgh", "!"])
    tokens = np.tile([2, 3, 4], 3000)
    found = perturb(tokens, Perturbation(kind="characters", strength=4), vocabulary).inputs
    changed = [(found[k::3] != tokens[k]).mean() for k in range(3)]
    assert changed[0] == pytest.approx(1 - 0.9**2, abs=0.03)
    assert changed[1] == pytest.approx(1 - 0.9**8, abs=0.03)
    assert changed[2] == 0


def test_perturbations_that_do_not_exist_are_refused():
    with pytest.raises(InputError, match="did you mean 'drops'"):
        Perturbation(kind="drop")
    with pytest.raises(InputError, match="strength must be 1 to 5"):
        Perturbation(kind="drops", strength=6)
