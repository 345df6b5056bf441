"""What a run would take, before it: the simulator asked about a space's architectures, and about other settings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from l2l_nas.cost.closed_form import num_parameters, pool_bytes
from l2l_nas.cost.device_bytes import PaperDevice
from l2l_nas.cost.hardware import Hardware
from l2l_nas.cost.split_layers import PaperSplit
from l2l_nas.cost.step_time import Prediction, StepTime
from l2l_nas.cost.table import readable
from l2l_nas.eps.exchange import Alone, Exchange, Mesh, PaperRanks
from l2l_nas.eps.optimizers.base import Optimizer
from l2l_nas.eps.sharded import ShardedServer, server_of
from l2l_nas.errors import SettingError
from l2l_nas.relay.config import STASHES
from l2l_nas.relay.interface import cut_sizes
from l2l_nas.relay.mini_batch import StepShare
from l2l_nas.relay.plan import UpdatePolicy
from l2l_nas.relay.relay import Relay
from l2l_nas.space.architecture import Architecture
from l2l_nas.space.pool import LayerPool

_HALVES = 4  # micro-batches that are tried: the batch, half of it, ...
_ROLES = {
    "compute": "compute",
    "launches": "launching operations",
    "up": "the link to the device",
    "down": "the link from the device",
    "host": "updates on the host",
    "disk": "the disk",
    "issue": "the thread that issues work",
    "round": "rounding weights for each load",
    "net": "exchanges between ranks",
}
_LIFTS = {
    "compute": "a faster device, a lower relay.precision, more relay.budget (less is computed twice)",
    "launches": "more samples a micro-batch, larger layers, relay.layers=compile, more relay.budget",
    "up": "more samples a step, relay.precision=bf16, more relay.budget, a faster link",
    "down": "more samples a step, a faster link",
    "host": "more samples a step, a faster host",
    "disk": "more samples a step, relay.storage=ram, relay.resident=all, a faster disk",
    "issue": "more samples a micro-batch and a step, larger layers, more relay.budget",
    "round": "relay.storage=ram, more samples a step, relay.resident=all",
    "net": "more samples a step, relay.precision=bf16, more relay.budget (fewer loads), a faster network",
}


# the settings "relay." and "parallel.", dataclasses of a room above
RelaySettings = Any
MeshSettings = Any


@dataclass(frozen=True)
class MemoryLimits:
    """What may be used, in bytes."""

    device: int
    host: int


@dataclass(frozen=True)
class PlanRow:
    """An architecture (the smallest, median or largest) and its prediction; what does not fit is `missing`."""

    name: str
    architecture: Architecture
    parameters: int
    prediction: Prediction
    missing: str

    def to_json(self) -> dict[str, Any]:
        """As `plan.json` holds it."""
        found = self.prediction
        return {
            "name": self.name,
            "architecture": list(self.architecture.choices),
            "parameters": self.parameters,
            "step_ms": 1000 * found.simulation.step_s,
            "exposed_ms": 1000 * found.simulation.exposed_s,
            "binds": found.simulation.binds,
            "use": {lane: found.simulation.use(lane) for lane in found.simulation.busy_s},
            "launches": found.launches,
            "over_bound": found.simulation.over_bound,
            "step_ms_with_twice_the_rate": {lane: 1000 * step_s for lane, step_s in found.lifted_s.items()},
            "plain_ms": 1000 * found.plain_s,
            "checkpointed_ms": 1000 * found.checkpointed_s,
            **{name: value for name, value in asdict(found).items() if name.endswith("_bytes")},
            "fits": not self.missing,
            "missing": self.missing,
        }


@dataclass(frozen=True)
class Proposal:
    """Settings, as they are typed, under which the largest architecture fits."""

    settings: Mapping[str, Any]
    prediction: Prediction

    def to_json(self) -> dict[str, Any]:
        """As `plan.json` holds it."""
        return {
            "settings": dict(self.settings),
            "step_ms": 1000 * self.prediction.simulation.step_s,
            "device_bytes": self.prediction.device_bytes,
            "host_bytes": self.prediction.host_bytes,
        }


class Planner:
    """Asks the simulator about a pool on some hardware. Nothing is trained, and no device memory is used.

    Args:
        make_relay: a relay on a server, of settings, and a device and chunks by name.
        optimizer: its moments take memory.
        memory: what may be used of the hardware, by each rank.
        batch_size: samples of a step, of all ranks.
        mesh: of the ranks that share it; predictions are of the first one.
        gather_logits: see `SplitPool`.

    Attributes:
        left_whole: keys of layers that ranks which share layers have all of.

    Raises:
        SettingError: ranks that layers cannot be divided among.
    """

    def __init__(
        self,
        pool: LayerPool,
        make_relay: Callable[..., Relay],
        *,
        optimizer: Optimizer,
        hardware: Hardware,
        memory: MemoryLimits,
        batch_size: int,
        mesh: MeshSettings,
        gather_logits: bool | None = None,
    ) -> None:
        self.pool = pool
        self._make_relay = make_relay
        self.hardware = hardware
        self.memory = memory
        self.batch_size = batch_size
        self.mesh = mesh
        self.data = self.mesh.data or 1
        self._divided = PaperSplit(pool, mesh.tensor, gather_logits=gather_logits) if mesh.tensor > 1 else None
        self.left_whole = () if self._divided is None else self._divided.left_whole
        data: Exchange = PaperRanks(self.data) if self.data > 1 else Alone()
        if self._divided is None:
            self._server = server_of(pool, data, optimizer=optimizer, seed=0)
        else:
            tensor = PaperRanks(self.mesh.tensor)
            ranks = Mesh(PaperRanks(self.data * self.mesh.tensor), data, tensor)
            self._server = ShardedServer(self._divided.pool, ranks, optimizer=optimizer, seed=0)

    @property
    def is_ranked(self) -> bool:
        """Whether several ranks share a step."""
        return self.data * self.mesh.tensor > 1

    def relay(self, conf: RelaySettings) -> Relay:
        """A relay on paper, with these settings.

        Raises:
            SettingError: a setting that makes no sense.
        """
        if self.is_ranked:
            conf = replace(conf, resident="none")  # states of several ranks live on the host
        return self._make_relay(self._server, conf, device=PaperDevice(self.memory.device), chunks=self.mesh.chunks)

    def step_time(self, conf: RelaySettings, micro_batch: int) -> StepTime:
        """Predicts with these settings.

        Raises:
            SettingError: a setting that makes no sense, or a device budget that is too small.
        """
        sizes = cut_sizes(self.batch_size, micro_batch)
        if self.data > 1:
            sizes = StepShare.of(self._server.exchange, sizes, self.mesh.chunks or self.data).most_sizes
        relay = self.relay(conf)
        relay.settle_memory(sizes)
        in_files = conf.storage != "ram"
        return StepTime(relay, sizes, self.hardware, in_files=in_files, divided=self._divided)

    def pool_bytes(self, conf: RelaySettings) -> int:
        """The whole pool, or a rank's part: weights, moments, buffers, and, in memory, weights in another dtype."""
        precision = conf.precision if conf.storage == "ram" else "fp32"
        relay = self.relay(type(conf)(budget="none", precision=precision))
        return pool_bytes(relay, relay.pool.layers)

    def rows(self, step_time: StepTime, chosen: Mapping[str, Architecture]) -> list[PlanRow]:
        """Predictions, and whether each fits."""
        found = []
        for name, architecture in chosen.items():
            prediction = step_time.predict(architecture)
            parameters = num_parameters(self.pool, architecture)
            found.append(PlanRow(name, architecture, parameters, prediction, self.missing(prediction)))
        return found

    def missing(self, prediction: Prediction) -> str:
        """What does not fit; empty where all does."""
        memories = [
            ("device", prediction.device_bytes, self.memory.device),
            ("host", prediction.host_bytes, self.memory.host),
        ]
        sizes = [
            (name, *(readable("device_bytes", size) for size in (needed, there)))
            for name, needed, there in memories
            if needed > there
        ]
        return "; ".join(f"{needed} of {name} memory, there are {there}" for name, needed, there in sizes)

    def proposals(self, conf: RelaySettings, micro_batch: int, architecture: Architecture) -> list[Proposal]:
        """Settings under which an architecture fits, fastest first; each needs less of the device than those before.

        Args:
            conf: precision, clipping and storage stay as they are here.
            micro_batch: and the other settings are among those that are tried.
            architecture: the one that asks for most, for all others to fit too.
        """
        found: list[Proposal] = []
        for size in _micro_batches(self.batch_size, micro_batch):
            for other in _settings(conf, self.memory.device):
                try:
                    step_time = self.step_time(other, size)
                except SettingError:
                    continue  # a budget that is too small for micro-batches of this size
                for update in _updates(conf):
                    found += self._fitting(step_time, replace(other, update=update.value), size, architecture)
        found.sort(key=lambda one: (one.prediction.simulation.step_s, one.prediction.device_bytes))
        least = float("inf")
        best: list[Proposal] = []
        for one in found:
            if one.prediction.device_bytes < least:
                least = one.prediction.device_bytes
                best.append(one)
        return best

    def _fitting(
        self, step_time: StepTime, conf: RelaySettings, micro_batch: int, architecture: Architecture
    ) -> Iterator[Proposal]:
        """With no states on the device, and with all of them: what fits of both."""
        relay = step_time.relay
        relay.reconfigure(update=conf.update, resident=None)
        streamed = step_time.predict(architecture)
        if not self.missing(streamed):
            yield Proposal(_written(replace(conf, resident="none"), micro_batch), streamed)
        if self.hardware.lanes == "inline" or streamed.device_bytes >= self.memory.device or self.is_ranked:
            return
        relay.reconfigure(resident="all")
        resident = step_time.predict(architecture)
        if resident.resident_bytes and not self.missing(resident):
            yield Proposal(_written(replace(conf, resident="all"), micro_batch), resident)


