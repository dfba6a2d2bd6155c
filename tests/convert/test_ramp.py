import sys
import types

import pytest
import torch

import pidformer as pf
from pidformer.convert import GainRamp
from pidformer.errors import InputError
from tests.convert.families import timm_model

GAINS = pf.PIDGains(p=0.4, i=0.2, d=0.1)


def test_shares_at_hand_computed_places():
    ramp = GainRamp(share=0.4)
    assert ramp.shares(0, 3) == [0, 0, 0]
    assert ramp.shares(0.1, 3) == pytest.approx([0.25] * 3)
    assert ramp.shares(0.4, 3) == ramp.shares(1, 3) == [1, 1, 1]
    in_turn = GainRamp(share=0.4, by_layer=True)
    assert in_turn.shares(0.0, 4) == [0, 0, 0, 0]
    assert in_turn.shares(0.15, 4) == pytest.approx([1, 0.5, 0, 0])
    assert in_turn.shares(0.4, 4) == [1, 1, 1, 1]
    assert GainRamp(share=0).shares(0, 2) == [1, 1]


@pytest.mark.parametrize("share", [1.2, -0.1])
def test_a_ramp_that_ends_after_training_is_refused(share):
    with pytest.raises(InputError, match="share of training"):
        GainRamp(share=share)


def test_the_trainer_of_transformers_ramps():
    transformers = pytest.importorskip("transformers")
    model, seen = pf.convert(timm_model("vit"), GAINS), []
    callback = GainRamp(share=0.5).trainer_callback()
    assert isinstance(callback, transformers.TrainerCallback)
    state = transformers.TrainerState(max_steps=10)
    for step in range(10):
        state.global_step = step
        callback.on_step_begin(None, state, None, model=model)
        seen.append(float(model.blocks[1].attn.gain_share))
    assert seen == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1, 1, 1, 1, 1])
    callback.on_train_end(None, state, None, model=model)
    assert model.blocks[1].attn.gain_share is None


@pytest.mark.slow
def test_a_real_trainer_takes_the_callback(tmp_path):
    transformers = pytest.importorskip("transformers")
    from tests.convert.hugging_face import batch, build

    model, shares = pf.convert(build("llama"), GAINS), []
    model.model.layers[1].self_attn.register_forward_pre_hook(
        lambda module, _: shares.append(float(module.gain_share))
    )
    rows = [{"input_ids": row, "labels": row} for row in batch("llama", 8)["input_ids"]]
    transformers.Trainer(
        model,
        transformers.TrainingArguments(
            tmp_path,
            max_steps=4,
            per_device_train_batch_size=2,
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
            save_strategy="no",
        ),
        train_dataset=rows,
        callbacks=[GainRamp(share=0.5).trainer_callback()],
    ).train()
    assert shares == [0, 0.5, 1, 1]


def test_lightning_ramps(monkeypatch):
    """With Lightning's names for what the callback reads; test_lightning.py has the real one."""
    stub = types.ModuleType("lightning.pytorch")
    stub.Callback = type("Callback", (), {})
    monkeypatch.setitem(sys.modules, "lightning", types.ModuleType("lightning"))
    monkeypatch.setitem(sys.modules, "lightning.pytorch", stub)
    callback = GainRamp(share=0.5).lightning_callback()
    assert isinstance(callback, stub.Callback)
    module = torch.nn.ModuleDict({"net": pf.convert(timm_model("vit"), GAINS)})
    trainer = types.SimpleNamespace(global_step=1, estimated_stepping_batches=8)
    callback.on_train_batch_start(trainer, module, None, 1)
    assert float(module["net"].blocks[2].attn.gain_share) == 0.25
    trainer.estimated_stepping_batches = float("inf")
    with pytest.raises(InputError, match="give Trainer max_steps"):
        callback.on_train_batch_start(trainer, module, None, 1)
    callback.on_train_end(trainer, module)
    assert module["net"].blocks[2].attn.gain_share is None


def test_without_lightning_there_is_one_line(monkeypatch):
    for name in ("lightning", "lightning.pytorch", "pytorch_lightning"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(InputError, match="pip install lightning"):
        GainRamp().lightning_callback()
