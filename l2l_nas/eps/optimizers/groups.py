"""Groups of parameters, by rule: no decay on some, another rate, another update rule, or none at all.

[Note: groups] All groups that match a parameter apply to it: their rates multiply, and of everything else the last one
counts. In torch a parameter is in one group; here a group says only what differs, so that "no decay on biases" and
"layers in front learn more slowly" need no product of both.
"""

from __future__ import annotations

import fnmatch
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

from l2l_nas.arguments import check_kind, check_list, check_number
from l2l_nas.eps.layout import Layout, layout_of, tied_name
from l2l_nas.eps.optimizers.base import Moments, Optimizer, StateTensor, Tensors, check_rule, rule_for
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
    """Parameters that are trained differently. See [Note: groups].

    Args:
        match: a key of `MATCHES`; or a pattern of `position/candidate/name`, such as `*.bias` or `stem/*`; or a
            function of a `Parameter`.
        weight_decay: instead of the rule's; None leaves that.
        lr_scale: the group's learning rate over that of other parameters; or a function of a `Parameter` that gives it.
        frozen: the parameters are not trained: no gradient, no state, and no part in a gradient's norm.
        rule: instead of the optimizer's; None leaves that.
        name: for messages.

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
            _check_one_rule("Group: rule", self.rule)
        if not (callable(self.match) or isinstance(self.match, str)):
            raise SettingError(f"{self}: match is a pattern or a function of a parameter, got {self.match!r}")
        if self.weight_decay is not None:
            check_number("weight_decay", self.weight_decay, least=0)
        if not callable(self.lr_scale):
            _check_scale(self.lr_scale, str(self))

    def __str__(self) -> str:
        return f"group '{self.name or self.match}'"

    def matches(self, parameter: Parameter) -> bool:
        if callable(self.match):
            with user_code(f"{self}: match", SettingError):
                return bool(self.match(parameter))
        if self.match in MATCHES:
            return MATCHES[self.match](parameter)
        return fnmatch.fnmatchcase(parameter.path, self.match)

    def scale(self, parameter: Parameter) -> float:
        """Raises SettingError: `lr_scale` returns no such number, or raises."""
        if not callable(self.lr_scale):
            return self.lr_scale
        with user_code(f"{self}: lr_scale", SettingError):
            scale = self.lr_scale(parameter)
        _check_scale(scale, f"{self} at {parameter.path}")
        return scale


def _check_one_rule(name: str, rule: object) -> None:
    if isinstance(rule, Groups):  # groups within groups would be ignored
        raise SettingError(f"{name}: it has groups itself; write one list: Groups(it.rule, [*it.groups, ...])")
    check_rule(name, rule)


def _check_scale(scale: object, where: str) -> None:
    check_number(f"{where}: lr_scale", scale, least=0)


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
        raise SettingError(f"layer_decay: rate must lie in (0, 1], got {rate}")
    return Group("all", lr_scale=_LayerDecay(rate), name="layer_decay")


def no_decay() -> Group:
    """No weight decay on biases, parameters of norms, and whatever else has fewer than two dimensions."""
    return Group("norms_and_biases", weight_decay=0.0, name="no_decay")


@dataclass(frozen=True)
class Treatment:
    """How a parameter is updated."""

    rule: Optimizer
    lr_scale: float = 1.0
    frozen: bool = False


@dataclass(frozen=True)
class Groups:
    """An optimizer with groups of parameters: see [Note: groups].

    Args:
        rule: of every parameter, but for what groups change.

    Raises:
        SettingError: an argument of another kind.
    """

    rule: Optimizer
    groups: Sequence[Group] = ()

    def __post_init__(self) -> None:
        _check_one_rule("Groups: rule", self.rule)
        check_list("Groups: groups", self.groups, of=Group, wanted="Groups")

    @property
    def name(self) -> str:
        return self.rule.name

    def state(self, shape: tuple[int, ...]) -> tuple[StateTensor, ...]:
        return self.rule.state(shape)

    def update(self, weights: Tensors, gradients: Tensors, moments: Moments, steps: Tensors, *, lr: float) -> None:
        self.rule.update(weights, gradients, moments, steps, lr=lr)

    def treatment(self, parameter: Parameter) -> Treatment:
        """Raises SettingError: a decay for a rule without one, no rate, or a rule that cannot update the parameter."""
        rule, scale, decay, is_frozen = self.rule, 1.0, None, False
        for group in self.groups:
            if group.matches(parameter):
                rule = rule if group.rule is None else group.rule
                scale *= group.scale(parameter)
                decay = decay if group.weight_decay is None else group.weight_decay
                is_frozen |= group.frozen
        rule = rule if decay is None else _with_weight_decay(rule, decay)
        return Treatment(rule if is_frozen else rule_for(rule, parameter), scale, is_frozen)


def _with_weight_decay(rule: Any, value: float) -> Optimizer:
    """The rule with another weight decay; a wrapper has it in the `rule` within."""
    names = {entry.name for entry in fields(rule)} if is_dataclass(rule) else set[str]()
    if "weight_decay" in names:
        return replace(rule, weight_decay=value)
    if "rule" in names:
        return replace(rule, rule=_with_weight_decay(rule.rule, value))
    raise SettingError(f"optimizer {rule.name} is no dataclass with a weight_decay; give the group a rule instead")


@dataclass(frozen=True)
class RuleCall:
    """Parameters of one state that are updated together: one rule, one rate, tensors of the same names."""

    rule: Optimizer
    lr_scale: float
    indices: tuple[int, ...]  # among the state's parameters
    moments: tuple[int, ...]  # indices of the state's blocks, in the rule's order


@dataclass(frozen=True)
class StateRules:
    """How one state is updated, and its layout with what is stored for the optimizer."""

    layout: Layout
    calls: tuple[RuleCall, ...]


def state_rules(layout: Layout, treatments: Sequence[Treatment]) -> StateRules:
    """The rules of one state, from its layout without an optimizer's tensors and a treatment for each parameter."""
    stored = [
        treatment.rule.state(entry.shape) if entry.trainable else ()
        for entry, treatment in zip(layout.parameters, treatments, strict=True)
    ]
    layout = layout.with_moments([{tensor.name: (tensor.shape, tensor.dtype) for tensor in own} for own in stored])
    numbers = {moment.name: number for number, moment in enumerate(layout.moments)}
    calls: list[tuple[RuleCall, list[int]]] = []  # a user's rule need not be hashable
    for index, (treatment, tensors) in enumerate(zip(treatments, stored, strict=True)):
        if layout.parameters[index].trainable:
            moments = tuple(numbers[tensor.name] for tensor in tensors)
            call = RuleCall(treatment.rule, treatment.lr_scale, indices=(), moments=moments)
            indices = next((indices for other, indices in calls if other == call), None)
            if indices is None:
                calls.append((call, indices := []))
            indices.append(index)
    return StateRules(layout, tuple(replace(call, indices=tuple(indices)) for call, indices in calls))


