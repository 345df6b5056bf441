"""Groups of parameters, by rule: no decay on some, another rate, another update rule, or none at all.

[Note: groups] All groups that match a parameter apply to it: their rates multiply, and of everything else the last one
counts. In torch a parameter is in one group; here a group says only what is other, so that "no decay on biases" and
"layers in front learn more slowly" need no product of both.
"""

from __future__ import annotations

import fnmatch
import math
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

from l2l_nas.arguments import check_kind, check_list, check_number
from l2l_nas.eps.layout import Layout, layout_of, tied_name
from l2l_nas.eps.optimizers.base import Optimizer, StateTensor, Tensors, check_rule, check_weight_decay, rule_for
from l2l_nas.errors import SettingError, did_you_mean, user_code
from l2l_nas.space.growth import with_frozen
from l2l_nas.space.parameters import Parameter, parameters_of
from l2l_nas.space.pool import Layer, LayerPool, PerPool

# what a match may be called
MATCHES: Mapping[str, Callable[[Parameter], bool]] = {
    "all": lambda parameter: True,
    "norms_and_biases": lambda p: len(p.shape) < 2 or p.is_norm or p.is_bias,
    "embeddings": lambda p: p.is_embedding,
    "hidden_matrices": lambda p: p.is_hidden_matrix,
    "not_hidden_matrices": lambda p: not p.is_hidden_matrix,
}


@dataclass(frozen=True)
class Group:
    """Parameters, and what is other about them. See [Note: groups].

    Args:
        match: a key of `MATCHES`; or a pattern of `position/candidate/name`, such as `*.bias` or `stem/*`; or a
            function of a `Parameter`.
        weight_decay: instead of the rule's; None leaves it.
        lr_scale: their learning rate over that of the others; or a function of a `Parameter` that gives it.
        frozen: they are not trained: no gradient, no state, and no part in a gradient's norm.
        rule: instead of the optimizer's own; None leaves it.
        name: what messages call it.

    Raises:
        SettingError: a value that makes no sense.
    """

    match: str | Callable[[Parameter], bool]
    weight_decay: float | None = None
    lr_scale: float | Callable[[Parameter], float] = 1.0
    frozen: bool = False
    rule: Optimizer | None = None
    name: str = ""

    def __post_init__(self) -> None:
        check_kind("Group: name", self.name, str, wanted="text")
        check_kind("Group: frozen", self.frozen, bool, wanted="True or False")
        if self.rule is not None:
            check_rule("Group: rule", self.rule)
        if not (callable(self.match) or isinstance(self.match, str)):
            raise SettingError(f"{self}: match is a pattern or a function of a parameter, got {self.match!r}")
        if self.weight_decay is not None:
            check_weight_decay(self.weight_decay)
        if not callable(self.lr_scale):
            _check_scale(self.lr_scale, str(self))

    def __str__(self) -> str:
        return f"group '{self.name or self.match}'"

    def matches(self, parameter: Parameter) -> bool:
        """Whether a parameter is in it."""
        if callable(self.match):
            with user_code(f"{self}: match", SettingError):
                return bool(self.match(parameter))
        if self.match in MATCHES:
            return MATCHES[self.match](parameter)
        return fnmatch.fnmatchcase(parameter.path, self.match)

    def scale(self, parameter: Parameter) -> float:
        """What it multiplies a parameter's rate by.

        Raises:
            SettingError: its function gives no such number, or raises.
        """
        if not callable(self.lr_scale):
            return self.lr_scale
        with user_code(f"{self}: lr_scale", SettingError):
            scale = self.lr_scale(parameter)
        _check_scale(scale, f"{self} at {parameter.path}")
        return scale


def _check_scale(scale: object, where: str) -> None:
    if isinstance(scale, bool) or not isinstance(scale, int | float) or not 0 <= scale < math.inf:
        raise SettingError(f"{where}: lr_scale must be a number of at least 0, got {scale!r}")


@dataclass(frozen=True)
class _LayerDecay:
    rate: float

    def __call__(self, parameter: Parameter) -> float:
        return self.rate ** (parameter.num_positions - 1 - parameter.place)


def layer_decay(rate: float) -> Group:
    """Rates that fall from the last position, which has the full one, to the first: rate ** (positions behind it).

    ELECTRA's and BEiT's layer-wise decay (arXiv 2003.10555, appendix A), with positions for layers.

    Raises:
        SettingError: the rate does not lie in (0, 1].
    """
    if not 0 < check_number("layer_decay: rate", rate) <= 1:
        raise SettingError(f"layer_decay must lie in (0, 1], got {rate}")
    return Group("all", lr_scale=_LayerDecay(rate), name="layer_decay")


