"""Tiny convolutional networks for 8x8 images that may share weights: 8 positions of 6 candidates, 1.7 million networks.

With 4 channels the networks have 400 to 8,500 weights, and their layers decide how good they are: trained alone, their
accuracies differ far more than those of one network with other first weights. With 16 channels all are equally good.
"""

from functools import partial

from torch import nn

from l2l_nas import Candidate, LayerPool, Position, TensorSpec, skip
from l2l_nas.layers import ConvBlock, ResidualMLP, SeparableBlock


def build(channels: int = 4, depth: int = 8, classes: int = 10, image: tuple[int, int, int] = (1, 8, 8)) -> LayerPool:
    """Stem, `depth` positions with a halving of the image in the middle, head.

    Args:
        channels: width of the first half; the second half has twice as many.
        depth: number of positions to search.
        classes: outputs.
        image: channels, height and width of the input.
    """

    def position(index: int, width: int) -> Position:
        return Position(
            f"layer_{index:02d}",
            [
                Candidate("conv3", partial(ConvBlock, width, kernel=3)),
                Candidate("conv5", partial(ConvBlock, width, kernel=5)),
                Candidate("sep3", partial(SeparableBlock, width, kernel=3)),
                Candidate("sep5", partial(SeparableBlock, width, kernel=5)),
                Candidate("mlp", partial(ResidualMLP, width)),
                skip(),
            ],
        )

    half = depth // 2
    return LayerPool(
        [
            Position("stem", [Candidate("conv", partial(nn.Conv2d, image[0], channels, 3, padding=1))]),
            *(position(index, channels) for index in range(half)),
            Position("down", [Candidate("conv", partial(nn.Conv2d, channels, 2 * channels, 3, stride=2, padding=1))]),
            *(position(index, 2 * channels) for index in range(half, depth)),
            Position("head", [Candidate("linear", partial(_head, 2 * channels, classes))]),
        ],
        inputs=TensorSpec(tuple(image)),
    )


def _head(channels: int, classes: int) -> nn.Module:
    return nn.Sequential(
        nn.GroupNorm(1, channels),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(channels, classes),
    )
