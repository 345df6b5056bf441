"""Optuna's own functions on the study of a run, while it runs and after."""

from __future__ import annotations

import optuna
import pytest

import l2l_nas
from l2l_nas import Classification, Problem
from tests.nas.problems import data, pool_of
from tests.studies import saved_study

NAMES = {"p0", "p1", "p2"}


def figures_of(study):
    """All that needs no further package than one that draws."""
    draw = optuna.visualization
    if not draw.is_available():
        draw = optuna.visualization.matplotlib
    return [
        draw.plot_optimization_history(study),
        draw.plot_intermediate_values(study),
        draw.plot_slice(study),
        draw.plot_parallel_coordinate(study),
        draw.plot_timeline(study),
    ]


class Reader(l2l_nas.Callback):
    """Reads the study with every trial, as somebody beside the search would."""

    def __init__(self, folder, *, draws):
        self.folder, self.draws, self.counts = folder, draws, []

    def trial(self, record, records):
        study = saved_study(self.folder)
        self.counts.append((len(study.trials), len(records)))
        if self.draws and len(records) == 6:
            assert len(figures_of(study)) == 5


@pytest.mark.filterwarnings("ignore")  # what another program warns of is no failure of ours
@pytest.mark.parametrize("draws", [False, True])
def test_optuna_reads_and_draws_a_running_and_a_finished_study(tmp_path, draws):
    if draws and not optuna.visualization.is_available():
        pytest.importorskip("matplotlib")
    problem = Problem(pool=pool_of("tanh", "relu", "skip", depth=3), data=data(), task=Classification())
    reader = Reader(tmp_path / "run", draws=draws)
    said = {"trials": 8, "steps_per_trial": 8, "finalists": 1, "finalist_steps": 16, "early_stop": "halving"}
    said |= {"trial_weights": "scratch", "warmup_steps": 0, "sampler": "random", "export": False}
    result = l2l_nas.search(problem, folder=str(tmp_path / "run"), progress=False, callbacks=[reader], **said)
    assert [saved for saved, _ in reader.counts] == [known for _, known in reader.counts]
    study = saved_study(tmp_path / "run")
    assert len(study.trials) == reader.counts[-1][0]
    assert study.best_trial.params.keys() <= NAMES
    assert all(trial.intermediate_values for trial in study.trials if not trial.user_attrs["cached"])
    assert [trial.number for trial in result.study.trials] == [trial.number for trial in study.trials]
    if draws:
        assert len(figures_of(study)) == 5
