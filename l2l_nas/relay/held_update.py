"""How a step ends where everything is held: the check of all gradients, and the update. See [Note: held]."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from l2l_nas.eps.inbox import GradientCheck
from l2l_nas.eps.scale import Clip, are_finite, norms_of, total_norm
from l2l_nas.eps.server import ParamServer
from l2l_nas.eps.storage import RamStorage
from l2l_nas.errors import L2LError, LaneError, NonFiniteError
from l2l_nas.relay.held_path import HeldPath
from l2l_nas.relay.interface import Batch, Objective, Targets
from l2l_nas.relay.losses import LossSums


@dataclass
class HeldStep:
    """What a step is to do, and what it found.

    Attributes:
        batches: the inputs of each micro-batch, by value.
        targets: of each micro-batch.
        shares: of each micro-batch, which part of the step's samples it has.
        count: of all targets.
        has_norm: whether the norm of all gradients is wanted.
        at: the place of the layer whose own code runs now, for errors; the path's depth for the loss.
    """

    path: HeldPath
    server: ParamServer
    batches: Sequence[dict[str, Batch]]
    targets: Sequence[Targets]
    shares: Sequence[float]
    objective: Objective
    count: float
    lr: float
    step: int
    clip: Clip | None
    has_norm: bool
    at: int | None = None
    losses: LossSums = field(default_factory=LossSums)


def checked_gradients(held: HeldStep, gradients: list[Tensor | None]) -> tuple[GradientCheck, list[Tensor | None]]:
    """What all gradients together say, and these as they are to be applied. See `GradientInbox.check`."""
    path, clip = held.path, held.clip
    numbers = [number for number, gradient in enumerate(gradients) if gradient is not None]
    present = [gradient for gradient in gradients if gradient is not None]
    if not present or (clip is None and not held.has_norm):
        if not are_finite(present):
            _refuse(held, gradients)
        return GradientCheck(0.0), gradients
    norms, places = norms_of(present), {number: place for place, number in enumerate(numbers)}
    order = path.order
    if len(present) < len(gradients):
        order = torch.tensor([places[number] for number in order.tolist() if number in places])
    listed = norms[order]
    norm = float(total_norm(listed))
    if not math.isfinite(norm):
        _refuse(held, gradients)  # or it overflowed on finite numbers
    if clip is None:
        return GradientCheck(norm), gradients
    shared = clip.coefficient(listed) if clip.scope == "global" else 1.0
    is_clipped = False
    for use in path.uses:
        own = [number for number in use.numbers if number in places]
        factor = shared
        if clip.scope == "layer" and own:
            factor = clip.coefficient(norms[places[own[0]] : places[own[-1]] + 1])
        if factor != 1.0 and own:
            # not in place: what autograd gave for two parameters may be one memory
            scaled = torch._foreach_mul([present[places[number]] for number in own], factor)
            for number, gradient in zip(own, scaled, strict=True):
                gradients[number] = gradient
            is_clipped = True
    return GradientCheck(norm, is_clipped=is_clipped), gradients


def _refuse(held: HeldStep, gradients: Sequence[Tensor | None]) -> None:
    """Raise for the first state with a gradient that is not finite, in the order in which they would have come."""
    for use in held.path.uses:
        own = [gradient for number in use.numbers if (gradient := gradients[number]) is not None]
        if not all(bool(gradient.isfinite().all()) for gradient in own):
            raise NonFiniteError("gradient", layer=use.key, step=held.step)


def apply_gradients(held: HeldStep, gradients: Sequence[Tensor | None]) -> None:
    """Apply gradients that were checked.

    Raises:
        LaneError: a rule raised; states that it had changed by then are lost, see `Storage.writing`.
    """
    path, server, lr = held.path, held.server, held.lr
    singles: Sequence[int] = path.singles
    if path.joints:
        if any(gradient is None for gradient in gradients):
            singles = range(len(path.uses))
        else:
            _update_jointly(held, gradients)
    for number in singles:
        use = path.uses[number]
        own: list[Tensor | None] = [None] * use.num_parameters
        for index, place in zip(use.indices, use.numbers, strict=True):
            own[index] = gradients[place]
        try:
            with server.storage.writing(use.key) as state:
                state.update(server.rules.of(use.key).calls, own, lr=lr)
        except L2LError:
            raise
        except Exception as error:
            raise LaneError("update", use.key, error) from error


def _update_jointly(held: HeldStep, gradients: Sequence[Tensor | None]) -> None:
    """One call of each rule for all states that it updates."""
    path, storage = held.path, held.server.storage
    assert isinstance(storage, RamStorage)
    before = path.block_versions
    try:
        for joint in path.joints:
            own = [gradient for number in joint.gradients if (gradient := gradients[number]) is not None]
            joint.rule.update(joint.weights, own, joint.moments, joint.steps, lr=held.lr * joint.lr_scale)
    except BaseException as error:
        lost = [path.uses[number].key for number in path.changed_since(before)]
        for key in lost:
            storage.lose(key, error)
        if isinstance(error, Exception) and not isinstance(error, L2LError):
            raise LaneError("update", (*lost, path.uses[0].key)[0], error) from error
        raise
    for number in path.joint_uses:
        path.held[number].mark_updated()
