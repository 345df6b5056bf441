"""Tensor parallelism: a plain module becomes one rank's part of it; see [Note: divided layers] in `space/split.py`.

    ranks = Ranks(GroupReducer(group))
    module = split_module(EncoderBlock(...), {"qkv": Column(parts=3), "out": Row(), ...}, ranks)

DTensor is not used: a layer's parameters are views of a slot, and it would put tensors of its own in their place.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from l2l_nas.errors import SpaceError, did_you_mean
from l2l_nas.parallel.collectives import Ranks
from l2l_nas.parallel.layer_parts import (
    ByColumns,
    ByRows,
    DroppedOut,
    Gathered,
    InGroups,
    OfExperts,
    OfTokens,
    OnHeads,
    OnParts,
    Scoped,
    Selected,
    turn,
)
from l2l_nas.space.split import (
    Attended,
    Attribute,
    Channels,
    Column,
    Dropped,
    Experts,
    Grouped,
    KeyValue,
    Row,
    SplitPlan,
    SplitRule,
    Splits,
    Vocabulary,
    Within,
)

_LINEAR = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


def split_factory(
    factory: Callable[[], nn.Module],
    splits: Splits,
    ranks: Ranks,
    *,
    gather_logits: bool = True,
    exact_random: bool = True,
) -> nn.Module:
    """A rank's part of what a factory builds; `functools.partial` makes it a factory. See `split_module`.

    The full module is built first, so that its first weights are those of one process.
    """
    module = factory()
    if not isinstance(module, nn.Module):
        return module  # which the builder of layers refuses by name
    if not all(parameter.is_meta for parameter in module.parameters()):
        module = copy.deepcopy(module)  # it may be the user's own, which is never changed
    return split_module(module, splits, ranks, gather_logits=gather_logits, exact_random=exact_random)


def split_module(
    module: nn.Module,
    splits: Splits,
    ranks: Ranks,
    *,
    gather_logits: bool = True,
    exact_random: bool = True,
) -> nn.Module:
    """Make a module this rank's part of itself, in place.

    Args:
        module: plain; the same on all ranks, of which each keeps its part.
        splits: rules by the name of a part of the module.
        ranks: that share it.
        gather_logits: whether a linear layer that is divided by `Vocabulary` gives all scores. Else it gives those of
            the rank's tokens, as `vocabulary_cross_entropy` takes them.
        exact_random: whether dropout on parts drops what it would in one process, for which every rank draws the
            numbers of all. Else each draws its own.

    Raises:
        SpaceError: a name that the module has not, a rule that does not fit the part, or sizes that the ranks do not
            divide.
    """
    if not splits:
        return module
    splitter = _Splitter(module, SplitPlan(splits, ranks.size), ranks, gather_logits, exact_random)
    for name, rule in splits.items():
        splitter.divide(name, rule)
    turn(module, Scoped, ranks=ranks)
    return module


class _Splitter:
    def __init__(self, module: nn.Module, plan: SplitPlan, ranks: Ranks, gather: bool, exact: bool) -> None:
        self._module, self._plan, self._ranks, self._gather, self._exact = module, plan, ranks, gather, exact
        self._divided: dict[int, Tensor] = {}  # by identity of the whole tensor, for one with several names
        self._alive: list[Tensor] = []
        self._parts = dict(module.named_modules(remove_duplicate=False))
        self._refuse_unlike_names()

    def divide(self, name: str, rule: SplitRule) -> None:
        """Apply a rule to the part of this name."""
        if isinstance(rule, Attribute):
            self._divide_attribute(name, rule)
            return
        path, _, leaf = name.rpartition(".")
        owner = self._parts.get(path)
        if name not in self._parts and owner is not None and owner._parameters.get(leaf) is not None:
            if not isinstance(rule, Channels | Column) or isinstance(rule, Row):
                raise SpaceError(f"split: '{name}' is a parameter, which is divided by Channels(), not by {rule}")
            owner._parameters[leaf] = self._part(owner._parameters[leaf], name)
            return
        if name not in self._parts:
            known = [*filter(None, self._parts), *dict(self._module.named_parameters())]
            raise SpaceError(f"split: it has no part '{name}'{did_you_mean(name, known)}")
        part = self._parts[name]
        if hasattr(part, "parametrizations"):
            raise SpaceError(f"split: the weights of '{name}' are made from others (a parametrization); leave it whole")
        for kind, apply in _APPLY:
            if isinstance(rule, kind):
                apply(self, part, name, rule)
                return
        raise SpaceError(f"split: '{name}' has a rule of an unknown kind, {type(rule).__name__}")

    def _refuse_unlike_names(self) -> None:
        """Refuse a tensor with several names, of which one is divided in another way than the others."""
        names: dict[int, str] = {}
        for name, tensor in self._module.named_parameters(remove_duplicate=False):
            first = names.setdefault(id(tensor), name)
            rules = [(rule.dim(rest, self._plan.size), rule) for rule, rest in map(self._plan.rule_of, (first, name))]
            if rules[0] != rules[1] and any(dim is not None or isinstance(rule, Experts) for dim, rule in rules):
                raise SpaceError(f"split: '{first}' and '{name}' are one tensor; divide both alike, or neither")

    def _part(self, tensor: Any, name: str) -> Any:
        """A rank's part of a parameter or buffer, in memory of its own."""
        if id(tensor) not in self._divided:
            rule, rest = self._plan.rule_of(name)
            dim = rule.dim(rest, self._plan.size)
            if dim is not None and dim >= tensor.dim():
                raise SpaceError(f"split: '{name}' {list(tensor.shape)} has no dimension {dim} to divide; {rule}")
            if dim is not None:
                rule.check(name, tensor.shape[dim], self._plan.size)
            part = self._plan.take(tensor.detach(), name, self._ranks.rank)
            assert part is not None
            self._alive.append(tensor)  # an identity that is used again would be another tensor's
            if dim is None:
                self._divided[id(tensor)] = tensor
            elif isinstance(tensor, nn.Parameter):
                self._divided[id(tensor)] = nn.Parameter(part.clone(), tensor.requires_grad)
            else:
                self._divided[id(tensor)] = part.clone()
        return self._divided[id(tensor)]

    def _take_tensors(self, part: nn.Module, name: str) -> None:
        for table in (part._parameters, part._buffers):
            for leaf, tensor in table.items():
                if tensor is not None:
                    table[leaf] = self._part(tensor, f"{name}.{leaf}" if name else leaf)

    def _divide_attribute(self, name: str, rule: Attribute) -> None:
        path, owner, steps = "", self._module, name.split(".")
        while len(steps) > 1 and steps[0] in owner._modules:
            path = f"{path}.{steps[0]}".lstrip(".")
            owner, steps = self._parts[path], steps[1:]
        setattr(owner, steps[0], _with_share(vars(owner), steps, name, rule, self._plan.size))

    def columns(self, part: nn.Module, name: str, rule: SplitRule) -> None:
        """A linear layer or convolution that gives some of the outputs."""
        _check_kind(part, name, rule, _LINEAR)
        length = len(self._weight(part))
        self._take_tensors(part, name)
        _resize(part)
        turn(part, ByColumns, ranks=self._ranks)
        if isinstance(rule, Vocabulary) and self._gather:
            begin, _ = rule.piece(length, self._ranks.rank, self._ranks.size)
            turn(part, Gathered, place=(begin, length))

    def rows(self, part: nn.Module, name: str, rule: Row) -> None:
        """A linear layer or convolution that takes some of the inputs."""
        _check_kind(part, name, rule, _LINEAR)
        if type(part).forward not in [kind.forward for kind in _LINEAR]:
            raise SpaceError(
                f"split: '{name}' is a {type(part).__name__} with a forward of its own, which may not be linear in its "
                "inputs; divide it by Column(), or leave it whole"
            )
        length = self._weight(part).shape[1]
        self._take_tensors(part, name)
        _resize(part)
        place = rule.piece(length, self._ranks.rank, self._ranks.size) if rule.is_input_whole else None
        turn(part, ByRows, ranks=self._ranks, place=place)

    def groups(self, part: nn.Module, name: str, rule: Grouped) -> None:
        """A grouped convolution that has some of the groups."""
        if not isinstance(part, _ConvNd) or part.groups == 1:
            raise SpaceError(f"split: '{name}' is no grouped convolution, so Grouped() cannot divide it")
        rule.check(name, part.groups, self._ranks.size)
        length = part.in_channels
        self._take_tensors(part, name)
        part.groups //= self._ranks.size
        _resize(part)
        place = rule.piece(length, self._ranks.rank, self._ranks.size) if rule.is_input_whole else None
        turn(part, InGroups, ranks=self._ranks, place=place)

    def key_value(self, part: nn.Module, name: str, rule: KeyValue) -> None:
        """Keys or values that groups of queries share."""
        _check_kind(part, name, rule, (nn.Linear,))
        rule.check(name, rule.heads, self._ranks.size)
        if len(self._weight(part)) != rule.heads * rule.unit:
            raise SpaceError(f"split: '{name}' has {len(self._weight(part))} outputs, but {rule}")
        if rule.dim("weight", self._ranks.size) is None:
            turn(part, Selected, ranks=self._ranks, place=rule.outputs(self._ranks.rank, self._ranks.size))
        else:
            self.columns(part, name, rule)

    def tokens(self, part: nn.Module, name: str, rule: Vocabulary) -> None:
        """An embedding that has some of the tokens, or the linear layer that scores them."""
        if not isinstance(part, nn.Embedding):
            _check_kind(part, name, rule, (nn.Embedding, nn.Linear))
            self.columns(part, name, rule)
            return
        if type(part).forward is not nn.Embedding.forward or part.max_norm is not None or part.scale_grad_by_freq:
            raise SpaceError(
                f"split: '{name}' is more than a plain nn.Embedding (a forward of its own, max_norm, or "
                "scale_grad_by_freq); leave it whole"
            )
        begin, end = rule.piece(part.num_embeddings, self._ranks.rank, self._ranks.size)
        padding = part.padding_idx
        self._take_tensors(part, name)
        part.num_embeddings = end - begin
        part.padding_idx = padding - begin if padding is not None and begin <= padding < end else None
        turn(part, OfTokens, ranks=self._ranks, begin=begin)

    def channels(self, part: nn.Module, name: str, rule: Channels) -> None:
        """A norm of each channel."""
        _check_kind(part, name, rule, (_BatchNorm, nn.GroupNorm))
        if isinstance(part, nn.GroupNorm):
            rule.check(name, part.num_groups, self._ranks.size)
        self._take_tensors(part, name)
        if isinstance(part, nn.GroupNorm):
            part.num_groups //= self._ranks.size
            part.num_channels //= self._ranks.size
        elif isinstance(part, _BatchNorm):
            rule.check(name, part.num_features, self._ranks.size)
            part.num_features //= self._ranks.size

    def experts(self, part: nn.Module, name: str, rule: Experts) -> None:
        """A container that has some of the experts."""
        if list(part._modules) != [str(index) for index in range(rule.count)]:
            raise SpaceError(f"split: '{name}' has {len(part._modules)} children, but {rule}")
        if type(part).forward in (nn.ModuleList.forward, nn.Module.forward):
            raise SpaceError(
                f"split: '{name}' has no forward, which Experts() needs: of tokens, their sum over experts"
            )
        rule.check(name, rule.count, self._ranks.size)
        for child in list(part._modules):
            if not rule.holds(child, self._ranks.rank, self._ranks.size):
                del part._modules[child]
        turn(part, OfExperts, ranks=self._ranks)

    def within(self, part: nn.Module, name: str, rule: SplitRule) -> None:
        """A module of whole weights that works on parts."""
        turn(part, OnParts, ranks=self._ranks)

    def dropped(self, part: nn.Module, name: str, rule: Dropped) -> None:
        """Dropout of a part."""
        _check_kind(part, name, rule, (nn.Dropout,))
        turn(part, DroppedOut, ranks=self._ranks, along=rule.along, is_exact=self._exact)

    def attended(self, part: nn.Module, name: str, rule: Attended) -> None:
        """Attention on some of the heads."""
        turn(part, OnHeads, ranks=self._ranks, is_exact=self._exact)

    def _weight(self, part: nn.Module) -> Tensor:
        weight = part.weight
        assert isinstance(weight, Tensor)
        return weight


