"""The parameters of a pool, as rules about them see them: where each is, what it is called, what holds it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd

from l2l_nas.space.pool import Layer, LayerPool, PerPool

_NORMS = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)


@dataclass(frozen=True)
class Parameter:
    """A parameter of a layer, at one position.

    Args:
        position, candidate, name: its names.
        shape: of the whole parameter.
        place: the number of its position, from 0.
        num_positions: of the pool.
        module: class of the module that holds it, such as nn.Linear.
        is_output: whether the position writes an output of the pool.
        tied: the name that tied parameters share; "" where it is not tied.
    """

    position: str
    candidate: str
    name: str
    shape: tuple[int, ...]
    place: int
    num_positions: int
    module: type[nn.Module]
    is_output: bool
    tied: str = ""

    @property
    def path(self) -> str:
        """`position/candidate/name`, which patterns are compared with."""
        return f"{self.position}/{self.candidate}/{self.name}"

    @property
    def _leaf(self) -> str:
        return self.name.rpartition(".")[2]

    @property
    def is_norm(self) -> bool:
        """Whether it is of a normalisation layer: torch's, or of a class called so."""
        return issubclass(self.module, _NORMS) or "norm" in self.module.__name__.lower()

    @property
    def is_bias(self) -> bool:
        """Whether it is called a bias, as `in_proj_bias` is."""
        return self._leaf.endswith("bias")

    @property
    def is_embedding(self) -> bool:
        """Whether it is a table of embeddings, or called so, as `pos_embed` is."""
        is_called_so = "embedding" in self.module.__name__.lower() or "embed" in self._leaf.lower()
        return issubclass(self.module, nn.Embedding | nn.EmbeddingBag) or is_called_so

    @property
    def is_convolution(self) -> bool:
        """Whether it is the kernel of a convolution: of (outputs, inputs, and sizes in space)."""
        return len(self.shape) > 2 and issubclass(self.module, _ConvNd)

    @property
    def is_experts(self) -> bool:
        """Whether it is one matrix for each expert, the experts first: its module, or one around it, is called so."""
        is_called_so = "expert" in self.module.__name__.lower() or "expert" in self.name.lower()
        return len(self.shape) == 3 and not self.is_convolution and is_called_so

    @property
    def is_hidden_matrix(self) -> bool:
        """Whether it is a matrix (or kernel) between hidden values: no embedding, norm, bias or output layer."""
        is_matrix = len(self.shape) == 2 or self.is_convolution or self.is_experts
        return is_matrix and not (self.is_output or self.is_embedding or self.is_norm or self.is_bias)


_PARAMETERS: PerPool[dict[object, Mapping[str, Parameter]]] = PerPool()


def parameters_of(pool: LayerPool, layer: Layer) -> Mapping[str, Parameter]:
    """The parameters of a layer by name, under all its names; remembered for as long as the pool lives."""
    known = _PARAMETERS.setdefault(pool, {})
    key = layer.position, layer.candidate.name
    if key not in known:
        module = pool.build_module(layer, device="meta")
        position = pool.positions[layer.position]
        known[key] = {
            name: Parameter(
                position.name,
                layer.candidate.name,
                name,
                tuple(parameter.shape),
                layer.position,
                len(pool.positions),
                type(module.get_submodule(name.rpartition(".")[0])),
                not set(position.writes).isdisjoint(pool.wiring.outputs),
                layer.candidate.tied.get(name, ""),
            )
            for name, parameter in module.named_parameters(remove_duplicate=False)
        }
    return known[key]
