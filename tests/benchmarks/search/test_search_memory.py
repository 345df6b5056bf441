"""What a memory is worth: what is learned from on each side, and what is made of the rows."""

import random

import pytest

from benchmarks.search import search_memory
from benchmarks.search.search_memory import memory, over_tasks, shuffled, summary
from l2l_nas.errors import SettingError
from l2l_nas.files import read_json
from l2l_nas.nas.memory import Memory
from l2l_nas.runs.learn_from import SHIPPED_FILE

ROWS = [
    {"seed": 0, "sides": {"none_6": {"test": 0.5}, "shipped_6": {"test": 0.6}, "random_search": {"test": 0.45}}},
    {"seed": 1, "sides": {"none_6": {"test": 0.7}, "shipped_6": {"test": 0.7}, "random_search": {"test": 0.65}}},
    {"seed": 2, "sides": {"none_6": {"test": 0.1}}},
]


def test_differences_are_paired_by_seed_and_what_a_seed_lacks_is_left_out():
    found = summary(ROWS)
    assert found["none_6"]["seeds"] == 3
    assert found["shipped_6"]["minus none_6"]["mean"] == pytest.approx(0.05)
    assert found["shipped_6"]["minus none_6"]["standard_error"] == pytest.approx(0.05)
    assert found["none_6"]["minus random_search"]["mean"] == pytest.approx(0.05)
    assert found["none_6"]["minus random_search"]["standard_error"] == pytest.approx(0, abs=1e-12)


def test_the_mean_of_tasks_has_the_error_of_a_mean_of_independent_figures():
    found = over_tasks([summary(ROWS)] * 3)
    assert found["shipped_6 minus none_6"]["mean"] == pytest.approx(0.05)
    assert found["shipped_6 minus none_6"]["standard_error"] == pytest.approx(0.05 / 3**0.5)


def test_a_shuffled_memory_gives_all_scores_of_a_network_to_another_of_its_task():
    (task,) = (one for one in shipped().tasks if one.name == "cifar10_5k")
    (moved,) = shuffled(["cifar10_5k"], random.Random(0)).tasks
    assert [one.values for one in moved.networks] == [one.values for one in task.networks]
    pairs = {(key(old), key(new)) for old, new in zip(task.networks, moved.networks, strict=True)}
    assert len(pairs) == len({old for old, _ in pairs}) == len({new for _, new in pairs}) == 100
    assert sum(old == new for old, new in pairs) < 10


def test_searches_that_are_not_there_are_named(tmp_path):
    with pytest.raises(SettingError, match=r"none_6/cifar10_5k_1 has no search; measure none_6 there first"):
        memory("searches", "cluttered_digits", 0, tmp_path)


def test_a_side_is_a_search_with_its_settings(tmp_path, monkeypatch):
    asked = []

    def searched(folder, *words):
        asked.append(words)
        entry = {"architecture": ["max"], "steps": 1, "validation": {"accuracy": 0.5}, "test": {"accuracy": 0.4}}
        entry["standard_error"] = {"test": {"accuracy": 0.1}}
        return {"best": entry, "baseline": {**entry, "test": {"accuracy": 0.3}}, "seconds": 1.0}

    monkeypatch.setattr(search_memory, "searched", searched)
    assert search_memory.measure("a/cifar10_5k.npz", 3, "none_6", tmp_path)["random_search"]["test"] == 0.3
    assert search_memory.measure("a/cifar10_5k.npz", 3, "shipped_3", tmp_path)["shipped_3"]["test"] == 0.4
    where = ("data.source=a/cifar10_5k.npz", "seed=3")
    assert asked == [
        (*where, "search.baseline=random"),
        (*where, "search.trainings=3", "search.learn_from=shipped"),
    ]


def shipped() -> Memory:
    return Memory.from_json(read_json(SHIPPED_FILE), SHIPPED_FILE)


def key(one) -> tuple[tuple[str, str], ...]:
    return tuple(one.params.items())
