"""Which layers change their buffers, so that those of the others stay where they are.

[Note: buffers that stay] A mask or a table is a buffer that no forward changes: nothing is to be saved after a visit,
or to be loaded again before the backward. What the probe saw change is taken to change always. For the others torch
counts the writes to each buffer (its version), so that a write which depends on data or step is seen when it happens;
from then on the layer is one that changes. Two kinds of write are not counted. The kernels of BatchNorm write to
statistics of one dimension: a layer with such a buffer of floating numbers is taken to change. Writes through `.data`,
or by kernels that torch knows nothing of, are found by comparing contents: at the first visits of a layer, and then
each time that their number has doubled. What the first ones find is saved. What is found later may have been missed
before, so it is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from l2l_nas.eps.layout import layout_of
from l2l_nas.errors import SpaceError
from l2l_nas.relay.slots import Template
from l2l_nas.space.pool import Layer, LayerPool
from l2l_nas.space.shapes import writes_buffers

_FIRST = 4  # visits of a layer whose buffers are compared in any case


def may_change(pool: LayerPool, layer: Layer) -> bool:
    """Whether the buffers of a layer are taken to change before it trains: see [Note: buffers that stay]."""
    buffers = layout_of(pool, layer.key).buffers
    is_kernels = any(len(entry.shape) == 1 and entry.dtype.is_floating_point for entry in buffers)
    return bool(buffers) and (is_kernels or writes_buffers(pool, layer))


def refuse_used_twice(pool: LayerPool, layers: Sequence[Layer]) -> None:
    """Raises SpaceError: a layer that changes its buffers is at two places of a path whose micro-batches are in chunks.

    Each of its uses begins with what the one before left, which is put together after all chunks of it.
    """
    seen: set[str] = set()
    for layer in layers:
        if layer.key in seen and may_change(pool, layer):
            raise SpaceError(
                "is used twice in this architecture and changes its buffers in training, which chunks and ranks cannot "
                "put together; train on one rank without chunks",
                position=pool.positions[layer.position].name,
                candidate=layer.candidate.name,
            )
        seen.add(layer.key)


@dataclass
class BufferWatch:
    """What is known of the buffers of a layer."""

    changes: bool  # whether they are taken to change
    visits: int = 0  # after which they were found as they were before

    def has_changed(self, template: Template, stored: Callable[[], Tensor], where: Mapping[str, str]) -> bool:
        """Whether a training visit changed the buffers of a template; see [Note: buffers that stay].

        Args:
            stored: what the visit began with, on the host.
            where: position and candidate, for the error.
        """
        if self.changes or template.has_written_buffers:
            self.changes = True
            return True
        self.visits += 1
        if self.visits > _FIRST and self.visits & (self.visits - 1):
            return False
        if template.holds_buffers(stored()):
            return False
        if self.visits > _FIRST:
            raise SpaceError(
                "changes a buffer in a way that torch does not know of, and not always, so that changes may have been "
                "lost; change it in place, not through .data: self.NAME.copy_(...)",
                **where,
            )
        self.changes = True
        return True
