from __future__ import annotations

import json

import pytest

from l2l_nas.report.history import read_events, read_history, seconds_of, time_spent
from tests.report.pages import card_of_pool, log_of, random_trials


def seconds(events, **changes) -> dict[str, float]:
    return {name: round(seconds, 6) for name, seconds in time_spent(events, **changes).items()}


def test_seconds_are_counted_by_what_they_went_into() -> None:
    assert seconds(log_of(card_of_pool())) == {
        "warm-up": 10.0,
        "trials: training, scoring": 6.0,
        "between trials: sampling, saving": 3.5,
        "finalists": 10.0,
        "saving and export": 2.0,
        "pictures and page": 1.5,
    }


def test_the_blocks_of_a_network_that_is_taken_apart_have_seconds_of_their_own() -> None:
    names = ["blocks", "scores", "networks", "pairs", "search"]
    phases = [{"event": "phase", "time": 1.0 + 2 * place, "name": name} for place, name in enumerate(names)]
    events = [{"event": "start", "time": 0.0}, *phases, {"event": "done", "time": 10.0}]
    assert seconds(events) == {
        "start": 1.0,
        "imitation of blocks": 2.0,
        "scores of blocks": 6.0,
        "between trials: sampling, saving": 1.0,
    }


def test_sessions_are_added_and_the_time_between_them_is_not() -> None:
    first = log_of(card_of_pool(), until="page")  # killed
    again = [{**event, "time": event["time"] + 1000} for event in log_of(card_of_pool())]
    both = seconds([*first, *again])
    alone, rest = seconds(log_of(card_of_pool())), seconds(first)
    assert both == {name: alone[name] + rest.get(name, 0) for name in alone}
    history = read_history([*first, *again])
    assert history.sessions == 2
    assert history.seconds == pytest.approx(33.0 + 15.0)


def test_the_seconds_of_a_log_are_those_of_all_its_sessions_and_none_where_it_is_damaged() -> None:
    first = log_of(card_of_pool())
    again = [{**event, "time": event["time"] + 1000} for event in first]
    assert seconds_of([*first, *again]) == pytest.approx(66.0)
    assert seconds_of([{"event": "start"}, {"event": "done", "time": "x"}]) == 0


def test_a_running_search_counts_until_now() -> None:
    events = log_of(card_of_pool(), until="warm-up")
    assert seconds(events) == {}
    assert seconds(events, running_at=107.5) == {"warm-up": 7.5}


def test_a_clock_that_was_set_back_takes_nothing_away() -> None:
    events = log_of(card_of_pool())
    events[4]["time"] = 50.0
    assert all(value > 0 for value in seconds(events).values())
    assert sum(seconds(events).values()) == pytest.approx(33.0)


@pytest.mark.parametrize(
    ("until", "extra", "running_at", "state", "phase"),
    [
        ("done", [], None, "finished", "report"),
        ("done", [{"event": "stopped", "time": 134.0}], None, "finished", "report"),
        ("search", [], 130.0, "running", "search"),
        ("search", [], None, "cut off", "search"),
        ("search", [{"event": "stopped", "time": 131.0}], None, "stopped", "search"),
        ("search", [{"event": "failed", "time": 131.0, "reason": "NaN"}], None, "failed", "search"),
        ("space", [], None, "cut off", "start"),
    ],
)
def test_the_state_of_a_run(until, extra, running_at, state, phase) -> None:
    history = read_history([*log_of(card_of_pool(), until=until), *extra], running_at=running_at)
    assert (history.state, history.phase) == (state, phase)
    assert history.failure == ("NaN" if state == "failed" else "")


def test_a_run_that_went_on_is_what_its_last_session_says() -> None:
    card = card_of_pool()
    done = log_of(card, finalists=random_trials(card, 3))
    assert len(read_history(done).finalists) == 3
    history = read_history([*done, *log_of(card, until="coverage")])
    assert (history.state, history.phase, history.finalists) == ("cut off", "warm-up", ())


def test_lines_that_a_kill_cut_off_are_left_out() -> None:
    lines = [json.dumps(event) for event in log_of(card_of_pool())]
    text = "\n".join(
        [*lines[:3], lines[3][:40], "", "5", "[1]", '{"no": 1}', '{"event": 7}', "[" * 100_000, *lines[3:]]
    )
    assert read_events(text) == [json.loads(line) for line in lines]


@pytest.mark.parametrize(
    "harm",
    [
        lambda events: events.clear(),
        lambda events: events.pop(0),
        lambda events: events[2].update(time="noon"),
        lambda events: events[0].update(versions=5),
        lambda events: events[5].pop("seconds"),
    ],
)
def test_a_log_that_does_not_tell_enough_is_refused(harm) -> None:
    events = log_of(card_of_pool())
    harm(events)
    with pytest.raises((KeyError, TypeError, ValueError, AttributeError)):
        read_history(events)
