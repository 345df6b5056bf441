"""Masks of `transformers`, made for all data alike.

[Note: masks that hide nothing] A tokenizer gives a mask [samples, length], of which a model of `transformers` makes
what its attention takes: causal, of a window, for both directions. Where a batch has no padding it makes none, since
attention may be faster without. A converted model calls its blocks alike for all data, so it always makes the mask, as
`transformers` itself does when it is compiled or exported. What attention gives then is the same but for the last bits.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch

# what `transformers` asks before it reads the numbers of a mask, or of tokens to warn of padding without one
_ASKS = "is_tracing"
_ASKED_IN = ("transformers.masking_utils", "transformers.modeling_utils")


class _Always:
    """Stands in for the question while models run, in however many threads."""

    lock = threading.Lock()
    users = 0
    originals: tuple[tuple[ModuleType, Any], ...] = ()

    def __call__(self, *args: Any, **kwargs: Any) -> bool:
        return True


_ALWAYS = _Always()


@contextmanager
def masks_always_made() -> Iterator[None]:
    """See [Note: masks that hide nothing]; nothing changes where `transformers` is not in use, or a graph is traced."""
    libraries = [module for module in map(sys.modules.get, _ASKED_IN) if module is not None and hasattr(module, _ASKS)]
    if torch.compiler.is_compiling() or not libraries:
        yield
        return
    with _ALWAYS.lock:
        if not _ALWAYS.users:
            _ALWAYS.originals = tuple((library, getattr(library, _ASKS)) for library in libraries)
            for library in libraries:
                setattr(library, _ASKS, _ALWAYS)
        _ALWAYS.users += 1
    try:
        yield
    finally:
        with _ALWAYS.lock:
            _ALWAYS.users -= 1
            for library, original in _ALWAYS.originals if not _ALWAYS.users else ():
                setattr(library, _ASKS, original)
