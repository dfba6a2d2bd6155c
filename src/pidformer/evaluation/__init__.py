"""Measuring a run: rows become records, by one ledger that goes on where it was stopped."""

from pidformer.evaluation.images import evaluate_models, run_suite
from pidformer.evaluation.segmentation import evaluate_segmentation
from pidformer.evaluation.setup import Setup
from pidformer.evaluation.suite import Suite, curve_suite, load_suite

__all__ = [
    "Setup",
    "Suite",
    "curve_suite",
    "evaluate_models",
    "evaluate_segmentation",
    "load_suite",
    "run_suite",
]
