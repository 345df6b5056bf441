from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn
from torchvision.models import mobilenetv3

from l2l_nas.layers import (
    AttentionBlock,
    CoarseBlock,
    ConvBlock,
    InvertedResidual,
    PoolBlock,
    ResidualMLP,
    SeparableBlock,
)

BLOCKS = {
    "conv3": partial(ConvBlock, 6, kernel=3),
    "conv5": partial(ConvBlock, 6, kernel=5),
    "sep3": partial(SeparableBlock, 6, kernel=3),
    "sep5": partial(SeparableBlock, 6, kernel=5),
    "mlp": partial(ResidualMLP, 6),
    "pool": partial(PoolBlock, 6),
    "coarse": partial(CoarseBlock, 6),
    "attention": partial(AttentionBlock, 6),
    "mlp wide": partial(ResidualMLP, 6, expansion=3, dropout=0.5),
}


def image(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.parametrize("shape", [(2, 6, 8, 8), (3, 6, 5, 7), (1, 6, 1, 1)])
def test_a_block_keeps_the_shape(name, shape):
    x = image(*shape)
    before = x.clone()
    assert BLOCKS[name]()(x).shape == x.shape
    assert torch.equal(x, before)


@pytest.mark.parametrize("name", BLOCKS)
def test_a_block_adds_to_its_input(name):
    block = BLOCKS[name]().eval()
    with torch.no_grad():
        # all but the norm's, where there are others
        for parameter in list(block.parameters())[2:] or block.parameters():
            parameter.zero_()
    x = image(2, 6, 4, 4)
    assert torch.equal(block(x), x)


@pytest.mark.parametrize("name", BLOCKS)
def test_every_parameter_learns_and_samples_do_not_mix(name):
    block = BLOCKS[name]().eval()
    x = image(2, 6, 4, 4).requires_grad_()
    block(x)[0].square().sum().backward()
    assert all(parameter.grad is not None and parameter.grad.abs().sum() > 0 for parameter in block.parameters())
    assert float(x.grad[1].abs().sum()) == 0
    assert not list(block.buffers())


def test_a_pool_adds_the_mean_of_the_neighbours_there_are():
    block = PoolBlock(1)
    block.norm = nn.Identity()
    x = torch.arange(9.0).reshape(1, 1, 3, 3)
    added = (block(x) - x)[0, 0]
    assert added[1, 1] == 4
    assert added[0, 0] == (0 + 1 + 3 + 4) / 4


def test_dropout_is_off_in_evaluation():
    block = ResidualMLP(6, dropout=0.5)
    x = image(2, 6, 4, 4)
    assert not torch.equal(block(x), block(x))
    block.eval()
    assert torch.equal(block(x), block(x))


def test_attention_is_that_of_torch():
    block = AttentionBlock(6)
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.copy_(image(*parameter.shape))
    theirs = nn.MultiheadAttention(6, 1, batch_first=True)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(block.qkv.weight[:, :, 0, 0])
        theirs.in_proj_bias.copy_(block.qkv.bias)
        theirs.out_proj.weight.copy_(block.out.weight[:, :, 0, 0])
        theirs.out_proj.bias.copy_(block.out.bias)
    x = image(2, 6, 3, 5)
    pixels = block.norm(x).flatten(2).transpose(1, 2)
    expected, _ = theirs(pixels, pixels, pixels)
    torch.testing.assert_close(block(x) - x, expected.transpose(1, 2).reshape(x.shape), rtol=1e-4, atol=1e-4)


def test_a_coarse_layer_sees_means_of_two_by_two_pixels():
    block = CoarseBlock(1)
    block.norm = nn.Identity()
    with torch.no_grad():
        block.conv.weight.zero_()
        block.conv.weight[0, 0, 1, 1] = 1.0  # the pixel itself
    x = image(1, 1, 5, 4)
    out = (block(x) - x)[0, 0]
    assert torch.allclose(out[0, 0], x[0, 0, :2, :2].mean().relu())
    assert torch.equal(out[0, 0], out[1, 1])
    assert torch.allclose(out[4, 3], x[0, 0, 4, 2:].mean().relu())  # the last row by itself


@pytest.mark.parametrize(("stride", "out", "squeezed"), [(1, 8, False), (1, 8, True), (2, 16, True)])
def test_an_inverted_residual_is_that_of_torchvision(stride, out, squeezed):
    torch.manual_seed(0)
    config = mobilenetv3.InvertedResidualConfig(8, 5, 32, out, squeezed, "HS", stride, 1, 1.0)
    theirs = mobilenetv3.InvertedResidual(config, nn.BatchNorm2d)
    ours = InvertedResidual(8, 32, 5, out=out, stride=stride, activation="hardswish", is_squeezed=squeezed)
    for own, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        own.data.copy_(other)
    x = torch.randn(4, 8, 7, 7)
    torch.testing.assert_close(ours(x), theirs(x))
