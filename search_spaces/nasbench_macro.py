"""Image classifiers of eight layers: NAS-Bench-Macro (arXiv 2103.11922), 6,561 networks.

Each layer is nothing, a block that widens 3 times with kernel 3, or one that widens 6 times with kernel 5. Three stages
of 2, 3 and 3 layers, of which the first one halves the image and doubles the channels; there "nothing" is a convolution
of 1x1. Each network alone is small enough to train; the benchmark has the accuracies of all of them on CIFAR-10.

| channels | image | parameters of the smallest network | of the largest |
|---|---|---|---|
| 8 (the default) | (1, 10, 10) | 0.03 million | 0.22 million |
| 32 (published) | (3, 32, 32) | 0.39 million | 2.93 million |
"""

from functools import partial

from torch import nn

from l2l_nas import Candidate, LayerPool, Position, TensorSpec, skip
from l2l_nas.layers import InvertedResidual

_FIRST = (0, 2, 5)  # layers of the stages


def build(channels: int = 8, classes: int = 10, image: tuple[int, int, int] = (1, 10, 10)) -> LayerPool:
    """Stem, eight positions, head.

    Args:
        channels: of the stem; 32 in the benchmark.
        classes: outputs.
        image: channels, height and width of the input; (3, 32, 32) in the benchmark.
    """
    positions = [Position("stem", Candidate("conv", partial(_convolution, image[0], channels, 3)))]
    width = channels
    for index in range(8):
        is_first = index in _FIRST
        out, stride = (2 * width, 2) if is_first else (width, 1)
        block = partial(InvertedResidual, width, out=out, stride=stride, activation="relu")
        nothing = Candidate("identity", partial(_halving, width, out)) if is_first else skip("identity")
        blocks = [
            Candidate(f"mb{times}_k{kernel}", partial(block, times * width, kernel))
            for times, kernel in ((3, 3), (6, 5))
        ]
        positions.append(Position(f"layer_{index}", [nothing, *blocks]))
        width = out
    positions.append(Position("head", Candidate("average", partial(_head, width, classes))))
    return LayerPool(positions, inputs=TensorSpec(tuple(image)))


def _convolution(channels: int, out: int, kernel: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(channels, out, kernel, padding=kernel // 2, bias=False), nn.BatchNorm2d(out), nn.ReLU()
    )


def _halving(channels: int, out: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(channels, out, 1, stride=2, bias=False), nn.BatchNorm2d(out))


def _head(channels: int, classes: int) -> nn.Module:
    return nn.Sequential(
        _convolution(channels, 5 * channels, 1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(5 * channels, classes),
    )
