"""The inbox of gradients: they arrive from the device, wait to be checked, and are applied to their states."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from l2l_nas.eps.layout import Layout, layout_of
from l2l_nas.eps.optimizers.groups import PoolRules
from l2l_nas.eps.scale import Clip, LossScale, norms_of, total_norm
from l2l_nas.eps.state import SavedState
from l2l_nas.eps.storage import Storage
from l2l_nas.eps.wire import Allocate, host_block
from l2l_nas.errors import NonFiniteError
from l2l_nas.space.pool import LayerPool

_HOST = torch.device("cpu")
_REMEMBERED = 8  # layouts whose views a block remembers


class GradientViews(NamedTuple):
    """The gradients of one state in a block.

    Attributes:
        values: all of them, as bytes.
        gradients: one for each parameter. Each has a version counter of its own, which tells whether autograd wrote it.
        norms: of each gradient.
        layout: of the state.
    """

    values: Tensor
    gradients: tuple[Tensor, ...]
    norms: Tensor
    layout: Layout


class GradientBlock:
    """Memory for a state's gradients, float32 and laid out as its masters, with their norms behind them.

    Args:
        memory: bytes, on any device.

    Attributes:
        read: a mark behind the update that read it on a device, for the stream that writes to it next; None where it
            is over.
    """

    def __init__(self, memory: Tensor) -> None:
        self.memory = memory
        self.read: Any = None
        self._views: dict[int, GradientViews] = {}  # by identity of a layout, which they keep alive

    def views(self, layout: Layout) -> GradientViews:
        """The gradients of a state of this layout."""
        views = self._views.get(id(layout))
        if views is None:
            if len(self._views) >= _REMEMBERED:
                self._views.clear()
            values, behind = self.memory[: layout.parameter_bytes], self.memory[layout.parameter_bytes :]
            norms = behind[: 4 * len(layout.parameters)].view(torch.float32)
            gradients = tuple(entry.view(values).data for entry in layout.parameters)
            views = self._views[id(layout)] = GradientViews(values, gradients, norms, layout)
        return views


def gradient_bytes(layout: Layout) -> int:
    """Of a state's gradients and their norms."""
    return layout.parameter_bytes + 4 * len(layout.parameters)


@dataclass(frozen=True)
class GradientMessage:
    """A state's gradients as its device has them.

    Args:
        has_grad: for each parameter, whether it got a gradient.
        has_norms: whether the norms were formed.
        stays: whether the block is one of the inbox, so that nothing is copied.
    """

    block: GradientBlock
    has_grad: Sequence[bool]
    has_norms: bool = True
    stays: bool = False


@dataclass
class QueuedGradient:
    """Gradients that wait for their update.

    Attributes:
        parts: one block for each place of the path that used the state; summed into the first one.
        norms: of each parameter's gradient.
        has_grad: for each parameter, whether it got a gradient.
        coefficient: what they are multiplied by when they are applied.
        saved: the state before they were applied ahead of the check, if they were.
        is_checked: whether they passed the check of all gradients of their step.
    """

    lr: float
    step: int
    parts: list[GradientBlock] = field(default_factory=list)
    norms: Tensor | None = None
    has_grad: list[bool] = field(default_factory=list)
    coefficient: float = 1.0
    saved: SavedState | None = None
    is_checked: bool = False

    def norm(self, index: int) -> Tensor:
        """Of one parameter's gradient."""
        assert self.norms is not None
        return self.norms[index]

    def present_norms(self, factor: float = 1.0) -> list[Tensor]:
        """Norms of the gradients there are."""
        assert self.norms is not None
        return [norm * factor for norm, has_grad in zip(self.norms, self.has_grad, strict=True) if has_grad]


@dataclass(frozen=True)
class GradientCheck:
    """What all gradients of a step together say.

    Args:
        norm: their Euclidean norm, before clipping.
        is_refused: they overflowed, and the loss scale was lowered; nothing of the step is applied.
        is_clipped: they are scaled down.
    """

    norm: float
    is_refused: bool = False
    is_clipped: bool = False


