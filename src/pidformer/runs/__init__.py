"""A run folder, from its files up: folder, weights, model, open; and which runs are twins."""
