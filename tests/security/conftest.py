import pytest

from tests.data.pairs import write_parquet
from tests.report.fresh import fresh_run
from tests.security.tricks import Trap
from tests.training.test_segmentation import recipe as segmenter
from tests.training.tiny import tiny_recipe
from tests.training.tiny_language import tiny_language


@pytest.fixture
def trap(tmp_path):
    with Trap(tmp_path) as trap:
        yield trap


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """A run of each task as training leaves it, and their data."""
    place = tmp_path_factory.mktemp("strangers")
    (place / "texts").mkdir()
    for split in ("train", "valid", "test"):
        (place / "texts" / f"{split}.txt").write_text("a b c d e f g\n" * 40)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PIDFORMER_CACHE", str(place / "cache"))
        fresh_run(place / "language", tiny_language(), place / "texts")
    fresh_run(place / "images", tiny_recipe("train.ema=null"))
    (place / "pairs").mkdir()
    fresh_run(place / "segments", segmenter(), write_parquet(place / "pairs"))
    return place


@pytest.fixture(scope="session")
def folders(runs, tmp_path_factory):
    """Folders of Hugging Face: a converted model, and a language run of ours."""
    pytest.importorskip("transformers")
    import pidformer as pf
    from pidformer.report.hub import publish_run
    from tests.convert.hugging_face import build

    place = tmp_path_factory.mktemp("folders")
    pf.convert(build("gpt2"), "0.4,0.1,0").save_pretrained(place / "converted")
    publish_run(runs / "language", place / "ours")
    return place
