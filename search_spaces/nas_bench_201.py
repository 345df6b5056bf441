"""Image classifiers of one cell, stacked: NAS-Bench-201 (arXiv 2001.00326, section 2.1), 15,625 networks.

A cell has four nodes. Each of its six edges is one of five operations, and each node sums the edges that end there.
There are three stages of cells. Between them residual blocks halve the image and double the width. All cells are alike.
"""

from functools import partial

from torch import Tensor, nn
from torch.nn import functional

from l2l_nas import Candidate, LayerPool, Position, TensorSpec, skip
from l2l_nas.layers import Sum, Zero

NODES = 4


def build(
    channels: int = 16, depth: int = 1, classes: int = 10, image: tuple[int, int, int] = (1, 10, 10)
) -> LayerPool:
    """Stem, three stages of cells, head.

    Args:
        channels: width of the first stage; 16 in the benchmark.
        depth: cells of a stage; 5 in the benchmark.
        classes: outputs.
        image: channels, height and width of the input; (3, 32, 32) in the benchmark.
    """
    positions = [Position("stem", Candidate("conv", partial(_stem, image[0], channels)))]
    value = "stem"
    for stage in range(3):
        width = channels * 2**stage
        if stage:
            positions.append(Position(f"down_{stage}", Candidate("residual", partial(Down, width // 2, width))))
            value = f"down_{stage}"
        for index in range(depth):
            cell = f"s{stage}c{index}"
            positions += _cell(cell, value, width, is_first=cell == "s0c0")
            value = f"{cell}_{NODES - 1}"
    positions.append(Position("head", Candidate("average", partial(_head, width, classes))))
    return LayerPool(positions, inputs=TensorSpec(tuple(image)))


def _cell(cell: str, value: str, channels: int, *, is_first: bool) -> list[Position]:
    operations = [
        Candidate("none", Zero),
        skip("skip_connect"),
        Candidate("nor_conv_1x1", partial(_convolution, channels, channels, 1)),
        Candidate("nor_conv_3x3", partial(_convolution, channels, channels, 3)),
        Candidate("avg_pool_3x3", partial(nn.AvgPool2d, 3, stride=1, padding=1, count_include_pad=False)),
    ]
    nodes, positions = [value], []
    for node in range(1, NODES):
        edges = [f"{cell}_{before}to{node}" for before in range(node)]
        for before, edge in enumerate(edges):
            leader = None if is_first else f"s0c0_{before}to{node}"
            positions.append(Position(edge, operations, reads=nodes[before], follows=leader))
        positions.append(Position(f"{cell}_{node}", Candidate("sum", Sum), reads=edges))
        nodes.append(f"{cell}_{node}")
    return positions


class Down(nn.Module):
    """A residual block that halves height and width, odd ones rounded up.

    Args:
        channels: in.
        width: out.
    """

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.first = _convolution(channels, width, 3, stride=2)
        self.second = _convolution(width, width, 3)
        self.beside = nn.Conv2d(channels, width, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, channels, height, width] in, [batch, width, height / 2, width / 2] out."""
        return self.second(self.first(x)) + self.beside(functional.avg_pool2d(x, 2, ceil_mode=True))


def _convolution(channels: int, width: int, kernel: int, *, stride: int = 1) -> nn.Module:
    return nn.Sequential(
        nn.ReLU(),
        nn.Conv2d(channels, width, kernel, stride=stride, padding=kernel // 2, bias=False),
        nn.BatchNorm2d(width),
    )


def _stem(channels: int, width: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(channels, width, 3, padding=1, bias=False), nn.BatchNorm2d(width))


def _head(channels: int, classes: int) -> nn.Module:
    return nn.Sequential(
        nn.BatchNorm2d(channels), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes)
    )
