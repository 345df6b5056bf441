"""Small networks for images of 10x10 to 16x16 whose layers differ in kind: the default space, 19.7 million networks.

Two positions choose how the image is made smaller, six choose layers in between, and one chooses what the head sees.
These choices decide how good a network is; its number of weights says little about that. Weights that architectures
share learn almost nothing here, so search.trial_weights=scratch, the default, suits this space.
"""

from collections.abc import Callable
from functools import partial

from torch import nn

from l2l_nas import Candidate, LayerPool, Position, TensorSpec, skip
from l2l_nas.layers import AttentionBlock, CoarseBlock, ConvBlock, PoolBlock, ResidualMLP, SeparableBlock


def build(
    channels: int = 16, depth: int = 6, classes: int = 10, image: tuple[int, int, int] = (1, 10, 10)
) -> LayerPool:
    """Stem, half of the blocks, a second halving of the image, the other half, head.

    Args:
        channels: width of the first half; the second half has twice as many.
        depth: blocks to search.
        classes: outputs.
        image: channels, height and width of the input.
    """

    def block(index: int, width: int) -> Position:
        return Position(
            f"block_{index}",
            [
                Candidate("conv3", partial(ConvBlock, width, kernel=3)),
                Candidate("conv5", partial(ConvBlock, width, kernel=5)),
                Candidate("sep3", partial(SeparableBlock, width, kernel=3)),
                Candidate("coarse", partial(CoarseBlock, width)),
                Candidate("mlp", partial(ResidualMLP, width)),
                Candidate("attention", partial(AttentionBlock, width)),
                Candidate("pool", partial(PoolBlock, width)),
                skip(),
            ],
        )

    half, wide = depth // 2, 2 * channels
    return LayerPool(
        [
            Position("stem", _halvings(image[0], channels)),
            *(block(index, channels) for index in range(half)),
            Position("down", _halvings(channels, wide)),
            *(block(index, wide) for index in range(half, depth)),
            Position(
                "head",
                [
                    Candidate("average", partial(_head, wide, classes, nn.AdaptiveAvgPool2d, 1)),
                    Candidate("max", partial(_head, wide, classes, nn.AdaptiveMaxPool2d, 1)),
                    Candidate("grid", partial(_head, wide, classes, nn.AdaptiveAvgPool2d, 2)),
                ],
            ),
        ],
        inputs=TensorSpec(tuple(image)),
    )


def _halvings(channels: int, width: int) -> list[Candidate]:
    """Ways to half the height and width, odd ones rounded up."""
    return [
        Candidate("conv3", partial(nn.Conv2d, channels, width, 3, stride=2, padding=1)),
        Candidate("conv5", partial(nn.Conv2d, channels, width, 5, stride=2, padding=2)),
        Candidate("patch", partial(_patches, channels, width)),
        Candidate("max", partial(_convolved_maximum, channels, width)),
        Candidate("average", partial(_average, channels, width)),
    ]


def _patches(channels: int, width: int) -> nn.Module:
    return nn.Sequential(nn.ReplicationPad2d((0, 1, 0, 1)), nn.Conv2d(channels, width, 2, stride=2))


def _convolved_maximum(channels: int, width: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(channels, width, 3, padding=1), nn.MaxPool2d(2, ceil_mode=True))


def _average(channels: int, width: int) -> nn.Module:
    return nn.Sequential(nn.AvgPool2d(2, ceil_mode=True), nn.Conv2d(channels, width, 1))


def _head(channels: int, classes: int, pool: Callable[[int], nn.Module], size: int) -> nn.Module:
    """Sees size x size regions."""
    return nn.Sequential(
        nn.GroupNorm(1, channels), nn.ReLU(), pool(size), nn.Flatten(), nn.Linear(size * size * channels, classes)
    )
