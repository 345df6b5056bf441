"""216 small convolutional networks: three positions of six kinds of layers, few enough to train every one.

The kinds cost and do different things: the widest perceptron has more weights than a separable convolution, but looks
at one pixel at a time; a pool has next to none. `bench=ranking` trains them all.
"""

from functools import partial

from torch import nn

from l2l_nas import Candidate, LayerPool, Position, TensorSpec, skip
from l2l_nas.layers import ConvBlock, PoolBlock, ResidualMLP, SeparableBlock


def build(channels: int = 12, depth: int = 3, classes: int = 10, image: tuple[int, int, int] = (1, 8, 8)) -> LayerPool:
    """Stem, `depth` positions with a halving of the image in the middle, head.

    Args:
        channels: width of the first half; the second half has twice as many.
        depth: number of positions to search.
        classes: outputs.
        image: channels, height and width of the input; from 16 pixels on, the stem halves it.
    """

    def position(index: int, width: int) -> Position:
        return Position(
            f"layer_{index:02d}",
            [
                Candidate("conv3", partial(ConvBlock, width, kernel=3)),
                Candidate("conv5", partial(ConvBlock, width, kernel=5)),
                Candidate("sep3", partial(SeparableBlock, width, kernel=3)),
                Candidate("mlp", partial(ResidualMLP, width, expansion=4)),
                Candidate("pool", partial(PoolBlock, width)),
                skip(),
            ],
        )

    stride = 2 if min(image[1:]) >= 16 else 1
    # three halvings, each rounding: the stem's and the next layer's up, the head's down
    height, width = (((size + stride - 1) // stride + 1) // 2 // 2 for size in image[1:])
    half = depth // 2
    return LayerPool(
        [
            Position("stem", [Candidate("conv", partial(nn.Conv2d, image[0], channels, 3, stride=stride, padding=1))]),
            *(position(index, channels) for index in range(half)),
            Position("down", [Candidate("conv", partial(nn.Conv2d, channels, 2 * channels, 3, stride=2, padding=1))]),
            *(position(index, 2 * channels) for index in range(half, depth)),
            Position("head", [Candidate("linear", partial(_head, 2 * channels, height * width, classes))]),
        ],
        inputs=TensorSpec(tuple(image)),
    )


def _head(channels: int, pixels: int, classes: int) -> nn.Module:
    return nn.Sequential(
        nn.GroupNorm(1, channels),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(channels * pixels, classes),
    )
