from __future__ import annotations

import json

import numpy as np
import pytest

from benchmarks.search import ranking
from benchmarks.search.correlation import tau
from benchmarks.search.standalone import MetricsTable, Recipe, all_architectures, identity
from l2l_nas.eps.server import ParamServer
from l2l_nas.errors import DataError, SettingError, StorageError
from l2l_nas.relay.reference import ReferenceTrainer
from l2l_nas.space.sampling import UniformPaths
from l2l_nas.training.data import Data, Split
from l2l_nas.training.problem import Problem
from l2l_nas.training.schedule import Cosine
from l2l_nas.training.task import Regression
from tests.benchmarks.search.ranked import problem, settings
from tests.benchmarks.stacks import Counted


def table(path, *, seeds=2, steps=3, of=None):
    """A whole table of the tiny space."""
    made = MetricsTable(path, identity(of or problem(), Recipe(steps)))
    made.fill(of or problem(), Recipe(steps), architectures=all_architectures(of or problem()), seeds=seeds)
    return made


def test_a_tiny_space_from_end_to_end(tmp_path):
    watch = Counted()
    given = settings(tmp_path)
    ranking.check(given)
    result = ranking.ranking(given, watch)
    assert watch.done == watch.total == 9 * 2 * 3 + 4 * (12 + 9)
    assert json.loads(json.dumps(result)) == result
    assert [row["sampler"] for row in result["rows"]] == ["uniform", "fair"]
    assert np.shape(result["scores"]["fair"]) == (2, 9)
    assert np.shape(result["alone"]) == (9, 2)
    mean = np.mean(result["alone"], axis=1)
    assert result["rows"][0]["tau"]["each"][1] == pytest.approx(tau(result["scores"]["uniform"][1], mean), abs=1e-4)
    assert result["controls"]["parameters"]["tau"]["value"] == pytest.approx(tau(result["parameters"], mean), abs=1e-4)
    assert result["parameters"][0] - result["parameters"][-1] == 2 * (4 * 4 + 4)
    assert result["table"]["data"] == identity(problem(), Recipe(3))["data"]
    assert watch.notes == [f"no stored table fits (there is none): 18 trainings into {tmp_path / ranking.TABLE}"]


@pytest.mark.slow
def test_a_second_run_reads_the_table_and_says_the_same(tmp_path):
    first, second = Counted(), Counted()
    result = ranking.ranking(settings(tmp_path), first)
    assert ranking.ranking(settings(tmp_path), second) == result
    assert second.total == first.total - 9 * 2 * 3
    assert not second.notes


def test_a_supernet_is_trained_by_its_paths_and_scored_with_shared_weights():
    architectures = all_architectures(problem())
    given = []
    found = ranking.score_supernet(
        problem(), Recipe(3), architectures, sampler="uniform", steps=12, seed=7, tick=given.append
    )
    assert sum(given) == 12 + 9
    server = ParamServer(problem().pool, optimizer=Recipe(3).optimizer, seed=7)
    trainer = Recipe(3).trainer(problem(), ReferenceTrainer(server, device="cpu", seed=7), seed=7)
    paths = UniformPaths(problem().pool, seed=7)
    trainer.fit(paths.path_at, start=0, steps=12, schedule=Cosine(0.008, 12))
    assert found == [trainer.evaluate(one, problem().data.validation) for one in architectures]


def test_batchnorm_is_measured_anew_for_each_architecture():
    normed = problem(norm=True)
    architectures = all_architectures(normed)
    found = ranking.score_supernet(normed, Recipe(3), architectures, sampler="fair", steps=30, seed=0)
    again = ranking.score_supernet(normed, Recipe(3), architectures[::-1], sampler="fair", steps=30, seed=0)
    assert found == again[::-1]
    assert len({metrics["loss"] for metrics in found}) == 9


@pytest.mark.slow
def test_a_loss_is_ranked_the_right_way_round(tmp_path):
    x, y = problem().data.train.inputs[0], problem().data.train.inputs[0]
    regression = Problem(problem(width=4).pool, Data(*[Split((x,), y)] * 3), Regression())
    given = settings(tmp_path, problem=regression, training_steps=40, warmup_steps=200)
    result = ranking.ranking(given, Counted())
    assert result["metric"] == "loss"
    worst = int(np.argmax(np.mean(result["alone"], axis=1)))
    assert result["alone"][worst][0] > 0
    mean = np.mean(result["alone"], axis=1)
    expected = tau(result["parameters"], -mean)
    assert result["controls"]["parameters"]["tau"]["value"] == pytest.approx(expected, abs=1e-4)
    assert result["rows"][0]["regret"] >= 0


