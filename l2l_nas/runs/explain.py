"""What to tell of an error that ends a run, in one line."""

from __future__ import annotations

from pathlib import Path

from l2l_nas.errors import L2LError, StorageError, described, is_out_of_memory
from l2l_nas.files import named_failures


def explain(error: Exception) -> str:
    """What to tell of an error that ends a command."""
    if is_out_of_memory(error):
        return (
            f"out of memory ({described(error)}); take a smaller train.batch_size and train.micro_batch, fewer "
            "search.workers, relay.storage=file, or a smaller pool"
        )
    if isinstance(error, RecursionError):
        return "something is nested too deep: a setting, or calls in your own code"
    if isinstance(error, OSError):
        try:
            with named_failures(Path(str(error.filename or "."))):
                raise error
        except StorageError as named:
            return str(named)
    return str(error) if isinstance(error, L2LError) else f"{type(error).__name__}: {described(error)}"


def is_explained(error: Exception) -> bool:
    """Whether `explain` can tell; another one is a mistake of this program."""
    return isinstance(error, L2LError | OSError | RecursionError) or is_out_of_memory(error)
