"""Hugging Face's own trainer on our language model."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.models.language.conftest import tiny_model


@pytest.mark.slow
def test_hugging_faces_trainer_trains_it(tmp_path):
    from transformers import Trainer as HuggingFaceTrainer
    from transformers import TrainingArguments

    torch.manual_seed(0)
    model = tiny_model("0.4,0.3,0.1", initializer_range=0.05).train()
    rows = [
        {"input_ids": t, "labels": t} for t in (torch.arange(64)[:, None] + torch.arange(8)) % 50
    ]
    arguments = TrainingArguments(
        output_dir=str(tmp_path), max_steps=30, per_device_train_batch_size=16, learning_rate=1e-2,
        report_to=[], use_cpu=True, logging_steps=10, save_steps=30, disable_tqdm=True,
    )  # fmt: skip
    trainer = HuggingFaceTrainer(model=model, args=arguments, train_dataset=rows)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses[-1] < 0.5 * losses[0]
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "checkpoint-30")
    for (name, a), (_, b) in zip(model.named_parameters(), loaded.named_parameters(), strict=True):
        assert torch.equal(a, b), name
