"""Transformers as figures: what a simulation of large models needs, without building one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.machines.sharing import ALONE, EqualVisits, Parallelism, StepWork, shared_step_s
from l2l_nas.cost.chain import Chain, RelayShape
from l2l_nas.cost.hardware import Hardware
from l2l_nas.cost.simulator import SAVING, LayerSeconds, PathSeconds, Simulation, simulate
from l2l_nas.relay.measure import Work
from l2l_nas.relay.path import PathLayer
from l2l_nas.relay.plan import UpdateOrder

# bytes a token and unit of width that the operations of a layer between its products write in 16 bits: what they keep
# for the backward (Korthikanti et al., arXiv 2205.05198, table 2, attention in one kernel); each is read again once
BETWEEN = 34
KERNELS = 20  # of a layer's forward
WIRE_BYTES: Mapping[str, int] = {"fp32": 4, "bf16": 2, "fp16": 2}
GRADIENT_BYTES = 4


@dataclass(frozen=True)
class Transformer:
    """A stack of equal layers.

    Args:
        hidden: width.
        layers: how many.
        sequence: tokens of a sample.
        vocabulary: different tokens, of the embedding that input and output share; 0: none.
    """

    hidden: int
    layers: int
    sequence: int = 1024
    vocabulary: int = 0

    @property
    def layer_parameters(self) -> int:
        """Weights of one layer."""
        return 12 * self.hidden**2 + 13 * self.hidden

    @property
    def num_parameters(self) -> int:
        """Weights of all: layers, tokens and places."""
        return self.layers * self.layer_parameters + (self.vocabulary + self.sequence) * self.hidden

    def forward(self, tokens: int, *, micro_batches: int = 1) -> Work:
        """Of one layer on these tokens: products of weights, and of attention."""
        flops = 24.0 * tokens * self.hidden**2 + 4.0 * tokens * self.sequence * self.hidden
        return Work(flops, 2.0 * BETWEEN * tokens * self.hidden, KERNELS * micro_batches)

    def output(self, tokens: int) -> Work:
        """Of the products with the vocabulary."""
        return Work(2.0 * tokens * self.hidden * self.vocabulary)

    def stash_bytes(self, tokens: int, itemsize: int) -> int:
        """Of one layer's input."""
        return tokens * self.hidden * itemsize


def resident_step_s(
    model: Transformer,
    hardware: Hardware,
    *,
    tokens: int,
    precision: str,
    recompute: bool = False,
    micro_batches: int = 1,
    ways: Parallelism = ALONE,
) -> float:
    """A step of resident training: forward, backward, the vocabulary, AdamW on the device, and what devices exchange.

    Args:
        tokens: of a group of devices that shares a model.
        recompute: run each layer again in the backward.
    """
    passes = 4 if recompute else 3
    values = 2 * tokens * model.hidden
    work = StepWork(
        [
            # attention and the network behind it are split each by itself: two sums a layer
            EqualVisits(model.forward(tokens, micro_batches=micro_batches), 2 * values, passes * model.layers),
            EqualVisits(model.output(tokens), count=3),
        ],
        model.num_parameters,
        2 * model.num_parameters,
    )
    return shared_step_s(work, hardware, ways, precision=precision)


def relay_step(
    model: Transformer,
    hardware: Hardware,
    shape: RelayShape,
    *,
    tokens: int,
    precision: str,
    micro_batches: int = 1,
    ranks: int = 1,
    is_resident: bool = False,
) -> Simulation:
    """A simulated step of the relay on the layers, without the vocabulary.

    Args:
        tokens: of each device.
        ranks: devices that share each layer's state: each loads its part over its own link and gathers the others'.
        is_resident: whether states live on the device, where they are updated.
    """
    forward = hardware.seconds(model.forward(tokens, micro_batches=micro_batches), precision)
    weights, gradients = (size * model.layer_parameters for size in (WIRE_BYTES[precision], GRADIENT_BYTES))
    between = (ranks - 1) / ranks / (hardware.peers / 2) if ranks > 1 else 0.0
    layer = LayerSeconds(
        weights / ranks / hardware.link_up + weights * between,
        forward,
        2 * forward,
        gradients / ranks / hardware.link_down + gradients * between,
    )
    if is_resident:
        layer = LayerSeconds(0.0, forward, 2 * forward + hardware.device_update_s(model.layer_parameters), 0.0)
    path = [
        PathLayer(f"l{i}", (f"l{i}",), reads=(f"v{i - 1}" if i else "x",), writes=(f"v{i}",))
        for i in range(model.layers)
    ]
    updated_s = 0.0 if is_resident else model.layer_parameters / ranks / hardware.host_updates
    updates: dict[int | str, float] = {f"l{i}": updated_s for i in range(model.layers)}
    is_ahead = shape.update is UpdateOrder.AHEAD
    copies = {state: SAVING * seconds for state, seconds in updates.items()} if is_ahead else {}
    moved = model.stash_bytes(tokens, WIRE_BYTES[precision])
    values = dict.fromkeys(shape.spill.values, (moved / hardware.link_down, moved / hardware.link_up))
    seconds = PathSeconds(
        [layer] * model.layers,
        updates,
        values,
        issue=hardware.step_s,
        copy=hardware.copy_s,
        batches=micro_batches,
        copies=copies,
    )
    return simulate(Chain.of(path, shape), seconds, lanes=hardware.lanes)


def least_tokens(model: Transformer, hardware: Hardware, *, precision: str) -> int:
    """From how many tokens a step no lane has more work than compute, where every layer is streamed; 0: never.

    Compute grows with the tokens, the other lanes do not.
    """
    shape = RelayShape(slots=3)
    low, high = 1, 1
    while not _computes(model, hardware, shape, tokens=high, precision=precision):
        low, high = high, 2 * high
        if high > 1 << 40:
            return 0
    while high - low > max(1, low // 50):
        middle = (low + high) // 2
        if _computes(model, hardware, shape, tokens=middle, precision=precision):
            high = middle
        else:
            low = middle
    return high


def _computes(model: Transformer, hardware: Hardware, shape: RelayShape, *, tokens: int, precision: str) -> bool:
    found = relay_step(model, hardware, shape, tokens=tokens, precision=precision).busy_s
    return found["compute"] >= max(found.values()) * (1 - 1e-9)


def host_parameters(host_bytes: float, bytes_each: float) -> float:
    """How many parameters fit into host memory.

    Args:
        bytes_each: of a parameter: 12 with AdamW in fp32, 14 with a 16-bit copy, 16 with gradients in fp32.
    """
    return math.floor(host_bytes / bytes_each)
