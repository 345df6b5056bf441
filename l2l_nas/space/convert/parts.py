"""The layers of a converted model: its blocks, and what it computes before, between and behind them.

[Note: parts] A part of a model that is not a module is run by the model's own forward, in a copy that has only what the
part needs. There a block gives the values that other layers made, and so does a module that an earlier part ran. A
module that the part does not need gives zeros; a weight that it does not need is zeros. The forward ends where the last
thing is known that the part is for. So nothing of the model's code is written again, and no weight is stored twice.
"""

from __future__ import annotations

import contextlib
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import FunctionType
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from l2l_nas.errors import SpaceError
from l2l_nas.space.build import copy_with
from l2l_nas.space.contents import MODULE_ATTRIBUTES, contents
from l2l_nas.space.convert.example import Choice
from l2l_nas.space.convert.forms import PLAIN, ArgTree, Const, Form, is_constant
from l2l_nas.space.convert.masks import masks_always_made
from l2l_nas.space.convert.recording import Key, Modes


class _Shared:
    """Data that all copies of a layer share."""

    def __deepcopy__(self, memo: object) -> Self:
        return self


@dataclass(frozen=True)
class BlockCalled(_Shared):
    """How a model calls a block."""

    takes: ArgTree
    gives: ArgTree
    # by the mode of the model, whether it trains
    modes: tuple[Modes, Modes]
    has_gradients: bool  # whether it trains what is in the block: not within `torch.no_grad()`


@dataclass(frozen=True)
class BlockPlan(_Shared):
    """A position to be made of a block."""

    name: str
    reads: tuple[str, ...]  # names of values
    writes: tuple[str, ...]
    path: str
    called: BlockCalled
    can_skip: bool  # whether what it reads first has the form of what it writes


@dataclass(frozen=True)
class FragmentPlan(_Shared):
    """A position to be made of what lies before, between or behind blocks."""

    name: str
    reads: tuple[str, ...]  # names of values
    writes: tuple[str, ...]
    arguments: ArgTree  # of the model; those that are `Arg` are the first values
    # what each call of a block takes and gives; leaves that are `Arg` are values of the fragment
    calls: Mapping[Key, tuple[ArgTree, ArgTree]]
    # by path of a module, what each of its calls gives where it does not run; None for those that run
    others: Mapping[str, tuple[ArgTree | None, ...]]
    # what it makes, with its form: leaves that a block takes, or that another module gives
    wanted: Mapping[Key, Mapping[int, Form]]
    needed: tuple[str, ...]  # names of parameters and buffers
    runs: frozenset[str]  # paths of modules whose own forward it needs
    hooked: frozenset[str]  # blocks whose own hooks change what they take or give

    @property
    def is_head(self) -> bool:
        """Whether it gives the model's output."""
        return not self.wanted

    def is_idle(self, path: str) -> bool:
        """Whether a module computes nothing in it: another stands in for it, or for a module around it."""
        return path not in self.runs and any(path == outer or path.startswith(f"{outer}.") for outer in self._replaced)

    @cached_property
    def _replaced(self) -> tuple[str, ...]:
        others = (path for path, calls in self.others.items() if None not in calls)
        return *dict.fromkeys(path for path, _ in self.calls), *others


Plan = BlockPlan | FragmentPlan


def copied(
    model: nn.Module,
    *,
    parameter: Callable[[nn.Parameter], nn.Parameter] = lambda tensor: tensor,
    buffer: Callable[[Tensor], Tensor] = lambda tensor: tensor,
) -> nn.Module:
    """A copy of a model whose tensors are what these functions give of the model's: by default those themselves."""
    try:
        return copy_with(model, parameter, buffer)
    except Exception as error:
        raise SpaceError(
            f"the model cannot be copied ({type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}); "
            "for torch.nn.utils.weight_norm take the function of this name in torch.nn.utils.parametrizations"
        ) from error


