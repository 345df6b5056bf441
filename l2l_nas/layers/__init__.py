"""Built-in families of layers: plain `nn.Module`s that keep the shape of what flows through them."""

from l2l_nas.layers.conv import ConvBlock, ResidualMLP, SeparableBlock
from l2l_nas.layers.transformer import EncoderBlock, TokenEmbedding

__all__ = ["ConvBlock", "EncoderBlock", "ResidualMLP", "SeparableBlock", "TokenEmbedding"]
