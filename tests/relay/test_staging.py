"""Gradients that wait on the host are bounded, whatever is used twice, and nothing hangs."""

from __future__ import annotations

import itertools

import pytest

from l2l_nas.relay.executor import Staging
from l2l_nas.relay.lanes import Future
from tests.relay.steps import OTHER, PATH, in_time, is_same, relay_of, tensors, train
from tests.relay.stress import Stress
from tests.toys import dense_pool, language_pool, repeated_pool


def staged(limit, *sizes):
    """Gradients of these sizes were sent, and their updates issued."""
    staging, futures = Staging(limit), []
    for number, size in enumerate(sizes):
        staging.send({f"s{number}": size}, newest_first=False)
        futures.append(Future())
        staging.update(f"s{number}", futures[-1])
    return staging, futures


def test_within_the_bound_nothing_is_waited_for():
    staging, _ = staged(100, 30, 30)
    assert staging.send({"next": 40}, newest_first=False) == ()


@pytest.mark.parametrize("newest_first", [False, True])
def test_beyond_it_as_many_updates_are_waited_for_as_free_enough(newest_first):
    staging, (first, second, third) = staged(100, 30, 30, 30)
    expected = (third, second) if newest_first else (first, second)
    assert staging.send({"next": 60}, newest_first=newest_first) == expected


def test_updates_that_are_over_count_no_more():
    staging, (first, _, _) = staged(100, 30, 30, 30)
    first.finish()
    assert staging.send({"next": 40}, newest_first=False) == ()


def test_a_gradient_without_an_update_to_wait_for_is_sent_beyond_the_bound():
    staging = Staging(10)
    assert staging.send({"twice": 100}, newest_first=False) == ()
    assert staging.send({"twice": 100}, newest_first=False) == ()
    future = Future()
    staging.update("twice", future)
    assert staging.send({"next": 1}, newest_first=False) == (future,)


def most_waiting(relay):
    """The most blocks of gradients that were given out at a time; counted from now on."""
    inbox, counts = relay.server.gradients, [0, 0]
    allocate, give_back = inbox.allocate, inbox.give_back

    def allocated(*about):
        counts[0] += 1
        counts[1] = max(counts)
        return allocate(*about)

    def given(blocks):
        counts[0] -= len(blocks)
        give_back(blocks)

    inbox.allocate, inbox.give_back = allocated, given
    return counts


def test_where_updates_are_late_no_more_gradients_wait_than_the_bound_allows():
    pool = dense_pool(depth=8)
    path = ["dense"] * 8 + ["linear"]
    results, most = [], []
    for limit in (0, None):
        stress = Stress(longest_delay_s=0.0, slow={"update": 0.02}, is_poisoning=False)
        relay = relay_of(pool, lanes="threads", stress=stress)
        if limit is not None:
            relay._training._executor.staging.limit_bytes = limit
        counts = most_waiting(relay)
        for step in range(2):
            train(relay, path, step=step, upcoming=path)
        relay.drain()
        most.append(counts[1])
        results.append(tensors(relay.server))
        relay.close()
    assert most[0] <= 2 < most[1]
    assert is_same(relay.server, results[0])


@pytest.mark.timeout(120)
@pytest.mark.parametrize("stash", ["device", "host"])
@pytest.mark.parametrize("name", ["dense", "repeated", "tied"])
def test_with_no_room_at_all_every_path_ends_and_learns_the_same(name, stash):
    pool = {"dense": dense_pool(), "repeated": repeated_pool(), "tied": language_pool()}[name]
    paths = [PATH, OTHER] if name == "dense" else [[position.candidates[0].name for position in pool.positions]]
    found = []
    for limit in (0, 1 << 40):
        relay = relay_of(pool, lanes="threads", stash=stash, stress=Stress(seed=1))
        relay._training._executor.staging.limit_bytes = limit

        def trained(relay=relay):
            for step, path in zip(range(4), itertools.cycle(paths), strict=False):
                train(relay, path, step=step)
            relay.drain()

        in_time(trained)
        found.append(tensors(relay.server))
    assert is_same(relay.server, found[0])
    relay.close()