class BlockLayer(nn.Module):
    """A block, or what a user offers in its place, as a layer.

    Args:
        called: how the model calls its block.
        path: of the model's own block; empty for others.
    """

    def __init__(self, block: nn.Module, called: BlockCalled, *, path: str = "") -> None:
        super().__init__()
        self.block = block
        self.path = path
        self._called = called

    @property
    def may_be_identity(self) -> bool:
        """Whether it takes one tensor, by position, and gives one."""
        takes, gives = self._called.takes, self._called.gives
        one = len(takes.leaves) == 1 == takes.tree.children()[0].num_leaves
        return one and gives.tree.is_leaf()

    def train(self, mode: bool = True) -> Self:
        """Switch modes as the model's `train` does, which may leave modules inside in evaluation."""
        super().train(mode)
        modules = dict(self.block.named_modules())
        for path, kind, is_training in self._called.modes[mode]:
            if not path or isinstance(modules.get(path), kind):  # a candidate need not have this module
                for inner in modules[path].modules():
                    inner.training = is_training
        return self

    def forward(self, *values: Tensor) -> tuple[Tensor, ...]:
        """The values that the block gives."""
        gives, batch = self._called.gives, values[0].shape[0]
        with _gradients(self._called.has_gradients and torch.is_grad_enabled()):
            args, kwargs = self._called.takes.fill(values)
            if not gives.shows:
                return gives.pick(self.block(*args, **kwargs), batch)
            with _shown(self.block, gives.shows) as shown:
                outputs = self.block(*args, **kwargs)
            return gives.pick((outputs, *shown), batch)


def _gradients(are_recorded: bool) -> contextlib.AbstractContextManager[object]:
    """Switch the recording of gradients, if need be: torch.export makes an operation of each switch."""
    is_so = torch.is_grad_enabled() is are_recorded
    return contextlib.nullcontext() if is_so else torch.set_grad_enabled(are_recorded)


@contextlib.contextmanager
def _shown(block: nn.Module, paths: Sequence[str]) -> Iterator[list[Any]]:
    """What modules inside a block give, one after the other."""
    shown: list[Any] = []
    with contextlib.ExitStack() as stack:
        for path in dict.fromkeys(paths):
            try:
                module = block.get_submodule(path)
            except AttributeError:
                raise SpaceError(
                    f"has no module '{path}'; the model uses what that gives (by a hook), so a candidate must have it"
                ) from None
            hook = module.register_forward_hook(lambda module, args, outputs: shown.append(outputs))
            stack.callback(hook.remove)
        yield shown


class ModelFragment(nn.Module):
    """What a model computes outside its blocks, as a layer.

    Args:
        model: not changed; the layer has its tensors.
        choice: of what the model gives.
    """

    def __init__(self, model: nn.Module, plan: FragmentPlan, choice: Choice) -> None:
        super().__init__()
        self._plan = plan
        self._choice = choice
        self._context = ReplayContext(plan)
        self.model = _stubbed(model, self._context)

    def forward(self, *values: Tensor) -> tuple[Tensor, ...]:
        """The values that it makes, in order, or the model's output."""
        args, kwargs = self._plan.arguments.fill(values)
        self._context.start(values)
        try:
            with masks_always_made():
                outputs = self.model(*args, **kwargs)
            return self._choice(outputs) if self._plan.is_head else self._context.results()
        except _Reached:
            return self._context.results()
        finally:
            self._context.start(())


# of a module that does nothing: its class may care for tensors that are not there, as nn.LSTM does
_PLAIN_WAYS: Mapping[str, Any] = {
    "__deepcopy__": None,
    **{name: getattr(nn.Module, name) for name in ("__getstate__", "__setstate__", "__setattr__", "_apply", "train")},
}


class _Reached(Exception):
    """Ends a forward whose fragment has all its values."""