class PoolRules:
    """How each state of a pool is updated.

    Raises:
        SettingError: a group matches no parameter, or differs between positions that share a layer; or a rule cannot
            update a parameter. Without groups, `of` raises the latter.
    """

    def __init__(self, pool: LayerPool, optimizer: Optimizer) -> None:
        self._pool = weakref.ref(pool)  # the pool's memory `_RULES` holds this object
        self.optimizer = optimizer
        self._rules: dict[str, StateRules] = {}
        if isinstance(optimizer, Groups):
            _refuse_idle_groups(pool, optimizer)
            for key in pool.states:
                self.of(key)  # refuses now what cannot be updated

    def of(self, key: str) -> StateRules:
        if key not in self._rules:
            self._rules[key] = self._of(key)
        return self._rules[key]

    def treatments(self, key: str) -> dict[str, Treatment]:
        """By name, how each parameter of a state is updated; of one that is not trained it does not matter."""
        pool, optimizer = self._pool(), self.optimizer
        assert pool is not None  # its rules are asked for
        return {
            entry.name: _treatment(pool, optimizer, key, entry.name) if entry.trainable else Treatment(optimizer)
            for entry in layout_of(pool, key).parameters
        }

    def _of(self, key: str) -> StateRules:
        pool = self._pool()
        assert pool is not None
        return state_rules(layout_of(pool, key), list(self.treatments(key).values()))


