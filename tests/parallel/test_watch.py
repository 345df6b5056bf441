"""What a rank says of itself."""

from __future__ import annotations

import threading
import time

from torch.distributed import HashStore

from l2l_nas.parallel.beats import Beat, Failure
from l2l_nas.parallel.watch import RankWatch


def test_the_last_beat_of_a_rank_that_leaves_says_so():
    store = HashStore()
    watch = RankWatch(store, ["rank 0"], 0, patience_s=60, store_rank=None)
    watch.start()
    watch.note("the end")
    watch.leave()
    last = Beat.read(store.get("beat/0"))
    assert (last.doing, last.has_left) == ("in the end", True)


def test_a_rank_that_answers_late_is_waited_for_until_it_knows_that_it_failed():
    store, names = HashStore(), ["rank 0", "rank 1"]
    here, late = (RankWatch(store, names, rank, patience_s=60, store_rank=0) for rank in range(2))
    for rank in range(2):
        store.set(f"beat/{rank}", Beat().written())
    here.start()
    starts = threading.Timer(0.5, late.start)
    starts.start()
    here.report(Failure("rank 1 did not answer", by=0, rank=1))
    here.linger(20)
    assert late.failure is not None  # before the process ends that holds the store
    for one in (here, late):
        one.leave()


def test_a_rank_that_failed_and_answers_no_more_is_not_waited_for():
    store, names = HashStore(), ["rank 0", "rank 1"]
    here = RankWatch(store, names, 0, patience_s=60, store_rank=0)
    for rank in range(2):
        store.set(f"beat/{rank}", Beat().written())
    here.start()
    here.report(Failure("rank 1 did not answer", by=0, rank=1))
    began = time.monotonic()
    here.linger(60)
    assert time.monotonic() - began < 30
    here.leave()
