import json

import pytest

from pidformer.data.text import (
    Perturbation,
    open_corpus,
    perturb,
    text_tokenizer,
    tokenizer_from,
)
from pidformer.data.text.tokenizers import SubwordTokenizer, load_tokenizer
from pidformer.errors import InputError
from tests.data.text.texts import written

pytest.importorskip("tokenizers")


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


def test_a_tokenizer_that_begins_texts_with_a_token_adds_none():
    from tokenizers import processors

    text = "A line,\nand another.\n"
    fast = bpe([text])
    plain = SubwordTokenizer(fast.to_str())
    start = [("<|endoftext|>", 0)]
    single = "<|endoftext|> $A"
    fast.post_processor = processors.TemplateProcessing(single=single, special_tokens=start)
    assert fast.encode(text).ids[0] == 0  # by itself it does
    adding = SubwordTokenizer(fast.to_str())
    assert adding.encode(text) == plain.encode(text) and 0 not in adding.encode(text)
    lines = [line.tolist() for line in adding.encode_lines(["A line,", "and another."])]
    assert lines == [plain.encode("A line,\n"), plain.encode("and another.\n")]


def test_a_name_that_is_not_cached_is_refused_without_a_connection(monkeypatch):
    pytest.importorskip("transformers")
    asked = []
    monkeypatch.setattr("socket.getaddrinfo", lambda *given, **more: asked.append(given))
    with pytest.raises(InputError, match="unknown tokenizer 'mps'"):
        load_tokenizer("mps")
    assert not asked
