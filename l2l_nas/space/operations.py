"""Operations of torch: a mode that is told of each, the arguments that they change, whether they draw numbers."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

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
        """Run an operation."""
        kwargs = kwargs or {}
        self.before(func, args, kwargs)
        result = func(*args, **kwargs)
        self.after(func, args, kwargs, result)
        return result


def tensors_in(tree: object) -> list[Tensor]:
    """All tensors of nested arguments or results."""
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


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
