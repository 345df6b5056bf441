"""Which rank is named, from what one rank knows."""

from __future__ import annotations

import pytest

from l2l_nas.parallel.beats import Beat
from l2l_nas.parallel.blame import Known, Seen
from l2l_nas.parallel.processes import Process

PATIENCE_S = 20.0


def known(own, **seen):
    """What rank 0 knows of ranks `r1`, `r2`, ..., which run on other machines."""
    processes = [Process("host", f"machine {rank}", 100 + rank, 1) for rank in range(len(seen) + 1)]
    return Known(0, own, {int(name[1:]): one for name, one in seen.items()}, processes, PATIENCE_S)


def waits(doing="in load 3", load=3, send=3, **more):
    return Beat(doing=doing, begun={"load": load, "send": send}, waits=True, **more)


def computes(load=2, send=3, **more):
    return Beat(doing="after load 2", begun={"load": load, "send": send}, **more)


def hung(beat):
    return Seen(beat, silent_s=0.1, still_s=25)


def stopped(beat):
    return Seen(beat, silent_s=21, still_s=21)


@pytest.mark.parametrize(
    ("seen", "rank", "said"),
    [
        (
            {"r1": hung(computes())},
            1,
            "rank 1 (host, pid 101) made no progress for 20 s after load 2; other ranks wait",
        ),
        ({"r1": stopped(computes())}, 1, "rank 1 (host, pid 101) did not answer for 20 s; it was after load 2"),
        ({"r1": stopped(waits())}, 1, "rank 1 (host, pid 101) did not answer for 20 s; it was in load 3"),
        # rank 1 is behind, but waits for rank 2 in another exchange
        ({"r1": hung(waits("in send 4", load=2, send=4)), "r2": hung(computes(load=3))}, 2, "rank 2 (host, pid 102)"),
        ({"r1": hung(waits("in send 4", load=2, send=4)), "r2": stopped(computes())}, 2, "rank 2 (host, pid 102) did"),
        ({"r1": hung(waits()), "r2": hung(computes())}, 2, "rank 2 (host, pid 102) made no progress"),
        # an earlier epoch: it has not noticed that the others begin anew
        ({"r1": hung(computes(load=9, epoch=0)), "r2": hung(waits(epoch=1))}, 1, "rank 1 (host, pid 101) made no"),
        (
            {"r1": hung(waits("in send 4", load=2, send=4))},
            None,
            "ranks wait for each other for 20 s: rank 0 in load 3",
        ),
    ],
)
def test_the_rank_that_is_named(seen, rank, said):
    own = waits(epoch=max(one.beat.epoch for one in seen.values()))
    failure = known(own, **seen).overdue(waited_s=20)
    assert failure.rank == rank
    assert failure.text.startswith(said), failure.text


@pytest.mark.parametrize(
    "seen",
    [
        {"r1": Seen(computes(), silent_s=0.1, still_s=19)},
        {"r1": Seen(computes(), silent_s=19, still_s=19)},
        {"r1": hung(waits())},  # all began: a transfer that takes its time
        {"r1": hung(waits()), "r2": Seen(computes(), silent_s=0.1, still_s=3)},
    ],
)
def test_nobody_is_named_who_goes_on(seen):
    assert known(waits(), **seen).overdue(waited_s=20) is None


def test_an_exchange_of_some_ranks_is_waited_for_by_these_alone():
    own = Beat(doing="in divided 5", begun={"divided@0,2": 5}, waits=True)
    others = Beat(doing="after divided 4", begun={"divided@1,3": 4})
    late = Beat(doing="after divided 4", begun={"divided@0,2": 4})
    ranks = known(own, r1=hung(others), r2=hung(late), r3=hung(others))
    assert ranks.overdue(waited_s=20).rank == 2


def test_an_exchange_that_all_began_may_take_ten_times_as_long():
    assert "check the network" in known(waits(), r1=hung(waits())).overdue(waited_s=200).text


def test_the_rank_that_is_silent_for_the_longest_time():
    ranks = known(waits(), r1=Seen(waits(), silent_s=2), r2=Seen(waits(), silent_s=3), r3=Seen(waits(), silent_s=0.2))
    assert ranks.most_silent(1.5) == 2
    assert ranks.most_silent(4) is None


def test_a_rank_is_no_member_of_an_exchange_that_has_its_number_within_another():
    own = Beat(doing="in divided 5", begun={"divided@0,12": 5}, waits=True)
    elsewhere = Beat(doing="after load 2", begun={"load": 2})
    late = Beat(doing="after divided 4", begun={"divided@0,12": 4})
    others = {f"r{rank}": hung(elsewhere) for rank in range(1, 12)}
    assert known(own, **others, r12=hung(late)).overdue(waited_s=20).rank == 12
