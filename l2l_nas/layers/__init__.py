"""Built-in families of layers: plain `nn.Module`s."""

from l2l_nas.layers.attention import Heads, ParallelBlock, SelfAttention
from l2l_nas.layers.conv import (
    AttentionBlock,
    CoarseBlock,
    ConvBlock,
    InvertedResidual,
    PoolBlock,
    ResidualMLP,
    SeparableBlock,
)
from l2l_nas.layers.delta import DeltaHeads, GatedDelta
from l2l_nas.layers.embedding import CappedHead, ClassHead, Embedding, MaskedHead
from l2l_nas.layers.experts import MixtureOfExperts, Routing
from l2l_nas.layers.feed_forward import FeedForward
from l2l_nas.layers.joins import ByName, Sum, UpBlock, Zero
from l2l_nas.layers.linear_map import LowRankMap
from l2l_nas.layers.rotary import Rotary
from l2l_nas.layers.state_space import LinearAttention, StateHeads, StateSpace
from l2l_nas.layers.style import Style

__all__ = [
    "AttentionBlock",
    "ByName",
    "CappedHead",
    "ClassHead",
    "CoarseBlock",
    "ConvBlock",
    "DeltaHeads",
    "Embedding",
    "FeedForward",
    "GatedDelta",
    "Heads",
    "InvertedResidual",
    "LinearAttention",
    "LowRankMap",
    "MaskedHead",
    "MixtureOfExperts",
    "ParallelBlock",
    "PoolBlock",
    "ResidualMLP",
    "Rotary",
    "Routing",
    "SelfAttention",
    "SeparableBlock",
    "StateHeads",
    "StateSpace",
    "Style",
    "Sum",
    "UpBlock",
    "Zero",
]
