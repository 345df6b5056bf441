"""What a rank says of itself."""

from __future__ import annotations

from torch.distributed import HashStore

from l2l_nas.parallel.beats import Beat
from l2l_nas.parallel.watch import RankWatch


def test_the_last_beat_of_a_rank_that_leaves_says_so():
    store = HashStore()
    watch = RankWatch(store, ["rank 0"], 0, patience_s=60, store_rank=None)
    watch.start()
    watch.note("the end")
    watch.leave()
    last = Beat.read(store.get("beat/0"))
    assert (last.doing, last.has_left) == ("in the end", True)
