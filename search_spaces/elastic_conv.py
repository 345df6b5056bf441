"""Convolutional networks of inverted bottlenecks whose widths and kernels are regions of one set of weights.

Each position chooses how far a block widens its channels and how large its depthwise kernel is (Sandler et al., arXiv
1801.04381); smaller blocks use the first channels and the middle of the kernels of the largest one, as in Once for All
(Cai et al., arXiv 1908.09791). 2,401 networks in the memory of the largest.
"""

from functools import partial

from torch import Tensor, nn

from l2l_nas import Candidate, LayerPool, Position, TensorSpec, elastic, skip


def build(channels: int = 16, depth: int = 4, classes: int = 10, image: tuple[int, int, int] = (1, 8, 8)) -> LayerPool:
    """Stem, `depth` elastic positions, head.

    Args:
        channels: width between the blocks.
        depth: number of positions to search.
        classes: outputs.
        image: channels, height and width of the input; the stem cuts larger ones into about 8 by 8 patches.
    """
    family = {
        f"x{widening}k{kernel}": partial(Bottleneck, channels, widening * channels, kernel)
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


class Bottleneck(nn.Module):
    """x + narrow(depthwise(widen(x))), with BatchNorm after each convolution.

    Args:
        channels: of the input and the output.
        width: between.
        kernel: of the depthwise convolution.
    """

    def __init__(self, channels: int, width: int, kernel: int) -> None:
        super().__init__()
        self.widen, self.norm = nn.Conv2d(channels, width, 1, bias=False), nn.BatchNorm2d(width)
        self.depthwise = nn.Conv2d(width, width, kernel, padding=kernel // 2, groups=width, bias=False)
        self.after = nn.BatchNorm2d(width)
        self.narrow, self.last = nn.Conv2d(width, channels, 1, bias=False), nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, channels, height, width] in and out."""
        wide = nn.functional.relu6(self.norm(self.widen(x)))
        return x + self.last(self.narrow(nn.functional.relu6(self.after(self.depthwise(wide)))))


def _head(channels: int, classes: int) -> nn.Module:
    return nn.Sequential(
        nn.BatchNorm2d(channels), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes)
    )
