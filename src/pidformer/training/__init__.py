"""Training: recipes, tasks and the one loop."""

from pidformer.training.recipe import Recipe, load_recipe, recipe_from, shipped_recipes

__all__ = ["Recipe", "load_recipe", "recipe_from", "shipped_recipes"]
