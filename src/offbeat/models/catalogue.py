"""The models by the names that users write, and their settings. What builds them is imported when one is built."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import Field

from offbeat.core.settings import Settings

Layers = Literal["modules", "tensors"]
"""What counts as a layer of a model: a submodule with parameters of its own, or every tensor that is trained."""
Count = Annotated[int, Field(ge=1)]

MODELS: dict[str, str] = {
    "logistic": "offbeat.models.networks:logistic",
    "mlp": "offbeat.models.networks:mlp",
    "lenet5": "offbeat.models.networks:lenet5",
    "cnn": "offbeat.models.networks:cnn",
    "cnn-small": "offbeat.models.networks:cnn_small",
    "cnn-over": "offbeat.models.networks:cnn_over",
    "alexnet": "offbeat.models.deep_networks:alexnet",
    "vgg11": "offbeat.models.deep_networks:vgg11",
    "vgg13": "offbeat.models.deep_networks:vgg13",
    "vgg16": "offbeat.models.deep_networks:vgg16",
    "resnet20": "offbeat.models.deep_networks:resnet20",
    "resnet18": "offbeat.models.deep_networks:resnet18",
    "textcnn": "offbeat.models.text_networks:textcnn",
    "transformer": "offbeat.models.text_networks:transformer",
    "transformer-lm": "offbeat.models.text_networks:transformer_lm",
}


class PlainModel(Settings):
    """The settings of a model that has none."""


class DeepModel(Settings):
    """The settings of a deep network for images."""

    norm: Literal["batch", "group", "none"] = "batch"
    """What stands behind every convolution: batch normalisation, group normalisation, or nothing."""


class VggModel(DeepModel):
    """The settings of VGG."""

    width: Annotated[float, Field(gt=0, le=1)] = 1.0
    """The share of the published channels that each convolution has."""


class AlexNetModel(DeepModel):
    """The settings of AlexNet, which was published without normalisation."""

    norm: Literal["batch", "group", "none"] = "none"
    """What stands behind every convolution: batch normalisation, group normalisation, or nothing."""


class TextCnnModel(Settings):
    """The settings of TextCNN."""

    vocabulary: Count | None = None
    """Tokens that there are (default: as many as the data have)."""
    embedding: Count = 128
    """Numbers for each token."""
    filters: Count = 100
    """Filters of each of the three widths."""


class TransformerModel(Settings):
    """The settings of the small transformer."""

    vocabulary: Count | None = None
    """Tokens that there are (default: as many as the data have)."""
    embedding: Count = 64
    """Numbers for each token; a multiple of the heads."""
    heads: Count = 4
    """How many heads of attention each block has."""
    blocks: Count = 2
    """How many layers of attention there are."""


MODEL_SETTINGS: dict[str, type[Settings]] = {
    "alexnet": AlexNetModel,
    **dict.fromkeys(("vgg11", "vgg13", "vgg16"), VggModel),
    **dict.fromkeys(("resnet20", "resnet18"), DeepModel),
    "textcnn": TextCnnModel,
    **dict.fromkeys(("transformer", "transformer-lm"), TransformerModel),
}
"""The settings of models that have any."""


@dataclass(frozen=True, kw_only=True)
class ModelChoice:
    """A model as an experiment asks for it: plain values, which can be sent to another process."""

    name: str
    """A name in `MODELS`, or "module:thing"."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of the function or class that builds it."""
    layers: Layers = "modules"
    projection: int | None = None
    """Outputs of a projection head before the last dense layer; None: there is no such head."""
