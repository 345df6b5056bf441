"""A rank fails: all others end, and one line names it."""

from __future__ import annotations

import random
import re
import signal
import time

import pytest

from tests.parallel.ranked import Ranks, errors_of

# at which of the exchanges, three a step, and on which rank; by seed
MOMENTS = [(random.Random(seed).randrange(4, 60), seed % 2) for seed in range(6)]
# what is noticed by patience alone takes little of it; what must be noticed without has more than a test may take
PATIENCE_S = {"stop": 3, "sleep": 3}
ENDLESS_S = 1000


def outcome(folder, size, who, at, how, **variables):
    """The one line of a world in which a rank failed, and the exit codes of the others."""
    variables = {"CHECKS": 0, "PATIENCE_S": PATIENCE_S.get(how, ENDLESS_S), **variables}
    with Ranks(folder, size, "steps", who, at, how, **variables) as ranks:
        for rank in range(size):
            ranks.until(rank, "began")
        results = ranks.ended(without=(who,))
        if how not in ("stop", "sleep"):
            results.insert(who, ranks.ended()[who])
    lines = errors_of(results)
    assert len(lines) == 1, results
    if how not in ("kill", "crash"):  # torch warns where the process is gone that holds the store
        assert all("Warning" not in one.err and "[W" not in one.err for one in results), results
    return lines[0].removeprefix("error: "), [one.code for one in results]


def named(who):
    return rf"rank {who} \([^ ]+, pid \d+\)"


def doing(at):
    return rf"in step {at // 3}(, (after|in) (load \d+ of b3/wide|(send|agreement) \d+))?"


def unanswered(who, was, at):
    return rf"{named(who)} did not answer for \d s, and was {was}; rank {1 - who} waited {doing(at)}"


# one of each is quick; the others are proofs
MORE = [pytest.mark.slow, pytest.mark.long]
moments = pytest.mark.parametrize(("at", "who"), [MOMENTS[1], *(pytest.param(*one, marks=MORE) for one in MOMENTS)])


@pytest.mark.timeout(120)
@moments
def test_a_rank_that_raises_says_so_itself(at, who, tmp_path):
    line, codes = outcome(tmp_path, 2, who, at, "raise")
    where = r"\(programs.py, line \d+\)"
    assert re.fullmatch(rf"{named(who)} failed {doing(at)}: ValueError: my layer is broken {where}", line), line
    assert (codes[who], codes[1 - who]) == (1, 2)


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize(("at", "who"), [MOMENTS[0], *(pytest.param(*one, marks=MORE) for one in MOMENTS[1:])])
@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("memory", "RuntimeError: .*can't allocate memory.*"),
        ("nan", "loss is not finite at step 7; .*"),
        ("exit", r"SystemExit: 3 .*"),
        ("code", r"SystemExit: 0 .*"),
    ],
)
def test_a_rank_that_cannot_go_on_says_why(how, said, at, who, tmp_path):
    line, codes = outcome(tmp_path, 2, who, at, how)
    assert re.fullmatch(rf"{named(who)} failed {doing(at)}: {said}", line), line
    assert 0 not in codes


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("origin", "who"), [("1", r"rank 1 \([^ ]+, pid \d+\)"), ("", "all ranks")])
def test_what_all_ranks_find_is_said_once_of_the_rank_that_it_came_from(origin, who, tmp_path):
    with Ranks(tmp_path, 2, "not_finite", origin) as ranks:
        results = ranks.ended(30)
    (line,) = errors_of(results)
    assert re.fullmatch(rf"error: {who} failed .*: loss is not finite at step 3; .*", line), line
    assert [one.code for one in results] == [2, 2]


@pytest.mark.timeout(120)
def test_what_a_rank_has_failed_with_is_said_by_that_rank_alone(tmp_path):
    with Ranks(tmp_path, 2, "known_elsewhere") as ranks:
        results = ranks.ended(30)
    (line,) = errors_of(results)
    assert re.fullmatch(rf"error: {named(1)} failed .*: my layer is broken", line), line
    assert [one.code for one in results] == [2, 2]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("how", ["kill", pytest.param("crash", marks=pytest.mark.slow)])
