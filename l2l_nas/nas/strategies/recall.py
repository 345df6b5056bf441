"""What the memory of earlier runs changed in a search."""

from __future__ import annotations

from l2l_nas.nas.strategies.context import SearchContext
from l2l_nas.nas.strategies.finalists import choose


def finalists_by_memory(search: SearchContext) -> tuple[int, int]:
    """How many finalists were chosen, and how many of them would not have been by the trials' scores alone."""
    trained = {one.record.number for one in search.finalists} | search.abandoned.keys()
    if not trained or search.memory is None:
        return 0, 0
    allowed = [record for record in search.allowed(search.study.records) if record.in_space]
    without = choose(allowed, search.goals, count=len(trained), posterior=search.study.posterior(remembers=False))
    return len(trained), len(trained - {record.number for record in without})
