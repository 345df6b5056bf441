"""The inbox of gradients: they arrive from the device, wait to be checked, and are applied to their states."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from l2l_nas.eps.gradients import GradientBlock, GradientViews, choose_block, gradient_bytes
from l2l_nas.eps.layout import Layout, layout_of
from l2l_nas.eps.optimizers.groups import PoolRules, StateRules
from l2l_nas.eps.scale import Clip, LossScale, norms_of, total_norm
from l2l_nas.eps.state import LayerState, SavedState
from l2l_nas.eps.storage import Storage
from l2l_nas.eps.sums import norm_of, squares_of
from l2l_nas.eps.wire import Allocate, host_block
from l2l_nas.errors import NonFiniteError
from l2l_nas.space.pool import LayerPool

_HOST = torch.device("cpu")


@dataclass
class QueuedGradient:
    """Gradients that wait for their update."""

    lr: float
    step: int
    parts: list[GradientBlock] = field(default_factory=list)  # one for each use of the state; summed into the first
    norms: Tensor | None = None  # of each parameter's gradient; by blocks, their sums of squares
    has_grad: list[bool] = field(default_factory=list)  # by parameter
    coefficient: float = 1.0  # what the gradients are multiplied by when they are applied
    saved: SavedState | None = None  # the state before they were applied ahead of the check, if they were
    is_checked: bool = False
    is_own: bool | None = None  # where it is not finite; see `NonFiniteError`

    def scaled_norms(self, factor: float) -> dict[int, Tensor]:
        """By parameter, the norms of the gradients there are."""
        assert self.norms is not None
        norms = self.norms * factor
        return {index: norms[index] for index, has_grad in enumerate(self.has_grad) if has_grad}


@dataclass(frozen=True)
class GradientCheck:
    """The check of all gradients of a step."""

    norm: float  # Euclidean, before clipping
    is_refused: bool = False  # they overflowed, and the loss scale was lowered; nothing of the step is applied
    is_clipped: bool = False


class GradientInbox:
    """Gradients by state, from their arrival to their update.

    Methods that change states are given their storage: the server's, or one around it with a device's copies.

    Attributes:
        waiting: by state, in the order in which the gradients came.
        loss_scale: what losses are multiplied by, so that gradients are divided by it here; None: by nothing.
        has_block_norms: whether norms are of blocks, so that they do not depend on who has which part of a state, see
            `eps/sums.py`; else of parameters, as torch forms them.
    """

    def __init__(self, pool: LayerPool, rules: PoolRules) -> None:
        self._pool = pool
        self._rules = rules
        self.waiting: dict[str, QueuedGradient] = {}
        self.loss_scale: LossScale | None = None
        self.has_block_norms = False
        self._blocks: list[GradientBlock] = []
        self._spares: list[tuple[Tensor, ...]] = []  # blocks for what states were before an update ahead
        self._lock = threading.Lock()

    def scale_losses(self, state: Mapping[str, float] | None = None) -> None:
        """Have a loss scale from now on, that of another inbox's `scale_state` if it is given.

        Raises:
            KeyError, TypeError, ValueError: it is no such state; the scale is as it was.
        """
        scale = self.loss_scale or LossScale()
        if state is not None:
            scale.load(state)
        self.loss_scale = scale

    @property
    def scale_state(self) -> dict[str, float] | None:
        return None if self.loss_scale is None else self.loss_scale.state()

    def add(
        self,
        key: str,
        block: GradientBlock,
        has_grad: Sequence[bool],
        *,
        lr: float,
        step: int,
        stays: bool = False,
        allocate: Allocate | None = None,
    ) -> None:
        """Receive gradients from the device; a state used twice in a path contributes twice.

        Args:
            block: copied on the current stream, unless it `stays`, being one of the inbox.
            has_grad: for each parameter, whether it got a gradient.
            step: the training step, for messages.
            allocate: makes a block to copy to, if none is free.
        """
        layout = self._layout(key)
        if not stays:
            size = gradient_bytes(layout)
            sent, block = block, self.allocate(size, allocate)
            block.memory[:size].copy_(sent.memory[:size], non_blocking=True)
        queued = self.waiting.setdefault(key, QueuedGradient(lr, step))
        queued.parts.append(block)
        queued.has_grad = [a or b for a, b in zip(queued.has_grad or has_grad, has_grad, strict=True)]
        # they lie behind the gradients, so that no thread waits for them here
        is_measured = len(queued.parts) == 1 and not self.has_block_norms
        queued.norms = block.views(layout).norms if is_measured else None

    def allocate(
        self, num_bytes: int, allocator: Allocate | None = None, device: torch.device = _HOST
    ) -> GradientBlock:
        """A block for gradients and norms, to be handed to `add` or `give_back`.

        Where none is free on the device, `allocator` makes one there.
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
        """Have blocks be free. Reads of them are over, or `read` is behind these."""
        with self._lock:
            self._blocks += blocks

    def discard(self, states: Storage, keys: Iterable[str] | None = None) -> None:
        """Drop the gradients of these states, or all, after a refused step; updates ahead of the check are undone."""
        failure: BaseException | None = None
        for key in list(self.waiting if keys is None else keys):
            try:
                self._undo(key, states)
            except BaseException as error:  # the others are to be undone all the same
                failure = failure or error
            self.give_back(self.waiting.pop(key).parts)
        if failure is not None:
            raise failure

    def check(
        self,
        order: Sequence[tuple[str, int]],
        states: Storage,
        *,
        clip: Clip | None,
        is_scaled: bool = False,
        is_loss_finite: bool = True,
    ) -> GradientCheck:
        """Check all gradients that came since the last check; where they overflowed, drop them.

        Args:
            order: state and index of each parameter, in the order in which a plain model lists them.
            is_scaled: whether the loss was multiplied by the loss scale, which is raised or lowered now.
            is_loss_finite: an overflow in the forward counts as one of the gradients.

        Raises:
            NonFiniteError: one has a NaN or inf; it names the first such state. Nothing is applied.
        """
        new = {key: queued for key, queued in self.waiting.items() if not queued.is_checked}
        bad = self._not_finite(new)
        inverse, scale = 1.0, self.loss_scale
        if is_scaled and scale is not None:
            overflowed = bool(bad) or not is_loss_finite
            is_hopeless = overflowed and scale.is_lowest
            inverse = 1.0 / scale.scale
            scale.update(overflowed=overflowed)
            if overflowed and not is_hopeless:
                self.discard(states, new)
                return GradientCheck(float("inf"), is_refused=True)
        if bad:
            first = new[bad[0]]
            raise NonFiniteError("gradient", layer=bad[0], step=first.step, is_own=first.is_own)
        norm = self._norm(new, order, inverse)
        factor = clip.coefficient(norm) if clip is not None and clip.scope == "global" else 1.0
        is_clipped = False
        for key, queued in new.items():
            if clip is not None and clip.scope == "layer":
                factor = clip.coefficient(self._state_norm(key, queued, inverse))
            # what was applied ahead has been multiplied by the inverse
            queued.coefficient = factor if queued.saved is not None else factor * inverse
            queued.is_checked = True
            is_clipped = is_clipped or factor != 1.0
        return GradientCheck(float(norm), is_clipped=is_clipped)

    def _norm(self, queued: Mapping[str, QueuedGradient], order: Iterable[tuple[str, int]], factor: float) -> Tensor:
        """Of all these gradients together, each times a factor; `order` is of states and indices of parameters."""
        if self.has_block_norms:
            return norm_of([one.norms for one in queued.values() if one.norms is not None], factor)
        norms = {key: one.scaled_norms(factor) for key, one in queued.items()}
        return total_norm([norms[key][index] for key, index in order if index in norms.get(key, {})])

    def _state_norm(self, key: str, queued: QueuedGradient, factor: float = 1.0) -> Tensor:
        return self._norm({key: queued}, [(key, index) for index in range(len(queued.has_grad))], factor)

    def _not_finite(self, new: Mapping[str, QueuedGradient]) -> list[str]:
        """Sum the contributions to each state and form their norms; returns the states with a NaN or inf."""
        norms = {key: self._sum(key, queued) for key, queued in new.items()}
        on_device = {key: norm for key, norm in norms.items() if norm.device != _HOST}
        if on_device:  # one copy, which waits for all sums
            copied = torch.cat(list(on_device.values())).cpu().split([norm.numel() for norm in on_device.values()])
            norms |= zip(on_device, copied, strict=True)
        bad = []
        for key, queued in new.items():
            queued.norms = norms[key]
            self.give_back(queued.parts[1:])
            del queued.parts[1:]
            if queued.norms.isfinite().all():
                continue
            # a norm of finite numbers may have overflowed; squares in float64 do not, and are of all ranks
            if self.has_block_norms or not self._views(key, queued).values.isfinite().all():
                bad.append(key)
        return bad

    def _sum(self, key: str, queued: QueuedGradient) -> Tensor:
        """Sum the contributions to a state into the first one; returns their norms, where the gradients lie."""
        first = self._views(key, queued)
        for part in queued.parts[1:]:
            first.values.add_(part.views(first.layout).values)
        if queued.norms is not None:
            return queued.norms
        return squares_of(first.gradients) if self.has_block_norms else norms_of(first.gradients)

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
                    raise NonFiniteError("gradient", layer=key, step=queued.step, is_own=queued.is_own)
                if clip is not None:
                    queued.coefficient = clip.coefficient(self._state_norm(key, queued))
            gradients = self._scaled(key, queued, queued.coefficient)
            with states.writing(key) as state:
                state.update(self._rules_of(key).calls, gradients, lr=queued.lr)
            queued.parts[0].read = state.written
        finally:
            self.give_back(queued.parts)

    def update_ahead(self, key: str, states: Storage, *, scale: float = 1.0) -> None:
        """Apply a state's contributions before they are checked, as if nothing were to be clipped; `confirm` follows.

        The state is copied before: 12 bytes a parameter with AdamW, beside 4 for the gradient, until then. A gradient
        that is not finite is left to the check. The loss was multiplied by `scale`.
        """
        queued = self.waiting[key]
        if self._not_finite({key: queued}):
            return
        gradients = self._scaled(key, queued, 1.0 / scale)
        failure: BaseException | None = None
        with states.writing(key) as state:
            queued.saved = state.save(self._spare(state))
            try:
                state.update(self._rules_of(key).calls, gradients, lr=queued.lr)
            except BaseException as error:
                state.restore(queued.saved)
                queued.saved, failure = None, error
        queued.parts[0].read = state.written
        if failure is not None:  # outside of `writing`, as the state is what it was
            raise failure

    def confirm(self, states: Storage) -> None:
        """After the check: let updates ahead of it stand, or undo them and apply what is clipped.

        What was not updated by then is updated as usual.
        """
        ahead = [(key, queued, queued.saved) for key, queued in self.waiting.items() if queued.saved is not None]
        if ahead:
            self._spares = [saved.blocks for _, _, saved in ahead]
        for key, queued, _ in ahead:
            if queued.coefficient != 1.0:
                self._undo(key, states)
                self.update(key, states, checked=True)
            else:
                self.give_back(self.waiting.pop(key).parts)

    def _views(self, key: str, queued: QueuedGradient) -> GradientViews:
        return queued.parts[0].views(self._layout(key))

    def _layout(self, key: str) -> Layout:
        return layout_of(self._pool, key)

    def _rules_of(self, key: str) -> StateRules:
        return self._rules.of(key)

    def _scaled(self, key: str, queued: QueuedGradient, coefficient: float) -> list[Tensor | None]:
        """The gradients multiplied by a coefficient; None for parameters without one."""
        views = self._views(key, queued)
        if coefficient != 1.0:
            views.values.mul_(coefficient)
        return [gradient if has else None for gradient, has in zip(views.gradients, queued.has_grad, strict=True)]

    def _spare(self, state: LayerState) -> tuple[Tensor, ...] | None:
        """Blocks for a copy of a state that an earlier copy left."""
        sizes = [(block.numel(), block.device) for block in state.updated_blocks]
        for index, blocks in enumerate(self._spares):
            if [(block.numel(), block.device) for block in blocks] == sizes:
                return self._spares.pop(index)
        return None

    def _undo(self, key: str, states: Storage) -> None:
        queued = self.waiting[key]
        if queued.saved is not None:
            with states.writing(key) as state:
                state.restore(queued.saved)
            queued.saved = None