def no_decay() -> Group:
    """No weight decay on biases, parameters of norms, and whatever else has fewer than two dimensions."""
    return Group("norms_and_biases", weight_decay=0.0, name="no_decay")


@dataclass(frozen=True)
class Groups:
    """An optimizer that does not treat all parameters alike.

    Args:
        rule: of every parameter, but for what groups say.
        groups: see [Note: groups].

    Raises:
        SettingError: one of these is something else.
    """

    rule: Optimizer
    groups: Sequence[Group] = ()

    def __post_init__(self) -> None:
        check_rule("Groups: rule", self.rule)
        check_list("Groups: groups", self.groups, of=Group, wanted="Groups")

    @property
    def name(self) -> str:
        """See `Optimizer`."""
        return self.rule.name

    def state(self, shape: tuple[int, ...]) -> tuple[StateTensor, ...]:
        """See `Optimizer.state`: of a parameter that is in no group."""
        return self.rule.state(shape)

    def update(
        self, weights: Tensors, gradients: Tensors, moments: Sequence[Tensors], steps: Tensors, *, lr: float
    ) -> None:
        """See `Optimizer.update`: of parameters that are in no group."""
        self.rule.update(weights, gradients, moments, steps, lr=lr)

    def treatment(self, parameter: Parameter) -> Treatment:
        """What becomes of a parameter.

        Raises:
            SettingError: a weight decay for a rule that has none, no rate, or a rule that cannot update it.
        """
        rule, scale, decay, is_frozen = self.rule, 1.0, None, False
        for group in self.groups:
            if group.matches(parameter):
                rule = rule if group.rule is None else group.rule
                scale *= group.scale(parameter)
                decay = decay if group.weight_decay is None else group.weight_decay
                is_frozen |= group.frozen
        rule = rule if decay is None else with_weight_decay(rule, decay)
        return Treatment(rule if is_frozen else rule_for(rule, parameter), scale, is_frozen)


@dataclass(frozen=True)
class Treatment:
    """How a parameter is updated."""

    rule: Optimizer
    lr_scale: float = 1.0
    frozen: bool = False


def with_weight_decay(rule: Optimizer, value: float) -> Optimizer:
    """The rule with another weight decay; a wrapper's goes to the `rule` within it.

    Raises:
        SettingError: it has none.
    """
    found: Any = rule
    known = {entry.name for entry in fields(found)} if is_dataclass(found) else set[str]()
    if "weight_decay" in known:
        return replace(found, weight_decay=value)
    if "rule" in known:
        return replace(found, rule=with_weight_decay(found.rule, value))
    raise SettingError(f"optimizer {rule.name} is no dataclass with a weight_decay; give the group a rule instead")


@dataclass(frozen=True)
class RuleCall:
    """Parameters of one state that are updated together: one rule, one rate, tensors of the same names.

    Args:
        indices: among the state's parameters.
        moments: indices of the state's blocks, in the rule's order.
    """

    rule: Optimizer
    lr_scale: float
    indices: tuple[int, ...]
    moments: tuple[int, ...]


@dataclass(frozen=True)
class StateRules:
    """How one state is updated.

    Args:
        layout: of the state, with what is stored for the optimizer.
    """

    layout: Layout
    calls: tuple[RuleCall, ...]


def state_rules(layout: Layout, treatments: Sequence[Treatment]) -> StateRules:
    """What is reserved for the parameters of a layout, and who updates them.

    Args:
        treatments: one for each parameter.

    Raises:
        SettingError: a rule cannot update a parameter.
    """
    held = [
        one.rule.state(entry.shape) if entry.trainable else ()
        for entry, one in zip(layout.parameters, treatments, strict=True)
    ]
    full = layout.with_moments([[(one.name, one.shape, one.dtype) for one in tensors] for tensors in held])
    places = {moment.name: index for index, moment in enumerate(full.moments)}
    members: list[tuple[Optimizer, float, tuple[int, ...], list[int]]] = []
    for index, (entry, one, tensors) in enumerate(zip(layout.parameters, treatments, held, strict=True)):
        if not entry.trainable:
            continue
        key = (one.rule, one.lr_scale, tuple(places[tensor.name] for tensor in tensors))
        found = next((member for member in members if member[:3] == key), None)
        if found is None:
            members.append((*key, [index]))
        else:
            found[3].append(index)
    return StateRules(full, tuple(RuleCall(rule, scale, tuple(own), moments) for rule, scale, moments, own in members))