@pytest.mark.slow
def test_a_stored_table_that_fits_is_used_and_left_alone(tmp_path):
    stored = table(tmp_path / "ranking_a.json")
    other = table(tmp_path / "ranking_b.json", steps=4)
    before = stored.path.read_bytes()
    watch = Counted()
    result = ranking.ranking(settings(tmp_path / "out", stored=(other.path, stored.path)), watch)
    assert result["table"]["file"] == "ranking_a.json"
    assert watch.total == 4 * (12 + 9)
    assert not watch.notes
    assert stored.path.read_bytes() == before


@pytest.mark.slow
def test_a_stored_table_with_too_few_seeds_goes_on_in_the_folder(tmp_path):
    stored = table(tmp_path / "ranking_a.json", seeds=1)
    before = stored.path.read_bytes()
    (tmp_path / "out").mkdir()
    watch = Counted()
    result = ranking.ranking(settings(tmp_path / "out", stored=(stored.path,)), watch)
    assert watch.total == 9 * 3 + 4 * (12 + 9)
    assert result["table"]["file"] == ranking.TABLE
    assert stored.path.read_bytes() == before
    assert result["alone"] == ranking.ranking(settings(tmp_path), Counted())["alone"]


def test_stored_tables_of_other_things_are_not_used_and_one_line_says_why(tmp_path):
    paths = (
        table(tmp_path / "ranking_a.json", steps=4).path,
        table(tmp_path / "ranking_b.json", of=problem(seed=1)).path,
        tmp_path / "ranking_c.json",
    )
    paths[2].write_text("{}")
    watch = Counted()
    ranking.find_table(
        settings(tmp_path, stored=paths), identity(problem(), Recipe(3)), all_architectures(problem()), watch
    )
    assert watch.notes == [
        "no stored table fits (ranking_a.json: other recipe; ranking_b.json: other data; ranking_c.json: damaged): "
        f"18 trainings into {tmp_path / ranking.TABLE}"
    ]


@pytest.mark.parametrize("named", [True, False])
def test_a_table_of_another_recipe_where_one_is_kept_is_refused_and_left_alone(tmp_path, named):
    foreign = table(tmp_path / ranking.TABLE, steps=4)
    before = foreign.path.read_bytes()
    given = settings(tmp_path, table=foreign.path if named else None)
    with pytest.raises(
        StorageError, match=r"trained_alone\.json: a table of other recipe; name another file or folder"
    ):
        ranking.check(given)
    assert foreign.path.read_bytes() == before


def test_a_table_named_is_made_where_it_is_named(tmp_path):
    path = tmp_path / "mine.json"
    ranking.ranking(settings(tmp_path / "out", table=path), Counted())
    assert not MetricsTable.read(path).missing(all_architectures(problem()), 2)


def test_seeds_of_supernets_are_not_those_of_trainings_alone(tmp_path, monkeypatch):
    seeds = []
    monkeypatch.setattr(ranking, "score_supernet", lambda *_, seed, **__: seeds.append(seed) or [{"accuracy": 0.5}] * 9)
    ranking.ranking(settings(tmp_path), Counted())
    assert seeds == [1000, 1001, 1000, 1001]


@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
        ({"samplers": ("unifrom",)}, SettingError, "no path sampling 'unifrom'; did you mean 'uniform'"),
        ({"seeds": 1}, SettingError, "seeds must be at least 2"),
        ({"problem": Problem(problem().pool, Data.from_arrays(np.ones((8, 3)), [0, 1] * 4))}, DataError, "training"),
    ],
    ids=["sampler", "seeds", "data"],
)
def test_what_makes_no_sense_is_refused(tmp_path, given, error, says):
    with pytest.raises(error, match=says):
        ranking.check(settings(tmp_path, **given))


@pytest.mark.slow
def test_the_truth_is_test_accuracy_and_what_supernets_score_is_not(tmp_path):
    """Targets of a part that are changed change the figures of that part, and no others."""
    for name in ("as_it_is", "validation", "test"):
        (tmp_path / name).mkdir()
    given = settings(tmp_path / "as_it_is", training_steps=40, warmup_steps=60)
    known = ranking.ranking(given, Counted())
    for part in ("validation", "test"):
        changed = problem()
        changed.data.parts[part].targets.neg_().add_(1)
        given = settings(tmp_path / part, problem=changed, training_steps=40, warmup_steps=60)
        found = ranking.ranking(given, Counted())
        changed, held = ("scores", "alone") if part == "validation" else ("alone", "scores")
        assert found[held] == known[held]
        assert found[changed] != known[changed]
    assert known["samples"] == {"training": 48, "validation": 24, "test": 24}


def test_data_without_a_test_part_are_refused(tmp_path):
    two = Problem(problem().pool, Data(problem().data.train, problem().data.validation))
    with pytest.raises(
        SettingError, match=r"measured on a test part, and the data have none: data\.test_fraction=0\.25"
    ):
        ranking.check(settings(tmp_path, problem=two))
