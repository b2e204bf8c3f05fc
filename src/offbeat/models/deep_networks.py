"""Deep networks for images of 32x32: AlexNet, VGG and residual networks.

Functions of (input shape, number of classes), as in `networks`. The published networks take 224x224; these are the
variants in general use for 32x32. The tests state their numbers of parameters.
"""

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional

from offbeat.models.networks import image_shape, with_head
from offbeat.models.normalisation import Norm, normalisation

VGG_LAYERS: dict[int, tuple[int | None, ...]] = {
    11: (64, None, 128, None, 256, 256, None, 512, 512, None, 512, 512, None),
    13: (64, 64, None, 128, 128, None, 256, 256, None, 512, 512, None, 512, 512, None),
    16: (64, 64, None, 128, 128, None, 256, 256, 256, None, 512, 512, 512, None, 512, 512, 512, None),
}
"""Channels of the 3x3 convolutions; None is 2x2 max-pooling. Simonyan, Zisserman, ICLR 2015, configurations A, B, D."""


def alexnet(input_shape: tuple[int, ...], classes: int, norm: Norm = "none") -> nn.Module:
    """AlexNet for 32x32: five 3x3 convolutions, max-pooling after three of them, and three dense layers.

    Krizhevsky, Sutskever, Hinton, NeurIPS 2012: channels 64, 192, 384, 256, 256 as in its one-tower form, dense layers
    of 4,096 units. The first convolution has stride 2 instead of 11x11 with stride 4. It has no dropout, so that a
    device's training depends on its batches alone.
    """
    channels = image_shape(input_shape)[0]
    layers: list[nn.Module] = []
    for width, stride, pooled in ((64, 2, True), (192, 1, True), (384, 1, False), (256, 1, False), (256, 1, True)):
        layers += [nn.Conv2d(channels, width, 3, stride=stride, padding=1), normalisation(norm, width)]
        layers += [nn.MaxPool2d(2), nn.ReLU()] if pooled else [nn.ReLU()]
        channels = width
    return with_head(_without_identities(layers), input_shape, [4096, 4096, classes])


def vgg(input_shape: tuple[int, ...], classes: int, depth: int, norm: Norm = "batch", width: float = 1.0) -> nn.Module:
    """VGG of this depth: 3x3 convolutions with max-pooling between them and one dense layer.

    With a width below 1 each convolution has that share of its channels.
    """
    channels = image_shape(input_shape)[0]
    layers: list[nn.Module] = []
    for published in VGG_LAYERS[depth]:
        if published is None:
            layers.append(nn.MaxPool2d(2))
            continue
        filters = max(1, round(width * published))
        layers += [nn.Conv2d(channels, filters, 3, padding=1), normalisation(norm, filters), nn.ReLU()]
        channels = filters
    return with_head(_without_identities(layers), input_shape, [classes])


def vgg11(input_shape: tuple[int, ...], classes: int, norm: Norm = "batch", width: float = 1.0) -> nn.Module:
    """VGG-11: eight 3x3 convolutions and one dense layer; images of 32x32."""
    return vgg(input_shape, classes, 11, norm, width)


def vgg13(input_shape: tuple[int, ...], classes: int, norm: Norm = "batch", width: float = 1.0) -> nn.Module:
    """VGG-13: ten 3x3 convolutions and one dense layer; images of 32x32."""
    return vgg(input_shape, classes, 13, norm, width)


def vgg16(input_shape: tuple[int, ...], classes: int, norm: Norm = "batch", width: float = 1.0) -> nn.Module:
    """VGG-16: thirteen 3x3 convolutions and one dense layer; images of 32x32."""
    return vgg(input_shape, classes, 16, norm, width)


