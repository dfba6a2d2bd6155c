"""What happens to the tokens inside a trained model."""

from pidformer.analysis.similarity import token_similarity
from pidformer.analysis.trajectory import Trajectory, token_trajectory

__all__ = ["Trajectory", "token_similarity", "token_trajectory"]
