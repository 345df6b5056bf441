"""U-Nets that find a digit among clutter: each pixel of the clean image from the cluttered one, 33,750 networks.

The way down chooses a block at each size, the way up a convolution, which reads the image of its size from the way down
(Ronneberger et al., arXiv 1505.04597). Data are scikit-learn's digits, drawn among pieces of other digits.
"""

from functools import partial

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

from l2l_nas import Candidate, Data, LayerPool, Position, Problem, Regression, Split, TensorSpec, skip
from l2l_nas.layers import AttentionBlock, ConvBlock, ResidualMLP, SeparableBlock, UpBlock

_CANVAS, _PIECES, _PIECE = 12, 3, 3


def build(channels: int = 12, samples: int = 4) -> Problem:
    """Down over three sizes, a bottom, up again.

    Args:
        channels: width at full size; each smaller size has twice as many.
        samples: how often each digit is drawn.
    """
    widths = [channels, 2 * channels, 4 * channels]
    positions = [Position("stem", Candidate("conv", partial(nn.Conv2d, 1, channels, 3, padding=1)))]
    for level, width in enumerate(widths[:-1]):
        positions += [
            Position(f"block_{level}", _blocks(width)),
            Position(f"down_{level}", Candidate("conv", partial(nn.Conv2d, width, 2 * width, 3, stride=2, padding=1))),
        ]
    positions.append(
        Position("bottom", [*_blocks(widths[-1]), Candidate("attention", partial(AttentionBlock, widths[-1]))])
    )
    value = "bottom"
    for level in (1, 0):
        small, large = widths[level + 1], widths[level]
        ways = [Candidate(f"conv{kernel}", partial(UpBlock, small, large, kernel=kernel)) for kernel in (1, 3, 5)]
        positions.append(Position(f"up_{level}", ways, reads=(value, f"block_{level}")))
        positions.append(Position(f"after_{level}", _blocks(large)))
        value = f"after_{level}"
    positions.append(Position("head", Candidate("conv", partial(nn.Conv2d, channels, 1, 1))))
    pool = LayerPool(positions, inputs=TensorSpec((1, _CANVAS, _CANVAS)))
    return Problem(pool, _data(samples), task=Regression())


def _blocks(width: int) -> list[Candidate]:
    return [
        Candidate("conv3", partial(ConvBlock, width, kernel=3)),
        Candidate("conv5", partial(ConvBlock, width, kernel=5)),
        Candidate("sep5", partial(SeparableBlock, width, kernel=5)),
        Candidate("mlp", partial(ResidualMLP, width)),
        skip(),
    ]


def _data(samples: int) -> Data:
    """Each part of the digits by itself, so that no digit is in two."""
    bunch = load_digits()
    images = torch.from_numpy(bunch.images).float().div_(16).unsqueeze(1)
    parts = Data.from_arrays(images, bunch.target).parts
    drawn = [_draw(part.preview()[0][0][:, 0].numpy(), samples, seed) for seed, part in enumerate(parts.values())]
    return Data(*drawn)


def _draw(images: np.ndarray, samples: int, seed: int) -> Split:
    generator = np.random.Generator(np.random.PCG64(seed))
    clean = np.zeros((samples * len(images), 1, _CANVAS, _CANVAS), dtype=np.float32)
    size = images.shape[-1]
    for index, image in enumerate(clean):
        top, left = generator.integers(_CANVAS - size + 1, size=2)
        image[0, top : top + size, left : left + size] = images[index % len(images)]
    cluttered = clean.copy()
    for image in cluttered:
        for other in generator.integers(len(images), size=_PIECES):
            y, x = generator.integers(size - _PIECE + 1, size=2)
            top, left = generator.integers(_CANVAS - _PIECE + 1, size=2)
            place = image[0, top : top + _PIECE, left : left + _PIECE]
            np.maximum(place, images[other, y : y + _PIECE, x : x + _PIECE], out=place)
    return Split((torch.from_numpy(cluttered),), torch.from_numpy(clean))
