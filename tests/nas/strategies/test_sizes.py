"""Several sizes in one search: what belongs to each, and a network, weights and files of each."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from torch import nn

import l2l_nas
from l2l_nas import Candidate, LayerPool, Position, TensorSpec, skip
from l2l_nas.cost.closed_form import num_parameters
from l2l_nas.cost.table import Limit
from l2l_nas.errors import ConstraintError, NonFiniteError, SettingError
from l2l_nas.nas.evaluation.segment import SegmentResult
from l2l_nas.nas.objectives import Goal, State, TrialRecord
from l2l_nas.nas.strategies.finalists import FinalistCache, choose_each
from l2l_nas.nas.strategies.sizes import Size, by_size, sizes_of
from l2l_nas.runs.folder import RunFolder
from l2l_nas.runs.output import Output, shared_sizes
from l2l_nas.runs.saved import load_found, run_of
from tests.compress.test_blockwise import problem
from tests.nas.problems import GOALS, budget, change_finalists, search_on
from tests.nas.problems import pool_of as toy_pool

SHARES = [0.6, 0.25]
STRATEGY = {"name": "blockwise", "samples": 24, "steps": 5, "sizes": SHARES, "rounds": 2}


def pool_of():
    blocks = [Candidate("whole", lambda: nn.Linear(4, 4)), skip()]  # 20 parameters
    head = Position("head", Candidate("linear", lambda: nn.Linear(4, 4)))
    return LayerPool([*(Position(f"block_{i}", blocks) for i in range(5)), head], inputs=TensorSpec((4,)))


def test_a_size_is_a_share_of_what_has_a_choice_and_a_network_belongs_to_the_smallest_it_keeps():
    pool = pool_of()
    sizes = sizes_of(pool, SHARES)
    assert [(size.name, size.limit.most) for size in sizes] == [("0.25", 95), ("0.6", 60)]
    networks = [pool.architecture(["skip"] * gone + ["whole"] * (5 - gone) + ["linear"]) for gone in range(6)]
    found = by_size(sizes, networks, lambda one: one)
    assert found == {"0.25": networks[2:3], "0.6": networks[3:]}
    assert sizes_of(pool, []) == ()
    for shares in ([0.1, 0.1], [0.33333331, 0.33333334]):  # of one name
        with pytest.raises(SettingError, match="differ in six digits"):
            sizes_of(pool, shares)
    for shares in ([1.5], [0.0]):
        with pytest.raises(SettingError, match="above 0 and below 1"):
            sizes_of(pool, shares)


def test_a_share_that_no_network_removes_is_refused():
    small = Candidate("small", lambda: nn.Linear(4, 4, bias=False))
    positions = [position.with_candidates([position.candidates[0], small]) for position in pool_of().positions[:5]]
    pool = pool_of().like([*positions, pool_of().positions[5]])
    assert len(sizes_of(pool, [0.2])) == 1
    with pytest.raises(SettingError, match=r"candidates remove 20.0% of the layers' parameters at most, got 0.3"):
        sizes_of(pool, [0.1, 0.3])


def test_finalists_are_divided_among_sizes_and_what_one_lacks_others_have():
    def record(number, loss):
        values = {"loss": loss, "parameters": 1.0}
        return TrialRecord(number, pool_of().original, State.COMPLETE, values)

    records = [record(number, loss) for number, loss in enumerate([5.0, 1.0, 3.0, 2.0, 9.0])]
    goals = [Goal("loss", False), Goal("parameters", False)]
    groups = [records[:1], records[1:4], records[4:]]
    assert [one.number for one in choose_each(groups, goals, count=3)] == [1, 0, 4]
    assert [one.number for one in choose_each(groups, goals, count=4)] == [1, 3, 0, 4]
    assert [one.number for one in choose_each(groups, goals, count=9)] == [1, 3, 2, 0, 4]


def test_a_size_without_a_network_of_its_own_keeps_none_of_the_one_before(tmp_path):
    components = SimpleNamespace(conf=SimpleNamespace(export=False))
    output = Output(RunFolder(tmp_path), components, None)
    folder = output.folder.size("0.3")
    folder.root.mkdir(parents=True)
    for path in (output.folder.config, folder.config, folder.architecture, folder.result):
        path.write_text("{}")
    output._write_sizes(SimpleNamespace(sizes=[SimpleNamespace(name="0.3")], of_sizes={}))
    assert list(folder.root.iterdir()) == []


def test_sizes_that_are_one_network_are_told_once():
    one, other = (SimpleNamespace(record=SimpleNamespace(number=number)) for number in (3, 4))
    (line,) = shared_sizes({"0.1": one, "0.2": other, "0.3": one})
    assert line.startswith("sizes 0.1, 0.3 are one network, trial 3")
    assert list(shared_sizes({"0.1": one, "0.2": other})) == []


def test_without_a_network_of_any_size_there_are_no_finalists(tmp_path):
    found, *_ = sized(tmp_path, [1])
    with pytest.raises(ConstraintError, match=r"no finished trial is as small as any of strategy\.sizes"):
        found.run()


def test_where_all_of_the_sizes_failed_that_is_what_is_told(tmp_path, monkeypatch):
    tried = []

    def changed(segment, result):
        tried.append(segment.architecture)
        return SegmentResult(error=NonFiniteError("gradient", layer=None, step=1))

    change_finalists(monkeypatch, changed)
    found, *_ = sized(tmp_path, [SMALL], finalists=9)
    with pytest.raises(NonFiniteError, match="gradient"):
        found.run()
    held = {one.architecture for one in found.context.study.records}
    assert {one for one in held if found.context.sizes[0].holds(one)} == set(tried) < held


def test_finalists_are_kept_where_that_of_a_size_failed_in_a_later_round(tmp_path, monkeypatch):
    def changed(segment, result):
        is_lost = segment.server is not None and found.context.sizes[1].holds(segment.architecture)
        return SegmentResult(error=NonFiniteError("gradient", layer=None, step=1)) if is_lost else result

    change_finalists(monkeypatch, changed)
    spend = {"finalists": 4, "finalist_steps": 6, "finalist_rounds": 2}
    found, _, observer = sized(tmp_path, [1000, SMALL], **spend)
    best = found.run()
    assert list(found.context.of_sizes) == ["0.1"]
    assert sum(found.context.sizes[1].holds(one.architecture) for one in observer.finalists) == 2
    cache = FinalistCache({}, lambda one, size: None if size == "0.2" else best.server)
    again, _, observer = sized(tmp_path, [1000, SMALL], cache=cache, resume=True, **spend)
    again.run()
    assert "finalists" not in [name for name, *_ in observer.phases]
    assert list(again.context.of_sizes) == ["0.1"]


SMALL = 42  # parameters: of one layer between stem and head


def sized(folder, most, *, cache=None, resume=False, **spend):
    """A search for sizes with these limits, its study and observer."""
    pool = toy_pool("tanh", "relu", "skip", depth=3)
    given = budget(**{"trials": 12, "finalists": 2, **spend})
    cache = cache or FinalistCache({}, lambda one, size: None)
    found, _, study, observer = search_on(folder, pool, spend=given, cache=cache, resume=resume, goals=GOALS[:1])
    limits = [Limit(found.context.costs, "parameters", one) for one in most]
    found.context.sizes = tuple(Size(0.1 * number, one) for number, one in enumerate(limits, 1))
    return found, study, observer


def search(folder, **more):
    given = {
        "trials": 8, "trial_weights": "fork", "steps_per_trial": 0, "finalists": 4, "finalist_steps": 8,
        "strategy": STRATEGY,
        "objectives": ["loss", "parameters"], "folder": folder, **more,
    }  # fmt: skip
    return l2l_nas.search(problem(), **given)


def test_sizes_are_refused_without_a_front_or_with_too_few_finalists(tmp_path):
    with pytest.raises(SettingError, match=r"name two objectives, objectives=\[loss,parameters\]"):
        search(tmp_path / "run", objectives=["loss"])
    with pytest.raises(SettingError, match=r"strategy.sizes are 2, and 1 of search.finalists=1 are trained to the end"):
        search(tmp_path / "run", finalists=1)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_network_of_each_size_is_found_trained_and_exported(tmp_path):
    found = search(tmp_path / "run")
    pool = problem().pool
    sizes = found.content["sizes"]
    assert [one["removed"] for one in sizes] == [0.25, 0.6]
    kinds = sizes_of(pool, SHARES)
    networks = [pool.architecture([t.params.get(p.name, "linear") for p in pool.positions]) for t in found.study.trials]
    counts = {name: len(ones) for name, ones in by_size(kinds, networks, lambda one: one).items()}
    assert sum(counts.values()) == 8
    assert min(counts.values()) >= 3  # one that is smaller than it must be belongs to the smaller ones
    last = [one for one in found.content["finalists"] if one["steps"] == 8]
    for size, entry in zip(kinds, sizes, strict=True):
        assert entry["best"]["steps"] == 8
        assert num_parameters(pool, entry["best"]["architecture"]) <= entry["most"] == size.limit.most
        small = [one for one in last if size.holds(pool.architecture(one["architecture"]))]
        assert entry["best"]["trial"] in [one["trial"] for one in small]
        folder = tmp_path / "run" / "sizes" / size.name
        loaded = load_found(str(folder), problem=problem())
        assert list(loaded.architecture.choices) == entry["best"]["architecture"]
        (folder / "result.json").unlink()  # which nothing here reads
        assert run_of(folder / "best") == RunFolder(folder)
        exported = json.loads((folder / "export" / "export.json").read_text())
        assert exported["reported"]["loss"] == entry["best"]["values"]["loss"]
    other = {**STRATEGY, "sizes": [0.5]}  # so that no folder is of a size that is no longer asked for
    with pytest.raises(SettingError, match=r"strategy\.sizes=\[0\.5\]: the run in .* and must keep it"):
        l2l_nas.search(problem(), resume=tmp_path / "run", strategy=other)
    (tmp_path / "run" / "result.json").unlink()
    again = l2l_nas.search(problem(), resume=tmp_path / "run")
    assert again.content["sizes"] == sizes
