"""One set of layers for all depths: any layer may be used at any position, and several times. For 8x8 images."""

from functools import partial

from torch import nn

from l2l_nas import Candidate, LayerPool, TensorSpec, skip
from l2l_nas.layers import ConvBlock, ResidualMLP, SeparableBlock


def build(channels: int = 24, depth: int = 8, classes: int = 10, image: tuple[int, int, int] = (1, 8, 8)) -> LayerPool:
    """Stem, `depth` layers out of one shared pool, head.

    Args:
        channels: width.
        depth: most layers between stem and head.
        classes: outputs.
        image: channels, height and width of the input.
    """
    return LayerPool.repeated(
        [
            Candidate("conv3_a", partial(ConvBlock, channels, kernel=3)),
            Candidate("conv3_b", partial(ConvBlock, channels, kernel=3)),
            Candidate("conv5", partial(ConvBlock, channels, kernel=5)),
            Candidate("sep5", partial(SeparableBlock, channels, kernel=5)),
            Candidate("mlp_a", partial(ResidualMLP, channels)),
            Candidate("mlp_b", partial(ResidualMLP, channels, dropout=0.1)),
            skip(),
        ],
        depth=depth,
        first=Candidate("stem", partial(nn.Conv2d, image[0], channels, 3, padding=1)),
        last=Candidate("head", partial(_head, channels, classes, image[1] // 2 * (image[2] // 2))),
        inputs=TensorSpec(tuple(image)),
    )


def _head(channels: int, classes: int, pixels: int) -> nn.Module:
    return nn.Sequential(
        nn.GroupNorm(1, channels),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(channels * pixels, classes),
    )
