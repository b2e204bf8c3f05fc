"""The papers' networks: functions of (input shape, number of classes) that return an untrained module.

`registry.build` checks that the network fits the input. All are `nn.Sequential`s, which can be trained stacked (see
`training.stacked`).

Max-pooling comes before ReLU: both are monotone, so that the order does not change the function, and ReLU then touches
a quarter of the elements (10 % less time for a LeNet-5 step).
"""

import math

import torch
from torch import nn


def logistic(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Logistic regression: one dense layer; convex."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(input_shape), classes))


def mlp(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Two hidden dense layers of 32 and 16 units."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(math.prod(input_shape), 32),
        nn.ReLU(),
        nn.Linear(32, 16),
        nn.ReLU(),
        nn.Linear(16, classes),
    )


def lenet5(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """LeNet-5: two 5x5 convolutions with max-pooling, three dense layers; images of 12x12 and more."""
    channels, *sides = image_shape(input_shape)
    # The original takes 32x32; smaller images (28x28) are padded to give the same 16 maps of 5x5.
    padding = 2 if min(sides) < 32 else 0
    return with_head(_two_convolutions(channels, 6, 16, padding), input_shape, [120, 84, classes])


def cnn(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """The CNN of FedASMU (Table 2): two 2x2 convolutions of 64 and 32 channels, one dense layer."""
    first = nn.Conv2d(image_shape(input_shape)[0], 64, 2)
    return with_head([first, nn.ReLU(), nn.Conv2d(64, 32, 2), nn.ReLU()], input_shape, [classes])


def cnn_small(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Two 5x5 convolutions, two dense layers; 21,840 parameters on MNIST.

    The standard CNN in the paper of `cnn_over`, which gives only the number of parameters; it is that of the network in
    PyTorch's MNIST example.
    """
    return with_head(_two_convolutions(image_shape(input_shape)[0], 10, 20, padding=0), input_shape, [50, classes])


def cnn_over(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """The over-parameterised convolutional network: 663,160 parameters on MNIST.

    Hao et al., "The Impact Analysis of Delays in Asynchronous Federated Learning with Data Heterogeneity for Edge
    Intelligence" (AUDG, PSURDG), give only the numbers of parameters and layers. Among 5x5 convolutions padded as in
    LeNet-5, with round channel counts and widths, a search found only this network with that number:
    70 x (25 + 1)  +  30 x (70 x 25 + 1)  +  800 x (30 x 5 x 5 + 1)  +  10 x (800 + 1).
    """
    return with_head(_two_convolutions(image_shape(input_shape)[0], 70, 30, padding=2), input_shape, [800, classes])


def image_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape (channels, height, width); ValueError if it is not that of an image."""
    if len(shape) != 3:
        raise ValueError("it needs images (channels, height, width)")
    return shape


def _two_convolutions(channels: int, first: int, second: int, padding: int) -> list[nn.Module]:
    return [
        nn.Conv2d(channels, first, 5, padding=padding),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(first, second, 5),
        nn.MaxPool2d(2),
        nn.ReLU(),
    ]


def with_head(features: list[nn.Module], input_shape: tuple[int, ...], widths: list[int]) -> nn.Sequential:
    """The feature layers, then dense layers of these widths with ReLU between them."""
    body = nn.Sequential(*features, nn.Flatten())
    with torch.no_grad():
        width = body(torch.zeros(1, *input_shape)).shape[1]
    head: list[nn.Module] = []
    for units in widths:
        head += [nn.Linear(width, units), nn.ReLU()]
        width = units
    return nn.Sequential(*body, *head[:-1])
