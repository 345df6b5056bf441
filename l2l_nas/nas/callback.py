"""Hooks called during a search or a training: progress lines, events, the page, and callbacks of your own.

Derive from `Callback` and write the methods that you need. They are called in the search's own process, one after the
other, while nothing else goes on; a slow one makes the search slow. What one raises becomes a warning, and the search
goes on; `Stopped` stops it.

    class Printed(Callback):
        def trial(self, record, records):
            print(record.number, record.architecture, record.values)

    l2l_nas.search(problem, callbacks=[Printed()])                          # or callbacks=[mine.py:Printed]
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from l2l_nas.errors import SettingError, is_of_code, what_raised
from l2l_nas.errors import Stopped as Stopped
from l2l_nas.plugins import is_named, made, name_and_arguments
from l2l_nas.training.score import Score

if TYPE_CHECKING:
    from l2l_nas.nas.objectives import TrialRecord
    from l2l_nas.nas.strategies.coverage import Coverage
    from l2l_nas.nas.strategies.finalists import Finalist


_MOST = 20  # lines about what callbacks raised


class Callback:
    """Hooks called during a search, or a training. Each method does nothing until you write it.

    A training by `train` calls `phase`, `advance`, `number`, `poll` and `end`.

    Attributes:
        takes_numbers: whether the class writes `number`.
    """

    takes_numbers: bool = False

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        cls.takes_numbers = cls.number is not Callback.number

    def phase(self, name: str, *, total: int, done: int) -> None:
        """A phase begins.

        Args:
            name: "warm-up", "catch-up", "rates", "finalists", "baseline" (in steps), "search" (in trials), "blocks" or
                "scores" (in blocks), "networks" or "pairs" (in networks scored whole); of `train`: "training".
            total: steps or trials of the phase.
            done: of these, by an earlier session.
        """

    def advance(self, done: int, *, detail: str = "") -> None:
        """So many steps or trials of the phase are done.

        Args:
            detail: such as "loss 0.693".
        """

    def number(self, name: str, value: float, *, step: int, trial: int | None = None) -> None:
        """A figure is known: the loss of a training step, or a metric. Those of a trial come when it is finished.

        Args:
            name: PHASE/PART/METRIC, such as "search/validation/accuracy" or "finalists/train/loss".
            step: how many training steps the network had by then; in "warm-up" and "catch-up", the shared weights.
            trial: the number of the network's trial; None where no trial found it.
        """

    def covered(self, coverage: Coverage) -> None:
        """Warm-up is over: how often each candidate was trained, as `to_json()` and `warning()` tell it."""

    def trial(self, record: TrialRecord, records: Sequence[TrialRecord]) -> None:
        """A trial is finished and saved.

        Args:
            record: its number, architecture, state, values of the objectives and all metrics.
            records: of all trials so far, this one among them.
        """

    def finalist(self, finalist: Finalist) -> None:
        """A finalist was trained further and scored; or was by an earlier session, which stored the outcome."""

    def abandoned(self, record: TrialRecord, reason: str) -> None:
        """A trial could not be trained further, or not to its end: in this session, or in an earlier one."""

    def poll(self) -> None:
        """Between two trials, and between two training steps. May raise `Stopped`."""

    def end(self) -> None:
        """The search or the training is over, however it ended: the last call, perhaps the only one."""


@dataclass
class Numbers:
    """Tells a callback the figures of one network.

    Args:
        phase: that trains it; names begin with it.
        trial: that found it; None if no trial did.
        done: steps that the network has had.
    """

    callback: Callback
    phase: str
    trial: int | None = None
    done: int = 0

    def loss(self, value: float) -> None:
        """Of one more step."""
        self.done += 1
        if self.callback.takes_numbers:
            self.callback.number(f"{self.phase}/train/loss", value, step=self.done, trial=self.trial)

    def scores(self, rungs: Mapping[str, Mapping[str, float]], scores: Mapping[str, Score]) -> None:
        """Of the validation part on the way, by "steps done/steps", and of all parts now."""
        found = {int(rung.partition("/")[0]): values for rung, values in rungs.items()}
        for step, values in found.items():
            self.values("validation", values, step=step)
        for part, score in scores.items():
            if part != "validation" or self.done not in found:
                self.values(part, score.values, step=self.done)

    def values(self, part: str, values: Mapping[str, float], *, step: int) -> None:
        """Metrics of a part of the data."""
        if self.callback.takes_numbers:
            for name, value in values.items():
                self.callback.number(f"{self.phase}/{part}/{name}", value, step=step, trial=self.trial)


def _to_each(hook: str) -> Any:
    """A hook that calls that of each; see `Callbacks`."""

    def call(self: Callbacks, *args: Any, **kwargs: Any) -> None:
        for member in self._members:
            getattr(member, hook)(*args, **kwargs)
        for member in self._own:
            try:
                getattr(member, hook)(*args, **kwargs)
            except Stopped:
                self.stopped_by = member
                if hook != "end":
                    raise
            except BaseException as error:
                if not is_of_code(error):
                    raise
                self._complain(member, hook, error)

    return call


class Callbacks(Callback):
    """Several as one: each is called with everything, in this order.

    Args:
        members: of this package; what they raise ends the search.
        own: the user's; what they raise is reported, and the search goes on.
        report: called with one line and the error; once for lines that differ in numbers alone, and not without end.

    Attributes:
        stopped_by: the user's callback that asked the search to stop; None if none did.
    """

    def __init__(
        self,
        *members: Callback,
        own: Sequence[Callback] = (),
        report: Callable[[str, BaseException], None] = lambda line, error: None,
    ) -> None:
        self._members = members
        self._own = tuple(own)
        self._report = report
        self._reported: set[str] = set()
        self.stopped_by: Callback | None = None
        self.takes_numbers = any(one.takes_numbers for one in (*members, *own))

    def _complain(self, member: Callback, hook: str, error: BaseException) -> None:
        line = f"callback {type(member).__name__}.{hook} {what_raised(error)}; the search goes on"
        alike = re.sub(r"\d[\d,.]*", "#", line)
        if alike not in self._reported and len(self._reported) < _MOST:
            self._reported.add(alike)
            self._report(line, error)

    phase, advance, covered = _to_each("phase"), _to_each("advance"), _to_each("covered")
    trial, finalist, abandoned = _to_each("trial"), _to_each("finalist"), _to_each("abandoned")
    number, poll, end = _to_each("number"), _to_each("poll"), _to_each("end")


def build_callbacks(named: Sequence[str | Mapping[str, Any] | Callback]) -> list[Callback]:
    """Callbacks by name; one that is built already is taken as it is.

    Args:
        named: `FILE.py:NAME` or `MODULE:NAME` of classes or functions that give one; or dicts of that, as `name`, and
            the arguments.

    Raises:
        SettingError: there is no such thing, or it gives something else.
        L2LError: it raised something.
    """
    found = []
    for name in named:
        if isinstance(name, Callback):
            found.append(name)
            continue
        if not isinstance(name, str | Mapping) or not is_named(name_and_arguments(name)[0]):
            raise SettingError(f"callbacks: {name!r} is no l2l_nas.Callback, no FILE.py:NAME and no MODULE:NAME")
        found.append(
            made(
                name,
                setting="callbacks",
                offered={},
                is_right=lambda one: isinstance(one, Callback),
                kind="a subclass of l2l_nas.Callback",
            )
        )
    return found
