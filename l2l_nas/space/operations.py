"""Operations of torch: modes that are told of each, the arguments that they change, the memory that they make."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from l2l_nas.space.contents import storage_of

Phase = Literal["forward", "backward", "evaluation"]
# batch norms change running statistics, which their signatures do not say: which arguments
_SILENT_WRITES = dict.fromkeys(("native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm"), (3, 4))


class OperationLog(TorchDispatchMode):
    """Is told of every operation of its thread while it is on; derived classes say what comes of it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def begin(self, phase: Phase, tensors: Sequence[Tensor]) -> None:
        """A dry run is about to run a layer on these inputs, or its backward from these gradients."""

    def before(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """An operation is about to run."""

    def after(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """An operation ran."""

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        self.before(func, args, kwargs)
        result = func(*args, **kwargs)
        self.after(func, args, kwargs, result)
        return result


class LiveBytes(OperationLog):
    """Counts the storages that operations of this thread make while it is on, until each of them is freed.

    Autograd of a CPU runs its backward in the thread that asks for it, so what it makes is counted too. What other
    threads make (the relay's lanes, which are the host side) is not.

    Args:
        meta: whether tensors without memory count as if they had it.
    """

    def __init__(self, *, meta: bool = False) -> None:
        super().__init__()
        self.now = self.peak = 0  # bytes alive that were made since it was entered, and the most there ever were
        self.inputs = 0  # bytes alive of what a dry run's forward was given
        self._meta = meta
        self._alive: set[int] = set()

    def begin(self, phase: Phase, tensors: Sequence[Tensor]) -> None:
        """Count the inputs of a forward by themselves."""
        for tensor in tensors if phase == "forward" else ():
            storage = tensor.untyped_storage()
            self.inputs += storage.nbytes()
            weakref.finalize(storage, self._input_freed, storage.nbytes())

    def after(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """Count what is new in a result: neither an argument nor a view of one."""
        made = {storage_of(t): t.untyped_storage() for t in _with_storage(result) if self._meta or not t.is_meta}
        new = made.keys() - self._alive
        if new:
            new -= set(map(storage_of, _with_storage((args, kwargs))))
        for number in new:
            size = made[number].nbytes()
            self._alive.add(number)
            self.now += size
            self.peak = max(self.peak, self.now)
            weakref.finalize(made[number], self._freed, number, size)

    def _freed(self, number: int, size: int) -> None:
        self._alive.discard(number)
        self.now -= size

    def _input_freed(self, size: int) -> None:
        self.inputs -= size


def tensors_in(tree: object) -> list[Tensor]:
    """All tensors of nested arguments or results."""
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _with_storage(tree: object) -> list[Tensor]:
    return [tensor for tensor in tensors_in(tree) if not tensor.is_sparse]


def name_of(func: Any) -> str:
    """The name of an operation, without its overload; empty for higher-order operators, which have none."""
    return func.overloadpacket.__name__ if hasattr(func, "overloadpacket") else ""


@functools.cache
def _write_places(func: Any) -> tuple[tuple[int, str], ...]:
    schema = getattr(func, "_schema", None)
    arguments = schema.arguments if schema is not None else ()
    return tuple((i, a.name) for i, a in enumerate(arguments) if a.alias_info is not None and a.alias_info.is_write)


def written_by(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    """The arguments that an operation changes."""
    places, name = list(_write_places(func)), name_of(func)
    if name in _SILENT_WRITES and args[5]:  # in training
        places += [(index, "") for index in _SILENT_WRITES[name]]
    return tensors_in([args[index] if index < len(args) else kwargs.get(key) for index, key in places])


def graph_leaves(ends: Iterable[Tensor], *, until: Iterable[Tensor] = ()) -> Iterator[Tensor]:
    """Leaves that autograd reaches from tensors, once for each way in which it adds to their gradients.

    Args:
        until: tensors beyond which nothing is looked for.
    """
    visited = {tensor.grad_fn for tensor in until}
    nodes = [tensor.grad_fn for tensor in ends]
    while nodes:
        node = nodes.pop()
        if node is None or node in visited:
            continue
        visited.add(node)
        for following, _ in node.next_functions:
            leaf = getattr(following, "variable", None)
            if leaf is None:
                nodes.append(following)
            else:
                yield leaf
