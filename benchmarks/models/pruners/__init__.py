"""Other ways to make a language model smaller, written anew from their papers.

Each takes a network, which it changes, tokens to judge by, int64 [sequences, length], and the share of the layers'
parameters that goes; it returns the network.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor

from benchmarks.models.pruners.blocks import shortgpt
from benchmarks.models.pruners.llama import PlainLlama
from benchmarks.models.pruners.rotation import slicegpt
from benchmarks.models.pruners.units import flap, llm_pruner, one_width, wanda_sp

Prune = Callable[[PlainLlama, Tensor, float], PlainLlama]
PRUNERS: Mapping[str, Prune] = {
    "shortgpt": shortgpt,
    "flap": flap,
    "wanda_sp": wanda_sp,
    "slicegpt": slicegpt,
    "llm_pruner": llm_pruner,
    "uniform": one_width,
}
