"""The layer pool: all candidates of all positions, and what they share."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from torch import nn

from l2l_nas.arguments import check_count, check_kind, check_list, check_names
from l2l_nas.errors import SpaceError, did_you_mean, located
from l2l_nas.space.architecture import Architecture
from l2l_nas.space.build import Builder
from l2l_nas.space.candidate import Candidate, Position, TensorSpec
from l2l_nas.space.values import Flow, Wiring

T = TypeVar("T")

_NAME = re.compile(r"[A-Za-z0-9_.+-]+")
_TIED = "tied/"


def tied_key(group: str) -> str:
    """The key of the state of a tied parameter."""
    return _TIED + group


def tied_group(key: str) -> str | None:
    """The name by which parameters are tied in this state; None for a layer's own state."""
    return key.removeprefix(_TIED) if key.startswith(_TIED) else None


@dataclass(frozen=True)
class Layer:
    """One candidate at one position: what a visit runs."""

    key: str  # of its state in the param-server; layers of a shared pool have one key at every position
    position: int  # its index
    candidate: Candidate

    @property
    def states(self) -> tuple[str, ...]:
        """Keys of all states of its parameters: the layer's own first, then the tied ones."""
        return (self.key, *dict.fromkeys(map(tied_key, self.candidate.tied.values())))

    def tied_names(self, key: str) -> list[str]:
        """The names that the parameter of a tied state has in this layer; none for its own state."""
        return [name for name, group in self.candidate.tied.items() if tied_key(group) == key]