class ReplayContext:
    """What stand-ins know of the fragment that runs."""

    def __init__(self, plan: FragmentPlan) -> None:
        self.plan = plan
        self.start(())

    def start(self, values: Sequence[Tensor]) -> None:
        """Begin a forward with its values, or end it with none: a layer keeps nothing between its forwards."""
        self._values = values
        self._missing = dict(self.plan.wanted) if values else {}
        self._made: dict[tuple[Key, int], Tensor] = {}
        self._count: Counter[str] = Counter()
        self._has_gradients = bool(values) and torch.is_grad_enabled()

    def results(self) -> tuple[Tensor, ...]:
        """What blocks were called with, and what other modules gave."""
        if self._missing:
            raise SpaceError(f"the model no longer calls '{next(iter(self._missing))[0]}', as in the example")
        return tuple(self._made[key, leaf] for key, forms in self.plan.wanted.items() for leaf in forms)

    @property
    def device(self) -> torch.device:
        """The device of the values."""
        return self._values[0].device if self._values else torch.device("cpu")

    def _call(self, path: str) -> Key:
        if not self._values:
            raise SpaceError(
                f"'{path}' is called again in the backward, by torch.utils.checkpoint in the model's forward; leave "
                "that out: the relay recomputes anyway"
            )
        self._count[path] += 1
        return path, self._count[path] - 1

    def block(self, stand_in: nn.Module, path: str, args: Any, kwargs: Any) -> Any:
        """What a block gives that is called as in the example."""
        key = self._call(path)
        leaves = tree_leaves((args, kwargs))
        if key not in self.plan.calls:
            raise SpaceError(f"the block '{path}' is called more often than in the example")
        takes, gives = self.plan.calls[key]
        if not torch.compiler.is_compiling():  # there transformers makes masks that it drops otherwise
            _refuse_other_arguments(path, takes, leaves)
        self._keep(key, leaves)
        outputs = self._outputs(gives, leaves)
        if not gives.shows:
            return outputs
        for inner, shown in zip(gives.shows, outputs[1:], strict=True):
            stand_in.get_submodule(inner)(shown)  # for the model's hooks
        return outputs[0]

    def other(self, path: str, run: Callable[[], Any]) -> Any:
        """Run another module that is called, or stand in for its outputs."""
        calls = self.plan.others.get(path, (None,))
        if not self._values and None in calls:
            return run()  # checkpoint computes again what ran
        key = self._call(path)
        call = calls[min(key[1], len(calls) - 1)]
        outputs = run() if call is None else self._outputs(call)
        if key in self._missing:
            self._keep(key, tree_leaves(outputs))
        return outputs

    def _outputs(self, gives: ArgTree, arguments: Sequence[Any] = ()) -> Any:
        with _gradients(self._has_gradients):
            # the model's code may detach a tensor in place, or hook it; the values are the relay's
            values = [value.view_as(value) if value.requires_grad else value for value in self._values]
            return gives.fill(values, arguments)

    def _keep(self, key: Key, leaves: Sequence[Any]) -> None:
        batch = self._values[0].shape[0]
        with _gradients(self._has_gradients):  # another part may take it where they are recorded
            for leaf, form in self._missing.pop(key, {}).items():
                self._made[key, leaf] = form.pack(leaves[leaf], batch)
        # torch.export cannot follow an exception through modules: there the rest runs, too, and is thrown away
        if not self.plan.is_head and not self._missing and not torch.compiler.is_compiling():
            raise _Reached


def _refuse_other_arguments(path: str, takes: ArgTree, leaves: Sequence[object]) -> None:
    if len(leaves) != len(takes.leaves):
        raise SpaceError(
            f"the block '{path}' is called with {len(leaves)} arguments, {len(takes.leaves)} in the example"
        )
    for leaf, item in zip(takes.leaves, leaves, strict=True):
        is_tensor = isinstance(item, Tensor)
        is_same = not is_tensor if isinstance(leaf, Const) else is_tensor
        if isinstance(leaf, Const) and isinstance(leaf.value, PLAIN):
            is_same = is_constant(leaf.value, item)
        if not is_same:
            got, expected = ("a tensor" if is_tensor else repr(item)), str(ArgTree((leaf,), takes.tree))
            raise SpaceError(
                f"the block '{path}' takes {got} where it took {expected} in the example; a model must call its blocks "
                "alike for all data"
            )