class PoolRules:
    """How each state of a pool is updated, found once.

    Raises:
        SettingError: a group that matches no parameter, or differs between positions that share a layer.
    """

    def __init__(self, pool: LayerPool, optimizer: Optimizer) -> None:
        self._pool = weakref.ref(pool)  # which remembers this
        self.optimizer = optimizer
        self._found: dict[str, StateRules] = {}
        if isinstance(optimizer, Groups):
            _refuse_idle_groups(pool, optimizer)
            for key in pool.states:
                self.of(key)  # refuses now what cannot be updated

    def of(self, key: str) -> StateRules:
        """Of a state.

        Raises:
            SettingError: a rule cannot update a parameter of it.
        """
        if key not in self._found:
            pool = self._pool()
            assert pool is not None  # who has its rules has the pool
            layout = layout_of(pool, key)
            self._found[key] = state_rules(
                layout,
                [
                    _treatment(pool, self.optimizer, key, entry.name) if entry.trainable else Treatment(self.optimizer)
                    for entry in layout.parameters
                ],
            )
        return self._found[key]


_RULES: PerPool[PoolRules] = PerPool()


def rules_of(pool: LayerPool, optimizer: Optimizer) -> PoolRules:
    """How states of a pool are updated; remembered for the optimizer that was used last, as copies of servers do."""
    if pool not in _RULES or _RULES[pool].optimizer is not optimizer:
        _RULES[pool] = PoolRules(pool, optimizer)
    return _RULES[pool]


def without_retired(optimizer: Optimizer, before: LayerPool, pool: LayerPool) -> Optimizer:
    """The optimizer without groups whose parameters are all of candidates that were retired.

    Args:
        before: the pool with them.
        pool: the pool without.
    """
    if not isinstance(optimizer, Groups) or pool is before:
        return optimizer
    were, are = _parameters(before), _parameters(pool)

    def is_gone(group: Group) -> bool:
        return any(map(group.matches, were)) and not any(map(group.matches, are))

    return replace(optimizer, groups=[group for group in optimizer.groups if not is_gone(group)])


def freeze(pool: LayerPool, optimizer: Optimizer) -> LayerPool:
    """The pool with what groups freeze not trainable; the pool itself, if that is nothing, or was done before.

    Raises:
        SettingError: a group that differs between positions that share a layer.
    """
    if not isinstance(optimizer, Groups) or not any(group.frozen for group in optimizer.groups):
        return pool
    names = {
        key: frozenset(
            entry.name
            for entry in layout_of(pool, key).parameters
            if entry.trainable and _treatment(pool, optimizer, key, entry.name).frozen
        )
        for key in pool.states
    }
    return with_frozen(pool, {key: own for key, own in names.items() if own})


def _treatment(pool: LayerPool, optimizer: Optimizer, key: str, name: str) -> Treatment:
    if not isinstance(optimizer, Groups):
        knows = hasattr(optimizer, "for_parameter")
        return Treatment(rule_for(optimizer, next(_uses(pool, key, name))) if knows else optimizer)
    found: dict[Parameter, Treatment] = {one: optimizer.treatment(one) for one in _uses(pool, key, name)}
    first, treatment = next(iter(found.items()))
    for other, own in found.items():
        if own != treatment:
            raise SettingError(
                f"'{first.path}' and '{other.path}' are one parameter of a shared pool, but groups treat them "
                "differently; match both or neither"
            )
    return treatment


def _uses(pool: LayerPool, key: str, name: str) -> Iterator[Parameter]:
    """A parameter of a state at each position of a shared pool; what is tied, in the layer that defines it."""
    own = tied_name(pool, key)
    layers = _layers_by_key(pool).get(key, [pool.owner(key)]) if own is None else [pool.owner(key)]
    for layer in layers:
        yield parameters_of(pool, layer)[own or name]


_LAYERS: PerPool[dict[str, list[Layer]]] = PerPool()


def _layers_by_key(pool: LayerPool) -> dict[str, list[Layer]]:
    if pool not in _LAYERS:
        found: dict[str, list[Layer]] = {}
        for layer in pool.layers:
            found.setdefault(layer.key, []).append(layer)
        _LAYERS[pool] = found
    return _LAYERS[pool]


def _parameters(pool: LayerPool) -> list[Parameter]:
    keys = {key: [entry.name for entry in layout_of(pool, key).parameters] for key in pool.states}
    return [one for key, names in keys.items() for name in names for one in _uses(pool, key, name)]


def _refuse_idle_groups(pool: LayerPool, optimizer: Groups) -> None:
    every = _parameters(pool)
    for group in optimizer.groups:
        # a named rule that nothing fits, such as a pool without norms, is no mistake
        is_own = isinstance(group.match, str) and group.match not in MATCHES
        if is_own and not any(group.matches(one) for one in every):
            assert isinstance(group.match, str)
            hint = did_you_mean(group.match, MATCHES) if "/" not in group.match and "*" not in group.match else ""
            known = f"; write a pattern of POSITION/CANDIDATE/PARAMETER, such as {every[0].path}" if every else ""
            raise SettingError(f"{group}: matches no parameter{hint or known}")
