from __future__ import annotations

import json

import numpy as np
import pytest

from benchmarks.__main__ import main
from benchmarks.search import small_spaces
from benchmarks.search.small_spaces import TABLES, Table, searched, table


@pytest.mark.parametrize("name", TABLES)
def test_a_seed_gives_one_table_of_the_whole_space(name):
    first, again, other = table(name, 0), table(name, 0), table(name, 1)
    assert first == again
    assert first.values != other.values
    assert len(first.values) == np.prod([len(values) for values in first.space.values()])


def test_in_a_cell_that_nothing_passes_through_nothing_is_learned():
    values = table("cells", 0).values
    cut = [value for one, value in values.items() if one[3:] == (0, 0, 0)]
    assert max(cut) < np.median(list(values.values())) - 0.1


def test_capacity_rises_in_steps_that_differ_a_little():
    values = np.array(list(table("plateaus", 0).values.values())) * 12
    off = values - np.round(values)
    assert np.abs(off).mean() < 0.25  # as good as nothing is off by more than two deviations, and chance has 0.25
    assert 0.1 < off.std() < 0.28


def test_a_search_ends_with_the_optimum_or_says_what_it_lacks():
    space = {f"p{index}": (0, 1) for index in range(4)}
    flat = Table(space, {one: float(sum(one)) for one in np.ndindex(2, 2, 2, 2)})
    found = searched(flat, trials=16, seed=0)
    assert found.seen_at <= 16
    assert found.regret == 0
    poor = searched(flat, trials=1, seed=0)
    assert poor.seen_at == float("inf")
    assert poor.regret in (25 * 2, 50 * 2, 75 * 2, 100 * 2)


def test_the_bench_writes_a_row_of_each_kind(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(small_spaces, "TABLES", {"depth": TABLES["depth"]})
    assert main(["small_spaces", "--runs", "2", "--trials", "30", "--out", str(tmp_path / "rows.json")]) == 0
    found = json.loads((tmp_path / "rows.json").read_text())
    assert (found["seed"], found["runs"], [row["space"] for row in found["rows"]]) == (1000, 2, ["depth"])
    assert "optimum_seen" in capsys.readouterr().out