def _micro_batches(batch_size: int, given: int) -> list[int]:
    halves = [batch_size >> times for times in range(_HALVES) if batch_size >> times]
    return list(dict.fromkeys((min(given, batch_size), *halves)))


def _updates(conf: RelaySettings) -> tuple[UpdatePolicy, ...]:
    waits = conf.precision == "fp16" or (conf.clip > 0 and conf.clip_scope == "global")
    return (UpdatePolicy.EXACT,) if waits else (UpdatePolicy.EXACT, UpdatePolicy.EAGER)


def _settings(conf: RelaySettings, device_bytes: int) -> Iterator[RelaySettings]:
    """What may stay on the device: all, what fits, or the least."""
    yield replace(conf, slots=2, budget="all", stash="device", keep=1)
    for slots in (2, 3):
        for budget in (device_bytes, device_bytes // 2):  # the other half for states
            for stash in STASHES:
                yield replace(conf, slots=slots, budget=str(budget), stash=stash, keep=1)
        for stash in STASHES:
            yield replace(conf, slots=slots, budget="none", stash=stash, keep=1)


def _written(conf: RelaySettings, micro_batch: int) -> dict[str, Any]:
    names = ("slots", "stash", "budget", "resident", "update")
    return {"train.micro_batch": micro_batch, **{f"relay.{name}": getattr(conf, name) for name in names}}


def describe_binding(prediction: Prediction) -> str:
    """What binds, and what would lift it."""
    simulation = prediction.simulation
    lane = simulation.binds
    gain = 1 - prediction.lifted_s[lane] / simulation.step_s if simulation.step_s else 0.0
    what = "launches" if lane == "compute" and prediction.launches > 0.5 else lane
    return (
        f"{_ROLES[what]} binds ({simulation.use(lane):.0%} of the step); if it were twice as fast, a step would "
        f"take {gain:.0%} less; what helps: {_LIFTS[what]}"
    )
