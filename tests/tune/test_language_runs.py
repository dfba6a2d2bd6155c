import pytest

from pidformer.errors import InputError
from pidformer.evaluation.language import evaluate_language
from pidformer.training.run import train
from pidformer.tune import Space, tune
from tests.training.tiny_language import tiny_language


@pytest.mark.slow
def test_perplexities_are_those_of_evaluate(texts, tmp_path):
    run = tmp_path / "run"
    recipe = tiny_language("model.gains=null", "schedule.epochs=1")
    train(recipe, run, data=texts, device="cpu", is_shown=False)
    space = Space(p=(0.4,), i=(0.0, 0.2), d=(0.0,))
    found = tune(run, data=texts, metric="ppl", space=space, device="cpu")
    assert len(found.trials) == 3
    for record in found.trials:
        gains = record.details["gains"]
        with pytest.warns(UserWarning, match="trained with gains"):
            wanted = evaluate_language(
                run, data=texts, protocol="segments", gains=gains, device="cpu"
            )
        assert record.metrics["ppl"] == pytest.approx(wanted["ppl"], rel=1e-5)
    for limit in (-5, 0, 1):
        with pytest.raises(InputError, match="limit must be at least 2 tokens"):
            tune(run, data=texts, metric="ppl", space=space, device="cpu", limit=limit)
    assert found.best.metrics["ppl"] == min(r.metrics["ppl"] for r in found.trials)
