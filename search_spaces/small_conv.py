"""216 small convolutional networks: three positions of six kinds of layers, few enough to train every one.

The kinds do different things at different costs: a perceptron has more weights than a separable convolution, but sees
one pixel at a time; a pool has almost no weights. The benchmark `ranking` trains all networks.
"""

from functools import partial

from torch import nn

from l2l_nas import Candidate, LayerPool, Position, TensorSpec, skip
from l2l_nas.layers import ConvBlock, PoolBlock, ResidualMLP, SeparableBlock


def build(channels: int = 16, depth: int = 3, classes: int = 10, image: tuple[int, int, int] = (1, 8, 8)) -> LayerPool:
    """Stem, `depth` positions, head.

    Args:
        channels: width.
        depth: number of positions to search.
        classes: outputs.
        image: channels, height and width of the input; the stem cuts larger ones into about 8 by 8 patches.
    """
    layers = [
        Candidate("conv3", partial(ConvBlock, channels, kernel=3)),
        Candidate("sep5", partial(SeparableBlock, channels, kernel=5)),
        Candidate("sep3", partial(SeparableBlock, channels, kernel=3)),
        Candidate("mlp", partial(ResidualMLP, channels, expansion=4)),
        Candidate("pool", partial(PoolBlock, channels)),
        skip(),
    ]
    patch = max(1, round(min(image[1:]) / 8))
    convolve = partial(nn.Conv2d, image[0], channels)
    stem = partial(convolve, patch, stride=patch) if patch > 1 else partial(convolve, 3, padding=1)
    return LayerPool(
        [
            Position("stem", [Candidate("conv", stem)]),
            *(Position(f"layer_{index:02d}", layers) for index in range(depth)),
            Position("head", [Candidate("linear", partial(_head, channels, classes))]),
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
