"""Several devices that share a step of plain training: what they exchange, in closed forms.

Data parallel: each group of devices has some of the samples, and a ring sums the gradients. A ring has each rank send
and take 2 (n - 1) / n of the bytes (Patarasuk and Yuan, JPDC 69, 2009).

Tensor parallel: devices share the products of each layer, and a ring sums the values that a layer gives in the forward,
and the gradients of what it takes in the backward (Megatron-LM, arXiv 1909.08053, section 3).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from l2l_nas.cost.hardware import Hardware
from l2l_nas.cost.ranks import SERVER, inside_bandwidth, summed_bytes
from l2l_nas.relay.measure import Work


@dataclass(frozen=True)
class Parallelism:
    """How devices share the work."""

    tensor: int = 1  # devices that share each layer
    data: int = 1  # groups that share a batch
    overlapped: float = 0.0  # share of the sum of gradients that is hidden behind the backward


ALONE = Parallelism()


@dataclass(frozen=True)
class EqualVisits:
    """Equal visits of layers."""

    work: Work  # of one, on one device that has all of the layer
    summed_bytes: float = 0.0  # of values, or of their gradients, that devices which share the layer sum at its end
    count: int = 1
    is_part: bool = False  # whether the work is that of one of the devices that share the layer
    sums: int = 0  # how many exchanges these bytes are; 0: their latency is left out


@dataclass(frozen=True)
class StepWork:
    """A step of training by one device that has everything."""

    visits: Sequence[EqualVisits]  # of all layers, forward and backward
    num_parameters: float  # that are updated
    gradient_bytes: float  # that groups sum


def all_reduce_s(num_bytes: float, ranks: int, bandwidth: float) -> float:
    """A ring's time, where each rank has so many bytes a second, both ways together."""
    return summed_bytes(num_bytes, ranks) / (bandwidth / 2)


def ring_bandwidth(hardware: Hardware, ways: Parallelism) -> float:
    """Of a device to those that sum its gradients. Across servers the rings of a layer's ranks share the network.

    Ranks of a layer lie side by side, then groups of data, as Megatron-LM places them.
    """
    if ways.tensor * ways.data <= SERVER or not hardware.network:
        return inside_bandwidth(hardware)
    return hardware.network / ways.tensor


def shared_step_s(work: StepWork, hardware: Hardware, ways: Parallelism, *, precision: str) -> float:
    """Seconds of a step of devices of which each has its part of weights, gradients and moments."""
    compute_s = tensor_s = 0.0
    for visit in work.visits:
        share = 1 if visit.is_part else ways.tensor
        own = Work(visit.work.flops / share, visit.work.bytes / share, visit.work.kernels)
        begun_s = visit.sums * hardware.rank_latency_s if ways.tensor > 1 else 0.0
        compute_s += visit.count * hardware.seconds(own, precision)
        tensor_s += visit.count * (all_reduce_s(visit.summed_bytes, ways.tensor, inside_bandwidth(hardware)) + begun_s)
    gradients_s = all_reduce_s(work.gradient_bytes / ways.tensor, ways.data, ring_bandwidth(hardware, ways))
    update_s = hardware.device_update_s(work.num_parameters / ways.tensor)
    return compute_s + tensor_s + (1 - ways.overlapped) * gradients_s + update_s
