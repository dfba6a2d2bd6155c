"""Threats as values: what a model is tested against, and the scores."""
