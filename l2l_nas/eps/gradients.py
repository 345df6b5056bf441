"""Gradients on their way to updates: blocks that they wait in, their sums and norms, the check of all of a step."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from l2l_nas.eps.layout import Layout
from l2l_nas.eps.scale import Clip, LossScale, norms_of, total_norm
from l2l_nas.eps.state import SavedState
from l2l_nas.eps.wire import Allocate, host_block
from l2l_nas.errors import NonFiniteError

_HOST = torch.device("cpu")


@dataclass(frozen=True)
class Sent:
    """A state's gradients as its device has them.

    Args:
        values: a block laid out as the state's masters, on any device.
        touched: for each parameter, whether it got a gradient.
        norms: for each parameter, the norm of its gradient; None: to be found.
        own: the block of `take_block` that they lie in, with norms behind them, so that nothing is copied. For a
            resident state, it is on the state's device.
    """

    values: Tensor
    touched: Sequence[bool]
    norms: Tensor | None = None
    own: Tensor | None = None


@dataclass
class Pending:
    """Gradients on the host that wait for their update.

    Attributes:
        parts: one block for each place of the path that used the state; summed into the first one.
        norms: of each parameter's gradient.
        touched: for each parameter, whether it got a gradient.
        coefficient: what they are multiplied by when they are applied.
        saved: the state before they were applied ahead of the check, if they were.
        is_checked: whether they passed the check of all gradients of their step.
    """

    lr: float
    step: int
    parts: list[Tensor] = field(default_factory=list)
    norms: Tensor | None = None
    touched: list[bool] = field(default_factory=list)
    coefficient: float = 1.0
    saved: SavedState | None = None
    is_checked: bool = False

    def norm(self, index: int) -> Tensor:
        """Of one parameter's gradient."""
        assert self.norms is not None
        return self.norms[index]

    def touched_norms(self, factor: float = 1.0) -> list[Tensor]:
        """Norms of the gradients there are."""
        assert self.norms is not None
        return [norm * factor for norm, touched in zip(self.norms, self.touched, strict=True) if touched]


@dataclass(frozen=True)
class Verdict:
    """What all gradients of a step together say.

    Args:
        norm: their Euclidean norm, before clipping.
        is_refused: they overflowed, and the loss scale was lowered; nothing of the step is applied.
        is_clipped: they are scaled down.
    """

    norm: float
    is_refused: bool = False
    is_clipped: bool = False


