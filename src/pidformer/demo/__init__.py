"""The demonstration: four small models, trained, attacked and looked into, in two minutes."""

from pidformer.demo.run import Demo, demo

__all__ = ["Demo", "demo"]
