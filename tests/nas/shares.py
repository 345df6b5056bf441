"""Several processes' views of one study, in this process."""

from __future__ import annotations

from pathlib import Path

from l2l_nas.nas.distributed.shared_study import SharedStudy
from l2l_nas.nas.study.database import parse_address
from l2l_nas.nas.study.storage import LeaseAnswer
from l2l_nas.nas.study.study import Study
from tests.nas.problems import GOALS

VALUES = {"accuracy": 0.5, "parameters": 30.0}


def store_of(url: str, folder: Path, **changes) -> SharedStudy:
    folder.mkdir(parents=True, exist_ok=True)
    values = {"name": "search", "is_known": False, "lost_after": 60.0, "retry_seconds": 5.0}
    return SharedStudy(parse_address(url), folder=folder, **{**values, **changes})


def join(url: str, folder: Path, pool, *, store=None, trials=10, sampler="random", **changes) -> Study:
    store = store or store_of(url, folder, **changes)
    return Study(
        store,
        pool=pool,
        goals=GOALS,
        sampler=sampler,
        seed=0,
        num_trials=trials,
        data="data",
        scoring={"seed": 0},
        worker=store.seed_offset,
    )


def begin(study: Study, architecture):
    """Lease an architecture."""
    study.propose(architecture)
    trial, proposed = study.ask()
    assert proposed == architecture
    return trial, study.lease(trial, architecture)


def complete(study: Study, architecture, **changes):
    trial, verdict = begin(study, architecture)
    assert verdict is LeaseAnswer.OURS
    return study.tell(trial, architecture, **{"state": "complete", "values": VALUES, **changes})