def resnet20(input_shape: tuple[int, ...], classes: int, norm: Norm = "batch") -> nn.Module:
    """ResNet-20 for 32x32: three stages of three blocks with 16, 32 and 64 channels, shortcuts without parameters.

    He, Zhang, Ren, Sun: *Deep Residual Learning for Image Recognition*, CVPR 2016, sec. 4.2, option A.
    """
    return ResidualNetwork(input_shape, classes, widths=(16, 32, 64), blocks=3, projected=False, norm=norm)


def resnet18(input_shape: tuple[int, ...], classes: int, norm: Norm = "batch") -> nn.Module:
    """ResNet-18 for 32x32: four stages of two blocks with 64 to 512 channels, projected shortcuts, a 3x3 stem.

    He, Zhang, Ren, Sun: *Deep Residual Learning for Image Recognition*, CVPR 2016, Table 1, option B.
    """
    return ResidualNetwork(input_shape, classes, widths=(64, 128, 256, 512), blocks=2, projected=True, norm=norm)


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut around them."""

    def __init__(self, inputs: int, outputs: int, stride: int, *, projected: bool, norm: Norm) -> None:
        super().__init__()
        self.stride = stride
        bias = norm == "none"
        changes = stride != 1 or inputs != outputs
        if projected and changes:  # registered first, in the order of use: it sees the block's input
            self.projection: nn.Module | None = nn.Conv2d(inputs, outputs, 1, stride=stride, bias=bias)
            self.projection_norm = normalisation(norm, outputs)
        else:
            self.projection = None
        self.first = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=bias)
        self.first_norm = normalisation(norm, outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1, bias=bias)
        self.second_norm = normalisation(norm, outputs)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """ReLU of the sum of the convolutions' output and the shortcut."""
        outputs = functional.relu(self.first_norm(self.first(inputs)))
        outputs = self.second_norm(self.second(outputs))
        return functional.relu(outputs + self._shortcut(inputs, outputs.shape[1]))

    def _shortcut(self, inputs: torch.Tensor, channels: int) -> torch.Tensor:
        """The input unchanged, projected, or with every other pixel and zero channels (option A)."""
        if self.projection is not None:
            projected: torch.Tensor = self.projection_norm(self.projection(inputs))
            return projected
        if self.stride != 1:
            inputs = inputs[:, :, :: self.stride, :: self.stride]
        missing = (
            channels - inputs.shape[1]
        )  # appended, so that a submodel's channels are the first of the whole model's
        return functional.pad(inputs, (0, 0, 0, 0, 0, missing)) if missing else inputs


class ResidualNetwork(nn.Module):
    """A 3x3 convolution, stages of residual blocks, global average pooling, and one dense layer."""

    def __init__(
        self,
        input_shape: tuple[int, ...],
        classes: int,
        *,
        widths: Sequence[int],
        blocks: int,
        projected: bool,
        norm: Norm,
    ) -> None:
        super().__init__()
        channels = image_shape(input_shape)[0]
        self.stem = nn.Conv2d(channels, widths[0], 3, padding=1, bias=norm == "none")
        self.stem_norm = normalisation(norm, widths[0])
        self.blocks = nn.Sequential()
        inputs = widths[0]
        for stage, width in enumerate(widths):
            for block in range(blocks):
                stride = 2 if stage and not block else 1
                self.blocks.append(ResidualBlock(inputs, width, stride, projected=projected, norm=norm))
                inputs = width
        self.head = nn.Linear(inputs, classes)
        names = [name for name, module in self.named_modules() if isinstance(module, nn.Conv2d | nn.Linear)]
        self.layer_groups = [[name, f"{name}_norm"] for name in names]
        """A layer is a convolution with the normalisation that follows it."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """One score per class."""
        maps = self.blocks(functional.relu(self.stem_norm(self.stem(images))))
        scores: torch.Tensor = self.head(maps.mean(dim=(2, 3)))
        return scores


def _without_identities(layers: Sequence[nn.Module]) -> list[nn.Module]:
    return [layer for layer in layers if not isinstance(layer, nn.Identity)]
