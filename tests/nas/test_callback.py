"""Callbacks, and what becomes of what they raise."""

from __future__ import annotations

import pytest

from l2l_nas.nas.callback import Callback, Callbacks, Stopped

CALLS = [
    ("phase", ("search",), {"total": 4, "done": 1}),
    ("advance", (3,), {"detail": "loss 1"}),
    ("number", ("search/train/loss", 0.5), {"step": 3, "trial": 1}),
    ("covered", ("coverage",), {}),
    ("trial", ("record", ["record"]), {}),
    ("finalist", ("finalist",), {}),
    ("abandoned", ("record", "reason"), {}),
    ("poll", (), {}),
    ("end", (), {}),
]


class Noting(Callback):
    def __init__(self, error: BaseException | None = None) -> None:
        self.seen, self.error = [], error

    def __getattribute__(self, name):
        if name not in {call[0] for call in CALLS}:
            return super().__getattribute__(name)

        def noted(*args, **kwargs):
            self.seen.append((name, args, kwargs))
            if self.error is not None:
                raise self.error

        return noted


def test_every_call_reaches_all_in_order_though_one_of_the_user_s_raises():
    ours, bad, good = Noting(), Noting(ValueError("no")), Noting()
    reported = []
    callbacks = Callbacks(ours, own=[bad, good], report=lambda line, error: reported.append((line, error)))
    for _ in range(2):
        for name, args, kwargs in CALLS:
            getattr(callbacks, name)(*args, **kwargs)
    assert ours.seen == bad.seen == good.seen == CALLS * 2
    assert len(reported) == len(CALLS)  # each once
    assert all(error is bad.error and "Noting." in line and "ValueError: no" in line for line, error in reported)
    assert callbacks.stopped_by is None


@pytest.mark.parametrize(("text", "most"), [("at step {}", 1), ("at {}", 1), ("at step {:c}", 25)])
def test_errors_that_differ_in_numbers_alone_are_reported_once_and_none_without_end(text, most):
    bad, reported = Noting(), []
    callbacks = Callbacks(own=[bad], report=lambda line, error: reported.append(line))
    for number in range(97, 197):
        bad.error = ValueError(text.format(number))
        callbacks.advance(number)
    assert 1 <= len(reported) <= most


def test_what_a_callback_of_this_package_raises_comes_through():
    with pytest.raises(ValueError, match="disk"):
        Callbacks(Noting(ValueError("disk")), own=[Noting()]).poll()


def test_a_callback_of_the_user_s_may_stop_the_search_and_is_known_then():
    stopping = Noting(Stopped())
    callbacks = Callbacks(own=[Noting(), stopping])
    with pytest.raises(Stopped):
        callbacks.poll()
    assert callbacks.stopped_by is stopping
