"""Built-in families of layers: plain `nn.Module`s that keep the shape of what flows through them."""

from l2l_nas.layers.conv import ConvBlock, PoolBlock, ResidualMLP, SeparableBlock
from l2l_nas.layers.transformer import EncoderBlock, TokenEmbedding

__all__ = ["ConvBlock", "EncoderBlock", "PoolBlock", "ResidualMLP", "SeparableBlock", "TokenEmbedding"]
