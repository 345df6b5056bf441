"""A cost of your own: `search.costs=[examples/extensions/cost.py:Depth] objectives=[accuracy,Depth]`.

It can have a limit, too: `search.limits.Depth=6`.
"""

from l2l_nas import Architecture, LayerPool


class Depth:
    """How many layers of an architecture are not skipped. Less is better."""

    def __init__(self, pool: LayerPool) -> None:  # the search passes the pool, as the argument has this name
        self.skips = [{one.name for one in position.candidates if one.is_skip} for position in pool.positions]

    def __call__(self, architecture: Architecture) -> float:
        return sum(name not in skips for name, skips in zip(architecture.choices, self.skips, strict=True))