# a Row is a Column too
_APPLY: tuple[tuple[type[SplitRule], Callable[..., None]], ...] = (
    (Row, _Splitter.rows),
    (Column, _Splitter.columns),
    (Grouped, _Splitter.groups),
    (KeyValue, _Splitter.key_value),
    (Vocabulary, _Splitter.tokens),
    (Channels, _Splitter.channels),
    (Experts, _Splitter.experts),
    (Within, _Splitter.within),
    (Dropped, _Splitter.dropped),
    (Attended, _Splitter.attended),
)


def _check_kind(part: nn.Module, name: str, rule: SplitRule, kinds: tuple[type[nn.Module], ...]) -> None:
    """Refuse a part that a rule does not divide."""
    if not isinstance(part, kinds):
        names = ", ".join(kind.__name__.lstrip("_") for kind in kinds)
        raise SpaceError(f"split: '{name}' is a {type(part).__name__}; {type(rule).__name__}() divides {names}")
    if isinstance(part, _ConvNd) and part.groups != 1:
        raise SpaceError(f"split: '{name}' is a grouped convolution, which Grouped() divides")


def _resize(part: nn.Module) -> None:
    """Have a linear layer or convolution say the sizes of the weights that it has."""
    weight = part.weight
    assert isinstance(weight, Tensor)
    if isinstance(part, nn.Linear):
        part.out_features, part.in_features = weight.shape
    elif isinstance(part, _ConvNd):
        part.out_channels, part.in_channels = len(weight), weight.shape[1] * part.groups


def _with_share(holder: Any, steps: list[str], name: str, rule: Attribute, size: int) -> Any:
    """What stands under the first step, with the number that the last one leads to divided."""
    fields = holder if isinstance(holder, dict) else vars(holder) if hasattr(holder, "__dict__") else {}
    if steps[0] not in fields:
        raise SpaceError(f"split: it has no attribute '{name}'{did_you_mean(steps[0], fields)}")
    value = fields[steps[0]]
    if len(steps) > 1:
        if not dataclasses.is_dataclass(value) or isinstance(value, type):
            raise SpaceError(f"split: '{name}' leads through a {type(value).__name__}, which is no dataclass")
        share = _with_share(value, steps[1:], name, rule, size)
        return dataclasses.replace(value, **{steps[1]: share})
    if isinstance(value, bool) or not isinstance(value, int):
        raise SpaceError(f"split: '{name}' is {value!r}; Attribute() divides a whole number")
    return rule.divided(name, value, size)
