"""Text by location: files, vocabularies, token files, and streams that can be resumed anywhere."""

from pidformer.data.text.corpus import Corpus, open_corpus, text_tokenizer
from pidformer.data.text.files import find_text
from pidformer.data.text.perturb import PERTURBATIONS, Perturbation, perturb
from pidformer.data.text.streams import TextBatch, TextStreams
from pidformer.data.text.tokenizers import Tokenizer, WordVocabulary, tokenizer_from

__all__ = [
    "PERTURBATIONS",
    "Corpus",
    "Perturbation",
    "TextBatch",
    "TextStreams",
    "Tokenizer",
    "WordVocabulary",
    "find_text",
    "open_corpus",
    "perturb",
    "text_tokenizer",
    "tokenizer_from",
]
