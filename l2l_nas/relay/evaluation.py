"""Forward passes in evaluation mode: outputs of many architectures at once, and BatchNorm's statistics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import count

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from l2l_nas.eps.server import ParamServer
from l2l_nas.eps.state import Part
from l2l_nas.eps.storage import RamStorage
from l2l_nas.errors import SettingError, of_user
from l2l_nas.relay.access import StateAccess
from l2l_nas.relay.executor import ForwardJob, PlanExecutor
from l2l_nas.relay.extend import Caches
from l2l_nas.relay.held import HeldSteps, is_plain
from l2l_nas.relay.interface import Batch, Reduce, reduced
from l2l_nas.relay.path import NumberedPath, PathLayer, numbered
from l2l_nas.relay.plan import Op, Plan
from l2l_nas.relay.planner import plan_forward
from l2l_nas.relay.population import PopulationPass, group, prefixes
from l2l_nas.relay.slots import Template
from l2l_nas.relay.stash import Stash
from l2l_nas.relay.visits import full, given_by
from l2l_nas.space.architecture import Architecture
from l2l_nas.space.pool import Layer

Passes = list[tuple[list[int], PopulationPass]]  # each with the numbers of its members

_MOST_POPULATIONS = 8  # whose passes are remembered: a population is scored on one batch after the other


class Evaluation:
    """Streams layers through a relay's slots without gradients, or visits them where they lie: see [Note: held]."""

    def __init__(self, executor: PlanExecutor, stash: Stash, *, held: HeldSteps | None) -> None:
        self._executor = executor
        self._stash = stash
        self._held = held
        self._is_in_place = False  # whether layers compute on the states, as held ones do
        self._bank = executor.bank
        self._pool = executor.bank.pool
        self._device = executor.device
        self._inputs = self._pool.flow(())
        self._groups: dict[tuple[tuple[tuple[str, ...], ...], int | None], Passes] = {}

    def groups(self, architectures: Sequence[Architecture], *, most: int | None) -> Passes:
        """Passes for a population; the latest are remembered. See `group`."""
        key = tuple(Architecture.from_choices(one).choices for one in architectures), most
        found = self._groups.pop(key, None)
        if found is None:
            paths = [self._pool.path(architecture) for architecture in architectures]
            if not all(paths):
                raise SettingError("the architecture has no layers: every position is skipped")
            groups = group(self._pool, paths, most=most)
            found = [(members, prefixes(self._pool, [paths[member] for member in members])) for members in groups]
            while len(self._groups) >= _MOST_POPULATIONS:
                self._groups.pop(next(iter(self._groups)))
        self._groups[key] = found
        return found

    def predict(
        self,
        states: StateAccess,
        tree: PopulationPass,
        inputs: Iterable[Batch],
        *,
        caches: Caches | None = None,
        reduce: Reduce | None = None,
    ) -> list[Batch]:
        """Outputs of each architecture of a prefix tree, on the host; with caches, at the next places of the one.

        Args:
            inputs: by micro-batch; with `reduce`, texts of one may be longer than those of another.
        """
        values = self._moved(inputs)
        on_host: list[dict[str, Sequence[Batch]]] = [{} for _ in tree.ends]
        reduced_ends: set[tuple[str, ...]] = set()

        def visit(place: int, template: Template) -> None:
            module = template.module
            if module.training:
                module.eval()
            call = caches.caller(place, module, count(), self._device) if caches is not None else template.call
            for reads, writes in tree.visits[place]:
                is_reduced = reduce is not None and writes in tree.ends and set(writes) <= set(tree.over[place])
                if is_reduced:
                    reduced_ends.add(writes)
                made = self._run(tree.layers[place], call, values, reads, writes, reduce=reduce if is_reduced else None)
                values.update(made)
            for name in tree.over[place]:
                keep(name, values.pop(name))

        def keep(name: str, batches: Sequence[Batch]) -> None:
            is_whole = reduce is None or any(name in names for names in reduced_ends)
            for own, names in zip(on_host, tree.ends, strict=True):
                if name in names:
                    own[name] = [_on_host(batches)] if is_whole else [_on_host([batch]) for batch in batches]

        self._forward(states, tree.layers, visit, tree=tree)
        for name, batches in values.items():  # inputs that nothing reads, and that are outputs
            keep(name, batches)
        found = []
        for own, names in zip(on_host, tree.ends, strict=True):
            parts = [
                tuple(tensor for batch in pieces for tensor in batch)
                for pieces in zip(*(own[name] for name in names), strict=True)
            ]
            if reduce is not None and names not in reduced_ends:
                with torch.no_grad():
                    parts = [_on_host([reduced(reduce, number, batch) for number, batch in enumerate(parts)])]
            found.append(parts[0])
        return found

    def recalibrate(
        self, states: StateAccess, layers: Sequence[Layer], batches: Iterable[Batch], started: set[str]
    ) -> None:
        """Measure the statistics of BatchNorm; `started` are the layers whose average has begun."""
        flow = self._pool.flow(layers)
        values = self._moved(batches)
        last = flow.last_reads()

        def visit(place: int, template: Template) -> None:
            module, norms = template.module, measured_norms(template.module)
            momenta = [norm.momentum for norm in norms]
            for norm in norms:
                norm.momentum = None  # torch's way to say: the plain average over all batches
                if layers[place].key not in started:
                    norm.reset_running_stats()
                norm.train()
            started.add(layers[place].key)
            try:
                # the module itself: a compiled graph would be a new one for this mixture of modes
                values.update(self._run(layers[place], module, values, flow.reads[place], flow.writes[place]))
            finally:
                module.eval()
                for norm, momentum in zip(norms, momenta, strict=True):
                    norm.momentum = momentum
            for name in [name for name in values if last.get(name, place) <= place]:
                del values[name]

        self._forward(states, layers, visit, saves_buffers=True)

    def _run(
        self,
        layer: Layer,
        call: Callable[..., object],
        values: Mapping[str, Sequence[Batch]],
        reads: Sequence[str],
        writes: Sequence[str],
        *,
        reduce: Reduce | None = None,
    ) -> dict[str, list[Batch]]:
        """All micro-batches through a layer; what it gives, by name. Reduced, all of it goes by the first name."""
        given: dict[str, list[Batch]] = {name: [] for name in writes}
        for index in range(len(values[reads[0]])):
            outputs = self._stored(layer, call(*(tensor for name in reads for tensor in values[name][index])))
            if reduce is not None:
                whole = reduced(reduce, index, full([t for tensors in outputs for t in tensors]))
                outputs = [whole, *[()] * (len(writes) - 1)]
            for name, tensors in zip(writes, outputs, strict=True):
                given[name].append(tensors)
        return given

    def _forward(
        self,
        states: StateAccess,
        layers: Sequence[Layer],
        visit: Callable[[int, Template], None],
        *,
        tree: PopulationPass | None = None,
        saves_buffers: bool = False,
    ) -> None:
        self._is_in_place = self._held is not None and isinstance(states.storage, RamStorage)
        if self._held is not None and self._is_in_place and tree is not None:
            self._held.visit(states.server, tree, visit)
            return
        states.server.prepare(state for layer in layers for state in layer.states)
        path = numbered([about(states.server, layer) for layer in layers])
        plan = plan_forward(path.layers, slots=len(self._bank.slots), saves_buffers=saves_buffers)
        announce_reads(states, plan, layers, path)
        job = ForwardJob(plan=plan, layers=tuple(layers), depth=len(layers), states=states, path=path, visit=visit)
        try:
            self._executor.carry_out(job)
        finally:
            self._executor.drain()

    def _moved(self, batches: Iterable[Batch]) -> dict[str, Sequence[Batch]]:
        """Batches of inputs on the device, in its precision, by value."""
        found = {name: list[Batch]() for name in self._pool.sources}
        for batch in batches:
            put = tuple(
                self._device.put(tensor).to(spec.dtype).contiguous()
                for tensor, spec in zip(batch, self._stash.inputs, strict=True)
            )
            for name, tensors in self._inputs.by_input(put).items():
                found[name].append(tensors)
        return dict(found)

    def _stored(self, layer: Layer, outputs: object) -> list[Batch]:
        """Outputs by value, which outlive their slot: a layer may return a view of a weight or of a mask."""
        names = self._pool.wiring.writes[layer.position]
        specs = self._stash.specs[names[0]]
        is_held = self._is_in_place  # what is a view of a master stays as it is until outputs are on the host
        if is_held and len(names) == 1 and len(specs) == 1 and is_plain(outputs, specs[0].dtype):
            return [(outputs,)]
        # without a gradient, what a layer gives as it took it need be no value of its own
        values = list(given_by(names, (), outputs, self._stash.specs).values())
        return (
            values if is_held else [tuple(t.clone() if self._bank.holds(t) else t for t in batch) for batch in values]
        )