_RULES: PerPool[PoolRules] = PerPool()


def rules_of(pool: LayerPool, optimizer: Optimizer) -> PoolRules:
    """The rules of a pool's states; remembered for the optimizer that was used last, as copies of servers do."""
    if pool not in _RULES or _RULES[pool].optimizer is not optimizer:
        _RULES[pool] = PoolRules(pool, optimizer)
    return _RULES[pool]


def without_retired(optimizer: Optimizer, before: LayerPool, pool: LayerPool) -> Optimizer:
    """The optimizer without groups that match parameters of `before` alone, which has candidates that `pool` lost."""
    if not isinstance(optimizer, Groups) or pool is before:
        return optimizer
    old, new = _parameters(before), _parameters(pool)
    left = [group for group in optimizer.groups if any(map(group.matches, new)) or not any(map(group.matches, old))]
    return replace(optimizer, groups=left)


def freeze(pool: LayerPool, optimizer: Optimizer) -> LayerPool:
    """The pool with what groups freeze not trainable; the pool itself, if that is nothing, or was done before."""
    if not isinstance(optimizer, Groups) or not any(group.frozen for group in optimizer.groups):
        return pool
    frozen = {
        key: frozenset(
            entry.name
            for entry in layout_of(pool, key).parameters
            if entry.trainable and _treatment(pool, optimizer, key, entry.name).frozen
        )
        for key in pool.states
    }
    return with_frozen(pool, {key: names for key, names in frozen.items() if names})


def _treatment(pool: LayerPool, optimizer: Optimizer, key: str, name: str) -> Treatment:
    if not isinstance(optimizer, Groups):
        is_general = not hasattr(optimizer, "for_parameter")
        return Treatment(optimizer if is_general else rule_for(optimizer, _uses(pool, key, name)[0]))
    first, *others = _uses(pool, key, name)
    treatment = optimizer.treatment(first)
    for other in others:
        if optimizer.treatment(other) != treatment:
            raise SettingError(
                f"'{first.path}' and '{other.path}' are one parameter of a shared pool, but groups treat them "
                "differently; match both or neither"
            )
    return treatment


_LAYERS: PerPool[dict[str, list[Layer]]] = PerPool()


def _uses(pool: LayerPool, key: str, name: str) -> list[Parameter]:
    """A parameter of a state at each position of a shared pool; what is tied, in the layer that defines it."""
    if pool not in _LAYERS:
        layers: dict[str, list[Layer]] = {}
        for layer in pool.layers:
            layers.setdefault(layer.key, []).append(layer)
        _LAYERS[pool] = layers
    name = tied_name(pool, key) or name
    return [parameters_of(pool, layer)[name] for layer in _LAYERS[pool].get(key, [pool.owner(key)])]


def _parameters(pool: LayerPool) -> list[Parameter]:
    entries = [(key, entry) for key in pool.states for entry in layout_of(pool, key).parameters]
    return [parameter for key, entry in entries for parameter in _uses(pool, key, entry.name)]


def _refuse_idle_groups(pool: LayerPool, optimizer: Groups) -> None:
    parameters = _parameters(pool)
    for group in optimizer.groups:
        # a key of `MATCHES` that matches nothing, such as in a pool without norms, is no mistake
        if not isinstance(group.match, str) or group.match in MATCHES or any(map(group.matches, parameters)):
            continue
        hint = did_you_mean(group.match, MATCHES) if "/" not in group.match and "*" not in group.match else ""
        if not hint and parameters:
            hint = f"; write a pattern of POSITION/CANDIDATE/PARAMETER, such as {parameters[0].path}"
        raise SettingError(f"{group}: match finds no parameter{hint}")
