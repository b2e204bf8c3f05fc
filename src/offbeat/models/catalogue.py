"""The models by the names that users write. They are functions in `networks`, which is imported when one is built."""

from typing import Literal

Layers = Literal["modules", "tensors"]
"""What counts as a layer of a model: a submodule with parameters of its own, or every tensor that is trained."""

MODELS: dict[str, str] = {
    "logistic": "offbeat.models.networks:logistic",
    "mlp": "offbeat.models.networks:mlp",
    "lenet5": "offbeat.models.networks:lenet5",
    "cnn": "offbeat.models.networks:cnn",
    "cnn-small": "offbeat.models.networks:cnn_small",
    "cnn-over": "offbeat.models.networks:cnn_over",
}
