"""The time of a training step that the simulator predicts, for an architecture under a relay's settings."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from l2l_nas.cost.chain import Chain, RelayShape
from l2l_nas.cost.device import DeviceBytes
from l2l_nas.cost.hardware import Hardware
from l2l_nas.cost.parallel import ALONE, EqualVisits, StepWork, all_reduce_s, inside_bandwidth, ring_bandwidth
from l2l_nas.cost.simulator import SAVING, LayerSeconds, PathSeconds, Simulation, lifted, simulate
from l2l_nas.cost.traffic import layer_bytes
from l2l_nas.eps.file_storage import FRAMES
from l2l_nas.eps.layout import Layout, layout_of
from l2l_nas.relay.buffers import may_change
from l2l_nas.relay.config import PRECISIONS
from l2l_nas.relay.measure import Work, layer_needs
from l2l_nas.relay.path import Name, PathLayer, Spill, last_to_learn, learns_from
from l2l_nas.relay.plan import UpdateOrder
from l2l_nas.relay.relay import Relay
from l2l_nas.space.architecture import Architecture
from l2l_nas.space.pool import Layer


@dataclass(frozen=True)
class Prediction:
    """What a training step of an architecture is predicted to take.

    Args:
        simulation: of a step in the midst of training.
        lifted_s: by lane, the step's time if that lane were twice as fast.
        plain_s: plain resident training's, all of it on the device; the memory for it may not be there.
        checkpointed_s: the same with every layer run again in the backward.
        device_bytes: device memory that the step needs.
        owned_bytes: what the relay owns of it: slots and stash.
        resident_bytes: of it, states that live there, with moments.
        plain_bytes: device memory that plain training needs: weights, gradients, moments, and activations.
        activation_bytes: of it, activations of a micro-batch.
        host_bytes: of this architecture's states, or of the frames for states in files; of gradients and values that
            wait, and of what is saved before updates ahead of the check.
        pinned_bytes: those of them that are pinned; slabs of pinned memory are larger, up to twice, and the mini-batch
            passes through them, too.
        disk_bytes: of this architecture's states in files; 0 where they are in memory.
        launches: share of the device's time in which it waits for operations to be launched, not for their work.
    """

    simulation: Simulation
    lifted_s: Mapping[str, float]
    plain_s: float
    checkpointed_s: float
    device_bytes: int
    owned_bytes: int
    resident_bytes: int
    plain_bytes: int
    activation_bytes: int
    host_bytes: int
    pinned_bytes: int
    disk_bytes: int
    launches: float


@dataclass(frozen=True)
class _Known:
    """Of a layer at its position; bytes are those of all samples.

    Args:
        written_bytes: of the values that it gives.
        read_bytes: of the gradients of what it takes.
    """

    forward: Work
    backward: Work
    buffer_bytes: int
    save_bytes: int
    written_bytes: int
    read_bytes: int


class StepTime:
    """Predicts the step times of architectures.

    Args:
        relay: its slots, precision, budget and update policy decide.
        sizes: samples of each micro-batch.
        hardware: what it would run on.
        in_files: whether states are in files, from which they are read for each load and each update.

    Attributes:
        relay: `predict` goes by what its `update` and `resident` are when it is called.
        ways: how devices share a step, of which this is one; `sizes` are of its group. It goes by that, too.
    """

    def __init__(
        self,
        relay: Relay,
        sizes: tuple[int, ...],
        hardware: Hardware,
        *,
        in_files: bool | None = None,
    ) -> None:
        self.relay = relay
        self._in_files = not relay.server.storage.is_lasting if in_files is None else in_files
        self._sizes = sizes
        self.hardware = hardware
        self.ways = ALONE
        is_host = hardware.lanes == "inline"
        # threads copy and update beside the layers where they wait for a disk
        self._lanes = "threads" if is_host and self._in_files else hardware.lanes
        self._device_bytes = DeviceBytes(relay, sizes, is_host=is_host)
        self._layers: dict[tuple[int, str, bool], _Known] = {}
        self._chains: dict[object, Chain] = {}
        self._steps_s: dict[Architecture, float] = {}

    def __call__(self, architecture: Architecture) -> float:
        """Milliseconds of a step in the midst of training this architecture."""
        if architecture not in self._steps_s:
            chain, seconds, _ = self._prepare(architecture)
            self._steps_s[architecture] = simulate(chain, seconds, lanes=self._lanes).step_s
        return 1000 * self._steps_s[architecture]

    def latency_ms(self, architecture: Architecture) -> float:
        """Milliseconds of a forward of the plain network on the device, for the same samples."""
        layers, path = self.relay.pool.path(architecture), self.relay.path(architecture)
        work = [known.forward for known in self._known(layers, path)]
        return 1000 * sum(self._seconds(one) for one in work)

    def work_of(self, architecture: Architecture) -> StepWork:
        """A step of plain training, as devices might share it: a sum at the end of each layer, either way."""
        relay = self.relay
        layers, path = relay.pool.path(architecture), relay.path(architecture)
        visits = []
        for known in self._known(layers, path):
            visits += [EqualVisits(known.forward, known.written_bytes), EqualVisits(known.backward, known.read_bytes)]
        trained = relay.numbered(architecture)
        layouts = [layout_of(relay.pool, trained.state(number)) for number in trained.trainable]
        return StepWork(
            visits,
            sum(layout.num_parameters for layout in layouts),
            sum(layout.parameter_bytes for layout in layouts),
            max(self._value_bytes(about.writes) for about in path),
            len(self._sizes),
        )

    def predict(self, architecture: Architecture, *, with_spans: bool = False) -> Prediction:
        """All that is known before a step is run."""
        relay, hardware = self.relay, self.hardware
        chain, seconds, known = self._prepare(architecture)
        layers = relay.pool.path(architecture)
        states = dict.fromkeys(state for layer in layers for state in layer.states)
        layouts = {state: layout_of(relay.pool, state) for state in states}
        path = relay.numbered(architecture)
        residents = self._residents(architecture)
        gradients = [
            {
                number: layouts[path.state(number)].parameter_bytes
                for number in layer.trainable
                if path.state(number) not in residents
            }
            for layer in path.layers
        ]
        simulation = simulate(
            chain,
            seconds,
            lanes=self._lanes,
            path=path if with_spans else None,
            gradients=gradients,
        )
        num_parameters = sum(layout.num_parameters for layout in layouts.values() if layout.is_trainable)
        forward_s = sum(self._seconds(one.forward) for one in known)
        backward_s = sum(self._seconds(one.backward) for one in known)
        plain_s = forward_s + backward_s + hardware.resident_update_s(num_parameters)
        own_bytes = sum(state_bytes(relay, state) for state in states)
        streamed = [state for state in states if state not in residents]
        spilled = relay.memory_plan(self._sizes).spilled
        crossing = sum(relay.stash.size_bytes(name, self._sizes) for name in spilled)
        saved = 0
        if self._order is UpdateOrder.AHEAD:  # all gradients until they are checked, and what states were before
            crossing += sum({state: size for own in gradients for state, size in own.items()}.values())
            late = set(map(path.state, last_to_learn(path.layers)))
            ahead = [state for state in streamed if state not in late]
            saved = sum(state_bytes(relay, state) - layouts[state].buffer_bytes for state in ahead)
        else:
            crossing += simulation.staged_bytes
        wire_bytes = layer_bytes(relay.pool, self._stored(streamed), PRECISIONS[relay.precision])
        # masters in fp32 cross the link themselves
        beside_bytes = 0 if relay.precision == "fp32" else wire_bytes
        activation_bytes = self._device_bytes.resident_activations(architecture)
        return Prediction(
            simulation,
            lifted(chain, seconds, lanes=self._lanes),
            plain_s,
            plain_s + sum(self._seconds(one.forward) for one in known),
            int(self._device_bytes(architecture)),
            self._device_bytes.owned_bytes,
            self._device_bytes.state_bytes(architecture),
            self._plain_bytes(layouts) + activation_bytes,
            activation_bytes,
            (self._frame_bytes() if self._in_files else own_bytes + beside_bytes) + saved + crossing,
            crossing + wire_bytes if hardware.lanes == "streams" else 0,
            own_bytes if self._in_files else 0,
            self._launches(known),
        )

    def _launches(self, known: Sequence[_Known]) -> float:
        """Share of the device's time in visits whose launches take longer than their work."""
        at_once = replace(self.hardware, kernel_s=0.0)
        works = [work for one in known for work in (one.forward, one.forward, one.backward)]  # the backward recomputes
        waiting = [work for work in works if self._seconds(work) > at_once.seconds(work, self.relay.precision)]
        return sum(map(self._seconds, waiting)) / max(sum(map(self._seconds, works)), 1e-12)

    def _residents(self, architecture: Architecture) -> frozenset[str]:
        """States on the device, where it has memory of its own."""
        return frozenset() if self.hardware.lanes == "inline" else frozenset(self.relay.states_on_device(architecture))

    def _frame_bytes(self) -> int:
        """Of the frames for states in files, each as large as the largest."""
        return FRAMES * max(state_bytes(self.relay, state) for state in self.relay.pool.states)

    def _shape(self, spill: Spill) -> RelayShape:
        """The settings that decide plans."""
        slots, keep = len(self.relay.bank.slots), self.relay.memory_plan(self._sizes).keep
        return RelayShape(slots, keep, self._order, spill, FRAMES if self._in_files else 0)

    @property
    def _order(self) -> UpdateOrder:
        """As the relay chooses it on such a machine while nothing is clipped."""
        overlaps = self.hardware.lanes == "streams" and not self._in_files and not self.relay.config.memory.state_bytes
        return self.relay.config.update.order or UpdateOrder.of(self.relay.update, overlaps=overlaps)

    def _stored(self, streamed: Iterable[str]) -> tuple[str, ...]:
        """States whose weights are stored as they cross the link: all of a path, or none with `pinned=none`.

        See [Note: what crosses] in `eps/wire.py`.
        """
        relay = self.relay
        if self._in_files or (relay.precision == "fp32" and self.hardware.lanes != "streams"):
            return ()
        return tuple(streamed) if relay.wire.stores else ()

    def _plain_bytes(self, layouts: Mapping[str, Layout]) -> int:
        return sum(state_bytes(self.relay, state) + layout.parameter_bytes for state, layout in layouts.items())

    def _seconds(self, work: Work) -> float:
        return self.hardware.seconds(work, self.relay.precision)

    def _visit_s(self, work: Work, summed_bytes: int) -> float:
        """Of a device's part of a visit, and the sum at its end."""
        ways, inside = self.ways, inside_bandwidth(self.hardware)
        share = Work(work.flops / ways.tensor, work.bytes / ways.tensor, work.kernels)
        return self._seconds(share) + all_reduce_s(summed_bytes, ways.tensor, inside)

    def _prepare(self, architecture: Architecture) -> tuple[Chain, PathSeconds, list[_Known]]:
        relay, hardware = self.relay, self.hardware
        path = relay.numbered(architecture)
        spill, residents = relay.memory_plan(self._sizes).spilled, self._residents(architecture)
        shape = self._shape(relay.stash.spill(path.numbers_of(spill)))
        if self._in_files:
            here = frozenset(number for number, state in enumerate(path.states) if state in residents)
            shape = replace(shape, resident=here)
        if (path.layers, shape) not in self._chains:
            self._chains[path.layers, shape] = Chain.of(path.layers, shape)
        chosen = relay.pool.path(architecture)
        known = self._known(chosen, relay.path(architecture))
        streamed = dict.fromkeys(state for layer in chosen for state in layer.states if state not in residents)
        stored = frozenset(self._stored(streamed))
        layers = [
            self._layer_seconds(one, layer, residents=residents, stored=stored)
            for one, layer in zip(known, chosen, strict=True)
        ]
        moved = {
            number: relay.stash.size_bytes(path.value(number), self._sizes) / hardware.link_up
            for number in shape.spill.values
        }
        updates: dict[Name, float] = {}
        copies: dict[Name, float] = {}
        for number in path.trainable:
            state = path.state(number)
            updated_s = layout_of(relay.pool, state).num_parameters / hardware.host_updates
            updated_s /= self.ways.tensor
            updates[number] = 0.0 if state in residents else updated_s
            if shape.update is UpdateOrder.AHEAD and state not in residents:
                copies[number] = SAVING * updated_s
        seconds = PathSeconds(
            layers,
            updates,
            moved,
            issue=hardware.step_s,
            copy=hardware.copy_s,
            batches=len(self._sizes),
            copies=copies,
            files={
                number: self._file_seconds(state)
                for number, state in enumerate(path.states)
                if self._in_files and state not in residents
            },
        )
        return self._chains[path.layers, shape], seconds, known

    def _file_seconds(self, state: str) -> tuple[float, float, float]:
        """The reading of its weights and of the rest, and the writing of all."""
        layout, rate = layout_of(self.relay.pool, state), self.hardware.disk
        weights, whole = layout.parameter_bytes + layout.buffer_bytes, state_bytes(self.relay, state)
        rate *= self.ways.tensor
        return weights / rate, (whole - weights) / rate, whole / rate

    def _load_seconds(self, states: Sequence[str], stored: frozenset[str]) -> tuple[float, float]:
        """Of the weights of states: on the link, and in the thread of the loads before, where that rounds them."""
        relay, hardware = self.relay, self.hardware
        dtype = PRECISIONS[relay.precision]
        crossing = layer_bytes(relay.pool, states, dtype)
        if hardware.lanes != "streams" and relay.precision == "fp32":
            # where the device is the host, layers compute on masters in memory where these lie
            return (crossing / hardware.link_up if self._in_files or hardware.lanes == "threads" else 0.0), 0.0
        rounded = [state for state in states if state not in stored]
        masters = sum(layout_of(relay.pool, state).parameter_bytes for state in rounded)
        written = layer_bytes(relay.pool, rounded, dtype)
        round_s = (masters + written) / hardware.host_bandwidth
        if hardware.lanes == "streams":
            return crossing / hardware.link_up, round_s
        return (crossing - written) / hardware.link_up + round_s, 0.0  # they are rounded to where layers compute

    def _layer_seconds(
        self, known: _Known, layer: Layer, *, residents: frozenset[str], stored: frozenset[str]
    ) -> LayerSeconds:
        """What crosses the link, and what the device computes: updates of what lives there, too."""
        relay, hardware = self.relay, self.hardware
        streamed = [state for state in layer.states if state not in residents]
        layouts = [layout_of(relay.pool, state) for state in streamed]
        copied_s, round_s = self._load_seconds(streamed, stored)
        # where the device is the host, gradients stay where they are
        sent = 0 if hardware.lanes == "inline" else sum(one.parameter_bytes for one in layouts if one.is_trainable)
        updated = [layout_of(relay.pool, state) for state in layer.states if state in residents]
        own = sum(one.num_parameters for one in updated if one.is_trainable)
        summed = sum(one.parameter_bytes for one in (*layouts, *updated) if one.is_trainable)
        ways = self.ways
        return LayerSeconds(
            copied_s / ways.tensor + known.buffer_bytes / hardware.link_up,
            self._visit_s(known.forward, known.written_bytes),
            self._visit_s(known.backward, known.read_bytes) + hardware.resident_update_s(own / ways.tensor),
            # groups sum a layer's gradients before they leave
            sent / ways.tensor / hardware.link_down
            + all_reduce_s(summed / ways.tensor, ways.data, ring_bandwidth(hardware, ways)),
            known.save_bytes / hardware.link_down,
            round_s / ways.tensor,
        )

    def _known(self, layers: Sequence[Layer], path: Sequence[PathLayer]) -> list[_Known]:
        of_use: set[Name] = set()
        found = []
        for layer, about, has in zip(layers, path, learns_from(path), strict=True):
            needs_gradient = not of_use.isdisjoint(about.reads)
            if has:
                of_use.update(about.writes)
            key = (layer.position, layer.candidate.name, needs_gradient)
            if key not in self._layers:
                self._layers[key] = self._probe(layer, about, needs_gradient)
            found.append(self._layers[key])
        return found

    def _probe(self, layer: Layer, about: PathLayer, needs_gradient: bool) -> _Known:
        relay = self.relay
        dtype = PRECISIONS[relay.precision]
        inputs = relay.stash.inputs_of(layer)
        needs = layer_needs(relay.pool, layer, inputs, max(self._sizes), dtype=dtype, needs_gradient=needs_gradient)
        buffers = layer_bytes(relay.pool, [layer.key], dtype, buffers=True)
        return _Known(
            self._all_batches(needs.forward),
            self._all_batches(needs.backward),
            buffers,
            buffers if may_change(relay.pool, layer) else 0,
            self._value_bytes(about.writes),
            self._value_bytes(about.reads) if needs_gradient else 0,
        )

    def _value_bytes(self, names: Iterable[Name]) -> int:
        specs = [spec for name in names for spec in self.relay.stash.specs[str(name)]]
        return sum(self._sizes) * sum(math.prod(spec.shape) * spec.dtype.itemsize for spec in specs)

    def _all_batches(self, work: Work) -> Work:
        share = sum(self._sizes) / max(self._sizes)
        return Work(work.flops * share, work.bytes * share, work.kernels * math.ceil(len(self._sizes)))


def state_bytes(relay: Relay, key: str) -> int:
    """Host memory of a state: weights, moments, buffers and step counts."""
    layout = relay.server.rules.of(key).layout
    moments = sum(moment.num_bytes for moment in layout.moments)
    return layout.parameter_bytes + moments + layout.buffer_bytes + 4 * len(layout.parameters)


def pool_bytes(relay: Relay, layers: Sequence[Layer]) -> int:
    """Host memory of the states of all these layers, with what is stored of their weights in the wire's dtype."""
    states = dict.fromkeys(state for layer in layers for state in layer.states)
    own_bytes = sum(state_bytes(relay, state) for state in states)
    if relay.precision == "fp32" or not relay.wire.stores:
        return own_bytes
    return own_bytes + layer_bytes(relay.pool, states, PRECISIONS[relay.precision])
