"""The papers' networks, models of the user's own, and a model seen as one flat vector."""

from offbeat.models.flat import called, flops_per_sample, layout_of, tensors_of, vector_of
from offbeat.models.purity import is_pure
from offbeat.models.registry import MODELS, build

__all__ = ["MODELS", "build", "called", "flops_per_sample", "is_pure", "layout_of", "tensors_of", "vector_of"]
