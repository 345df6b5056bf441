"""What ranks do together is compared before: by threads that exchange as ranks do."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from l2l_nas.eps.agreement import (
    MOST_FACTS,
    Pass,
    all_gather_bytes,
    all_reduce_min,
    begin,
    broadcast,
    end,
    facts_of,
    together,
    wait_for_all,
)
from l2l_nas.eps.exchange import Alone
from l2l_nas.errors import SettingError, StorageError
from tests.eps.test_partition import Threads


class Sized(Threads):
    """Refuses messages of two sizes at once, as gloo does, which ends the process."""

    def all_gather(self, part, whole, channel, of=""):
        self._rows[self.rank] = part
        self._barrier.wait(60)
        sizes = {row.nbytes for row in self._rows}
        self._barrier.wait(60)
        assert len(sizes) == 1, sizes
        super().all_gather(part, whole, channel, of)


def on_ranks(work, size=2):
    """What `work(exchange)` gives on each rank: a value, or the error that it raised."""
    shared = [None] * size, threading.Barrier(size)

    def run(rank):
        try:
            return work(Sized(shared, rank))
        except (SettingError, StorageError) as error:
            return error

    with ThreadPoolExecutor(size) as threads:
        return list(threads.map(run, range(size)))


def test_all_get_the_least_of_each_number():
    assert on_ranks(lambda e: begin(e, Pass.AGREE, (), [5 - e.rank, e.rank, -7]), 4) == [[2, 0, -7]] * 4
    assert on_ranks(lambda e: all_reduce_min(e, 9 - e.rank, "memory")) == [8, 8]
    assert begin(Alone(), Pass.AGREE, (), [3]) == [3]


@pytest.mark.parametrize("size", [2, 4])
def test_a_fact_that_differs_is_named_on_all_ranks(size):
    values = {"path": "a", "learning rate": 0.1}

    def work(exchange):
        other = {"learning rate": 0.2} if exchange.rank == size - 1 else {}
        begin(exchange, Pass.TRAIN, facts_of(values | other))

    said = (
        f"rank {size - 1} has another learning rate than rank 0, and they are about to train together; all ranks must "
        "be given the same"
    )
    assert [str(error) for error in on_ranks(work, size)] == [said] * size


CALLS = {
    "train": lambda e: begin(e, Pass.TRAIN, facts_of({"path": 1})),
    "predict": lambda e: begin(e, Pass.PREDICT, facts_of({"path": 1}), [4]),
    "save": lambda e: begin(e, Pass.SAVE),
    "end: save": lambda e: end(e, Pass.SAVE),
    "agree on values": lambda e: all_gather_bytes(e, b"some"),
    "share tensors": lambda e: broadcast(e, torch.zeros(3)),
    "wait for all": wait_for_all,
}


@pytest.mark.parametrize("one", CALLS)
@pytest.mark.parametrize("other", CALLS)
def test_ranks_that_make_other_calls_say_so(one, other):
    found = on_ranks(lambda exchange: CALLS[other if exchange.rank else one](exchange))
    errors = [str(error) for error in found if isinstance(error, SettingError)]
    said = f"rank 1 is about to {other}, and rank 0 to {one}; all ranks must make the same calls in the same order"
    assert errors == ([said] * 2 if one != other else [])


def test_more_facts_than_another_rank_has_are_other_settings():
    def work(exchange):
        begin(exchange, Pass.TRAIN, facts_of({str(number): 0 for number in range(3 + exchange.rank)}))

    assert all("rank 1 has" in str(error) for error in on_ranks(work))


def test_as_many_facts_as_there_is_place_for():
    facts = facts_of({str(number): number for number in range(MOST_FACTS)})
    assert on_ranks(lambda e: begin(e, Pass.TRAIN, facts, [1, 2, 3, e.rank])) == [[1, 2, 3, 0]] * 2


@pytest.mark.parametrize("failing", [0, 1])
def test_what_fails_on_one_rank_fails_on_all(failing):
    def work(exchange):
        with together(exchange, Pass.SAVE, {"states": ["a"]}):
            if exchange.rank == failing:
                raise StorageError("f.json: " + "no space left " * 100)

    errors = on_ranks(work)
    assert str(errors[failing]).startswith("f.json: no space left")
    assert str(errors[1 - failing]).startswith(f"rank {failing} could not save: f.json: no space left")


def test_bytes_of_any_length_come_to_all():
    values = [b"", b"longer\0", b"x"]
    assert on_ranks(lambda e: all_gather_bytes(e, values[e.rank]), 3) == [values] * 3
    assert on_ranks(lambda e: all_gather_bytes(e, b"")) == [[b"", b""]] * 2


def test_rank_0_gives_what_it_has():
    found = on_ranks(lambda e: broadcast(e, torch.full((2, 3), float(e.rank))))
    assert all(torch.equal(one, torch.zeros(2, 3)) for one in found)
    errors = on_ranks(lambda e: broadcast(e, torch.zeros(2 + e.rank)))
    assert all("another shape of tensors" in str(error) for error in errors)
