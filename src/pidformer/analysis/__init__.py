"""What happens to the tokens inside a trained model."""

from pidformer.analysis.certificate import Certificate, certify, suggest_gains
from pidformer.analysis.growth import Growth, transient_growth
from pidformer.analysis.products import AttentionMeasures, attention_measures
from pidformer.analysis.response import Response, input_response
from pidformer.analysis.similarity import (
    ControlScale,
    RankMeasures,
    control_scale,
    mean_cosine,
    rank_measures,
    token_similarity,
    token_spectrum,
)
from pidformer.analysis.spectrum import (
    AttentionSpectrum,
    SpectrumSummary,
    attention_matrices,
    attention_spectrum,
    eigenvalues,
)
from pidformer.analysis.trajectory import Trajectory, joint_trajectories, token_trajectory
from pidformer.data import sample_images

__all__ = [
    "AttentionMeasures",
    "AttentionSpectrum",
    "Certificate",
    "ControlScale",
    "Growth",
    "RankMeasures",
    "Response",
    "SpectrumSummary",
    "Trajectory",
    "attention_matrices",
    "attention_measures",
    "attention_spectrum",
    "certify",
    "control_scale",
    "eigenvalues",
    "input_response",
    "joint_trajectories",
    "mean_cosine",
    "rank_measures",
    "sample_images",
    "suggest_gains",
    "token_similarity",
    "token_spectrum",
    "token_trajectory",
    "transient_growth",
]
