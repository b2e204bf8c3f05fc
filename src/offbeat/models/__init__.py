"""The papers' networks, users' own models, and a model as one flat vector.

What needs torch is imported on first use, so that checking a name stays fast.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from offbeat.models.catalogue import MODEL_SETTINGS, MODELS, ModelChoice

if TYPE_CHECKING:
    from offbeat.models.flat import called, flops_per_sample, is_pure, layout_of, tensors_of, vector_of
    from offbeat.models.registry import build, with_vocabulary

__all__ = [
    "MODELS",
    "MODEL_SETTINGS",
    "ModelChoice",
    "build",
    "called",
    "flops_per_sample",
    "is_pure",
    "layout_of",
    "tensors_of",
    "vector_of",
    "with_vocabulary",
]

_HOMES = {"build": "registry", "with_vocabulary": "registry"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'offbeat.models' has no attribute {name!r}")
    return getattr(import_module(f"offbeat.models.{_HOMES.get(name, 'flat')}"), name)
