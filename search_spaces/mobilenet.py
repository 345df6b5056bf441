"""MobileNetV3 with other kernels, widths and depths: the space of Once for All (arXiv 1908.09791, section 3.2).

Five stages; each position widens its channels 3, 4 or 6 times, with a depthwise convolution of 3, 5 or 7, and all but a
stage's first may be left out. The nine blocks of a position are regions of the largest, and share its weights. Strides,
activations and squeeze-and-excitation are those of MobileNetV3-Large (arXiv 1905.02244, table 1). Of the published
depth, 4, there are 6 * 10^19 networks; the article leaves out only the last blocks of a stage.

| channels | depth | image | classes | parameters of the largest network | of the smallest |
|---|---|---|---|---|---|
| 8 (the default) | 2 | (1, 10, 10) | 10 | 0.95 million | 0.42 million |
| 16 (published) | 4 | (3, 224, 224) | 1,000 | 7.7 million | 2.9 million |
"""

from functools import partial
from typing import Any

from torch import nn

from l2l_nas import Candidate, LayerPool, Position, TensorSpec, elastic, skip
from l2l_nas.layers import InvertedResidual

# of each stage: channels, in sixteenths of the stem's; stride; activation; squeeze-and-excitation
_STAGES = (
    (24, 2, "relu", False),
    (40, 2, "relu", True),
    (80, 2, "hardswish", False),
    (112, 1, "hardswish", True),
    (160, 2, "hardswish", True),
)
_LEAST = 4  # pixels; a smaller image is not halved


def build(channels: int = 8, depth: int = 2, classes: int = 10, image: tuple[int, int, int] = (1, 10, 10)) -> LayerPool:
    """Stem, a block that widens nothing, five stages of `depth` positions, head.

    Args:
        channels: of the stem, which all others follow; 16 in the articles.
        depth: positions of a stage; 4 in the article.
        classes: outputs.
        image: channels, height and width of the input; the stem halves those of at least 64 pixels.
    """
    stride = 2 if min(image[1:]) >= 64 else 1
    size, width = -(-min(image[1:]) // stride), channels
    first = partial(InvertedResidual, channels, channels, 3, activation="relu")
    positions = [
        Position("stem", Candidate("conv", partial(_stem, image[0], channels, stride))),
        Position("first", Candidate("x1k3", first)),
    ]
    for stage, (share, stride, activation, is_squeezed) in enumerate(_STAGES):
        out = max(1, share * channels // 16)
        for index in range(depth):
            name = f"stage{stage}_{index}"
            stride = stride if index == 0 and size > _LEAST else 1
            how: dict[str, Any] = {"out": out, "stride": stride, "activation": activation, "is_squeezed": is_squeezed}
            family = {
                f"x{widening}k{kernel}": partial(InvertedResidual, width, widening * width, kernel, **how)
                for widening in (6, 4, 3)
                for kernel in (7, 5, 3)
            }
            positions.append(Position(name, [*elastic(name, family), *([skip()] if index else [])]))
            size, width = -(-size // stride), out
    positions.append(Position("head", Candidate("average", partial(_head, width, channels, classes))))
    return LayerPool(positions, inputs=TensorSpec(tuple(image)))


def _stem(inputs: int, channels: int, stride: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(inputs, channels, 3, stride, 1, bias=False),
        nn.BatchNorm2d(channels),
        nn.Hardswish(),
    )


def _head(width: int, channels: int, classes: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(width, 60 * channels, 1, bias=False),
        nn.BatchNorm2d(60 * channels),
        nn.Hardswish(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(60 * channels, 80 * channels),
        nn.Hardswish(),
        nn.Linear(80 * channels, classes),
    )
