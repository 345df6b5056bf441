"""The front of a search beside random search: which networks count, and what random search is trained with."""

from __future__ import annotations

import pytest

from benchmarks.search.search_front import area, summary
from benchmarks.search.search_quality import optimizer_of


def network(parameters, accuracy, steps=740):
    test = accuracy - 0.01 if steps == 740 else None
    return {"parameters": parameters, "validation": accuracy, "test": test, "steps": steps}


def test_networks_that_were_stopped_count_nothing():
    found = [network(100, 0.5), network(1000, 0.7), network(10, 0.9, steps=169)]
    assert area(found, [50, 500, 5000], 0.1) == pytest.approx((0.1 + 0.49 + 0.69) / 3)
    row = {"seed": 0, "commonest": 0.1, "sides": {"search": found, "random_search": [network(100, 0.4, steps=740)]}}
    both = summary([row])["sizes_of_both"]
    assert both["random_search"]["mean"] == pytest.approx(0.39)
    assert both["search"]["mean"] == pytest.approx(0.49, abs=0.002)
    assert summary([row])["sizes"] == [100, 1000]


def test_random_search_trains_with_the_optimizer_of_the_run(tmp_path):
    (tmp_path / "config.yaml").write_text("optimizer: {name: sgd, momentum: 0.7, weight_decay: 0.1}\n")
    assert "momentum=0.7" in repr(optimizer_of(tmp_path))
