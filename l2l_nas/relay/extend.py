"""Sequences that go on token by token, so that nothing is computed twice, and that are as long as they are.

A layer whose outputs depend on earlier places has a method `extend(x, cache)`. It takes the next places of its input
[batch, new, ...] and what it returned for those before, None at the start; it returns what its forward gives at the new
places, and a tuple of tensors for the next call. All other layers treat every place alike: `is_placewise = True` in a
class says so, and of torch's own layers some are known.

[Note: any length] The length of a pool's inputs is a maximum where all layers of a path say that they take any length
up to it, and give at the places that there are what they give there in a longer text, whatever is padding behind. Those
say so that go on token by token, that treat every place alike, or that have `takes_any_length = True`; with False a
layer says that it does not, and with the name of an input that it does where its position reads that one behind its
first. What they say is tried out before it is relied on (`l2l_nas.training.lengths`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from l2l_nas.relay.device import Device
from l2l_nas.space.architecture import Architecture
from l2l_nas.space.pool import Layer, LayerPool, PerPool

_PLACEWISE = (nn.Linear, nn.RMSNorm, nn.Embedding, nn.Dropout, nn.Identity)
_TAKES_ANY: PerPool[dict[object, object]] = PerPool()  # what kinds of layers say


def extend_of(module: nn.Module) -> Callable[..., Any] | None:
    """A layer's method that goes on; None where it has none. Containers of torch's have another one of that name."""
    found = getattr(module, "extend", None)
    is_torch_s = str(getattr(found, "__module__", "")).partition(".")[0] == "torch"
    return found if callable(found) and not is_torch_s else None


def is_placewise(module: nn.Module) -> bool:
    """Whether a layer is known to treat every place [batch, place, ...] alike."""
    if isinstance(module, nn.Sequential):
        return all(map(is_placewise, module))
    if isinstance(module, nn.LayerNorm):
        return len(module.normalized_shape) == 1
    is_activation = type(module).__module__ == "torch.nn.modules.activation" and not list(module.children())
    return getattr(module, "is_placewise", False) is True or type(module) in _PLACEWISE or is_activation


def fixed_at(pool: LayerPool, architecture: Architecture) -> str | None:
    """The position whose layer does not say that it takes texts of any length; see [Note: any length]."""
    fixed = (layer for layer in pool.path(architecture) if not takes_any_length(pool, layer))
    return next((pool.positions[layer.position].name for layer in fixed), None)


def takes_any_length(pool: LayerPool, layer: Layer) -> bool:
    """Whether a layer says that it takes texts of any length; see [Note: any length]."""
    known, kind = _TAKES_ANY.setdefault(pool, {}), layer.candidate.kind
    if kind not in known:
        module = pool.build_module(layer, device="meta")
        known[kind] = getattr(module, "takes_any_length", extend_of(module) is not None or is_placewise(module))
    return known[kind] is True or known[kind] in pool.wiring.reads[layer.position][1:]


@dataclass
class Caches:
    """What the layers of a path know of the tokens so far.

    Args:
        ends: index of the layer in the path behind which only the last place is of use; None: there is none.
        on_host: whether they wait there, and are on the device for a visit only.

    Attributes:
        entries: by index of the layer and number of the micro-batch.
    """

    ends: int | None = None
    on_host: bool = False
    entries: dict[tuple[int, int], tuple[Tensor, ...]] = field(default_factory=dict)

    def caller(self, place: int, module: nn.Module, numbers: Iterator[int], device: Device) -> Callable[..., object]:
        """Runs a layer, by its index in the path, on the next places of one micro-batch after the other."""
        extend = extend_of(module)
        if extend is None:
            return module

        def call(x: Tensor, *others: Tensor) -> Tensor:
            del others  # such as the numbers of documents, of which a text that goes on is one
            at = place, next(numbers)
            before = self.entries.get(at)
            if before is not None and self.on_host:
                before = tuple(device.put(tensor) if tensor.dim() else tensor for tensor in before)
            given, after = extend(x, before)
            self.entries[at] = tuple(tensor.cpu() for tensor in after) if self.on_host else after
            wanted: Tensor = given[:, -1:] if place == self.ends else given
            return wanted

        return call
