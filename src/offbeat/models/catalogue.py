"""The registered models and their settings, without torch: the functions are imported when a model is built.

A new model is a function and a line in `REGISTRY`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import Field

from offbeat.core.settings import Settings

Layers = Literal["modules", "tensors"]
"""What counts as a layer: a submodule with parameters of its own, or every trained tensor."""
Count = Annotated[int, Field(ge=1)]


class PlainModel(Settings):
    """The settings of a model without settings."""


class DeepModel(Settings):
    """The settings of a deep network for images."""

    norm: Literal["batch", "group", "none"] = "batch"
    """Normalisation after every convolution: batch, group or none."""


class VggModel(DeepModel):
    """The settings of VGG."""

    width: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Number of channels of each convolution, as a share of the published number."""


class AlexNetModel(DeepModel):
    """The settings of AlexNet, which was published without normalisation."""

    norm: Literal["batch", "group", "none"] = "none"
    """Normalisation after every convolution: batch, group or none."""


class TextCnnModel(Settings):
    """The settings of TextCNN."""

    vocabulary: Count | None = None
    """Size of the vocabulary (default: that of the data)."""
    embedding: Count = 128
    """Size of a token's embedding."""
    filters: Count = 100
    """Number of filters of each of the three widths."""


class TransformerModel(Settings):
    """The settings of the small transformer."""

    vocabulary: Count | None = None
    """Size of the vocabulary (default: that of the data)."""
    embedding: Count = 64
    """Size of a token's embedding; a multiple of the heads."""
    heads: Count = 4
    """Attention heads per block."""
    blocks: Count = 2
    """Number of transformer blocks."""


REGISTRY: dict[str, tuple[str, type[Settings]]] = {
    "logistic": ("offbeat.models.networks:logistic", PlainModel),
    "mlp": ("offbeat.models.networks:mlp", PlainModel),
    "lenet5": ("offbeat.models.networks:lenet5", PlainModel),
    "cnn": ("offbeat.models.networks:cnn", PlainModel),
    "cnn-small": ("offbeat.models.networks:cnn_small", PlainModel),
    "cnn-over": ("offbeat.models.networks:cnn_over", PlainModel),
    "alexnet": ("offbeat.models.deep_networks:alexnet", AlexNetModel),
    "vgg11": ("offbeat.models.deep_networks:vgg11", VggModel),
    "vgg13": ("offbeat.models.deep_networks:vgg13", VggModel),
    "vgg16": ("offbeat.models.deep_networks:vgg16", VggModel),
    "resnet20": ("offbeat.models.deep_networks:resnet20", DeepModel),
    "resnet18": ("offbeat.models.deep_networks:resnet18", DeepModel),
    "textcnn": ("offbeat.models.text_networks:textcnn", TextCnnModel),
    "transformer": ("offbeat.models.text_networks:transformer", TransformerModel),
    "transformer-lm": ("offbeat.models.text_networks:transformer_lm", TransformerModel),
}
"""Each model's function of (input shape, classes, **settings), and its settings."""

MODELS = {name: function for name, (function, _) in REGISTRY.items()}
MODEL_SETTINGS = {name: settings for name, (_, settings) in REGISTRY.items() if settings is not PlainModel}


@dataclass(frozen=True, kw_only=True)
class ModelChoice:
    """The choice of a model in an experiment: plain values that can be sent to another process."""

    name: str
    """A name in `MODELS`, or "module:thing"."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of the function or class that builds it."""
    layers: Layers = "modules"
    projection: int | None = None
    """Outputs of a projection head before the last dense layer; None: no projection head."""
