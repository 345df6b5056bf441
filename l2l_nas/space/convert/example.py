"""What a model is converted with: its arguments, for any number of samples, and which of its outputs are meant."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from l2l_nas.errors import SpaceError
from l2l_nas.space.convert.masks import masks_always_made
from l2l_nas.space.losses import add_loss

Output = str | int  # of a model: its key, or its number
Example = Tensor | Sequence[Tensor] | Mapping[str, Any]


@dataclass(frozen=True)
class Choice:
    """Which of the things that a model gives are the pool's outputs, and auxiliary losses with their weights."""

    outputs: tuple[Output | None, ...]  # None: the one that is meant if nothing is said
    losses: Mapping[Output, float]

    def ends(self, outputs: Any) -> list[Tensor]:
        """The outputs and the losses."""
        losses = (_chosen(outputs, name, "losses") for name in self.losses)
        return [*(_chosen(outputs, name) for name in self.outputs), *losses]

    def __call__(self, outputs: Any) -> tuple[Tensor, ...]:
        """The outputs; a step of training collects the losses: see [Note: auxiliary losses]."""
        ends = self.ends(outputs)
        count = len(self.outputs)
        for loss, weight in zip(ends[count:], self.losses.values(), strict=True):
            add_loss(loss * weight)
        return tuple(ends[:count])


def _chosen(outputs: Any, output: Output | None, argument: str = "output") -> Tensor:
    """The tensor of this name, or the only one."""
    if isinstance(outputs, Tensor) and output in (None, 0):  # 0: auxiliary heads may be there in training alone
        return outputs
    if output is None and isinstance(outputs, Mapping) and "logits" in outputs:
        return cast(Tensor, outputs["logits"])
    items = outputs if isinstance(outputs, Mapping | tuple | list) else ()
    pairs = items.items() if isinstance(items, Mapping) else enumerate(items)
    tensors = {name: item for name, item in pairs if isinstance(item, Tensor)}
    if output is None and len(tensors) == 1:
        return next(iter(tensors.values()))
    if output not in tensors:
        problem = f"no tensor {output!r}" if output is not None else "no single tensor"
        texts = [f"losses={{{name!r}: ...}}" if argument == "losses" else f"output={name!r}" for name in tensors]
        several = f", or output={list(tensors)} for a loss of all" if output is None and texts else ""
        advice = f"write {' or '.join(texts)}{several}" if texts else f"got {type(outputs).__name__}"
        raise SpaceError(f"{argument}: the model gives {problem}; {advice}")
    return tensors[output]


class Arguments:
    """The example, for any number of samples."""

    def __init__(self, model: nn.Module, example: Example, choice: Choice) -> None:
        self._choice = choice
        if isinstance(example, Mapping):
            self._arguments: tuple[Sequence[Any], Mapping[str, Any]] = (), dict(example)
        else:
            self._arguments = tuple(example) if isinstance(example, list | tuple) else (example,), {}
        positional = _positional(model, len(self._arguments[0]))
        listed = [*zip(positional, self._arguments[0], strict=True), *self._arguments[1].items()]
        self.tensors = {name: item for name, item in listed if isinstance(item, Tensor)}
        # by leaf, if it is a tensor
        self.names = [name if isinstance(item, Tensor) else None for name, item in listed]
        rows = {len(tensor) if tensor.dim() else 0 for tensor in self.tensors.values()}
        is_nested = any(tree_leaves(item) != [item] for _, item in listed if not isinstance(item, Tensor))
        if len(rows) != 1 or 0 in rows or is_nested:
            shapes = ", ".join(f"{name} {list(tensor.shape)}" for name, tensor in self.tensors.items())
            raise SpaceError(
                "the example must be a tensor, several, or a dict of arguments, and all tensors have as many samples, "
                f"[samples, ...]; got {shapes or type(example).__name__}"
            )
        self.num_samples = rows.pop()

    def of(self, batch: int) -> tuple[Sequence[Any], Mapping[str, Any]]:
        """The arguments with so many samples: those of the example, repeated."""
        rows = torch.arange(batch) % self.num_samples
        return tree_map(lambda leaf: leaf[rows.to(leaf.device)] if isinstance(leaf, Tensor) else leaf, self._arguments)

    def tensors_of(self, batch: int) -> list[Tensor]:
        """The tensors among the arguments, with so many samples."""
        return [leaf for leaf in tree_leaves(self.of(batch)) if isinstance(leaf, Tensor)]

    def outputs_of(self, model: nn.Module, batch: int) -> tuple[Tensor, ...]:
        """The outputs of a model for so many samples."""
        args, kwargs = self.of(batch)
        with masks_always_made():
            return self._choice(model(*args, **kwargs))


def _positional(model: nn.Module, count: int) -> list[str]:
    """Names of so many positional arguments; those of `*xs` are xs0, xs1 and so on."""
    parameters = inspect.signature(model.forward).parameters.values()
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)][:count]
    rest = next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), None)
    if rest is not None:
        return names + [f"{rest}{number}" for number in range(count - len(names))]
    if len(names) < count:
        takes = ", ".join(names) or "none"
        raise SpaceError(f"the example has {count} positional arguments, but the model's forward takes {takes}")
    return names
