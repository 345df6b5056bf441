"""A pool whose layers are one rank's parts, and what is known of their whole tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor, nn

from l2l_nas.errors import SpaceError
from l2l_nas.parallel.collectives import Ranks
from l2l_nas.parallel.split import split_factory, split_module
from l2l_nas.space.candidate import Candidate, FirstWeights
from l2l_nas.space.pool import Layer, LayerPool, tied_group
from l2l_nas.space.split import SplitPlan, SplitRule, Splits, Vocabulary, own_splits


class SplitPool:
    """A pool divided among ranks that share its layers.

    A layer is divided as its candidate says, or else as its module does; what neither says is whole. Parameters that
    layers share are divided alike in all of them, or whole: a layer whose module says otherwise is left whole.

    Args:
        whole: the pool as one process has it. Its identity is the run's, however many ranks there are.
        ranks: that share its layers.
        gather_logits, exact_random: see `split_module`. With `gather_logits=None` scores are put together only where
            a candidate of the last position does not divide them.
        is_lenient: whether a layer whose module says how it is divided, but not among so many ranks, is left whole.
            Else it is refused, as is any whose candidate says so.

    Attributes:
        parts: the pool of this rank's parts.
        plans: by key of a layer's state; a layer that is left whole has an empty one.
        gathers_logits: whether scores are put together.
        refused: by key, why a layer is left whole that says how it is divided, but not among so many ranks.

    Raises:
        SpaceError: a plan that does not fit its layer, sizes that the ranks do not divide, or shared parameters of
            which one candidate says another thing than the others.
    """

    def __init__(
        self,
        whole: LayerPool,
        ranks: Ranks,
        *,
        gather_logits: bool | None = True,
        exact_random: bool = True,
        is_lenient: bool = False,
    ) -> None:
        self.whole, self.ranks = whole, ranks
        self.refused: dict[str, SpaceError] = {}
        layers = {layer.key: layer for layer in whole.layers if not layer.candidate.is_skip}
        splits = {key: self._splits_of(layer, is_lenient) for key, layer in layers.items()}
        _agree_on_shared(whole, layers, splits, ranks.size)
        self.plans: Mapping[str, SplitPlan] = {key: SplitPlan(rules, ranks.size) for key, rules in splits.items()}
        self.gathers_logits = not self._all_divide_scores() if gather_logits is None else gather_logits
        self._how = {"gather_logits": self.gathers_logits, "exact_random": exact_random}
        self.parts = self._parts() if ranks.size > 1 else whole

    @property
    def left_whole(self) -> tuple[str, ...]:
        """Keys of the layers with parameters of which every rank has all."""
        owners = {self.whole.owner(key).key: self.whole.owner(key) for key in self.whole.states}
        return tuple(
            key
            for key, layer in owners.items()
            if not self.plans[key].splits and any(True for _ in self._module(layer).parameters())
        )

    def take(self, key: str, name: str, tensor: Tensor, rank: int | None = None) -> Tensor | None:
        """A rank's part of a whole tensor of a state, such as a weight or its moment.

        Args:
            key, name: of the state, and of the parameter or buffer in its layout.
            rank: None: this one.

        Returns:
            None where the rank has nothing of it.
        """
        plan, full = self._place(key, name)
        return plan.take(tensor, full, self.ranks.rank if rank is None else rank)

    def join(self, key: str, name: str, parts: Sequence[Tensor | None]) -> Tensor:
        """The whole tensor of a state, of what each rank has of it, in the order of ranks."""
        plan, full = self._place(key, name)
        return plan.join(parts, full)

    def is_whole(self, key: str, name: str) -> bool:
        """Whether each rank has all of a tensor of a state, so that norms count it once."""
        plan, full = self._place(key, name)
        return plan.is_whole(full)

    def holds(self, key: str, name: str, rank: int) -> bool:
        """Whether a rank has anything of a tensor of a state."""
        plan, full = self._place(key, name)
        return plan.holds(full, rank)

    def _place(self, key: str, name: str) -> tuple[SplitPlan, str]:
        layer = self.whole.owner(key)
        return self.plans[layer.key], layer.tied_names(key)[0] if tied_group(key) is not None else name

    def _module(self, layer: Layer) -> nn.Module:
        return self.whole.build_module(layer, device="meta")

    def _all_divide_scores(self) -> bool:
        """Whether what the pool gives are scores of tokens, of which each rank has some."""
        last = [layer for layer in self.whole.layers if layer.position == len(self.whole.positions) - 1]
        is_all = self.whole.wiring.outputs == self.whole.wiring.writes[-1]
        return is_all and self.ranks.size > 1 and all(map(self._divides_scores, last))

    def _divides_scores(self, layer: Layer) -> bool:
        if layer.candidate.is_skip:
            return False
        parts = dict(self._module(layer).named_modules(remove_duplicate=False))
        rules = self.plans[layer.key].splits.items()
        return any(isinstance(rule, Vocabulary) and isinstance(parts.get(name), nn.Linear) for name, rule in rules)

    def _splits_of(self, layer: Layer, is_lenient: bool) -> Splits:
        split, module = layer.candidate.split, self._module(layer)
        is_own = split is None
        with self.whole.naming(layer):
            if split is None:
                split = {} if _has_cells(layer) else own_splits(module)
        try:
            with self.whole.naming(layer):
                split_module(module, split, self.ranks)
        except SpaceError as error:
            if not is_own or not is_lenient:
                raise
            self.refused[layer.key] = error
            return {}
        return split

    def _parts(self) -> LayerPool:
        factories: dict[object, Any] = {}  # by kind, so that layers of one kind share templates

        def part(layer: Layer) -> Candidate:
            candidate = layer.candidate
            plan = None if candidate.is_skip else self.plans[layer.key]
            if plan is None or not plan.splits:
                return candidate
            kind = candidate.kind, tuple(sorted(plan.splits.items(), key=lambda item: item[0]))
            built = partial(split_factory, candidate.factory, plan.splits, self.ranks, **self._how)
            weights = candidate.weights
            if weights is not None:
                weights = FirstWeights(partial(_read, weights.read, plan, self.ranks.rank), weights.fingerprint)
            return replace(candidate, factory=factories.setdefault(kind, built), weights=weights, split={})

        candidates: dict[int, list[Candidate]] = {}
        for layer in self.whole.layers:
            candidates.setdefault(layer.position, []).append(part(layer))
        positions = enumerate(self.whole.positions)
        return self.whole.like(position.with_candidates(candidates[index]) for index, position in positions)


def _read(read: Any, plan: SplitPlan, rank: int, name: str) -> Tensor:
    part = plan.take(read(name), name, rank)
    assert part is not None, name  # only parameters that the rank has are read
    return part


def _has_cells(layer: Layer) -> bool:
    """Whether its weights are made from cells that other layers share; see `space/elastic.py`."""
    return any("parametrizations." in name for name in layer.candidate.tied)


def _agree_on_shared(pool: LayerPool, layers: Mapping[str, Layer], splits: dict[str, Splits], size: int) -> None:
    """Leave layers whole that would divide a shared parameter otherwise than another layer, until all agree."""
    names: dict[str, list[tuple[str, str]]] = {}
    for key, layer in layers.items():
        for name, group in layer.candidate.tied.items():
            names.setdefault(group, []).append((key, name))
    is_changed = True
    while is_changed:
        is_changed = False
        for group, places in names.items():
            if len({_rule(splits[key], name, size) for key, name in places}) == 1:
                continue
            divided = [(key, name) for key, name in places if _rule(splits[key], name, size) is not None]
            own = [key for key, _ in divided if layers[key].candidate.split is None]
            for key in own:
                splits[key] = {}
                is_changed = True
            if not own:
                key, name = divided[0]
                others = [other for other, _ in places if splits[other] != splits[key]]
                with pool.naming(layers[key]):
                    raise SpaceError(
                        f"split: '{name}' is the parameter '{group}' of other layers, too, and '{others[0]}' does not "
                        "divide it alike; have both say the same, or leave both whole"
                    )


def _rule(splits: Splits, name: str, size: int) -> SplitRule | None:
    """The rule that divides a parameter; None where it is whole."""
    rule, rest = SplitPlan(splits, size).rule_of(name)
    return None if rule.is_whole(rest, size) else rule
