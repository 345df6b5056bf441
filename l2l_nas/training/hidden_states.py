"""Losses on hidden states: networks learn from what layers of a teacher give, too (arXiv 1909.10351).

[Note: hidden states as outputs] A hidden state is a value that a position writes. A pool that names some of its values
as outputs, behind its own one, hands them to the loss: a loss on them is a loss on outputs, whose gradients the relay
adds to those of the layers that read these values. Nothing else of such a pool is another, so that it trains the same
states. All but training is done with the pool itself: metrics see its outputs alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from l2l_nas.eps.server import ParamServer
from l2l_nas.errors import SettingError
from l2l_nas.relay.extend import Caches
from l2l_nas.relay.interface import Batch, Cuts, Objective, Reduce, StepResult, Targets
from l2l_nas.relay.relay import Relay
from l2l_nas.space.architecture import Architecture
from l2l_nas.space.candidate import Specs
from l2l_nas.space.pool import LayerPool
from l2l_nas.space.shapes import check_shapes

_MOST = 6  # hidden states


def hidden_values(pool: LayerPool, *, places: Sequence[int] = ()) -> tuple[str, ...]:
    """Values behind positions with a choice, at equal distances, the last of these among them.

    Args:
        places: the shape of a sample's targets, with which the shape of each begins.

    Raises:
        SettingError: the pool has several outputs, or no such value.
    """
    shapes = check_shapes(pool)
    if len(shapes.outputs) != 1:
        raise SettingError(f"strategy.hidden: networks have one output, those of this pool {len(shapes.outputs)}")
    found = [
        name
        for position in pool.positions
        if len(position.candidates) > 1
        for name in position.writes
        if name not in pool.wiring.outputs and _is_state(shapes.values[name], tuple(places))
    ]
    if not found:
        raise SettingError(
            "strategy.hidden: no position with a choice writes a hidden state for each target; leave it out"
        )
    count = min(_MOST, len(found))
    return tuple(found[len(found) * (number + 1) // count - 1] for number in range(count))


def _is_state(specs: Specs, places: tuple[int, ...]) -> bool:
    return all(spec.dtype.is_floating_point and tuple(spec.shape[: len(places)]) == places for spec in specs)


def with_hidden(pool: LayerPool, *, places: Sequence[int] = ()) -> LayerPool:
    """The pool, with `hidden_values` behind its output; see [Note: hidden states as outputs]."""
    outputs = (*pool.wiring.outputs, *hidden_values(pool, places=places))
    return LayerPool(pool.positions, inputs=pool.sources, outputs=outputs, shared=pool.shared)


class HiddenStateExecutor:
    """Trains with hidden states as outputs, and does all else without; see `Executor`.

    Args:
        relay: for all else; the states are those of its server.
        pool: that of the relay, `with_hidden`.
        relay_of: makes the relay that trains.
    """

    def __init__(self, relay: Relay, pool: LayerPool, relay_of: Callable[[ParamServer], Relay]) -> None:
        self._relay, self._relay_of = relay, relay_of
        self._training = relay_of(relay.server.another(pool, storage=relay.server.storage))
        self._trained = relay.server  # whose states it has

    def on(self, relay: Relay) -> HiddenStateExecutor:
        """The same with another relay, of a pool of the same values."""
        outputs = self._training.pool.wiring.outputs
        pool = LayerPool(relay.pool.positions, inputs=relay.pool.sources, outputs=outputs, shared=relay.pool.shared)
        return HiddenStateExecutor(relay, pool, self._relay_of)

    @property
    def server(self) -> ParamServer:
        return self._relay.server

    def train_step(
        self,
        architecture: Architecture,
        inputs: Batch,
        targets: Targets,
        *,
        objective: Objective,
        micro_batch: int,
        lr: float,
        step: int,
        upcoming: Architecture | None = None,
        samples: int | None = None,
        lengths: Sequence[int] | None = None,
    ) -> StepResult:
        """See `Executor.train_step`; targets are followed by what a teacher gives."""
        server = self._relay.server
        server.serve(self)  # what the relay has under way is done, and it holds no copies
        if server is not self._trained:
            self._training.use(server.another(self._training.pool, storage=server.storage))
            self._trained = server
        about: dict[str, Any] = {"objective": objective, "micro_batch": micro_batch, "lr": lr, "step": step}
        more: dict[str, Any] = {"upcoming": upcoming, "samples": samples, "lengths": lengths}
        server.begin_updates(self)
        return self._training.train_step(architecture, inputs, targets, **about, **more)

    def drain(self) -> None:
        """Finish updates under way."""
        try:
            self._training.drain()
        finally:
            self._trained.end_updates()

    def release(self) -> None:
        """The same, and hold no copies of states."""
        try:
            self._training.server.serve(None)
        finally:
            self._trained.end_updates()

    def use(self, server: ParamServer) -> None:
        """See `Executor.use`."""
        self.drain()
        self._relay.use(server)

    def predict(self, architecture: Architecture, inputs: Batch, *, micro_batch: int) -> Batch:
        """See `Executor.predict`."""
        return self._relay.predict(architecture, inputs, micro_batch=micro_batch)

    def predict_population(
        self,
        architectures: Sequence[Architecture],
        inputs: Batch,
        *,
        micro_batch: int,
        max_bytes: int | None = None,
        reduce: Reduce | None = None,
        cuts: Cuts | None = None,
    ) -> list[Batch]:
        """See `Executor.predict_population`."""
        return self._relay.predict_population(
            architectures, inputs, micro_batch=micro_batch, max_bytes=max_bytes, reduce=reduce, cuts=cuts
        )

    @property
    def takes_cuts(self) -> bool:
        return self._relay.takes_cuts

    def extend(self, architecture: Architecture, inputs: Batch, caches: Caches, *, micro_batch: int) -> Batch:
        """See `Executor.extend`."""
        return self._relay.extend(architecture, inputs, caches, micro_batch=micro_batch)

    @property
    def sample_bytes(self) -> int:
        return self._relay.sample_bytes

    @property
    def reduced_bytes(self) -> int:
        return self._relay.reduced_bytes

    @property
    def evaluation_bytes(self) -> int | None:
        return self._relay.evaluation_bytes

    def recalibrate(self, architecture: Architecture, batches: Sequence[Batch]) -> None:
        """See `Executor.recalibrate`."""
        self._relay.recalibrate(architecture, batches)
