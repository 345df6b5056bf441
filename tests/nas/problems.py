"""A problem that trains in milliseconds, and the parts of a search on it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from l2l_nas import AdamW, Candidate, Data, LayerPool, ParamServer, Position, Relay, TensorSpec, skip
from l2l_nas.cost.catalogue import parameters_cost
from l2l_nas.cost.table import Costs, unmeasured
from l2l_nas.eps.checkpoint import Checkpoint
from l2l_nas.nas.callback import Callback
from l2l_nas.nas.evaluation.early_stopping import NeverStop
from l2l_nas.nas.evaluation.evaluator import Evaluator
from l2l_nas.nas.evaluation.inline import InlineExecutor, population_size
from l2l_nas.nas.objectives import Goal
from l2l_nas.nas.strategies.budget import Budget
from l2l_nas.nas.strategies.context import SearchContext
from l2l_nas.nas.strategies.default import Search
from l2l_nas.nas.strategies.finalists import Finalist
from l2l_nas.nas.study.journal import StudyFile
from l2l_nas.nas.study.study import Study
from l2l_nas.space.constraint import NonEmpty
from l2l_nas.space.sampling import UniformPaths
from l2l_nas.training.data import Batches
from l2l_nas.training.fit import Trainer
from l2l_nas.training.task import Classification
from l2l_nas.training.weights import SharedWeights

GOALS = (Goal("accuracy", True), Goal("parameters", False))


class Act(nn.Sequential):
    def __init__(self, width: int, act: type[nn.Module]) -> None:
        super().__init__(nn.Linear(width, width), act())


class Normed(nn.Sequential):
    """With running statistics."""

    def __init__(self, width: int) -> None:
        super().__init__(nn.Linear(width, width), nn.BatchNorm1d(width))


class Reading(nn.Module):
    """Its output in training depends on running statistics that a recalibration measures anew."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(width, width), nn.BatchNorm1d(width)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.linear(x - self.norm.running_mean))


class Poison(nn.Linear):
    """Its output is NaN."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * float("nan")


def pool_of(*names: str, depth: int = 2, width: int = 4) -> LayerPool:
    """Stem, `depth` positions with these candidates, head."""
    kinds = {
        "tanh": partial(Act, width, nn.Tanh),
        "relu": partial(Act, width, nn.ReLU),
        "normed": partial(Normed, width),
        "reading": partial(Reading, width),
        "poison": partial(Poison, width, width),
        "wide": partial(Wide, width),
    }
    layers = [skip() if name == "skip" else Candidate(name, kinds[name]) for name in names]
    return LayerPool(
        [
            Position("stem", Candidate("linear", partial(nn.Linear, 2, width))),
            *(Position(f"p{index}", layers) for index in range(depth)),
            Position("head", Candidate("linear", partial(nn.Linear, width, 2))),
        ],
        inputs=TensorSpec((2,)),
    )


class Wide(nn.Sequential):
    """Many parameters."""

    def __init__(self, width: int) -> None:
        super().__init__(nn.Linear(width, 64), nn.ReLU(), nn.Linear(64, width))


class Watcher(Callback):
    """An observer that remembers, and may stop the search after so many polls."""

    def __init__(self) -> None:
        self.phases: list[tuple[str, int, int]] = []
        self.trials: list = []
        self.coverages: list[dict] = []
        self.finalists: list[Finalist] = []
        self.lost: dict[int, str] = {}
        self.numbers: list[tuple[str, float, int, int | None]] = []
        self.polls = 0
        self.stop_at = -1
        self.stop: type[BaseException] = RuntimeError

    def phase(self, name: str, *, total: int, done: int) -> None:
        self.phases.append((name, total, done))

    def advance(self, done: int, *, detail: str = "") -> None:
        self.done = done

    def number(self, name: str, value: float, *, step: int, trial: int | None = None) -> None:
        self.numbers.append((name, value, step, trial))

    def covered(self, coverage) -> None:
        self.coverages.append(coverage.to_json())

    def trial(self, record, records: Sequence) -> None:
        assert records[-1] is record
        self.trials.append(record)

    def finalist(self, finalist) -> None:
        self.finalists.append(finalist)

    def abandoned(self, record, reason: str) -> None:
        self.lost[record.number] = reason

    def poll(self) -> None:
        self.polls += 1
        if self.polls == self.stop_at:
            raise self.stop


def data() -> Data:
    x = torch.rand(60, 2, generator=torch.Generator().manual_seed(0)) * 4 - 2
    return Data.from_arrays(x, (x[:, 0] > x[:, 1]).long())


def budget(**changes) -> Budget:
    values = {
        "warmup_steps": 4,
        "trials": 4,
        "steps_per_trial": 2,
        "finalists": 1,
        "finalist_steps": 3,
        "learning_rate": 0.01,
        "finalist_learning_rate": 0.01,
    }
    return Budget(**{**values, **changes})


def open_study(folder: Path, pool: LayerPool, *, resume=False, **changes) -> Study:
    values = {"goals": GOALS, "sampler": "random", "seed": 0, "num_trials": 10}
    return Study(StudyFile(folder / "study.log", resume=resume), pool=pool, **{**values, **changes})


def search_on(
    folder: Path,
    pool: LayerPool,
    *,
    spend: Budget,
    resume: bool = False,
    constraints=(),
    paths=None,
    costs=None,
    early_stop=None,
    task=None,
    split=None,
    cache=None,
    **study,
):
    """A search with everything it needs, its relay, study and observer beside it."""
    server = ParamServer(pool, optimizer=AdamW(), seed=0)
    relay = Relay(server)
    split = split or data()
    trainer = Trainer(relay, task or Classification(), Batches(split.train, batch_size=16, seed=0), 16)
    held = open_study(folder, pool, resume=resume, **study)
    observer = Watcher()
    evaluator = Evaluator(relay, trainer, validation=split.validation, budget=spend, test=split.test)
    paths = paths or UniformPaths(pool, seed=0, constraints=unmeasured((NonEmpty(pool), *constraints)))
    context = SearchContext(
        evaluator=evaluator,
        weights=SharedWeights(server),
        budget=spend,
        goals=study.get("goals", GOALS),
        constraints=constraints,
        costs=costs or Costs([parameters_cost(pool)]),
        early_stop=early_stop or NeverStop(),
        paths=paths,
        seed=0,
        executor=InlineExecutor(evaluator, size=population_size(server, spend), poll=observer.poll),
        study=held,
        checkpoint=Checkpoint(folder / "weights"),
        callback=observer,
        cache=cache,
    )
    search = Search(context)
    if resume:
        search.restore()
    return search, relay, held, observer


def change_finalists(monkeypatch, changed) -> None:
    """Have results of finalists' segments go through a function of segment and result."""
    real = Evaluator.run

    def run(self, segment, **options):
        result = real(self, segment, **options)
        return changed(segment, result) if segment.name.startswith("finalist") else result

    monkeypatch.setattr(Evaluator, "run", run)


def weights_of(server):
    return {key: {n: t.clone() for n, t in server.state(key).tensors().items()} for key in server.visited}


def same(a, b):
    return a.keys() == b.keys() and all(
        a[key].keys() == b[key].keys() and all(torch.equal(a[key][name], b[key][name]) for name in a[key]) for key in a
    )
