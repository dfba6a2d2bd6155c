from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from pidformer.data.text import (
    WordVocabulary,
)
from pidformer.data.text.tokenizers import count_words, words_of
from tests.data.text.texts import TEXT


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


@settings(deadline=None)
@given(
    st.dictionaries(st.sampled_from([*"abcdef", "<unk>"]), st.integers(1, 9), min_size=1),
    st.integers(2, 9),
)
def test_the_most_words_are_the_size_and_the_commonest_stay(counts, most):
    whole = WordVocabulary.from_counts(counts).size
    found = WordVocabulary.from_counts(counts, max_words=most)
    assert found.size == min(most, whole) and {"<eos>", "<unk>"} <= {*found.words}
    left_out = [n for word, n in counts.items() if word not in found.words]
    kept = [n for word, n in counts.items() if word in found.words and word != "<unk>"]
    assert not left_out or not kept or max(left_out) <= min(kept)


def test_a_changed_token_is_one_word():
    vocabulary = WordVocabulary(["<eos>", "<unk>", "ab", "bb"])
    assert [vocabulary.encode_token(text) for text in ("ab", "bb", "cb")] == [[2], [3], [1]]
    assert WordVocabulary(["<eos>", "ab"]).encode_token("cb") == [0]


def test_punctuation_is_parted_and_joined_again():
    words = words_of("“It's well @-@ known,” he said (twice).", "punctuation")
    assert words == [*"“", "It's", "well", "-", "known", ",", "”", "he", "said", "(", "twice",
                     ")", "."]  # fmt: skip
    vocabulary = WordVocabulary.from_counts(Counter(words), "punctuation")
    assert vocabulary.decode(vocabulary.encode("he said (twice).")) == "he said (twice)."
