"""Signs of life of running trials, through any storage.

Optuna's own heartbeats exist in relational storages alone, and only inside `Study.optimize`. Here a thread of each
process counts up the attribute `beat` of its running trials, and examines those of the others.

[Note: silence] A trial's silence is measured by the reader's own clock, from one reading of the storage to the next, so
that clocks need not agree. A gap between readings counts as two intervals at most: after a database was away, or this
process was asleep, everybody seems silent, and nobody is lost before he had the time to show up again. Processes may
differ in their patience, and whoever is patient beats seldom: a trial says how often, in `beats_every`, and is not lost
before a few of these beats are missing.
"""

from __future__ import annotations

import contextlib
import threading
import time

from optuna.exceptions import UpdateFinishedTrialError
from optuna.storages import BaseStorage
from optuna.trial import TrialState

from l2l_nas.errors import StorageError, described
from l2l_nas.nas.study.database import failures

BEAT = "l2l_nas:beat"
EVERY = "l2l_nas:beats_every"  # seconds
_BEATS = 12  # in the time after which a silent trial is lost
_MISSED = 3  # at least, whatever the reader's patience
_LONGEST = 5.0


class Heartbeat:
    """Beats for our running trials and listens to the others.

    Args:
        storage: where the study is.
        study_id: its id there.
        lost_after: so many seconds of silence, and a trial is lost.

    Attributes:
        interval: seconds from one beat to the next, which trials that run here must say as `EVERY`.
    """

    def __init__(self, storage: BaseStorage, study_id: int, *, lost_after: float) -> None:
        self._storage = storage
        self._study_id = study_id
        self._lost_after = lost_after
        self.interval = min(_LONGEST, lost_after / _BEATS)
        self._lock = threading.Lock()
        self._ours: dict[int, int] = {}  # ids of trials, by number
        # last beat, seconds of silence, and after how many it is lost, by number
        self._last_beats: dict[int, tuple[object, float, float]] = {}
        self._count = 0
        self._missed = 0  # beats in a row that failed in a way that is no outage
        self._failure: Exception = RuntimeError()
        self._looked_at: float | None = None
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self._thread.start()

    def add(self, number: int, trial_id: int) -> None:
        """A trial runs here.

        Args:
            trial_id: by which the storage knows it.
        """
        with self._lock:
            self._ours[number] = trial_id

    def remove(self, number: int) -> None:
        """It is over."""
        with self._lock:
            self._ours.pop(number, None)

    @property
    def silent(self) -> frozenset[int]:
        """Numbers of trials of others that gave no sign of life for too long."""
        with self._lock:
            return frozenset(number for number, (_, silence, most) in self._last_beats.items() if silence >= most)

    def patience(self, number: int) -> float:
        """Seconds of silence after which such a trial of another is lost."""
        with self._lock:
            return self._last_beats.get(number, (None, 0.0, self._lost_after))[2]

    def check(self) -> None:
        """Tell the main thread of a failure that stays: others take this process's trials for lost.

        Raises:
            StorageError: so many beats in a row have failed as make a trial silent.
        """
        if self._missed > _MISSED:
            raise StorageError(
                f"the heartbeat of running trials fails: {type(self._failure).__name__}: {described(self._failure)}; "
                "when the storage can be read again, go on with: resume=FOLDER"
            ) from self._failure

    def close(self) -> None:
        """End the thread; one that waits for a database is left behind, as a daemon."""
        self._end.set()
        self._thread.join(timeout=2.0)

    def _run(self) -> None:
        while not self._end.wait(self.interval):
            try:
                self._beat()
                self._listen()
            except failures():
                continue  # whether the database is away is the main thread's to say; the next round tries again
            except (
                Exception
            ) as error:  # a line of a journal that was read half-written, say: the next round tries again
                if not self._end.is_set():  # a gRPC channel may be closed meanwhile
                    self._missed, self._failure = self._missed + 1, error
            else:
                self._missed = 0

    def _beat(self) -> None:
        self._count += 1
        with self._lock:
            ours = list(self._ours.values())
        for trial_id in ours:
            with contextlib.suppress(UpdateFinishedTrialError):
                self._storage.set_trial_system_attr(trial_id, BEAT, self._count)

    def _listen(self) -> None:
        trials = self._storage.get_all_trials(self._study_id, deepcopy=False, states=(TrialState.RUNNING,))
        now = time.monotonic()
        # see [Note: silence]
        gap = min(now - self._looked_at, 2 * self.interval) if self._looked_at is not None else 0.0
        self._looked_at = now
        with self._lock:
            last_beats = {}
            for trial in trials:
                if trial.number in self._ours:
                    continue
                beat = trial.system_attrs.get(BEAT)
                before, silence, _ = self._last_beats.get(trial.number, (None, 0.0, 0.0))
                is_new = trial.number not in self._last_beats or beat != before
                most = max(self._lost_after, _MISSED * trial.system_attrs.get(EVERY, _LONGEST))
                last_beats[trial.number] = beat, 0.0 if is_new else silence + gap, most
            self._last_beats = last_beats