class GradientQueue:
    """Gradients by state, from their arrival to their update.

    Args:
        layout: of a state.

    Attributes:
        waiting: by state, in the order in which they came.
    """

    def __init__(self, layout: Callable[[str], Layout]) -> None:
        self._layout = layout
        self.waiting: dict[str, Pending] = {}
        self._blocks: list[Tensor] = []
        self._lock = threading.Lock()

    @property
    def keys(self) -> tuple[str, ...]:
        """States whose gradients wait for their update."""
        return tuple(self.waiting)

    def add(self, key: str, gradient: Sent, *, lr: float, step: int, allocate: Allocate | None = None) -> None:
        """Take a gradient from the device; a state used twice in a path contributes twice.

        Args:
            gradient: copied on the current stream, unless it lies in a block of `take_block`.
            lr: learning rate of the update that will apply it.
            step: the training step, for messages.
            allocate: makes a block to copy to, if none is free.
        """
        size, norms = gradient.values.numel(), gradient.norms
        behind = norms.nbytes if norms is not None else 0
        block = self.take_block(size + behind, allocate) if gradient.own is None else gradient.own
        if gradient.own is None:
            block[:size].copy_(gradient.values, non_blocking=True)
        pending = self.waiting.setdefault(key, Pending(lr, step))
        pending.parts.append(block)
        pending.touched = [a or b for a, b in zip(pending.touched or gradient.touched, gradient.touched, strict=True)]
        pending.norms = None
        if norms is not None:
            # behind the gradients, so that no thread waits for them here
            found = block[size : size + behind].view(norms.dtype)
            if gradient.own is None:
                found.copy_(norms, non_blocking=True)
            pending.norms = found if len(pending.parts) == 1 else None

    def forget(self, keys: Iterable[str]) -> None:
        """Give the blocks of these states' gradients back."""
        for key in keys:
            self.release(self.waiting.pop(key))

    def take_block(self, num_bytes: int, allocate: Allocate | None = None, device: torch.device = _HOST) -> Tensor:
        """A block for gradients and norms that stay where the device writes them; `add` takes it back.

        Args:
            allocate: makes one if none is free.
            device: that it allocates on.
        """
        with self._lock:
            here = [index for index, block in enumerate(self._blocks) if block.device == device]
            fitting = [index for index in here if self._blocks[index].numel() >= num_bytes]
            if fitting:  # the smallest
                return self._blocks.pop(min(fitting, key=lambda index: self._blocks[index].numel()))
            if here:  # a larger one takes the place of one that is free: their number stays what a step needs
                self._blocks.pop(here[-1])
        return (allocate or host_block)(num_bytes)

    def check(
        self,
        order: Sequence[tuple[str, int]],
        *,
        clip: Clip | None,
        scale: LossScale | None = None,
        is_loss_finite: bool = True,
    ) -> Verdict:
        """Check all gradients of a step. All stay here, beside those that were checked before and wait.

        Args:
            order: state and index of each parameter, in the order in which a plain model lists them.
            clip: scales them down.
            scale: what the loss was multiplied by, to be raised or lowered.
            is_loss_finite: an overflow in the forward counts as one of the gradients.

        Raises:
            NonFiniteError: one has a NaN or inf; it names the first such state. Nothing is applied.
        """
        own = self.unchecked
        bad = [key for key, pending in own.items() if not self.gather(key, pending)]
        if scale is not None:
            overflowed = bool(bad) or not is_loss_finite
            is_hopeless = overflowed and scale.is_lowest
            inverse = 1.0 / scale.scale
            scale.update(overflowed=overflowed)
            if overflowed and not is_hopeless:
                return Verdict(float("inf"), is_refused=True)
        else:
            inverse = 1.0
        if bad:
            raise NonFiniteError("gradient", layer=bad[0], step=own[bad[0]].step)
        norms = [own[key].norm(index) * inverse for key, index in order if key in own and own[key].touched[index]]
        norm = float(total_norm(norms))
        shared = clip.coefficient(norms) if clip is not None and clip.scope == "global" else 1.0
        is_clipped = False
        for pending in own.values():
            factor = (
                clip.coefficient(pending.touched_norms(inverse))
                if clip is not None and clip.scope == "layer"
                else shared
            )
            # what was applied ahead has been multiplied by the inverse
            pending.coefficient = factor if pending.saved is not None else factor * inverse
            pending.is_checked = True
            is_clipped = is_clipped or factor != 1.0
        return Verdict(norm, is_clipped=is_clipped)

    @property
    def unchecked(self) -> dict[str, Pending]:
        """Those that came since the last check."""
        return {key: pending for key, pending in self.waiting.items() if not pending.is_checked}

    def gather(self, key: str, pending: Pending) -> bool:
        """Sum the contributions, know their norms; whether they are finite."""
        layout = self._layout(key)
        total = pending.parts[0][: layout.parameter_bytes].view(torch.float32)
        for part in pending.parts[1:]:
            total.add_(part[: layout.parameter_bytes].view(torch.float32))
        if pending.norms is None:
            pending.norms = norms_of([entry.view(pending.parts[0]) for entry in layout.parameters])
        pending.norms = pending.norms.cpu()  # which waits for the sums
        self.give_back(pending.parts[1:])
        del pending.parts[1:]
        # a norm that overflows on finite numbers is examined again
        return bool(pending.norms.isfinite().all()) or bool(total.isfinite().all())

    def release(self, pending: Pending) -> None:
        """Give the blocks of these gradients back."""
        self.give_back(pending.parts)

    def give_back(self, blocks: Sequence[Tensor]) -> None:
        """Have blocks of `take_block` be free. What reads them must be over, on a device too."""
        with self._lock:
            self._blocks += blocks
