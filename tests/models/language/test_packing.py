"""Several documents in one row, kept apart as Llama keeps them."""

import pytest
import torch
import torch.nn.functional as F
from transformers import (
    DataCollatorWithFlattening,
    DynamicCache,
)

from pidformer.errors import InputError
from tests.models.language.beside_llama import BUILDS, GAINS, same, twins
from tests.models.language.conftest import some_tokens, tiny_model

PACKED = {
    "rope": lambda: tiny_model(GAINS),
    "grouped": lambda: tiny_model(GAINS, num_key_value_heads=2),
    "learned": lambda: tiny_model(GAINS, position_type="learned", max_position_embeddings=16),
    "learned gains": lambda: tiny_model("0.3,0.1,0.05", learn_gains=True),
    "paper": BUILDS["paper"],
}
LENGTHS = (1, 5, 1, 7, 3)


def packed(**options):
    rows = [some_tokens(1, n, seed=n)[0] for n in LENGTHS]
    collate = DataCollatorWithFlattening(return_tensors="pt", **options)
    batch = collate([{"input_ids": row.tolist()} for row in rows])
    assert "attention_mask" not in batch
    return rows, dict(batch)


@pytest.mark.parametrize("build", PACKED.values(), ids=PACKED)
def test_packed_documents_equal_documents_alone(build):
    model, (rows, batch) = build(), packed(return_flash_attn_kwargs=True)
    alone = torch.cat([model(row[None]).logits for row in rows], 1)
    same(model(**batch).logits, alone)
    shown = model(**batch, output_attentions=True)
    same(shown.logits, alone)
    assert shown.attentions[0][0, :, -1, :-3].abs().max() == 0


@pytest.mark.parametrize("build", PACKED.values(), ids=PACKED)
@pytest.mark.parametrize("is_checkpointing", [False, True])
def test_packed_documents_have_the_gradients_of_documents_alone(build, is_checkpointing):
    model, (rows, batch) = build().train(), packed()
    labels = batch["labels"]
    alone = [F.cross_entropy(*pair(model, row), reduction="sum") for row in rows if len(row) > 1]
    expected = torch.autograd.grad(sum(alone), model.parameters())
    if is_checkpointing:
        model.gradient_checkpointing_enable()
    count = (labels[:, 1:] != -100).sum()
    found = torch.autograd.grad(model(**batch).loss * count, model.parameters())
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-3)


def pair(model, row):
    """Scores of all words and the words themselves, in evaluation mode: logits are made there."""
    model.eval()
    logits = model(row[None]).logits[0, :-1]
    model.train()
    return logits, row[1:]


def test_packed_documents_equal_llamas():
    (model, llama), (_, batch) = twins(), packed()
    batch["use_cache"] = False
    ours, theirs = model(**batch), llama(**batch)
    same(ours.logits, theirs.logits)
    same(ours.loss, theirs.loss)


def test_rows_may_be_packed_each_in_its_own_way():
    model, tokens = tiny_model(GAINS), some_tokens(2, 6)
    places = torch.tensor([[0, 1, 2, 3, 4, 5], [0, 1, 0, 1, 2, 3]])
    found = model(tokens, position_ids=places).logits
    same(found[:1], model(tokens[:1]).logits)
    same(found[1:, 2:], model(tokens[1:, 2:]).logits)


def test_packed_documents_are_not_put_into_a_cache(either):
    _, batch = packed()
    assert either(**batch).past_key_values is None
    with pytest.raises(InputError, match="cache"):
        either(**batch, past_key_values=DynamicCache())
    if either.config.position_order == "ascending":
        with pytest.raises(InputError, match="use_cache=False"):
            either(**batch, use_cache=True)


@pytest.mark.slow
def test_a_compiled_model_keeps_packed_documents_apart(either):
    torch.compiler.reset()
    _, batch = packed()
    batch = {"input_ids": batch["input_ids"], "position_ids": batch["position_ids"]}
    batch["use_cache"] = False
    compiled = torch.compile(either, backend="eager", fullgraph=True)
    with torch.no_grad():
        same(compiled(**batch).logits, either(**batch).logits)
        batch |= {"position_ids": torch.arange(17)[None], "use_cache": True}  # one document
        same(compiled(**batch).logits, either(**batch).logits)
