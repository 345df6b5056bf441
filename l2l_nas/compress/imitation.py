"""Blockwise distillation: candidates imitate the original layer of their position, on the original's own inputs.

The idea is that of DNA (arXiv 1911.13053) and Puzzle (arXiv 2411.19146, section 3). Positions are taken one after the
other. What the original network's layers gave for some samples waits on the host; a position's candidates, all of them,
are trained to give what its original gives for these inputs, then the original alone is run for the next position. So
no more than one layer is ever on the device, and candidates of a position do not depend on those of others: they may be
trained in any order, and each of them alone. A table of embeddings that is the only candidate stays on the host.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn

from l2l_nas.eps.optimizers.groups import Groups
from l2l_nas.eps.server import ParamServer
from l2l_nas.errors import SettingError, SpaceError, user_code
from l2l_nas.layers.least_squares import shared_sums
from l2l_nas.relay.device import Cpu
from l2l_nas.relay.interface import Batch
from l2l_nas.relay.relay import Relay
from l2l_nas.space.architecture import Architecture
from l2l_nas.space.candidate import Position
from l2l_nas.space.convert.parts import BlockLayer
from l2l_nas.space.pool import Layer, LayerPool
from l2l_nas.space.shapes import check_shapes
from l2l_nas.space.values import by_value, learns
from l2l_nas.training.fit import in_micro_batches
from l2l_nas.training.schedule import Cosine

AfterStep = Callable[[str, int], None]

# a part of the samples that nothing is trained on: the errors that are reported are of these
_HELD_OUT = 0.25


class _Imitation:
    """Squared error to what the original gave, a share of the mean square of that.

    Outputs and targets are tensors of equal shapes [batch, ...]; those that are no floating numbers do not count.
    """

    def __init__(self, targets: Batch) -> None:
        self._scales = [max(1e-12, float(t.double().square().mean())) if learns(t) else 1.0 for t in targets]

    def loss(self, outputs: Batch, targets: Batch) -> Tensor:
        """The mean over numbers of a sample, summed over samples and outputs."""
        total = torch.zeros((), device=outputs[0].device)
        for output, target, scale in zip(outputs, targets, self._scales, strict=True):
            if learns(output):
                total = total + (output - target).square().flatten(1).mean(dim=1).sum() / scale
        return total

    def count(self, targets: Batch) -> int:
        return len(targets[0])


@dataclass(frozen=True)
class BlockSettings:
    """How candidates are trained. Raises SettingError: one of them is out of range."""

    steps: int = 100  # of each candidate
    learning_rate: float = 1e-3  # peak; it rises and falls once
    batch_size: int = 8  # samples of a step
    micro_batch: int = 8  # samples at a time on the device

    def __post_init__(self) -> None:
        for name, least in (("steps", 0), ("batch_size", 1), ("micro_batch", 1)):
            if getattr(self, name) < least:
                raise SettingError(f"{name} must be at least {least}, got {getattr(self, name)}")
        if not self.learning_rate > 0:
            raise SettingError(f"learning_rate must be above 0, got {self.learning_rate}")


@dataclass
class BlockDistillation:
    """Trains the candidates of a pool, position by position.

    Raises:
        SpaceError: the original skips a position that has candidates, or layers are shared between positions.
        SettingError: parameters are updated in groups.
    """

    server: ParamServer  # with the original's weights, which stay as they are; candidates' weights are left there
    original: Architecture  # the network to imitate
    relay_of: Callable[[ParamServer], Relay]  # makes a relay on a server of one position's layers
    settings: BlockSettings = field(default_factory=BlockSettings)  # how much
    seed: int = 0  # of batches and dropout

    def __post_init__(self) -> None:
        pool = self.server.pool
        if pool.shared:
            raise SpaceError("blockwise distillation needs layers of their own at each position; this pool shares them")
        if isinstance(self.server.optimizer, Groups):
            raise SettingError("blockwise distillation updates all parameters alike; leave out groups of the optimizer")
        for position, choice in zip(pool.positions, self.original.choices, strict=True):
            if position[choice].is_skip and len(position.candidates) > 1:
                raise SpaceError(
                    "the original skips it; its candidates have nothing to imitate", position=position.name
                )

    def run(
        self,
        inputs: Batch,
        *,
        done: Mapping[str, float] | None = None,
        after_step: AfterStep = lambda key, samples: None,
    ) -> Generator[tuple[str, float], None, None]:
        """Train what is not done yet.

        Args:
            inputs: samples as the pool takes them, of which a quarter is held out.
            done: errors of candidates that were trained before, by `position/candidate`.
            after_step: called with `position/candidate` and the samples of each step that is done; it may raise, and
                what is trained goes on behind its last update next time.

        Yields:
            `position/candidate` and its error on the samples held out: the mean squared difference to what the original
            gives, a share of the mean square of that. 0 for the original itself.

        Raises:
            NonFiniteError: a gradient is not finite.
        """
        done = done or {}
        pool, flow = self.server.pool, self.server.pool.wiring
        values: dict[str, Batch] = pool.flow(()).by_input(inputs)
        last = {name: index for index, reads in enumerate(flow.reads) for name in reads}
        for index, position in enumerate(pool.positions[: self._end(done)]):
            taken = tuple(tensor for name in flow.reads[index] for tensor in values[name])
            given = yield from self._position(index, taken, done, after_step)
            if given:
                values |= by_value(position.writes, given)
            for name in [name for name in values if last.get(name, -1) <= index]:
                del values[name]

    def _end(self, done: Mapping[str, float]) -> int:
        """The position behind the last one with anything to do: what those behind it would be given is of no use."""
        left = (
            index
            for index, (position, name) in enumerate(
                zip(self.server.pool.positions, self.original.choices, strict=True)
            )
            if not position[name].is_skip
            and any(f"{position.name}/{one.name}" not in done for one in position.candidates)
        )
        return max(left, default=-1) + 1

    def _position(
        self, index: int, inputs: Batch, done: Mapping[str, float], after_step: AfterStep
    ) -> Generator[tuple[str, float], None, Batch]:
        """One position; returns what its original gives."""
        position, name = self.server.pool.positions[index], self.original.choices[index]
        if position[name].is_skip:
            return inputs
        if len(position.candidates) == 1 and index + 1 == len(self.server.pool):
            yield f"{position.name}/{name}", 0.0
            return ()  # nobody reads it, and a head's outputs may be larger than all else
        alone = self._alone(index)
        server = self.server.like(alone, storage=self.server.storage)
        relay = self.relay_of(server)
        if len(position.candidates) == 1 and not any(learns(tensor) for tensor in inputs):
            # it looks rows up in a table that may be larger than all else: the host need not load it for that
            relay.close()
            relay = Relay(server, precision=relay.precision, device=Cpu(), seed=relay.seed, chunks=relay.chunks)
        with contextlib.closing(relay):
            return (yield from self._on(relay, index, inputs, done, after_step))

    def _on(
        self, relay: Relay, index: int, inputs: Batch, done: Mapping[str, float], after_step: AfterStep
    ) -> Generator[tuple[str, float], None, Batch]:
        position, name = self.server.pool.positions[index], self.original.choices[index]
        layers = {layer.candidate.name: layer for layer in relay.pool.layers}
        block = _PositionTraining(relay, inputs, self.settings, self.seed + index)
        targets = block.outputs(name)
        waiting = [one for one in position.candidates if f"{position.name}/{one.name}" not in done]
        new = [layers[one.name] for one in waiting if not one.is_skip and one.name != name]
        self._check_states(new, position.name)
        trained = [layer for layer in new if relay.server.layout(layer.key).is_trainable]
        _begin_as(relay.server, trained, layers[name], block.training_inputs)
        for candidate in waiting:
            key = f"{position.name}/{candidate.name}"
            if candidate.name == name:
                error = 0.0
            elif candidate.is_skip:
                error = block.error(inputs[: len(targets)], targets)
            else:
                if layers[candidate.name] in trained:
                    block.train(layers[candidate.name], targets, partial(after_step, key))
                error = block.error(block.outputs(candidate.name), targets)
            yield key, error
        return targets

    def _check_states(self, layers: Sequence[Layer], position: str) -> None:
        """Refuse layers whose training would change the original."""
        original_states = {state for layer in self.server.pool.path(self.original) for state in layer.states}
        for layer in layers:
            if shared := original_states & set(layer.states):
                raise SpaceError(
                    f"shares '{shared.pop()}' with the original, which its training would change; untie it",
                    position=position,
                    candidate=layer.candidate.name,
                )

    def _alone(self, index: int) -> LayerPool:
        """A pool of one position, whose states are those of the whole pool."""
        pool = self.server.pool
        position = pool.positions[index]
        layers = [candidate for candidate in position.candidates if not candidate.is_skip]
        shapes = check_shapes(pool)
        names = [f"read_{number}" for number in range(len(pool.wiring.reads[index]))]
        return LayerPool(
            [Position(position.name, layers, reads=names, writes=position.writes)],
            inputs=dict(zip(names, (shapes.values[name] for name in pool.wiring.reads[index]), strict=True)),
        )


@dataclass(frozen=True)
class _PositionTraining:
    """The layers of one position on the inputs that it has in the original network."""

    relay: Relay
    inputs: Batch
    settings: BlockSettings
    seed: int

    @property
    def _first_held_out(self) -> int:
        count = len(self.inputs[0])
        return max(1, count - int(count * _HELD_OUT)) if count > 1 else 0

    @property
    def training_inputs(self) -> Batch:
        return tuple(tensor[: max(1, self._first_held_out)] for tensor in self.inputs)

    def outputs(self, name: str) -> Batch:
        """What a candidate gives for all samples, in evaluation mode; so many at a time are on the device."""
        size = self.settings.micro_batch
        predict = partial(self.relay.predict, Architecture((name,)), micro_batch=size)
        return in_micro_batches(predict, self.inputs, size)

    def error(self, outputs: Batch, targets: Batch) -> float:
        some = [tuple(tensor[self._first_held_out :] for tensor in batch) for batch in (outputs, targets)]
        return float(_Imitation(some[1]).loss(*some) / len(some[1][0]))

    def train(self, layer: Layer, targets: Batch, after_step: Callable[[int], None]) -> None:
        """The steps that a candidate has not had: one that was interrupted goes on behind its last update."""
        count, settings = max(1, self._first_held_out), self.settings
        done = self.relay.server.state(layer.key).visits
        objective = _Imitation(targets)
        schedule = Cosine(settings.learning_rate, steps=max(1, settings.steps))
        generator = torch.Generator().manual_seed(self.seed)
        for step in range(settings.steps):
            rows = torch.randperm(count, generator=generator)[: settings.batch_size]
            if step < done:
                continue
            self.relay.train_step(
                Architecture((layer.candidate.name,)),
                tuple(tensor[rows] for tensor in self.inputs),
                tuple(tensor[rows] for tensor in targets),
                objective=objective,
                micro_batch=settings.micro_batch,
                lr=schedule.at(step),
                step=step,
            )
            after_step(len(rows))
        self.relay.drain()


def _begin_as(server: ParamServer, layers: Sequence[Layer], teacher: Layer, inputs: Batch) -> None:
    """Give layers first weights of their original.

    A module with a method `begin_as(original, inputs)` takes them over itself, as one with fewer units or heads does:
    in evaluation mode, without gradients, and on samples that are not held out. Of any other module, parameters and
    buffers that have the name and the shape of one of the original's are copied; the rest keeps its first weights. What
    was trained before stays as it is.

    Raises:
        SpaceError: the method raised.
    """
    new = [layer for layer in layers if not server.state(layer.key).visits]
    if not new:
        return
    original = server.build_module(teacher, {}).eval()
    # all begin before one is trained: what they share of the inputs is large, and is dropped before that
    with torch.no_grad(), shared_sums():
        for layer in new:
            module = server.build_module(layer, {}).eval()
            own = getattr(_inner(module), "begin_as", None)
            if callable(own):
                with user_code(f"begin_as of '{layer.key}'", SpaceError):
                    own(_inner(original), inputs)
            else:
                _copy_alike(module, original)
            found = {**dict(module.named_parameters(remove_duplicate=False)), **dict(module.named_buffers())}
            with server.writing(layer.key) as state:
                for name, value in {**state.parameters(), **state.named_buffers()}.items():
                    value.copy_(found[name])
                state.mark_changed()


def _inner(module: nn.Module) -> nn.Module:
    """The user's own module, where `convert` made a layer of it."""
    return module.block if isinstance(module, BlockLayer) else module


def _copy_alike(module: nn.Module, original: nn.Module) -> None:
    known = {**dict(original.named_parameters()), **dict(original.named_buffers())}
    for name, value in (*module.named_parameters(), *module.named_buffers()):
        other = known.get(name)
        if other is not None and other.shape == value.shape and other.dtype == value.dtype:
            value.copy_(other)
