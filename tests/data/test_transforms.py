from __future__ import annotations

from timm.data import create_transform

from pidformer.data import Augment
from pidformer.data.augment import train_transform
from tests.data.batches import RAND, loader


def test_streaming_pipeline_is_timms():
    found = train_transform(RAND, 32, (0.5, 0.4, 0.3))
    theirs = create_transform(
        32,
        is_training=True,
        color_jitter=None,
        auto_augment=RAND.rand_augment,
        interpolation="bicubic",
        mean=(0.5, 0.4, 0.3),
        normalize=False,
    )
    ours, expected = found.transforms, theirs.transforms[:-1]
    assert [repr(step) for step in ours] == [repr(step) for step in expected]
    for op, other in zip(ours[2].ops, expected[2].ops, strict=True):
        assert (op.kwargs, op.hparams) == (other.kwargs, other.hparams)


def test_full_magnitude_of_rand_augment_is_not_an_error():
    train = loader(augment=Augment(rand_augment="rand-m10-p1-inc1"), resident=False)
    assert len(list(train.epoch(0))) == 3
