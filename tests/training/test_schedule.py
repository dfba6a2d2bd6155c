import pytest
import torch
from timm.scheduler import CosineLRScheduler

from pidformer.errors import InputError
from pidformer.runs.recipe import ScheduleRecipe
from pidformer.training.optimizer import last_step, learning_rate


def test_epoch_wise_cosine_equals_timms():
    schedule = ScheduleRecipe(epochs=300, warmup_epochs=5, warmup_lr=1e-6, min_lr=1e-5, per="epoch")
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1e-3)
    timms = CosineLRScheduler(
        optimizer, t_initial=300, lr_min=1e-5, warmup_t=5, warmup_lr_init=1e-6
    )
    for epoch in (0, 1, 4, 5, 6, 100, 299):
        timms.step(epoch)
        expected = optimizer.param_groups[0]["lr"]
        for step in (0, 6):  # the same all epoch long
            assert learning_rate(schedule, 1e-3, epoch * 7 + step, 7) == pytest.approx(expected)


def test_step_wise_schedule_moves_every_step_and_ends_at_the_minimum():
    schedule = ScheduleRecipe(epochs=10, warmup_epochs=2, warmup_lr=0.0, min_lr=1e-5)
    rates = [learning_rate(schedule, 1e-3, step, 50) for step in range(501)]
    assert rates[0] == 0 and rates[50] == pytest.approx(5e-4) and rates[-1] == pytest.approx(1e-5)
    assert rates[:100] == sorted(rates[:100])
    assert rates[100:] == sorted(rates[100:], reverse=True)


def test_no_warmup():
    schedule = ScheduleRecipe(epochs=10, warmup_epochs=0)
    assert learning_rate(schedule, 1e-3, 0, 50) == 1e-3


def test_epochs_that_would_not_end_are_refused():
    assert last_step(ScheduleRecipe(epochs=300), 7) == 2100
    with pytest.raises(InputError, match=r"epochs=900000000 of 7 steps each would be 6.3e\+09"):
        last_step(ScheduleRecipe(epochs=900_000_000), 7)
