"""Convolutional networks of inverted bottlenecks whose widths and kernels are regions of one set of weights.

Each position chooses how far a block widens its channels and how large its depthwise kernel is (Sandler et al., arXiv
1801.04381); smaller blocks use the first channels and the middle of the kernels of the largest one, as in Once for All
(Cai et al., arXiv 1908.09791). 2,401 networks in the memory of the largest.
"""

from functools import partial

from torch import nn

from l2l_nas import Candidate, LayerPool, Position, TensorSpec, elastic, skip
from l2l_nas.layers import InvertedResidual


def build(channels: int = 16, depth: int = 4, classes: int = 10, image: tuple[int, int, int] = (1, 8, 8)) -> LayerPool:
    """Stem, `depth` elastic positions, head.

    Args:
        channels: width between the blocks.
        depth: number of positions to search.
        classes: outputs.
        image: channels, height and width of the input; the stem cuts larger ones into about 8 by 8 patches.
    """
    family = {
        f"x{widening}k{kernel}": partial(InvertedResidual, channels, widening * channels, kernel)
        for widening in (6, 4, 2)
        for kernel in (5, 3)
    }
    patch = max(1, round(min(image[1:]) / 8))
    stem = partial(nn.Conv2d, image[0], channels, *((patch, patch) if patch > 1 else (3, 1, 1)))
    names = [f"block_{index}" for index in range(depth)]
    return LayerPool(
        [
            Position("stem", [Candidate("conv", stem)]),
            *(Position(name, [*elastic(name, family), skip()]) for name in names),
            Position("head", [Candidate("linear", partial(_head, channels, classes))]),
        ],
        inputs=TensorSpec(tuple(image)),
    )


def _head(channels: int, classes: int) -> nn.Module:
    return nn.Sequential(
        nn.BatchNorm2d(channels), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes)
    )
