"""A strategy of your own: `strategy=examples/extensions/strategy.py:blocks search.trial_weights=shared`.

Blocks are scored instead of whole networks: one by one, each in the place of that of a first network. The networks
whose blocks have the highest scores become trials.
"""

from dataclasses import replace
from itertools import islice
from typing import Any

from l2l_nas import Finalists, Phase, RandomSearch, Trials, WarmUp


class ScoreBlocks(Phase):
    """Proposes half of the trials by the scores of their blocks; a sampler proposes the others."""

    def run(self, search: Any) -> None:
        left = search.budget.trials // 2 - search.study.num_evaluated  # fewer in a resumed search
        if left <= 0:
            return
        first = next(search.random_architectures(seed=search.seed))
        metric, gains = search.goals[0], {}
        for place, position in enumerate(search.pool.positions):
            for candidate in position.candidates:
                choices = (*first.choices[:place], candidate.name, *first.choices[place + 1 :])
                network = search.pool.canonical(replace(first, choices=choices))
                if search.is_allowed(network):
                    score = search.evaluator.score(network)[metric.name]
                    gains[place, candidate.name] = score if metric.maximize else -score
        drawn = set(islice(search.random_architectures(seed=search.seed + 1), 500))
        total = {one: sum(gains.get(key, -1.0) for key in enumerate(one.choices)) for one in drawn}
        ranked = sorted(sorted(drawn, key=str), key=lambda one: -total[one])
        known = {record.architecture for record in search.study.records}
        for network in [one for one in ranked if one not in known][:left]:
            search.study.propose(network)


def blocks() -> list[Phase]:
    return [WarmUp(), ScoreBlocks(), Trials(), Finalists(), RandomSearch()]
