"""Host memory of gradients on their way: blocks that are taken, freed and taken again while a simulated step runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from l2l_nas.cost.chain import Read
from l2l_nas.eps.gradients import choose_block
from l2l_nas.relay.path import Name
from l2l_nas.relay.plan import Op, Step

_DIGITS = 9  # of seconds: what ends and begins at the same time must compare as equal
# number of the plan, lane, what was done, begin, end; None is what ranks agree on
Done = tuple[int, str, Step | Read | None, float, float]


def staged_bytes(
    work: Iterable[Done], gradients: Sequence[Mapping[Name, int]], visited: Sequence[Mapping[Name, int]] = ()
) -> int:
    """The most bytes of blocks that gradients wait in.

    Args:
        gradients: of each layer, bytes of the gradient of each of its states, in a block from the begin of its copy to
            the end of the update that uses it.
        visited: the same, in a block from the begin of the layer's backward to the end of that copy.
    """
    events: list[tuple[float, int, bool, Name, int]] = []  # when, whether a block is taken, whether by a visit

    def note(when: float, is_taken: int, blocks: Mapping[Name, int], *, is_visit: bool) -> None:
        events.extend((round(when, _DIGITS), is_taken, is_visit, state, size) for state, size in blocks.items())

    for _, _, step, start, end in work:
        if not isinstance(step, Step):
            continue
        if visited and step.op in (Op.ENTER, Op.BACKWARD):
            note(start, 1, visited[step.layer], is_visit=True)
        elif step.op is Op.SEND:
            note(start, 1, gradients[step.layer], is_visit=False)
            note(end, 0, visited[step.layer] if visited else {}, is_visit=True)
        elif step.op is Op.UPDATE:
            note(end, 0, {step.state: 0}, is_visit=False)
    free: list[int] = []
    taken: dict[tuple[bool, Name], list[int]] = {}
    now = most = 0
    for _, is_taken, is_visit, state, size in sorted(events):
        if not is_taken:
            free += taken.pop((is_visit, state), [])
            continue
        chosen = choose_block(free, size)
        block = 0 if chosen is None else free.pop(chosen)
        now += max(0, size - block)
        taken.setdefault((is_visit, state), []).append(max(size, block))
        most = max(most, now)
    return most
