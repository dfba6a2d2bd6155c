"""Measuring a run: rows become records, through one ledger that resumes."""

from pidformer.evaluation.segmentation import evaluate_segmentation

__all__ = ["evaluate_segmentation"]
