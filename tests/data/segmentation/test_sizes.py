from hypothesis import given, settings
from hypothesis import strategies as st

from pidformer.data.segmentation.augment import rescaled


@given(height=st.integers(1, 900), width=st.integers(1, 900), ratio=st.floats(0.5, 2.0))
@settings(max_examples=100, deadline=None)
def test_resized_images_fit_and_keep_their_shape(height, width, ratio):
    h, w = rescaled(height, width, (2048, 512), ratio)
    assert max(h, w) <= 2048 * ratio + 1 and min(h, w) <= 512 * ratio + 1
    scale = min(2048 * ratio / max(height, width), 512 * ratio / min(height, width))
    assert abs(h - height * scale) <= 1 + height / min(height, width)
    assert abs(w - width * scale) <= 1 + width / min(height, width)