def choose_block(free: Sequence[int], num_bytes: int) -> int | None:
    """Which of free blocks goes for a gradient: the smallest that it fits in, else the last; None if there are none.

    A larger block takes the place of one that is too small, so that their number stays what a step needs.
    """
    fitting = [index for index, size in enumerate(free) if size >= num_bytes]
    if fitting:
        return min(fitting, key=free.__getitem__)
    return len(free) - 1 if free else None


class GradientInbox:
    """Gradients by state, from their arrival to their update.

    Methods that change states take the storage in which these live: the server's, or one that has a device's copies.

    Args:
        pool: of the states.
        rules: say how each state is updated.

    Attributes:
        waiting: by state, in the order in which they came.
        loss_scale: what losses are multiplied by, so that gradients are divided by it here; None: by nothing.
    """

    def __init__(self, pool: LayerPool, rules: PoolRules) -> None:
        self._pool = pool
        self._rules = rules
        self.waiting: dict[str, QueuedGradient] = {}
        self.loss_scale: LossScale | None = None
        self._blocks: list[GradientBlock] = []
        self._spares: list[tuple[Tensor, ...]] = []  # blocks for what states were before an update ahead
        self._lock = threading.Lock()

    def scale_losses(self, state: Mapping[str, float] | None = None) -> None:
        """Have a loss scale from now on.

        Args:
            state: what `LossScale.state` gave elsewhere, to go on from there.

        Raises:
            KeyError, TypeError, ValueError: it gave no such thing; the scale is as it was.
        """
        scale = LossScale() if self.loss_scale is None else self.loss_scale
        if state is not None:
            scale.load(state)
        self.loss_scale = scale

    @property
    def scale_state(self) -> dict[str, float] | None:
        """Of the loss scale, for `scale_losses` of another inbox."""
        return None if self.loss_scale is None else self.loss_scale.state()

    @property
    def keys(self) -> tuple[str, ...]:
        """States whose gradients wait for their update."""
        return tuple(self.waiting)

    @property
    def unchecked(self) -> dict[str, QueuedGradient]:
        """Those that came since the last check."""
        return {key: queued for key, queued in self.waiting.items() if not queued.is_checked}

    def add(
        self, key: str, message: GradientMessage, *, lr: float, step: int, allocate: Allocate | None = None
    ) -> None:
        """Receive a gradient from the device; a state used twice in a path contributes twice.

        Args:
            message: copied on the current stream, unless it stays.
            lr: learning rate of the update that will apply it.
            step: the training step, for messages.
            allocate: makes a block to copy to, if none is free.
        """
        layout, block = layout_of(self._pool, key), message.block
        if not message.stays:
            size = gradient_bytes(layout)
            block = self.allocate(size, allocate)
            copied = size if message.has_norms else layout.parameter_bytes
            block.memory[:copied].copy_(message.block.memory[:copied], non_blocking=True)
        queued = self.waiting.setdefault(key, QueuedGradient(lr, step))
        queued.parts.append(block)
        queued.has_grad = [a or b for a, b in zip(queued.has_grad or message.has_grad, message.has_grad, strict=True)]
        # behind the gradients, so that no thread waits for them here
        is_only = message.has_norms and len(queued.parts) == 1
        queued.norms = block.views(layout).norms if is_only else None

    def allocate(
        self, num_bytes: int, allocator: Allocate | None = None, device: torch.device = _HOST
    ) -> GradientBlock:
        """A block for gradients and norms that stay where the device writes them; `add` takes it back.

        Args:
            allocator: makes one if none is free.
            device: that it allocates on.
        """
        with self._lock:
            here = [index for index, block in enumerate(self._blocks) if block.memory.device == device]
            chosen = choose_block([self._blocks[index].memory.numel() for index in here], num_bytes)
            if chosen is not None:
                block = self._blocks.pop(here[chosen])
                if block.memory.numel() >= num_bytes:
                    return block
        return GradientBlock((allocator or host_block)(num_bytes))

    def give_back(self, blocks: Sequence[GradientBlock]) -> None:
        """Have blocks of `allocate` be free. What reads them is over, or `read` is behind it."""
        with self._lock:
            self._blocks += blocks

    def forget(self, keys: Iterable[str]) -> None:
        """Drop these states' gradients."""
        for key in keys:
            self.give_back(self.waiting.pop(key).parts)

    def discard(self, states: Storage) -> None:
        """Drop gradients that were not applied, or only ahead of the check, after a refused step."""
        self._discard(dict(self.waiting), states)

    def check(
        self,
        order: Sequence[tuple[str, int]],
        states: Storage,
        *,
        clip: Clip | None,
        is_scaled: bool = False,
        is_loss_finite: bool = True,
    ) -> GradientCheck:
        """Check all gradients of a step; where they overflowed, drop them.

        Args:
            order: state and index of each parameter, in the order in which a plain model lists them.
            clip: scales them down.
            is_scaled: whether the loss was multiplied by the loss scale, which is raised or lowered now.
            is_loss_finite: an overflow in the forward counts as one of the gradients.

        Raises:
            NonFiniteError: one has a NaN or inf; it names the first such state. Nothing is applied.
        """
        new = self.unchecked
        bad = self._not_finite(new)
        inverse, scale = 1.0, self.loss_scale
        if is_scaled and scale is not None:
            overflowed = bool(bad) or not is_loss_finite
            is_hopeless = overflowed and scale.is_lowest
            inverse = 1.0 / scale.scale
            scale.update(overflowed=overflowed)
            if overflowed and not is_hopeless:
                self._discard(new, states)
                return GradientCheck(float("inf"), is_refused=True)
        if bad:
            raise NonFiniteError("gradient", layer=bad[0], step=new[bad[0]].step)
        norms = [new[key].norm(index) * inverse for key, index in order if key in new and new[key].has_grad[index]]
        shared = clip.coefficient(norms) if clip is not None and clip.scope == "global" else 1.0
        is_clipped = False
        for queued in new.values():
            factor = shared
            if clip is not None and clip.scope == "layer":
                factor = clip.coefficient(queued.present_norms(inverse))
            # what was applied ahead has been multiplied by the inverse
            queued.coefficient = factor if queued.saved is not None else factor * inverse
            queued.is_checked = True
            is_clipped = is_clipped or factor != 1.0
        return GradientCheck(float(total_norm(norms)), is_clipped=is_clipped)

    def _not_finite(self, new: Mapping[str, QueuedGradient]) -> list[str]:
        """Sum the contributions to each state, know their norms; the states whose gradients are not finite."""
        norms = [self._sum(key, queued) for key, queued in new.items()]
        on_device = [index for index, one in enumerate(norms) if one.device != _HOST]
        if on_device:  # one copy, which waits for all sums
            found = torch.cat([norms[index] for index in on_device]).cpu()
            parts = found.split([norms[index].numel() for index in on_device])
            for index, part in zip(on_device, parts, strict=True):
                norms[index] = part
        bad = []
        for (key, queued), own in zip(new.items(), norms, strict=True):
            queued.norms = own
            self.give_back(queued.parts[1:])
            del queued.parts[1:]
            # a norm that overflows on finite numbers is examined again
            if not own.isfinite().all() and not self._values(key, queued).view(torch.float32).isfinite().all():
                bad.append(key)
        return bad

    def _sum(self, key: str, queued: QueuedGradient) -> Tensor:
        """Sum the contributions to a state into the first one; their norms, where they lie."""
        layout = layout_of(self._pool, key)
        first = queued.parts[0].views(layout)
        for part in queued.parts[1:]:
            first.values.view(torch.float32).add_(part.views(layout).values.view(torch.float32))
        return norms_of(first.gradients) if queued.norms is None else queued.norms

    def update(self, key: str, states: Storage, *, checked: bool, clip: Clip | None = None) -> None:
        """Apply a state's contributions, then drop them.

        Args:
            checked: whether `check` has seen them; if not, they are examined now.
            clip: scales gradients that were not checked down, by the norm of this state alone.

        Raises:
            NonFiniteError: the gradient has a NaN or inf; the state is as it was.
            BaseException: what the rule raised; the state is as it was, or refused from then on (StateLostError).
        """
        queued = self.waiting.pop(key)
        try:
            if not checked:
                if self._not_finite({key: queued}):
                    raise NonFiniteError("gradient", layer=key, step=queued.step)
                if clip is not None:
                    queued.coefficient = clip.coefficient(queued.present_norms())
            gradients = self._values(key, queued)
            if queued.coefficient != 1.0:
                gradients.view(torch.float32).mul_(queued.coefficient)
            with states.writing(key) as state:
                state.update(self._rules.of(key).calls, gradients, queued.has_grad, lr=queued.lr)
            queued.parts[0].read = state.written
        finally:
            self.give_back(queued.parts)

    def update_ahead(self, key: str, states: Storage, *, scale: float = 1.0) -> None:
        """Apply a state's contributions before they are checked, as if nothing were to be clipped; `confirm` follows.

        What the state was is copied: 12 bytes a parameter with AdamW, beside 4 for the gradient, until then. A gradient
        that is not finite is left to the check.

        Args:
            scale: what the loss was multiplied by.
        """
        queued = self.waiting[key]
        if self._not_finite({key: queued}):
            return
        gradients = self._values(key, queued)
        if scale != 1.0:
            gradients.view(torch.float32).mul_(1.0 / scale)
        failure: BaseException | None = None
        with states.writing(key) as state:
            sizes = [(block.numel(), block.device) for block in state.updated_blocks]
            spares = ([(block.numel(), block.device) for block in blocks] for blocks in self._spares)
            found = next((index for index, spare in enumerate(spares) if spare == sizes), None)
            queued.saved = state.save(None if found is None else self._spares.pop(found))
            try:
                state.update(self._rules.of(key).calls, gradients, queued.has_grad, lr=queued.lr)
            except BaseException as error:
                state.put_back(queued.saved)
                queued.saved, failure = None, error
        queued.parts[0].read = state.written
        if failure is not None:
            raise failure

    def confirm(self, states: Storage) -> None:
        """After the check: let updates ahead of it stand, or put them back and apply what is clipped.

        What was not updated by then is updated as usual.
        """
        ahead = {key: queued for key, queued in self.waiting.items() if queued.saved is not None}
        if ahead:
            self._spares = [queued.saved.blocks for queued in ahead.values() if queued.saved is not None]
        for key, queued in ahead.items():
            if queued.coefficient != 1.0:
                self._put_back(key, queued, states)
                self.update(key, states, checked=True)
        self.forget(key for key in ahead if key in self.waiting)

    def _values(self, key: str, queued: QueuedGradient) -> Tensor:
        return queued.parts[0].views(layout_of(self._pool, key)).values

    @staticmethod
    def _put_back(key: str, queued: QueuedGradient, states: Storage) -> None:
        if queued.saved is not None:
            with states.writing(key) as state:
                state.put_back(queued.saved)
            queued.saved = None

    def _discard(self, refused: Mapping[str, QueuedGradient], states: Storage) -> None:
        failure: BaseException | None = None
        for key, queued in refused.items():
            try:
                self._put_back(key, queued, states)
            except BaseException as error:  # the others are to be put back all the same
                failure = failure or error
        self.forget(refused)
        if failure is not None:
            raise failure