@moments
def test_a_process_that_is_gone_ends_the_others(how, at, who, tmp_path):
    line, codes = outcome(tmp_path, 2, who, at, how)
    what = f"{named(0)}, which holds the store of the ranks, has ended"
    what = rf"the connection to another rank broke {doing(at)}" if who else what
    assert re.match(rf"{what}: it was killed, or crashed; see its own output", line), line
    assert codes[1 - who] == 2


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize(("at", "who"), [MOMENTS[0], *(pytest.param(*one, marks=MORE) for one in MOMENTS[1:])])
def test_a_process_that_is_stopped_is_named_by_the_others(at, who, tmp_path):
    line, codes = outcome(tmp_path, 2, who, at, "stop")  # named by its last beat
    assert re.fullmatch(unanswered(who, r"(at the start|in join 1|in step \d+(, .+)?)", at), line), line
    assert codes == [2]


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize(("at", "who"), [MOMENTS[1], *(pytest.param(*one, marks=MORE) for one in MOMENTS[2:4])])
def test_a_rank_that_hangs_is_named_by_the_others(at, who, tmp_path):
    line, codes = outcome(tmp_path, 2, who, at, "sleep")
    assert re.fullmatch(unanswered(who, doing(at), at), line), line
    assert codes == [2]


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("who", range(4))
@pytest.mark.parametrize("how", ["raise", "kill", "stop", "sleep"])
def test_the_right_one_of_four_is_named(how, who, tmp_path):
    line, codes = outcome(tmp_path, 4, who, 20 + 3 * who, how)
    is_told_by_a_connection = how == "kill" and who > 0
    assert re.match("the connection to another rank broke" if is_told_by_a_connection else named(who), line), line
    assert line.count("did not answer") == (how in ("stop", "sleep"))
    assert 0 not in codes


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_rank_that_takes_long_and_says_so_is_waited_for(tmp_path):
    with Ranks(tmp_path, 2, "steps", 1, 9, "slow", 30, PATIENCE_S=2) as ranks:
        results = ranks.ended()
    assert [(one.code, one.err) for one in results] == [(0, "")] * 2, results


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize(("how", "where"), [("channel", "send 4"), ("divided", "divided 1")])
def test_ranks_that_wait_for_each_other_are_both_said(how, where, tmp_path):
    line, codes = outcome(tmp_path, 2, 1, 9, how, PATIENCE_S=2)
    places = ["in step 3, in load 4 of b3/wide", f"in step 3, in {where}"]
    assert any(
        re.fullmatch(
            rf"{named(who)} did not answer for \d s, and was {places[who]}; rank {1 - who} waited {places[1 - who]}",
            line,
        )
        for who in range(2)
    ), line
    assert codes == [2, 2]


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("number", "which"), [(signal.SIGTERM, (0, 1)), (signal.SIGINT, (0, 1)), (signal.SIGINT, (1,))]
)
def test_ranks_that_are_asked_to_stop_say_so_once(number, which, tmp_path):
    with Ranks(tmp_path, 2, "steps") as ranks:
        for rank in range(2):
            ranks.until(rank, "began")
        for rank in which:
            ranks.send(rank, number)
        results = ranks.ended(15)
    assert sorted(one.err for one in results) == ["", "stopped\n"], results
    assert [one.code for one in results] == [130, 130]


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("seed", range(6))
def test_a_rank_that_is_killed_at_any_time_while_ranks_meet_is_noticed(seed, tmp_path):
    chance = random.Random(seed)
    with Ranks(tmp_path, 2, "steps", JOIN_S=20, PATIENCE_S=5) as ranks:
        time.sleep(chance.random() * 0.6)
        ranks.send(seed % 2, signal.SIGKILL)
        results = ranks.ended(40, without=(seed % 2,))
    assert len(errors_of(results)) == 1, results
    assert [one.code for one in results] == [2]


@pytest.mark.slow
def test_a_slow_write_of_one_rank_is_no_silence(tmp_path):
    with Ranks(tmp_path, 2, "saves_slowly", tmp_path / "weights", PATIENCE_S=3) as ranks:
        results = ranks.ended()
    assert [(one.code, one.out.splitlines()) for one in results] == [(0, ["saved"])] * 2, results
