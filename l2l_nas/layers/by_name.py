"""A module whose inputs have names, as a layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn


class ByName(nn.Module):
    """Calls a module with keyword arguments, and takes a part of what it returns.

    Args:
        module: what is called.
        names: of its arguments, in the order of the values that the position reads.
        output: index, key or attribute of what it returns; None for all of it.
        constants: further arguments, the same in every call, such as `use_cache=False`.
    """

    def __init__(
        self, module: nn.Module, names: Sequence[str], output: int | str | None = None, **constants: Any
    ) -> None:
        super().__init__()
        self.module, self.names, self.output, self.constants = module, tuple(names), output, constants

    def forward(self, *inputs: Tensor) -> Any:
        """One tensor for each name in; the module's output, or the part of it."""
        outputs = self.module(**dict(zip(self.names, inputs, strict=True)), **self.constants)
        if self.output is None:
            return outputs
        if isinstance(self.output, str) and not isinstance(outputs, dict):
            return getattr(outputs, self.output)
        return outputs[self.output]
