"""Checks that any candidate can follow any other, on meta tensors: no memory, no arithmetic, no product of paths.

Every candidate of a position sees the same input, so it is enough that all candidates of a position agree on their
output: the cost is one meta forward for each candidate, not one for each architecture.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from l2l_nas.errors import ShapeError, SpaceError
from l2l_nas.space.candidate import TensorSpec
from l2l_nas.space.pool import Layer, LayerPool

Specs = tuple[TensorSpec, ...]

# any size above 1 does: layers that squeeze or normalise over the batch treat 1 specially
_BATCH = 2


def as_tuple(outputs: object) -> tuple[Tensor, ...]:
    """What a layer returned, as a tuple of tensors.

    Raises:
        TypeError: it is neither a tensor nor a tuple or list of tensors.
    """
    items = tuple(outputs) if isinstance(outputs, tuple | list) else (outputs,)
    if not items or not all(isinstance(item, Tensor) for item in items):
        raise TypeError(f"a layer returns a tensor or a tuple of tensors, got {type(outputs).__name__}")
    return items  # type: ignore[return-value]


def check_shapes(pool: LayerPool) -> tuple[Specs, ...]:
    """The specs at every boundary: entry i is what position i takes, the last entry what the pool gives out.

    Raises:
        ShapeError: a candidate's output differs from that of its position's first candidate.
        SpaceError: a factory or a forward raised, or tied parameters differ in shape.
    """
    boundaries = [pool.inputs]
    ties: dict[str, list[int]] = {}
    seen: dict[tuple[object, ...], Specs] = {}
    for index, position in enumerate(pool.positions):
        inputs = boundaries[-1]
        expected: Specs | None = None
        first = ""
        for layer in (item for item in pool.layers if item.position == index):
            candidate = layer.candidate
            key = (candidate.kind, tuple(sorted(candidate.tied.items())), inputs)
            if key not in seen:
                seen[key] = inputs if candidate.is_skip else _outputs(pool, layer, inputs, ties)
            outputs = seen[key]
            if expected is None:
                expected, first = outputs, candidate.name
            if outputs != expected:
                raise ShapeError(
                    position=position.name,
                    candidate=candidate.name,
                    got=describe(outputs),
                    expected=describe(expected),
                    advice=f"'{first}' gives that, and all candidates of a position must agree",
                )
        assert expected is not None  # a position has at least one candidate
        boundaries.append(expected)
    return tuple(boundaries)


def describe(specs: Specs) -> str:
    """Specs as a reader wants them: `[batch, 16, 8, 8] float32`."""
    return ", ".join(map(str, specs))


def _outputs(pool: LayerPool, layer: Layer, inputs: Specs, ties: dict[str, list[int]]) -> Specs:
    module = pool.build_module(layer, device="meta")
    where = {"position": pool.positions[layer.position].name, "candidate": layer.candidate.name}
    _refuse_hidden_tensors(module, where)
    parameters = dict(module.named_parameters(remove_duplicate=False))
    for name, group in layer.candidate.tied.items():
        shape = list(parameters[name].shape)
        if shape != ties.setdefault(group, shape):
            raise SpaceError(f"ties '{name}' {shape} to '{group}', which is {ties[group]} in an earlier layer", **where)
    batch = [torch.empty(_BATCH, *spec.shape, dtype=spec.dtype, device="meta") for spec in inputs]
    try:
        with torch.no_grad():
            module.train()(*batch)  # what changes its input, such as nn.Dropout(inplace=True), may do so only here
            outputs = as_tuple(module.eval()(*batch))
    except Exception as error:
        text = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise SpaceError(f"raised on input {describe(inputs)}: {text}", **where) from error
    if any(tensor._version for tensor in batch):
        # the relay keeps a layer's input to run the layer again in the backward
        raise SpaceError("changes its input in place; use inplace=False in its first operation", **where)
    for output in outputs:
        if output.dim() == 0 or output.shape[0] != _BATCH:
            raise SpaceError(f"its output {tuple(output.shape)} does not begin with the batch dimension", **where)
    return tuple(TensorSpec.of(output) for output in outputs)


def _refuse_hidden_tensors(module: nn.Module, where: dict[str, str]) -> None:
    """A tensor kept as a plain attribute would be missing from slots and checkpoints."""
    for path, part in module.named_modules():
        for name, value in vars(part).items():
            if isinstance(value, Tensor):
                full = f"{path}.{name}" if path else name
                raise SpaceError(
                    f"keeps the tensor '{full}' as a plain attribute; use register_buffer('{name}', ...)", **where
                )
