"""What every strategy must do."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from l2l_nas.nas.callback import Callback, Stopped
from l2l_nas.nas.strategies.phase import Phase
from l2l_nas.runs.api import SearchResult
from l2l_nas.testing.problems import searched, small_pool

_STOPS = (7,)  # polls, of which there is one a step and one a trial


def check_strategy(build: Callable[[], Sequence[Phase]], **said: Any) -> None:
    """A search by these phases returns a network, takes no more trials than it was given, and goes on after a stop.

    Args:
        build: new phases each time.
        said: settings that it needs, as `l2l_nas.search` takes them.

    Raises:
        AssertionError: it does not.
    """
    with tempfile.TemporaryDirectory() as scratch:
        whole = searched(Path(scratch) / "whole", strategy=build(), **said)
        asked = _checked(whole, "a search in one go")
        for place in _STOPS:
            folder = Path(scratch) / f"stopped{place}"
            stopper = _Stopper(place)
            searched(folder, strategy=build(), callbacks=[stopper], **said)
            if not stopper.is_over:
                continue  # it had ended before
            gone_on = searched(folder, strategy=build(), resume=str(folder), **said)
            found = _checked(gone_on, f"a search that was stopped at its poll {place} and went on")
            assert found == asked, f"stopped at its poll {place} and resumed, it evaluated {found} trials, not {asked}"


class _Stopper(Callback):
    def __init__(self, place: int) -> None:
        self.left, self.is_over = place, False

    def poll(self) -> None:
        self.left -= 1
        if self.left == 0:
            self.is_over = True
            raise Stopped


def _checked(result: SearchResult, when: str) -> int:
    pool = small_pool()
    pool.path(pool.architecture(result.best.architecture.choices))  # raises if the pool has no such network
    assert result.network() is not None
    evaluated = sum(result.content["trials"][state] for state in ("complete", "stopped", "failed"))
    assert 0 < evaluated <= 6, f"{when}: {evaluated} trials of 6 were evaluated"
    drawn = [tuple(trial.user_attrs["architecture"]) for trial in result.study.trials if not trial.user_attrs["cached"]]
    assert len(set(drawn)) == len(drawn), f"{when}: an architecture was evaluated twice"
    return evaluated
