from __future__ import annotations

import numpy as np

from pidformer.data.loaders import BatchPlan


def test_the_last_batch_is_filled_with_the_epochs_first():
    plan = BatchPlan(
        images=11, batch_size=4, repeats=1, seed=0, rank=0, world_size=1, is_mixing=False,
        fills_last=True,
    )  # fmt: skip
    order = plan.order(3)
    assert order.shape == (3, 4) and set(order.ravel()) == set(range(11))
    assert order[2, 3] == order[0, 0]
    ade = BatchPlan(
        images=20210, batch_size=8, repeats=1, seed=0, rank=0, world_size=1, is_mixing=False,
        fills_last=True,
    )  # fmt: skip
    assert ade.steps_per_epoch == 2527 and 64 * ade.steps_per_epoch == 161_728


def test_repeats_need_not_divide_the_batch():
    plan = BatchPlan(
        images=5000, batch_size=1024, repeats=3, seed=0, rank=0, world_size=8, is_mixing=True
    )
    for batch in plan.order(0):
        copies = np.unique(batch, return_counts=True)[1]
        assert len(batch) == 1024 and len(copies) == 342 and set(copies) == {2, 3}
        assert (batch[::2] != batch[1::2]).all()  # neighbours, which Mixup pairs, differ
