"""What torch keeps for the whole process, which a layer must leave as it found it.

Other layers, the optimizer and the user's own code see it: a default dtype that a forward sets makes the next tensor of
anybody's another one. Who changes it is refused, and what was there is put back. Dry runs compare at each call of a
layer, a relay at the ends of a step.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, NoReturn

import torch
from torch.utils._device import DeviceContext

from l2l_nas.errors import SpaceError

GRADIENTS = "whether torch records gradients (torch.set_grad_enabled)"
_AUTOCAST = ("cpu", "cuda")


class TorchStateError(SpaceError):
    """Something changed what torch keeps for the whole process."""


class TorchState(NamedTuple):
    """What there is to compare; a microsecond or two to read."""

    default_dtype: torch.dtype
    records_gradients: bool
    threads: int
    is_deterministic: tuple[bool, bool]
    autocast: tuple[Any, ...]
    modes: tuple[Any, ...]  # the default device is one

    @classmethod
    def now(cls) -> TorchState:
        """What torch has now."""
        autocast = (torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind) for kind in _AUTOCAST)
        return cls(
            torch.get_default_dtype(),
            torch.is_grad_enabled(),
            torch.get_num_threads(),
            (torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()),
            tuple(autocast),
            tuple(map(torch._C._get_function_stack_at, range(torch._C._len_torch_function_stack()))),
        )

    def put_back(self) -> None:
        """Have torch be as it was."""
        torch.set_default_dtype(self.default_dtype)
        torch.set_grad_enabled(self.records_gradients)
        torch.set_num_threads(self.threads)
        is_on, warns = self.is_deterministic
        torch.use_deterministic_algorithms(is_on, warn_only=warns)
        for kind, dtype in zip(_AUTOCAST, self.autocast, strict=True):
            torch.set_autocast_enabled(kind, bool(dtype))
            if dtype:
                torch.set_autocast_dtype(kind, dtype)
        if TorchState.now().modes != self.modes:
            before = [mode.device for mode in self.modes if isinstance(mode, DeviceContext)]
            torch.set_default_device(before[0] if before else None)

    def changed(self, now: TorchState) -> str:
        """What is another one now, in words; empty where nothing is."""
        if self == now:
            return ""
        if self.default_dtype != now.default_dtype:
            return f"torch's default dtype ({_named(self.default_dtype)} to {_named(now.default_dtype)})"
        if self.threads != now.threads:
            return f"torch's number of threads ({self.threads} to {now.threads})"
        others = {
            "records_gradients": GRADIENTS,
            "is_deterministic": "whether torch's algorithms are deterministic",
            "autocast": "torch's autocast",
            "modes": "torch's default device",
        }
        return next(words for name, words in others.items() if getattr(self, name) != getattr(now, name))


def _named(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


@contextlib.contextmanager
def unchanged(refuse: Callable[[str, BaseException | None], NoReturn]) -> Iterator[None]:
    """Leave torch's state as it was, and refuse who changed it.

    Args:
        refuse: raises; given what was changed, and what was raised meanwhile, which may have come of it.
    """
    before, raised = TorchState.now(), None
    try:
        yield
    except BaseException as error:
        raised = error
        raise
    finally:
        if (change := before.changed(TorchState.now())) and not isinstance(raised, KeyboardInterrupt):
            before.put_back()
            refuse(change, raised)


def refuse_change(place: str) -> Callable[[str, BaseException | None], NoReturn]:
    """A refusal that says who it was: "forward", "factory"."""

    def refuse(change: str, cause: BaseException | None) -> NoReturn:
        raise TorchStateError(
            f"its {place} changes {change}, which all other code sees; leave it, or set it back before it returns"
        ) from cause

    return refuse
