"""The time of a training step that the simulator predicts, for an architecture under a relay's settings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from l2l_nas.cost.chain import Chain
from l2l_nas.cost.closed_form import buffer_bytes, state_bytes, wire_bytes
from l2l_nas.cost.device_bytes import device_bytes, moved_bytes, owned_bytes, plain_activations
from l2l_nas.cost.hardware import Hardware
from l2l_nas.cost.ranks import RankLink, summed_bytes
from l2l_nas.cost.relay_path import RelayPath
from l2l_nas.cost.simulator import SAVING, LayerSeconds, PathSeconds, Simulation, lifted, simulate
from l2l_nas.cost.split_layers import PaperSplit
from l2l_nas.eps.file_storage import FRAMES
from l2l_nas.eps.gradients import gradient_bytes
from l2l_nas.eps.layout import Layout, layout_of
from l2l_nas.eps.sharded import ShardedServer
from l2l_nas.relay.buffers import may_change
from l2l_nas.relay.config import RelayConfig
from l2l_nas.relay.exchanges import Exchanges
from l2l_nas.relay.measure import Work
from l2l_nas.relay.path import Name
from l2l_nas.relay.plan import Op, UpdateOrder
from l2l_nas.relay.relay import Relay
from l2l_nas.space.architecture import Architecture
from l2l_nas.space.pool import Layer


@dataclass(frozen=True)
class Prediction:
    """What a training step of an architecture is predicted to take."""

    simulation: Simulation  # of a step in the midst of training
    lifted_s: Mapping[str, float]  # by lane, the step's time if that lane were twice as fast
    plain_s: float  # plain resident training's, all of it on the device; the memory for it may not be there
    checkpointed_s: float  # the same with every layer run again in the backward
    device_bytes: int  # device memory that the step needs
    owned_bytes: int  # of it, slots and stash, which the relay owns
    resident_bytes: int  # of it, states that live there, with moments
    plain_bytes: int  # device memory that plain training needs: weights, gradients, moments, and activations
    activation_bytes: int  # of it, activations of a micro-batch
    # of this architecture's states, or of the frames for states in files; of gradients and values that wait, and of
    # what is saved before updates ahead of the check
    host_bytes: int
    # those of them that are pinned; slabs of pinned memory are larger, up to twice, and the mini-batch passes through
    # them, too
    pinned_bytes: int
    disk_bytes: int  # of this architecture's states in files; 0 where they are in memory
    launches: float  # share of the device's time in which it waits for operations to be launched
    exchanged_bytes: int = 0  # that this rank takes from the others, and gives them


_LayerVisits = tuple[Work, Work]  # forward and backward, each of all micro-batches


class StepTime:
    """Predicts the step times of architectures.

    Args:
        sizes: samples of each micro-batch.
        in_files: whether states are in files, from which they are read for each load and each update; None: as the
            relay's.
        divided: what the relay's pool is a part of, if ranks share each layer.

    The prediction is of one rank, if the relay's server is one of several. `sizes` are its own.

    Attributes:
        relay: `predict` goes by what its `update` and `resident` are when it is called.
    """

    def __init__(
        self,
        relay: Relay,
        sizes: tuple[int, ...],
        hardware: Hardware,
        *,
        in_files: bool | None = None,
        divided: PaperSplit | None = None,
    ) -> None:
        self.relay = relay
        self.hardware = hardware
        self._sizes = sizes
        self._in_files = not relay.server.storage.is_lasting if in_files is None else in_files
        self._is_host = hardware.lanes == "inline"
        # threads copy and update beside the layers where they wait for a disk, or for other ranks
        waits = self._in_files or (relay.server.exchange.size > 1 and relay.config.execution.lanes != "inline")
        self._lanes = "threads" if self._is_host and waits else hardware.lanes
        self._divided = divided
        self._ranks, self._tensor = relay.server.exchange.size, 1 if divided is None else divided.ranks
        self._is_sharded = isinstance(relay.server, ShardedServer)
        self._link = RankLink.of(hardware, self._ranks * self._tensor)
        chunks = (relay.chunks or 1) // self._ranks
        self._exchanges = Exchanges(relay.server, relay.config.precision.dtype, chunks=chunks)
        self._chains: dict[object, Chain] = {}
        self._steps_s: dict[tuple[Architecture, RelayConfig], float] = {}

    def __call__(self, architecture: Architecture) -> float:
        """Milliseconds of a step in the midst of training this architecture."""
        key = architecture, self.relay.config
        if key not in self._steps_s:
            path = self._path(architecture)
            seconds = self._path_seconds(path, self._visits(path))
            self._steps_s[key] = simulate(self._chain(path), seconds, lanes=self._lanes).step_s
        return 1000 * self._steps_s[key]

    def latency_ms(self, architecture: Architecture) -> float:
        """Milliseconds of a forward of the plain network on the device, for the same samples."""
        return 1000 * sum(self._seconds(forward) for forward, _ in self._visits(self._path(architecture)))

    def predict(self, architecture: Architecture, *, with_spans: bool = False) -> Prediction:
        """All that is known before a step is run."""
        relay, path = self.relay, self._path(architecture)
        layouts = {state: layout_of(relay.pool, state) for state in path.states}
        visits = self._visits(path)
        chain, seconds = self._chain(path), self._path_seconds(path, visits)
        # of each layer, the gradients that wait on the host
        streamed: dict[Name, Layout] = {
            n: relay.server.held_layout(state) for n, state in enumerate(path.numbered.states) if not path.is_resident
        }
        gradients: list[dict[Name, int]] = [
            {number: gradient_bytes(streamed[number]) for number in layer.trainable if number in streamed}
            for layer in path.numbered.layers
        ]
        # those of states of which each rank has all are in blocks from the layer's backward on, where it is on the host
        whole = {n for n, state in enumerate(path.numbered.states) if not relay.server.is_sharded(state)}
        stay = whole if self._is_host and self._is_sharded else set()
        visited: list[dict[Name, int]] = [{n: size for n, size in one.items() if n in stay} for one in gradients]
        names = path.numbered if with_spans else None
        simulation = simulate(chain, seconds, lanes=self._lanes, path=names, gradients=gradients, visited=visited)
        trained = sum(layout.num_parameters for layout in layouts.values() if layout.is_trainable)
        forward_s, backward_s = (sum(map(self._seconds, each)) for each in zip(*visits, strict=True))
        plain_s = forward_s + backward_s + self.hardware.device_update_s(trained)
        own_bytes = sum(state_bytes(relay, state) for state in path.states)
        weight_bytes = sum(layout.parameter_bytes for layout in layouts.values())
        activation_bytes = plain_activations(path)
        waiting_bytes = simulation.staged_bytes
        if self._order is UpdateOrder.AHEAD:  # all gradients wait until they are checked
            waiting_bytes = sum({state: size for layer in gradients for state, size in layer.items()}.values())
        host_bytes, pinned_bytes = self._host_bytes(path, waiting_bytes)
        return Prediction(
            simulation,
            lifted(chain, seconds, lanes=self._lanes),
            plain_s,
            plain_s + forward_s,
            device_bytes(path),
            owned_bytes(path),
            moved_bytes(path),
            own_bytes + weight_bytes + activation_bytes,
            activation_bytes,
            host_bytes,
            pinned_bytes,
            own_bytes if self._in_files else 0,
            self._launches(visits),
            self._exchanged_bytes(path, chain),
        )

    def _exchanged_bytes(self, path: RelayPath, chain: Chain) -> int:
        """That this rank takes in the last step of a chain: the same table as of seconds, of bytes."""
        table = PathSeconds(self._nets(path, sum), {}, batches=len(self._sizes))
        works = [chain.work[piece.work] for piece in chain.plans[-1]]
        return round(self._agreed(path, sum) + sum(table.net(work) for work in works))

    def _agreed(self, path: RelayPath, cost: Callable[[Iterable[float]], float]) -> float:
        """What ranks agree on in a step."""
        losses = self._exchanges.losses(len(path.layers) + 1)  # the next path begins with the same layer
        every = (self._exchanges.counts(len(self._sizes)), self._exchanges.agreement, losses)
        return cost([message.num_bytes for message in every if message.num_bytes])

    def _nets(self, path: RelayPath, cost: Callable[[Iterable[float]], float]) -> list[LayerSeconds]:
        """By layer, what exchanges cost, of which each has so many bytes, and nothing else."""
        if self._ranks == self._tensor == 1:
            return [LayerSeconds(0.0, 0.0, 0.0, 0.0)] * len(path.layers)

        def exchanged(op: Op, place: int) -> float:
            return cost([message.num_bytes for message in self._exchanges.of(op, place, path.layers)])

        nets = []
        for place, layer in enumerate(path.layers):
            forward, backward = (cost(sizes) for sizes in self._sums(path, place, layer))
            nets.append(
                LayerSeconds(
                    0.0, 0.0, 0.0, 0.0,
                    gather=exchanged(Op.LOAD, place),
                    reduce=exchanged(Op.SEND, place),
                    combine=exchanged(Op.SAVE, place),
                    forward_sums=forward,
                    backward_sums=backward,
                )
            )  # fmt: skip
        return nets

    def _sums(self, path: RelayPath, place: int, layer: Layer) -> tuple[list[float], list[float]]:
        """Of all micro-batches, bytes of each sum over the ranks that share a layer, as a rank takes them."""
        if self._divided is None:
            return [], []
        learns = not path.learning.isdisjoint(path.numbered.layers[place].reads)
        inputs, dtype = self.relay.stash.inputs_of(layer), self.relay.config.precision.dtype
        sums = self._divided.sums(layer, inputs, max(self._sizes), dtype=dtype, needs_gradient=learns)
        shares = [size / max(self._sizes) for size in self._sizes]
        forward, backward = (
            [summed_bytes(share * size, self._tensor) for share in shares for size in sizes] for sizes in sums
        )
        return forward, backward

    def _host_bytes(self, path: RelayPath, gradient_bytes: int) -> tuple[int, int]:
        """Host memory, and how much of it is pinned, where so many bytes of gradients wait."""
        relay = self.relay
        spilled = path.memory.spilled
        crossing = sum(relay.stash.size_bytes(value, self._sizes) for value in spilled) + gradient_bytes
        stored_bytes = wire_bytes(relay.pool, self._stored(path), relay.config.precision.dtype)
        saved_bytes = path.saved_bytes(path.streamed(path.states)) if self._order is UpdateOrder.AHEAD else 0
        if self._in_files:
            states_bytes = FRAMES * max(state_bytes(relay, state) for state in relay.pool.states)
        else:
            states_bytes = sum(state_bytes(relay, state) for state in path.states)
            # masters in fp32 cross the link themselves
            states_bytes += 0 if relay.precision == "fp32" else stored_bytes
        is_pinned = self.hardware.lanes == "streams"
        passed_bytes = self._exchanges.memory_bytes(path.layers)
        return states_bytes + saved_bytes + crossing + passed_bytes, crossing + stored_bytes if is_pinned else 0

    def _launches(self, visits: Sequence[_LayerVisits]) -> float:
        """Share of the device's time in visits whose launches take longer than their work."""
        precision, at_once = self.relay.precision, replace(self.hardware, kernel_s=0.0)
        every = [visit for forward, backward in visits for visit in (forward, forward, backward)]  # with the recompute
        waiting = [visit for visit in every if self._seconds(visit) > at_once.seconds(visit, precision)]
        return sum(map(self._seconds, waiting)) / max(sum(map(self._seconds, every)), 1e-12)

    def _path(self, architecture: Architecture) -> RelayPath:
        return RelayPath(self.relay, self._sizes, architecture, is_host=self._is_host)

    def _chain(self, path: RelayPath) -> Chain:
        key = path.numbered.layers, path.shape(self._order, frames=FRAMES if self._in_files else 0)
        if key not in self._chains:
            self._chains[key] = Chain.of(*key)
        return self._chains[key]

    @property
    def _order(self) -> UpdateOrder:
        """As the relay chooses it on such a machine while nothing is clipped."""
        overlaps = self.hardware.lanes == "streams" and not self._in_files and not self.relay.has_states_on_device
        return self.relay.config.update.order(overlaps=overlaps)

    def _stored(self, path: RelayPath) -> list[str]:
        """States whose weights are stored as they cross the link: all of a path, or none with `pinned=None`.

        See [Note: what crosses] in `eps/wire.py`.
        """
        relay = self.relay
        if self._in_files or (relay.precision == "fp32" and self.hardware.lanes != "streams"):
            return []
        if not relay.wire.stores:
            return []
        return [state for state in path.streamed(path.states) if not relay.server.is_sharded(state)]

    def _seconds(self, visit: Work) -> float:
        return self.hardware.seconds(visit, self.relay.precision)

    def _visits(self, path: RelayPath) -> list[_LayerVisits]:
        share = sum(self._sizes) / max(self._sizes)

        def of_all_batches(work: Work) -> Work:
            return Work(work.flops * share, work.bytes * share, work.kernels * len(self._sizes))

        return [(of_all_batches(needs.forward), of_all_batches(needs.backward)) for needs in path.needs()]

    def _path_seconds(self, path: RelayPath, visits: Sequence[_LayerVisits]) -> PathSeconds:
        relay, hardware = self.relay, self.hardware
        stored = frozenset(self._stored(path))
        updates: dict[Name, float] = {}
        files: dict[Name, tuple[float, float, float]] = {}
        for number, state in enumerate(path.numbered.states):
            if path.is_resident:
                updates[number] = 0.0
                continue
            layout = relay.server.held_layout(state)
            updates[number] = layout.num_parameters / hardware.host_updates
            if self._in_files:
                weights, every = layout.parameter_bytes + layout.buffer_bytes, state_bytes(relay, state)
                rate = hardware.disk
                files[number] = (weights / rate, (every - weights) / rate, every / rate)
        is_ahead = self._order is UpdateOrder.AHEAD
        spilled = {n: relay.stash.size_bytes(path.numbered.value(n), self._sizes) for n in path.spill.values}
        nets = self._nets(path, self._link.seconds)
        return PathSeconds(
            [
                self._layer_seconds(layer, path, *pair, stored, net)
                for layer, pair, net in zip(path.layers, visits, nets, strict=True)
            ],
            updates,
            {number: (size / hardware.link_down, size / hardware.link_up) for number, size in spilled.items()},
            issue=hardware.step_s,
            copy=hardware.copy_s,
            batches=len(self._sizes),
            copies={number: SAVING * update_s for number, update_s in updates.items()} if is_ahead else {},
            files=files,
            agree=self._agreed(path, self._link.seconds),
        )

    def _layer_seconds(
        self,
        layer: Layer,
        path: RelayPath,
        forward: Work,
        backward: Work,
        stored: frozenset[str],
        net: LayerSeconds,
    ) -> LayerSeconds:
        """What crosses the link, and what the device computes: updates of what lives there, too.

        Args:
            net: has what is exchanged between ranks.
        """
        pool, hardware = self.relay.pool, self.hardware
        streamed = path.streamed(layer.states)
        trained = {state: layout_of(pool, state) for state in layer.states if layout_of(pool, state).is_trainable}
        copied_s, round_s = self._load_seconds(streamed, stored)
        buffers = buffer_bytes(pool, layer.key, self.relay.config.precision.dtype)
        # where the device is the host, gradients stay where they are, unless they are summed over ranks
        sent = (
            0
            if self._is_host and not self._is_sharded
            else sum(trained[state].parameter_bytes for state in streamed if state in trained)
        )
        updated = sum(layout.num_parameters for layout in trained.values()) if path.is_resident else 0
        return replace(
            net,
            load=copied_s + buffers / hardware.link_up,
            forward=self._seconds(forward),
            backward=self._seconds(backward) + hardware.device_update_s(updated),
            send=self._added_s(trained) + sent / hardware.link_down,
            save=(buffers if may_change(pool, layer) else 0) / hardware.link_down,
            round=round_s,
        )

    def _added_s(self, states: Iterable[str]) -> float:
        """The host's time to add what all ranks sent of gradients: each number is read and written once."""
        if self._ranks == 1:
            return 0.0
        parts = sum(self.relay.server.held_layout(state).parameter_bytes for state in states)
        return 2 * self._ranks * parts / self.hardware.host_bandwidth

    def _load_seconds(self, states: Sequence[str], stored: frozenset[str]) -> tuple[float, float]:
        """Of the weights of states: on the link, and in the thread of the loads before, where that rounds them."""
        gathered = [state for state in states if self.relay.server.is_sharded(state)]
        own_s, own_round_s = self._own_load_seconds([state for state in states if state not in gathered], stored)
        gathered_s, parts_s = self._gathered_seconds(gathered)
        if self.hardware.lanes != "streams":
            return own_s + gathered_s + parts_s, own_round_s
        return own_s + gathered_s, own_round_s + parts_s

    def _gathered_seconds(self, states: Sequence[str]) -> tuple[float, float]:
        """Of weights of which ranks have parts: of the whole on the link, and of this rank's part on the host."""
        relay, hardware, dtype = self.relay, self.hardware, self.relay.config.precision.dtype
        if not states:
            return 0.0, 0.0
        layouts = [relay.server.held_layout(state) for state in states]
        parts = sum(layout.parameter_bytes + layout.as_wire(dtype).parameter_bytes for layout in layouts)
        return wire_bytes(relay.pool, states, dtype) / hardware.link_up, parts / hardware.host_bandwidth

    def _own_load_seconds(self, states: Sequence[str], stored: frozenset[str]) -> tuple[float, float]:
        """Of weights that this process has all of."""
        relay, hardware, dtype = self.relay, self.hardware, self.relay.config.precision.dtype
        crossing = wire_bytes(relay.pool, states, dtype)
        if hardware.lanes != "streams" and relay.precision == "fp32":
            # where the device is the host, layers compute on masters in memory where these lie
            return (crossing / hardware.link_up if self._in_files or hardware.lanes == "threads" else 0.0), 0.0
        rounded = [state for state in states if state not in stored]
        masters = sum(layout_of(relay.pool, state).parameter_bytes for state in rounded)
        written = wire_bytes(relay.pool, rounded, dtype)
        round_s = (masters + written) / hardware.host_bandwidth
        if hardware.lanes == "streams":
            return crossing / hardware.link_up, round_s
        return (crossing - written) / hardware.link_up + round_s, 0.0  # they are rounded to where layers compute
