from __future__ import annotations

import pytest
import torch
from torch import nn

from search_spaces.encoder_decoder import EncoderBlock


def copied(block: EncoderBlock, hidden: int, heads: int, feedforward: int) -> nn.TransformerEncoderLayer:
    """PyTorch's own layer with the same weights."""
    reference = nn.TransformerEncoderLayer(
        hidden, heads, feedforward, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
    )
    pairs = {
        "self_attn.in_proj_weight": block.qkv.weight,
        "self_attn.in_proj_bias": block.qkv.bias,
        "self_attn.out_proj.weight": block.out.weight,
        "self_attn.out_proj.bias": block.out.bias,
        "linear1.weight": block.up.weight,
        "linear1.bias": block.up.bias,
        "linear2.weight": block.down.weight,
        "linear2.bias": block.down.bias,
        "norm1.weight": block.norm1.weight,
        "norm1.bias": block.norm1.bias,
        "norm2.weight": block.norm2.weight,
        "norm2.bias": block.norm2.bias,
    }
    reference.load_state_dict({name: value.detach().clone() for name, value in pairs.items()})
    return reference


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("hidden", "heads"), [(16, 4), (12, 1)])
def test_an_encoder_block_equals_pytorch_s_own_layer(causal, hidden, heads):
    generator = torch.Generator().manual_seed(0)
    block = EncoderBlock(hidden, heads=heads, feedforward=20, causal=causal)
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / 3)
    reference = copied(block, hidden, heads, 20)
    x = torch.randn(3, 7, hidden, generator=generator)
    mask = nn.Transformer.generate_square_subsequent_mask(7) if causal else None
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    got, expected = block(ours), reference(theirs, src_mask=mask, is_causal=causal)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
    got.square().sum().backward()
    expected.square().sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-3)


def test_a_causal_token_sees_only_earlier_ones():
    block = EncoderBlock(8, heads=2, feedforward=8, causal=True).eval()
    x = torch.randn(1, 5, 8, generator=torch.Generator().manual_seed(0))
    other = x.clone()
    other[0, 3:] += 1
    with torch.no_grad():
        assert torch.equal(block(x)[0, :3], block(other)[0, :3])
        assert not torch.equal(block(x)[0, 3:], block(other)[0, 3:])
