"""Built-in families of layers: plain `nn.Module`s that keep the shape of what flows through them."""

from l2l_nas.layers.conv import AttentionBlock, CoarseBlock, ConvBlock, PoolBlock, ResidualMLP, SeparableBlock
from l2l_nas.layers.transformer import EncoderBlock, TokenEmbedding

__all__ = [
    "AttentionBlock",
    "CoarseBlock",
    "ConvBlock",
    "EncoderBlock",
    "PoolBlock",
    "ResidualMLP",
    "SeparableBlock",
    "TokenEmbedding",
]
