"""Training: recipes, tasks and the one loop."""

from pidformer.runs.recipe import Recipe, recipe_from
from pidformer.training.recipe import load_recipe, shipped_recipes

__all__ = ["Recipe", "load_recipe", "recipe_from", "shipped_recipes"]