def measured_norms(module: nn.Module) -> list[_BatchNorm]:
    """The BatchNorms whose statistics training changes, not those that a layer's `train` keeps in evaluation."""
    norms = [part for part in module.train().modules() if isinstance(part, _BatchNorm) and part.training]
    module.eval()
    return norms


def about(server: ParamServer, layer: Layer) -> PathLayer:
    """A layer, as plans see it."""
    trainable = (state for state in layer.states if server.layout(state).is_trainable)
    return PathLayer(layer.key, tuple(trainable), bool(server.layout(layer.key).buffers))


def announce_reads(states: StateAccess, plan: Plan, layers: Sequence[Layer], path: NumberedPath) -> None:
    """Tell the storage what this plan will read and write, in order."""

    def uses() -> Iterator[tuple[str, Part]]:
        for step in plan.steps:
            if step.op is Op.LOAD:
                yield from ((state, Part.WEIGHTS) for state in layers[step.layer].states)
            elif step.op is Op.UPDATE:
                yield path.state(step.state), Part.ALL

    with of_user(states.server.storage, "storage"):
        states.storage.expect(uses())


def cut_batch(inputs: Batch, sizes: Sequence[int]) -> Iterable[Batch]:
    """Inputs in micro-batches of these sizes."""
    return zip(*(tensor.split(list(sizes)) for tensor in inputs), strict=True)


def _on_host(batches: Sequence[Batch]) -> Batch:
    joined = (torch.cat(parts).cpu() for parts in zip(*batches, strict=True))
    return tuple(t.float() if t.dtype in (torch.bfloat16, torch.float16) else t for t in joined)
