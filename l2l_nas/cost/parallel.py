"""Several devices: how they share a step of training, and what they exchange. Closed forms; nothing of it runs here.

Data parallel: each group of devices has some of the samples, and a ring sums the gradients. A ring has each rank send
and take 2 (n - 1) / n of the bytes (Patarasuk and Yuan, JPDC 69, 2009).

Tensor parallel: devices share the products of each layer, and a ring sums the values that a layer gives in the forward,
and the gradients of what it takes in the backward (Megatron-LM, arXiv 1909.08053, section 3).

Pipeline: stages have the layers in turn and hand on values and their gradients, a micro-batch at a time. With p stages
and m micro-batches a stage rests for (p - 1) / m of its work (GPipe, arXiv 1811.06965, section 2.3), and holds the
activations of at most p micro-batches (arXiv 2104.04473, section 2.2).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from l2l_nas.cost.hardware import Hardware
from l2l_nas.relay.measure import Work

SERVER = 8  # devices that reach each other without the network


@dataclass(frozen=True)
class Parallelism:
    """How devices share the work."""

    tensor: int = 1  # devices that share each layer
    data: int = 1  # groups that share a batch
    pipeline: int = 1  # groups that share the layers, one after the other
    overlapped: float = 0.0  # share of the sum of gradients that is hidden behind the backward

    @property
    def devices(self) -> int:
        """How many there are."""
        return self.tensor * self.data * self.pipeline


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
    between_bytes: float = 0.0  # the largest values between two layers
    micro_batches: int = 1


@dataclass(frozen=True)
class ParallelStep:
    """What a device does in a step, in seconds."""

    compute_s: float  # its share of the layers' work
    tensor_s: float  # sums of values within layers
    sends_s: float  # values and gradients to and from other stages
    bubble_s: float  # rest while a pipeline fills and empties
    data_s: float  # the sum of gradients, as far as nothing hides it
    update_s: float  # AdamW on its parameters

    @property
    def step_s(self) -> float:
        """Seconds of the whole step."""
        return self.compute_s + self.tensor_s + self.sends_s + self.bubble_s + self.data_s + self.update_s


def all_reduce_s(num_bytes: float, ranks: int, bandwidth: float) -> float:
    """A ring's time, where each rank has so many bytes a second, both ways together."""
    return 0.0 if ranks == 1 else 2 * (ranks - 1) / ranks * num_bytes / (bandwidth / 2)


def pipeline_share(stages: int, micro_batches: int) -> float:
    """The share of a step in which a stage of a pipeline works."""
    return micro_batches / (micro_batches + stages - 1)


def inside_bandwidth(hardware: Hardware) -> float:
    """Of a device to others of its server, both ways together: by their links, or through the host."""
    return hardware.peers or hardware.link_up + hardware.link_down


def ring_bandwidth(hardware: Hardware, ways: Parallelism) -> float:
    """Of a device to those that sum its gradients. Across servers the rings of a layer's ranks share the network.

    Ranks of a layer lie side by side, then groups of data, then stages, as Megatron-LM places them.
    """
    if ways.tensor * ways.data <= SERVER or not hardware.network:
        return inside_bandwidth(hardware)
    return hardware.network / ways.tensor


def send_bandwidth(hardware: Hardware, ways: Parallelism) -> float:
    """Of a device to the next stage's. Devices that send to another server at once share the network."""
    if ways.devices <= SERVER or not hardware.network:
        return inside_bandwidth(hardware)
    return hardware.network / min(SERVER, ways.tensor * ways.data)


@dataclass(frozen=True)
class RankLink:
    """What ranks exchange through."""

    bandwidth: float  # bytes a second that each takes from the others while it gives as many
    latency_s: float  # the least time of an exchange

    @classmethod
    def of(cls, hardware: Hardware, ranks: int) -> RankLink:
        """Between so many ranks, each with a device."""
        own = hardware.rank_bandwidth or inside_bandwidth(hardware) / 2
        if not hardware.rank_bandwidth and ranks > SERVER and hardware.network:
            own = hardware.network / 2 / SERVER
        return cls(own, hardware.rank_latency_s)

    def seconds(self, sizes: Iterable[float]) -> float:
        """Of exchanges in which each rank takes so many bytes."""
        return sum(self.latency_s + size / self.bandwidth for size in sizes)


def summed_bytes(num_bytes: float, ranks: int) -> float:
    """What each rank takes while a ring sums so many bytes."""
    return 2 * (ranks - 1) / ranks * num_bytes


def visit_seconds(visit: EqualVisits, hardware: Hardware, ways: Parallelism, precision: str) -> tuple[float, float]:
    """Of one visit, a device's share of the work, and the sum of values at its end."""
    share = 1 if visit.is_part else ways.tensor
    work = Work(visit.work.flops / share, visit.work.bytes / share, visit.work.kernels)
    summed_s = all_reduce_s(visit.summed_bytes, ways.tensor, inside_bandwidth(hardware))
    begun_s = visit.sums * hardware.rank_latency_s if ways.tensor > 1 else 0.0
    return hardware.seconds(work, precision), summed_s + begun_s


def parallel_step(work: StepWork, hardware: Hardware, ways: Parallelism, *, precision: str) -> ParallelStep:
    """Plain training by devices that share a step: each has its part of weights, gradients and moments."""
    compute_s = tensor_s = 0.0
    for visit in work.visits:
        visit_s, summed_s = visit_seconds(visit, hardware, ways, precision)
        compute_s += visit.count * visit_s / ways.pipeline
        tensor_s += visit.count * summed_s / ways.pipeline
    # forward and backward; a stage in the middle takes while it sends
    sends_s = 2 * work.between_bytes / (send_bandwidth(hardware, ways) / 2) if ways.pipeline > 1 else 0.0
    busy_s = compute_s + tensor_s + sends_s
    parts = ways.tensor * ways.pipeline
    gradients_s = all_reduce_s(work.gradient_bytes / parts, ways.data, ring_bandwidth(hardware, ways))
    return ParallelStep(
        compute_s,
        tensor_s,
        sends_s,
        busy_s / pipeline_share(ways.pipeline, work.micro_batches) - busy_s,
        (1 - ways.overlapped) * gradients_s,
        hardware.device_update_s(work.num_parameters / parts),
    )


def ways_of(devices: int) -> Iterator[Parallelism]:
    """All ways to share a step among so many devices; those that share a layer are of one server."""
    for tensor in range(1, min(devices, SERVER) + 1):
        for pipeline in range(1, devices // tensor + 1) if devices % tensor == 0 else ():
            if devices % (tensor * pipeline) == 0:
                yield Parallelism(tensor=tensor, pipeline=pipeline, data=devices // (tensor * pipeline))
