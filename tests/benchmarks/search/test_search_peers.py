from __future__ import annotations

import json

from benchmarks.__main__ import main
from benchmarks.search.search_peers import METHODS
from benchmarks.search.simulated.comparison import Found, Place

WORDS = ["search_peers", "--landscapes", "trees", "--budgets", "3"]


def test_methods_are_played_on_the_same_repetitions_and_a_file_is_gone_on_with(tmp_path, capsys):
    out = tmp_path / "found.json"
    words = [*WORDS, "--methods", "race,random,asha3,dehb", "--out", str(out)]
    assert main([*words, "--repetitions", "1"]) == 0
    assert out.with_suffix(".png").exists()
    said = capsys.readouterr().out
    assert "left out: dehb; make an environment for them" in said
    assert "trees, 3 trainings" in said
    first = Found.read(out)
    assert len(first.truths) == 3
    assert all(set(methods) == {"race", "random", "asha3"} for methods in first.truths.values())
    assert main([*words, "--repetitions", "2"]) == 0
    both = Found.read(out)
    assert all(set(truths) == {0, 1} for methods in both.truths.values() for truths in methods.values())
    assert (
        json.loads(out.read_text())["rows"][0]["test"][0] == first.truths[Place("trees", 3.0, "cifar10_5k")]["race"][0]
    )


def test_what_is_no_method_is_refused(refused):
    assert "no method 'rcae'; did you mean 'race'?" in refused(*WORDS, "--methods", "rcae")
    assert "no landscape 'tree'" in refused("search_peers", "--landscapes", "tree")


def test_the_race_is_among_the_methods():
    assert next(iter(METHODS)) == "race"
