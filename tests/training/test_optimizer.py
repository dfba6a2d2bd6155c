import pytest
import torch
from timm.scheduler import CosineLRScheduler
from timm.utils import ModelEmaV3

from pidformer.errors import InputError
from pidformer.runs.recipe import OptimRecipe, ScheduleRecipe
from pidformer.training.optimizer import (
    WeightAverage,
    build_optimizer,
    last_step,
    learning_rate,
)


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


def test_poly_in_steps_is_the_formula():
    schedule = ScheduleRecipe(
        name="poly", power=0.9, steps=80, warmup_steps=8, warmup_lr=1e-6, min_lr=1e-5
    )
    rates = [learning_rate(schedule, 1e-2, step, 7) for step in range(81)]
    assert rates[4] == pytest.approx((1e-6 + 1e-2) / 2)
    assert rates[8:] == pytest.approx(
        [1e-5 + (1e-2 - 1e-5) * (1 - step / 80) ** 0.9 for step in range(8, 81)]
    )


def test_averaged_weights_are_timms():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 1))
    average, timms = WeightAverage(model, 0.9), ModelEmaV3(model, decay=0.9)
    for _ in range(5):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter))
        average.update()
        timms.update(model)
    own = [parameter.clone() for parameter in model.parameters()]
    with average.applied():
        for parameter, expected in zip(model.parameters(), timms.module.parameters(), strict=True):
            torch.testing.assert_close(parameter, expected)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), own, strict=True))


@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_the_optimizer_does_what_the_recipe_says(name):
    """Two steps of a weight, which decays, by the formulas."""
    recipe = OptimRecipe(name=name, betas=(0.8, 0.95), eps=1e-3, momentum=0.7, weight_decay=0.1)
    model = torch.nn.Linear(1, 1, bias=False)
    optimizer = build_optimizer(recipe, model, 0.5, torch.device("cpu"))
    weight, first, second = model.weight.item(), 0.0, 0.0
    for step, gradient in enumerate((2.0, -1.0), 1):
        model.weight.grad = torch.full_like(model.weight, gradient)
        optimizer.step()
        if name == "adamw":
            first, second = 0.8 * first + 0.2 * gradient, 0.95 * second + 0.05 * gradient**2
            moved = first / (1 - 0.8**step) / ((second / (1 - 0.95**step)) ** 0.5 + 1e-3)
            weight = weight * (1 - 0.5 * 0.1) - 0.5 * moved
        else:
            decayed = gradient + 0.1 * weight
            first = 0.7 * first + decayed if step > 1 else decayed
            weight -= 0.5 * (decayed + 0.7 * first)
        assert model.weight.item() == pytest.approx(weight, rel=1e-5)
