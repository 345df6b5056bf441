"""The bytes that cross the link in a training step of an architecture: read off the plan that the relay carries out."""

from __future__ import annotations

from collections import Counter

from l2l_nas.cost.chain import Chain, Read, RelayShape
from l2l_nas.cost.closed_form import buffer_bytes, wire_bytes
from l2l_nas.cost.relay_path import RelayPath
from l2l_nas.eps.gradients import gradient_bytes
from l2l_nas.eps.layout import layout_of
from l2l_nas.relay.buffers import may_change
from l2l_nas.relay.path import PathLayer
from l2l_nas.relay.plan import Op, Step
from l2l_nas.relay.relay import Relay
from l2l_nas.space.architecture import Architecture

_COPIES = (Op.LOAD, Op.SEND, Op.SAVE, Op.STORE, Op.FETCH)


class StreamedBytes:
    """The bytes that a training step copies between host and device, both ways, in the midst of training one path.

    Counted are weights and gradients with the norm of each, buffers that training changes, and inputs that wait on the
    host; of states that live on the device, buffers alone. Not counted is what no architecture changes: the mini-batch
    and its loss. `sizes` are samples of each micro-batch.
    """

    def __init__(self, relay: Relay, sizes: tuple[int, ...]) -> None:
        self._relay = relay
        self._sizes = sizes
        self._copies: dict[tuple[tuple[PathLayer, ...], RelayShape], Counter[Step]] = {}

    def __call__(self, architecture: Architecture) -> float:
        """Of a step that follows one of the same architecture and comes before another."""
        path = RelayPath(self._relay, self._sizes, architecture, is_host=False)
        key = path.numbered.layers, path.shape(self._relay.usual_order)
        if key not in self._copies:
            self._copies[key] = _copies(Chain.of(*key, steps=2))  # the first step begins with empty slots
        return float(sum(count * self._bytes(step, path) for step, count in self._copies[key].items()))

    def _bytes(self, step: Step, path: RelayPath) -> int:
        pool, dtype = self._relay.pool, self._relay.config.precision.dtype
        if step.op in (Op.STORE, Op.FETCH):
            return sum(self._sizes) * path.value_bytes([step.value])
        layer = path.layers[step.layer % len(path.layers)]  # behind the path comes the first layer of the next one
        streamed = path.streamed(layer.states)
        match step.op:
            case Op.LOAD:
                return wire_bytes(pool, streamed, dtype) + buffer_bytes(pool, layer.key, dtype)
            case Op.SEND:  # gradients of what learns, always in float32, and the norm of each
                layouts = [layout_of(pool, state) for state in streamed]
                return sum(gradient_bytes(layout) for layout in layouts if layout.is_trainable)
            case _:  # SAVE; and a backward starts from the buffers that the forward started from
                return buffer_bytes(pool, layer.key, dtype) if may_change(pool, layer) else 0


def _copies(chain: Chain) -> Counter[Step]:
    """How often the last plan has each of its steps that copy something."""
    works = [chain.work[piece.work] for piece in chain.plans[-1]]
    steps = [work for work in works if not isinstance(work, Read)]
    saved = {step.layer for step in steps if step.op is Op.SAVE}
    return Counter(step for step in steps if step.op in _COPIES or (step.op is Op.BACKWARD and step.layer in saved))