def _stubbed(model: nn.Module, context: ReplayContext) -> nn.Module:
    """A copy of a model with stand-ins for what a fragment does not run; its tensors are those of the model."""
    copy = copied(model)
    modules = dict(copy.named_modules(remove_duplicate=False))
    device = property(lambda self: self._context.device)
    removed: set[int] = set()
    for path, module in modules.items():
        absent: dict[str, Tensor] = {}
        for table in (module._parameters, module._buffers):
            for name in [n for n, tensor in table.items() if tensor is not None]:
                if (f"{path}.{name}" if path else name) not in context.plan.needed:
                    absent[name] = table.pop(name)  # type: ignore[assignment]
        removed |= {id(tensor) for tensor in absent.values()}
        for asks in ("keep_dtype", "round_dtype"):  # of what another part has
            if absent and isinstance(asked := getattr(module, asks, None), tuple | list):
                setattr(module, asks, tuple(name for name in asked if name not in absent))
        forward = _forward_of(module, path, context.plan)
        is_idle = context.plan.is_idle(path)
        if is_idle:  # hooks on gradients, and those that change something, do their work where the module runs
            forwards = ("_forward_hooks", "_forward_pre_hooks") if path in context.plan.hooked else ()
            for hooks in ("_backward_hooks", "_backward_pre_hooks", *forwards):
                setattr(module, hooks, OrderedDict())
        if absent or forward or is_idle:
            zeros: dict[str, Any] = {name: _zeros(tensor.shape, tensor.dtype) for name, tensor in absent.items()}
            _stand_in(module, context, {**(_PLAIN_WAYS if is_idle else {}), **zeros}, forward)
    for path, module in modules.items():
        # such as a list of weights; what does nothing keeps no others either
        gone = (Tensor, nn.Module, FunctionType) if context.plan.is_idle(path) else ()
        for name, value in list(vars(module).items()):
            if name not in MODULE_ATTRIBUTES and any(
                id(item) in removed or isinstance(item, gone) for _, item in contents(value, name)
            ):
                delattr(module, name)
        if isinstance(getattr(type(module), "dtype", None), property) and not any(True for _ in module.parameters()):
            floats = [p for p in model.get_submodule(path).parameters() if p.is_floating_point()]
            if floats:  # transformers' models ask their first weight
                _stand_in(module, context, {"dtype": floats[0].dtype, "device": device})
    return copy


def _forward_of(module: nn.Module, path: str, plan: FragmentPlan) -> Callable[..., Any] | None:
    """What a module of a fragment does in place of its own forward; None where it runs that."""
    if any(path == block for block, _ in plan.calls):
        return lambda self, *args, **kwargs: self._context.block(self, path, args, kwargs)
    if any(path == f"{block}.{inner}" for (block, _), (_, gives) in plan.calls.items() for inner in gives.shows):
        return lambda self, outputs: outputs
    if path in plan.others or any(path == wanted for wanted, _ in plan.wanted):
        forward = type(module).forward
        return lambda self, *args, **kwargs: self._context.other(path, lambda: forward(self, *args, **kwargs))
    return None


def _stand_in(
    module: nn.Module, context: ReplayContext, names: Mapping[str, Any], forward: Callable[..., Any] | None = None
) -> None:
    """Give a module a class of its own, with these attributes."""
    kind = type(module)
    own = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    # BatchNorm's own asks for what is no longer there
    tables = {name: getattr(nn.Module, name) for name in ("_load_from_state_dict", "_save_to_state_dict")}
    stand_in = type(kind.__name__, (kind,), {**names, **own, **tables})
    if forward is not None:
        # set last, and with the plain call: transformers wraps the one or the other to checkpoint a block
        for name, function in (("forward", forward), ("__call__", nn.Module.__call__)):
            setattr(stand_in, name, function)
    module.__class__ = stand_in
    module._context = context  # type: ignore[assignment]


def _zeros(shape: torch.Size, dtype: torch.dtype) -> property:
    def zeros(self: Any) -> Tensor:
        return torch.zeros((), dtype=dtype, device=self._context.device).expand(shape)

    # `self.table = self.table.to(x.device)` changes nothing; what changes a tensor was refused when it was recorded
    return property(zeros, lambda self, value: None)
