"""What a user offers in place of the blocks of a model."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from torch import nn

from l2l_nas.errors import SpaceError, did_you_mean
from l2l_nas.space.build import Existing
from l2l_nas.space.candidate import Candidate, skip
from l2l_nas.space.convert.parts import BlockLayer, BlockPlan

Offer = Candidate | nn.Module | Callable[..., nn.Module]
Candidates = Mapping[str, Offer | Mapping[str, Offer]]


class Offers:
    """What a user offers for blocks; what is no layer, or for no block, is refused."""

    def __init__(self, candidates: Candidates, parts: Sequence[BlockPlan]) -> None:
        everywhere = {name: offer for name, offer in candidates.items() if not isinstance(offer, Mapping)}
        by_path = {path: offer for path, offer in candidates.items() if isinstance(offer, Mapping)}
        self._groups: list[tuple[str | None, Mapping[str, Offer]]] = [(None, everywhere), *by_path.items()]
        self._known: dict[object, Callable[[], nn.Module]] = {}
        for _, group in self._groups:
            for name, offer in group.items():
                if not callable(offer.factory if isinstance(offer, Candidate) else offer):
                    raise SpaceError(
                        f"candidates: '{name}' is {type(offer).__name__}; write a module, a function that builds "
                        "one, or a Candidate such as skip()"
                    )
        for path in by_path:
            if not any(fnmatchcase(part.path, path) for part in parts):
                paths = [part.path for part in parts]
                raise SpaceError(f"candidates: no block is called {path!r}{did_you_mean(path, paths)}")
        if any(map(_is_skip, everywhere.values())) and not any(part.can_skip for part in parts):
            raise SpaceError("candidates: no block gives what it takes, so none can be skipped; leave skip() out")

    def of(self, part: BlockPlan, original: nn.Module) -> Iterator[Candidate]:
        """The candidates beside the model's block."""
        for path, group in self._groups:
            if path is not None and not fnmatchcase(part.path, path):
                continue
            for name, offer in group.items():
                if not _is_skip(offer):
                    tied = offer.tied if isinstance(offer, Candidate) else {}
                    ties = {f"block.{parameter}": shared for parameter, shared in tied.items()}
                    yield Candidate(name, self._factory(part, offer, original), ties)
                elif part.can_skip or path is not None:
                    yield skip(name)

    def _factory(self, part: BlockPlan, offer: Offer, original: nn.Module) -> nn.Module | Callable[[], nn.Module]:
        """One factory for all blocks that are called alike, so that their layers share templates."""
        build = offer.factory if isinstance(offer, Candidate) else offer
        module = build.module if isinstance(build, Existing) else build
        if isinstance(module, nn.Module):
            return BlockLayer(module, part.called)
        wants_block = _wants_block(build)
        key = id(build), part.path if wants_block else repr(part.called)
        if key not in self._known:
            self._known[key] = _Offered(build, part, original if wants_block else None)
        return self._known[key]


def _is_skip(offer: object) -> bool:
    return isinstance(offer, Candidate) and offer.is_skip


def _wants_block(build: object) -> bool:
    if isinstance(build, type):
        return False
    try:
        return "block" in inspect.signature(build).parameters  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return False


@dataclass(frozen=True, eq=False, repr=False)
class _Offered:
    build: Callable[..., object]
    part: BlockPlan
    block: nn.Module | None

    def __call__(self) -> nn.Module:
        module = self.build() if self.block is None else self.build(block=copy.deepcopy(self.block))
        if not isinstance(module, nn.Module):
            raise TypeError(f"returned {type(module).__name__}, expected an nn.Module")
        return BlockLayer(module, self.part.called)
