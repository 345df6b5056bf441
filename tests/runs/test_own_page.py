"""The page of a study that a loop of the user's own has filled."""

from __future__ import annotations

import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

import l2l_nas
from l2l_nas.errors import SettingError, StorageError
from l2l_nas.testing.problems import small_pool


@pytest.fixture(scope="module")
def pool():
    return small_pool(depth=3)


def filled(pool, **how):
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0), **how)

    def objective(trial):
        architecture = l2l_nas.suggest(trial, pool)
        trial.set_user_attr("loss", 0.25)
        if len(study.directions) > 1:
            return architecture.choices.count("tanh"), l2l_nas.num_parameters(pool, architecture)
        trial.report(0.5, 2)
        if trial.number == 3:
            raise optuna.TrialPruned
        if trial.number == 4:
            raise RuntimeError("no such luck")
        return architecture.choices.count("tanh")

    study.optimize(objective, n_trials=8, catch=(RuntimeError,))
    return study


def test_a_loop_of_one_s_own_gets_a_page(pool, tmp_path):
    study = filled(pool, direction="maximize", study_name="mine")
    path = l2l_nas.write_page(study, pool, tmp_path / "pages" / "report.html")
    page = path.read_text()
    assert page.rstrip().endswith("</html>")
    assert "mine" in page
    assert "1 stopped early, 1 failed" in page
    assert "config.yaml" not in page
    assert l2l_nas.write_page(study, pool, path) == path  # in place of the one before


def test_of_several_objectives_it_shows_the_front(pool, tmp_path):
    study = filled(pool, directions=["maximize", "minimize"])
    page = l2l_nas.write_page(study, pool, str(tmp_path / "report.html")).read_text()
    assert '<section id="pareto">' in page


def test_what_no_page_can_be_made_of_is_refused(pool, tmp_path):
    study = filled(pool, direction="maximize")
    (tmp_path / "notes.html").write_text("mine")
    with pytest.raises(StorageError, match="is no page"):
        l2l_nas.write_page(study, pool, tmp_path / "notes.html")
    other = l2l_nas.LayerPool([p.with_candidates(p.candidates[:1]) for p in pool.positions], inputs=pool.inputs)
    with pytest.raises(SettingError, match=r"trial \d+ of the study is not of this pool"):
        l2l_nas.write_page(study, other, tmp_path / "other.html")
    with pytest.raises(SettingError, match="one to three"):
        l2l_nas.write_page(optuna.create_study(directions=["maximize"] * 4), pool, tmp_path / "four.html")


def test_the_command_says_what_writes_such_a_page(pool, tmp_path, refused):
    optuna.create_study(study_name="mine", storage=JournalStorage(JournalFileBackend(str(tmp_path / "study.log"))))
    assert "l2l_nas.write_page(study, pool)" in refused("report", f"run={tmp_path}")
