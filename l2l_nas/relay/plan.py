"""The plan: what a training step or a forward will do, as a tuple of steps with their dependencies. Pure data.

`planner.py` makes plans, `schedule.py` says on which lane each step runs.

[Note: slot reuse] A slot is one block for weights, one for buffers and one for gradients. Its weights may be
overwritten once the last visit that reads them is done; its gradients once they are sent. Every such rule is an entry
of some step's `after`, so that any executor which respects `after`, however concurrent, is safe. The checker of plans
(`tests/relay/plans.py`) proves it.

[Note: the tail] The last layers of a path, the tail, run forward, loss and backward, one micro-batch after the other:
they are loaded once, and nothing of them is recomputed. A tail is one layer long, or as long as the device has room
for; when it is the whole path, the relay does exactly what plain training does. Its visits are cut where loads and
gradients need it: `ENTER` takes the first micro-batch through one layer, as soon as that layer is there; `LEAVE` takes
the last micro-batch back through one layer, whose gradient can go then; all that is between is one visit, `TAIL`.

[Note: buffers] A forward visit may change buffers (BatchNorm's statistics). `SAVE` sends them to the host, if it did.
A backward visit runs the layer again, so it starts from the buffers that the forward started from, and its changes are
dropped: each statistic is counted once.

[Note: frames] A value (see `space/values.py`) stays on the device until its last reader's backward, or is spilled:
`STORE` copies it to the host, `FETCH` brings it back. Spilled values pass through a ring of a few frames, so device
memory does not grow with the depth of a chain. Values that are not spilled need no step: visits run one by one.

[Note: across the step boundary] A plan ends by loading the first layer of the next architecture, and leaves updates
under way. The next plan begins with what the last one left: `CARRY` for a slot, `AWAIT` for an update that may be
running.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NamedTuple

from l2l_nas.relay.path import Name


class Op(enum.Enum):
    """What a step does."""

    CARRY = "carry"
    AWAIT = "await"
    LOAD = "load"
    FETCH = "fetch"
    FORWARD = "forward"
    ENTER = "enter"
    TAIL = "tail"
    LEAVE = "leave"
    BACKWARD = "backward"
    SAVE = "save"
    STORE = "store"
    SEND = "send"
    CHECK = "check"
    UPDATE = "update"
    FREE = "free"


TAIL_VISITS = (Op.ENTER, Op.TAIL, Op.LEAVE)
VISITS = (Op.FORWARD, *TAIL_VISITS, Op.BACKWARD)


class UpdatePolicy(enum.StrEnum):
    """What updates go by.

    `eager`: by each layer's own gradient, as soon as it is complete (L2L-p). `exact`: by the whole gradient: its norm,
    and whether all of it is finite.
    """

    EAGER = "eager"
    EXACT = "exact"


class UpdateOrder(enum.Enum):
    """When a plan updates a state.

    `EAGER`: as soon as its gradient is complete. `CHECKED`: once the whole gradient is checked. `AHEAD`: as soon as
    its gradient is complete; once the whole gradient is checked, what is to be clipped is put back and updated again,
    so that the result is that of `CHECKED`. The updates of one step run on beside the next one's forward.
    """

    EAGER = "eager"
    CHECKED = "checked"
    AHEAD = "ahead"


class Step(NamedTuple):
    """One step. States and values go by the names that the path gives them; -1 where there is none."""

    op: Op
    layer: int = -1  # index in the path, or its length for the first layer of the next path
    slot: int = -1
    state: Name = -1  # to update or wait for
    value: Name = -1  # what STORE and FETCH move
    frames: tuple[int, ...] = ()  # that STORE reads, FETCH fills, or a FORWARD writes its spilled values to, in order
    tail: tuple[int, ...] = ()  # for TAIL, the slots of the layers after `layer`
    after: tuple[int, ...] = ()  # indices of earlier steps that must be done first


@dataclass(frozen=True)
class Carry:
    """What one plan leaves to the next."""

    slot_keys: tuple[Name | None, ...] = ()  # by slot, the key of a layer whose present weights it holds
    updating: tuple[Name, ...] = ()  # states whose update was issued and may be running


@dataclass(frozen=True)
class Plan:
    """Steps, in an order in which they may be done one by one, and what they leave."""

    steps: tuple[Step, ...]
    leaves: Carry
