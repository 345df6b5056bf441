"""Before a relay does anything together with other ranks, they compare it; see [Note: passes] in `eps/agreement.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import cached_property

from torch import Tensor

from l2l_nas.contents.described import described, digest_of, fields_of
from l2l_nas.contents.tensors import checksum_of
from l2l_nas.eps.agreement import MOST_FACTS, Fact, Pass, begin, facts_of
from l2l_nas.eps.identity import fingerprint
from l2l_nas.eps.server import ParamServer
from l2l_nas.eps.state import Part
from l2l_nas.relay.config import RelayConfig
from l2l_nas.relay.interface import Batch, Objective
from l2l_nas.relay.mini_batch import MiniBatch
from l2l_nas.space.pool import Layer, LayerPool, PerPool

_STRUCTURES: PerPool[str] = PerPool()
_COMPARED = 100  # every so many steps, small states that each rank has whole are compared


class Passes:
    """The passes of a relay over the states of a server. A process without other ranks compares nothing.

    Args:
        server: of this rank.
        config: of the relay.
        seed: of the relay.
    """

    def __init__(self, server: ParamServer, config: RelayConfig, *, seed: int) -> None:
        self._server, self._config, self._seed = server, config, seed
        self._objective: tuple[Objective, Fact] | None = None
        self.has_ranks = server.world.size > 1

    def begin(
        self, what: Pass, values: Mapping[str, object], minima: Sequence[int] = (), *, inputs: Sequence[Batch] = ()
    ) -> list[int]:
        """Begin a pass; returns the least of each number over ranks.

        Args:
            values: must be alike on all ranks, by name.
            inputs: must be alike on ranks that share layers; those that share states may have others.
        """
        if not self.has_ranks:
            return list(minima)
        least = begin(self._server.world, what, [*self._own, *facts_of(values)], minima)
        if self._server.tensor.size > 1:
            begin(self._server.tensor, what, facts_of({"inputs": checksums_of(inputs)}))
        return least

    def begin_training(
        self, batch: MiniBatch, samples: Tensor | None, layers: Sequence[Layer], values: Mapping[str, object]
    ) -> None:
        """Begin a training step.

        Args:
            batch: the whole one; with `samples`, this rank's part.
            samples: the numbers of all samples.
            layers: of the path, and behind them the first one of the next path, if it is known.
            values: others that must be alike, by name.
        """
        is_part = samples is not None
        about = {
            "path": [layer.key for layer in layers],
            "size of micro-batches": batch.sizes[0] if is_part else batch.sizes,
            "number of samples": sum(batch.sizes) if samples is None else len(samples),
            "mini-batch": batch.checksum if samples is None else samples,
            "length of texts": None if is_part else batch.lengths,
            "loss scale": self._server.gradients.scale_state,
            **values,
        }
        begin(self._server.world, Pass.TRAIN, [*self._own, self._fact_of(batch.objective), *facts_of(about)])

    def compares_at(self, step: int) -> bool:
        """Whether a training step begins with a comparison of weights, which no update may change meanwhile."""
        return step % _COMPARED == 0 and self._server.exchange.size > 1

    def compare_replicas(self, layers: Sequence[Layer]) -> None:
        """Have ranks say so whose small states, of which each has all, are no longer alike."""
        server = self._server
        keys = dict.fromkeys(state for layer in layers for state in layer.states)
        server.prepare(keys)
        found = facts_of({f"weights of '{key}'": self._checksum(key) for key in keys if not server.is_sharded(key)})
        for start in range(0, max(1, len(found)), MOST_FACTS):
            begin(server.exchange, Pass.COMPARE, found[start : start + MOST_FACTS])

    def _checksum(self, key: str) -> int:
        with self._server.storage.reading(key, Part.WEIGHTS) as state:
            return checksum_of([state.weights])

    def _fact_of(self, objective: Objective) -> Fact:
        """An objective; it is looked at once, as long as it is the same object."""
        if self._objective is None or self._objective[0] is not objective:
            self._objective = objective, Fact("objective", digest_of(objective))
        return self._objective[1]

    @cached_property
    def _own(self) -> list[Fact]:
        """What the relay and its server were made with."""
        server, optimizer = self._server, self._server.optimizer
        sections = [getattr(self._config, section.name) for section in fields(self._config)]
        settings = {
            f"setting {entry.name}": getattr(section, entry.name)
            for section in sections
            for entry in fields(section)
            if entry.name != "trace"
        }
        pool = server.whole_pool
        values: dict[str, object] = {
            "search space": structure_of(pool),
            **settings,
            "seed": (self._seed, server.seed),
            "set of frozen states": server.frozen,
            "optimizer": type(optimizer),
            **{f"{name} of the optimizer": value for name, value in fields_of(optimizer).items()},
        }
        return facts_of(values)


def structure_of(pool: LayerPool) -> str:
    """A pool and its layers, but for the numbers in them; found once, as every trial has a server of its own."""
    if pool not in _STRUCTURES:
        modules = (pool.build_module(layer, device="meta") for layer in pool.layers if not layer.candidate.is_skip)
        texts = [described(module, has_values=False) for module in modules]
        _STRUCTURES[pool] = described([fingerprint(pool), *texts])
    return _STRUCTURES[pool]


def checksums_of(batches: Sequence[Batch]) -> list[int]:
    """Of each batch."""
    return [checksum_of(batch) for batch in batches]