class LayerPool:
    """All candidates of all positions.

    Args:
        inputs: the shape of one sample where it enters the pool: a spec, several, or specs by the name of a value.
        outputs: values that the loss takes; by default, what the last position writes.
        shared: layers are known by candidate name alone, so that a candidate of one name is the *same* layer at every
            position, and may be repeated in a path. Its factories must then agree at every position.

    Attributes:
        inputs: specs of all inputs, in order.
        sources: the same by value; one without a name where `inputs` gives none.
        free: the positions that choose for themselves; others follow them.

    Raises:
        SpaceError: no positions, two of one name, a name with unusual letters, shared candidates that differ, or values
            that cannot be read as asked.
    """

    def __init__(
        self,
        positions: Iterable[Position],
        *,
        inputs: TensorSpec | Sequence[TensorSpec] | Mapping[str, TensorSpec | Sequence[TensorSpec]],
        outputs: str | Sequence[str] | None = None,
        shared: bool = False,
    ) -> None:
        if isinstance(positions, Position):
            positions = [positions]
        self.positions: tuple[Position, ...] = tuple(
            check_list("LayerPool: positions", positions, of=object, wanted="Positions")
        )
        self.sources = _specs(inputs)
        self.inputs = tuple(spec for specs in self.sources.values() for spec in specs)
        self.shared = bool(check_kind("LayerPool: shared", shared, bool, wanted="True or False"))
        self._builder = Builder()
        self._remembered: dict[PerPool[Any], Any] = {}
        if not self.positions:
            raise SpaceError("the pool has no positions; give it at least one")
        if not all(isinstance(position, Position) for position in self.positions):
            raise SpaceError("positions: expected Position objects; write Position(name, [candidates])")
        names = [position.name for position in self.positions]
        candidates = [c for p in self.positions for c in p.candidates]
        given = {
            "positions": names,
            "candidates": [c.name for c in candidates],
            "tied": [group for c in candidates for group in c.tied.values()],
            "inputs": filter(None, self.sources),
            "writes": [name for position in self.positions for name in position.writes],
        }
        for argument, name in ((argument, name) for argument, several in given.items() for name in several):
            if not _NAME.fullmatch(name):
                raise SpaceError(f"{argument}: the name {name!r} may hold only letters, digits and _ . + -")
        for name, count in Counter(names).items():
            if count > 1:
                raise SpaceError("two positions of this name; rename one", position=name)
            if name == "tied":
                raise SpaceError("this name is reserved for tied parameters; rename the position", position=name)
        self.wiring = Wiring(
            self.positions,
            {name: len(specs) for name, specs in self.sources.items()},
            None if outputs is None else check_names("LayerPool: outputs", outputs),
        )
        self._leaders = list(self._find_leaders())  # by position, the index of the one that chooses for it
        self.free = tuple(p for index, p in enumerate(self.positions) if self._leaders[index] == index)
        self._layers = {
            (index, candidate.name): Layer(
                f"{'shared' if shared else position.name}/{candidate.name}", index, candidate
            )
            for index, position in enumerate(self.positions)
            for candidate in position.candidates
        }
        self._owners: dict[str, Layer] = {}
        for layer in self._layers.values():
            for state in layer.states:
                self._owners.setdefault(state, layer)
        self._refuse_unlike_shared()

    @classmethod
    def repeated(
        cls,
        candidates: Iterable[Candidate],
        *,
        depth: int,
        inputs: TensorSpec | Sequence[TensorSpec],
        first: Candidate | None = None,
        last: Candidate | None = None,
    ) -> LayerPool:
        """A shared pool: any of `candidates` at any of `depth` positions, repeats allowed.

        Args:
            first, last: fixed layers before and after, such as a stem and a head.

        Raises:
            SettingError: no candidates, or a depth below 1 or above 100,000.
        """
        items = check_list("LayerPool.repeated: candidates", candidates, of=Candidate, wanted="Candidates")
        check_count("LayerPool.repeated: depth", depth, least=1, most=100_000)
        positions = [Position(f"layer_{index:02d}", items) for index in range(depth)]
        before = [] if first is None else [Position("first", [first])]
        after = [] if last is None else [Position("last", [last])]
        return cls([*before, *positions, *after], inputs=inputs, shared=True)

    def _find_leaders(self) -> Iterator[int]:
        indices = {position.name: index for index, position in enumerate(self.positions)}
        for index, position in enumerate(self.positions):
            if position.follows is None:
                yield index
                continue
            leader = indices.get(position.follows, -1)
            if not 0 <= leader < index:
                raise SpaceError(
                    f"follows '{position.follows}', which is no position before it"
                    f"{did_you_mean(position.follows, list(indices)[:index])}",
                    position=position.name,
                )
            ahead = self.positions[leader]
            names, offered = ({c.name for c in one.candidates} for one in (position, ahead))
            if names != offered or ahead.follows is not None:
                raise SpaceError(
                    f"follows '{position.follows}', which has other candidates or follows another itself",
                    position=position.name,
                )
            yield leader

    @property
    def is_separable(self) -> bool:
        """Whether what a position's layer adds to a network is the same whatever others choose."""
        return not self.wiring.may_drop and len(self.free) == len(self.positions)

    def like(self, positions: Iterable[Position]) -> LayerPool:
        """This pool with other positions."""
        outputs = self.wiring.outputs
        return LayerPool(positions, inputs=self.sources, outputs=outputs, shared=self.shared)

    def _refuse_unlike_shared(self) -> None:
        for layer in self._layers.values():
            owner = self._owners[layer.key]
            if any(
                getattr(owner.candidate, of) != getattr(layer.candidate, of)
                for of in ("kind", "tied", "weights", "split")
            ):
                with self.naming(layer):
                    raise SpaceError(
                        f"in a shared pool a name is one layer, but '{self.positions[owner.position].name}' builds it "
                        "with another factory, ties, weights or split; use the same ones or another name"
                    )

    def __getstate__(self) -> dict[str, Any]:
        # what was found out about a pool stays behind where that is copied or sent: there it is found again
        return {**vars(self), "_remembered": {}}

    def __len__(self) -> int:
        return len(self.positions)

    @property
    def size(self) -> int:
        """How many architectures there are (before canonical form)."""
        return math.prod(len(position.candidates) for position in self.free)

    @property
    def layers(self) -> tuple[Layer, ...]:
        """Every candidate at every position."""
        return tuple(self._layers.values())

    def owner(self, state: str) -> Layer:
        """The layer whose factory defines a state: the first in the pool that uses it."""
        return self._owners[state]

    def has_state(self, key: str) -> bool:
        """Whether a layer of the pool uses a state of this key."""
        return key in self._owners

    def architecture(self, choices: Iterable[str]) -> Architecture:
        """The canonical architecture of these choices, one for each position.

        Raises:
            SpaceError: wrong length, or a name that its position does not have.
        """
        architecture = Architecture.from_choices(choices)
        self.path(architecture)
        return self.canonical(architecture)

    @property
    def original(self) -> Architecture:
        """The first candidate of each position: in pools of a model, the model itself."""
        return self.architecture(position.candidates[0].name for position in self.positions)

    def every(self) -> Iterator[Architecture]:
        """All architectures, in canonical form. Choices that come to the same one give it several times."""
        for names in itertools.product(*([c.name for c in position.candidates] for position in self.free)):
            chosen = {position.name: name for position, name in zip(self.free, names, strict=True)}
            yield self.architecture(chosen[self.positions[leader].name] for leader in self._leaders)

    def canonical(self, architecture: Architecture | Sequence[str]) -> Architecture:
        """One form for architectures whose choices come to the same.

        A position that follows another has its choice. In a shared chain without such, skips move behind the layers; a
        skip moves only past positions that offer the very same candidates.
        """
        architecture = Architecture.from_choices(architecture)
        if len(self.free) < len(self.positions):
            return Architecture(tuple(architecture.choices[leader] for leader in self._leaders))
        if not self.shared or not self.wiring.is_chain:
            return architecture
        choices = list(architecture.choices)
        start = 0
        for _, alike in itertools.groupby(self.positions, key=lambda p: {c.name for c in p.candidates}):
            run = slice(start, start + len(list(alike)))
            # a stable sort: layers keep their order
            choices[run] = sorted(choices[run], key=lambda name: self.positions[run.start][name].is_skip)
            start = run.stop
        return Architecture(tuple(choices))

    def path(self, architecture: Architecture | Sequence[str]) -> tuple[Layer, ...]:
        """The layers to run, in order; skips are left out, and layers that reach no output.

        Raises:
            SpaceError: wrong length, or a name that its position does not have.
        """
        architecture = Architecture.from_choices(architecture)
        if len(architecture.choices) != len(self.positions):
            raise SpaceError(
                f"an architecture of this pool has {len(self.positions)} choices, got {len(architecture.choices)}"
            )
        choices = zip(self.positions, architecture.choices, strict=True)
        layers = [
            self._layers[index, name] for index, (position, name) in enumerate(choices) if not position[name].is_skip
        ]
        if self.wiring.may_drop:
            live = set(self.wiring.live(layer.position for layer in layers))
            layers = [layer for layer in layers if layer.position in live]
        return tuple(layers)

    def flow(self, path: Sequence[Layer]) -> Flow:
        """The values of a path that `path` gave."""
        return self.wiring.flow([layer.position for layer in path])

    def build_module(self, layer: Layer, *, device: str = "cpu") -> nn.Module:
        """A module of a layer's own on a device; "meta" builds shapes without memory.

        Raises:
            SpaceError: the factory raised, or returned something else than a module that can be a layer.
        """
        with self.naming(layer):
            module = self._builder.build(layer.candidate.kind, layer.candidate.factory, device)
            parameters = dict(module.named_parameters(remove_duplicate=False))
            for name in layer.candidate.tied:
                if name not in parameters:
                    raise SpaceError(f"ties '{name}', but has only {', '.join(parameters) or 'no parameters'}")
        return module

    def naming(self, layer: Layer) -> AbstractContextManager[None]:
        """Has a SpaceError name a layer, unless it names one itself."""
        return located(self.positions[layer.position].name, layer.candidate.name)

    def borrowed(self, layer: Layer) -> Mapping[str, nn.Parameter]:
        """Trainable parameters, by name, that a layer's factory takes from elsewhere; known once it was built."""
        return self._builder.borrowed.get(layer.candidate.kind, {})

    @property
    def states(self) -> tuple[str, ...]:
        """Keys of every state a path could use, skips left out."""
        return tuple(key for key, layer in self._owners.items() if not layer.candidate.is_skip)


class PerPool(Generic[T]):
    """What was found out about each pool, remembered for as long as the pool lives.

    It lies in the pool. A table with weak keys would keep a pool for good where a value leads back to it, as a factory
    that is a method of the pool's owner does.
    """

    def __contains__(self, pool: LayerPool) -> bool:
        return self in pool._remembered

    def __getitem__(self, pool: LayerPool) -> T:
        remembered: T = pool._remembered[self]
        return remembered

    def __setitem__(self, pool: LayerPool, value: T) -> None:
        pool._remembered[self] = value

    def setdefault(self, pool: LayerPool, value: T) -> T:
        """See dict."""
        remembered: T = pool._remembered.setdefault(self, value)
        return remembered


def _specs(inputs: object) -> dict[str, tuple[TensorSpec, ...]]:
    """The specs of a pool's inputs, by value."""
    named = inputs.items() if isinstance(inputs, Mapping) else [("", inputs)]
    specs_of = {}
    for name, specs in named:
        several = (specs,) if isinstance(specs, TensorSpec) else specs
        specs_of[check_kind("LayerPool: the name of an input", name, str, wanted="text")] = tuple(
            check_list("LayerPool: inputs", several, of=TensorSpec, wanted="TensorSpecs")
        )
    return specs_of
