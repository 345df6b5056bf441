"""`search.repeats`: searches and random searches by seed in one folder, what they tell together, and how they go on."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from l2l_nas.__main__ import main
from l2l_nas.nas.callback import Stopped
from l2l_nas.nas.strategies.random_search import RandomSearch
from tests.cli.runs import POOL, assert_pages_whole, contents, events, start, without_times

# a race of four trials and two finalists
RACE = (
    "space.pool=tiny.py:build",
    "search.trials=4",
    "search.steps_per_trial=2",
    "search.finalists=2",
    "search.finalist_steps=6",
    "export=false",
)
WORDS = ("search", *RACE, "search.repeats=2", "seed=5", "folder=run")


def read(path: Path) -> Any:
    return json.loads(path.read_text())


@pytest.fixture(scope="module")
def repeated_once(tmp_path_factory) -> Path:
    """Two repeats in `run`. Not to be changed: see `repeated`."""
    place = tmp_path_factory.mktemp("repeated")
    (place / "tiny.py").write_text(POOL)
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(place)
        patched.setattr("l2l_nas.report.pictures.is_matplotlib_installed", lambda: False)
        assert main(list(WORDS)) == 0
    assert_pages_whole(place)
    return place


@pytest.fixture
def repeated(repeated_once, tmp_path, monkeypatch) -> Path:
    """A copy of the two repeats, in the working directory."""
    shutil.copytree(repeated_once, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "run"


def test_each_repeat_is_the_search_of_its_seed_with_random_search(repeated):
    assert main(["search", *RACE, "search.baseline=random", "seed=6", "folder=alone"]) == 0
    alone, second = read(Path("alone/result.json")), read(repeated / "repeats" / "1" / "result.json")
    assert without_times(alone) == without_times(second)
    config = yaml.safe_load((repeated / "repeats" / "1" / "config.yaml").read_text())
    assert (config["seed"], config["search"]["repeats"], config["search"]["baseline"]) == (6, None, "random")
    assert yaml.safe_load((repeated / "config.yaml").read_text())["search"]["repeats"] == 2


def test_the_result_tells_of_each_seed_and_of_all_together(repeated):
    result = read(repeated / "result.json")
    runs = [read(repeated / "repeats" / str(number) / "result.json") for number in range(2)]
    pairs = [(run["best"]["test"]["accuracy"], run["baseline"]["test"]["accuracy"]) for run in runs]
    assert [(row["repeat"], row["seed"]) for row in result["repeats"]] == [(0, 5), (1, 6)]
    assert [
        (row["search"]["test"]["accuracy"], row["random_search"]["test"]["accuracy"]) for row in result["repeats"]
    ] == pairs
    assert [row["search_better_by"] for row in result["repeats"]] == [one - two for one, two in pairs]
    found = result["comparison"]
    assert (found["metric"], found["part"], found["pairs"], found["level"]) == ("accuracy", "test", 2, 0.95)
    assert found["difference"]["mean"] == pytest.approx(sum(one - two for one, two in pairs) / 2)
    assert found["difference"]["low"] <= found["difference"]["mean"] <= found["difference"]["high"]
    best = max(range(2), key=lambda n: (runs[n]["best"]["validation"]["accuracy"], -n))
    assert result["best"] == {**runs[best]["best"], "repeat": best, "seed": 5 + best}
    mean = sum(run["best"]["values"]["accuracy"] for run in runs) / 2
    assert result["mean_values"]["accuracy"] == pytest.approx(mean)


def test_the_terminal_says_it_in_a_sentence_within_80_columns(pool, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(list(WORDS)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "2 searches, each beside random search of as many steps, seeds 5 to 6" in lines
    assert sum(line.startswith(("repeat 0, seed 5: accuracy", "repeat 1, seed 6: accuracy")) for line in lines) == 2
    (sentence,) = [line for line in lines if line.startswith("Over 2 seeds ")]
    assert "95 % interval over seeds" in sentence
    assert any(line.startswith("best (repeat ") and "by the validation part" in line for line in lines)
    titled = [place for place, line in enumerate(lines) if line.startswith("2 of 2 repeats")]
    table = lines[titled[0] : lines.index(sentence)]
    assert max(map(len, table)) <= 80
    assert sum("baseline" in line for line in lines) == 2  # how far each is, and no tables of its own
    assert not any("Best trials" in line for line in lines)


def test_the_page_has_the_sentence_the_seeds_and_the_way_to_each_run(repeated):
    page = (repeated / "report.html").read_text()
    assert "Over 2 seeds " in page
    assert 'href="repeats/1/report.html"' in page
    assert "2 of 2 repeats" in page
    before = page.partition("Made by l2l_nas on")[0]
    (repeated / "report.html").unlink()
    assert main(["report", "run=run"]) == 0
    assert (repeated / "report.html").read_text().partition("Made by l2l_nas on")[0] == before


def test_repeats_that_are_done_are_left_alone_and_more_may_follow(repeated, capsys):
    before = contents(repeated / "repeats")
    assert main(["search", "space.pool=tiny.py:build", "resume=run"]) == 0
    said = capsys.readouterr().out
    assert "finished: 2 of 2 repeats are done, nothing to do; for more: python -m l2l_nas search resume=run" in said
    assert "search.repeats=4" in said
    assert contents(repeated / "repeats") == before
    assert main(["search", "space.pool=tiny.py:build", "resume=run", "search.repeats=3"]) == 0
    assert {name: digest for name, digest in contents(repeated / "repeats").items() if name[0] != "2"} == before
    assert [row["seed"] for row in read(repeated / "result.json")["repeats"]] == [5, 6, 7]


@pytest.mark.slow
def test_more_trials_are_for_every_repeat(repeated):
    assert main(["search", "space.pool=tiny.py:build", "resume=run", "search.trials=6"]) == 0
    for number in range(2):
        assert read(repeated / "repeats" / str(number) / "result.json")["trials"]["complete"] == 6
    assert read(repeated / "result.json")["asked"] == 2


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: "{",
        lambda text: text.replace('"objectives"', '"goals"'),
        lambda text: text.replace('"name": "accuracy"', '"name": "precision"'),
    ],
)
def test_a_damaged_or_lost_result_of_a_repeat_is_made_again(repeated, damage):
    before = without_times(read(repeated / "result.json"))
    first = repeated / "repeats" / "0" / "result.json"
    first.write_text(damage(first.read_text()))
    (repeated / "repeats" / "1" / "result.json").unlink()
    assert main(["search", "space.pool=tiny.py:build", "resume=run"]) == 0
    assert without_times(read(repeated / "result.json")) == before


def test_repeats_that_are_stopped_say_how_to_go_on(pool, tmp_path, capsys, monkeypatch):
    whole = RandomSearch.run

    def stop_at_the_second(self, search):
        if search.seed == 6:
            raise Stopped
        whole(self, search)

    with monkeypatch.context() as patched:
        patched.setattr(RandomSearch, "run", stop_at_the_second)
        assert main(list(WORDS)) == 130
    assert capsys.readouterr().out.splitlines()[-1] == (
        "stopped after 4 of 4 trials, all saved; random search begins anew. "
        "Go on with: python -m l2l_nas search resume=run space.pool=tiny.py:build"
    )
    page = (tmp_path / "run" / "report.html").read_text()
    assert "Too few seeds to compare" in page
    assert "The repeats were stopped" in page
    assert main(["search", "space.pool=tiny.py:build", "resume=run"]) == 0
    assert "seeds 5 to 6; 1 is done\n" in capsys.readouterr().out
    assert len(events(tmp_path / "run" / "repeats" / "0", "start")) == 1
    assert len(events(tmp_path / "run" / "repeats" / "1", "start")) == 2
    assert len(events(tmp_path / "run" / "repeats" / "1")) == 4  # no trial twice
    assert read(tmp_path / "run" / "result.json")["comparison"]["pairs"] == 2


@pytest.mark.slow
def test_killed_repeats_lose_no_trial_and_come_to_the_same(repeated_once, pool, tmp_path):
    for number, least in ((0, 2), (1, 1)):
        place = tmp_path / "run" / "repeats" / str(number)
        process = start(*WORDS, *(["resume=run"] if number else []), cwd=tmp_path)
        while len(events(place)) < least:
            assert process.poll() is None, process.communicate()
            time.sleep(0.002)
        process.kill()
        process.communicate()
        kept = events(place)
    assert main(["search", *RACE, "resume=run"]) == 0
    assert events(place)[: len(kept)] == kept
    assert [len({event["number"] for event in events(tmp_path / "run" / "repeats" / n)}) for n in "01"] == [4, 4]
    assert without_times(read(tmp_path / "run" / "result.json")) == without_times(
        read(repeated_once / "run" / "result.json")
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["search.repeats=1"], "search.repeats must be at least 2, got 1"),
        (["search.repeats=2", "search.baseline=none"], "leave search.baseline=none out"),
        (["search.repeats=2", "search.finalists=0"], "or leave search.repeats out"),
        (["search.repeats=2", "strategy=random_search"], "strategy=random_search has no RandomSearch()"),
        (["search.repeats=2", f"seed={2**63 - 1}"], "seed must be at most"),
        (["search.repeats=2", "space.pool=tiny.py:untested"], "compares on the test part, and these data have none"),
        (["search.repeats=two"], "search.repeats"),
    ],
)
def test_what_cannot_be_repeated_is_refused_before_anything_is_written(pool, tmp_path, refused, words, said):
    with (tmp_path / "tiny.py").open("a") as file:
        file.write("\ndef untested():\n    made = build()\n    x, y = data(160)\n")
        file.write("    return Problem(made.pool, Data.from_arrays(x, y, test_fraction=0))\n")
    assert said in refused("search", *RACE, *words, "folder=new")
    assert not (tmp_path / "new").exists()


def test_a_folder_stays_what_it_is(repeated, refused):
    again = ("search", "space.pool=tiny.py:build")
    assert "holds repeats of a search" in refused(*again, "resume=run", "search.repeats=null")
    assert "holds one search" in refused(*again, "resume=run/repeats/0", "search.repeats=2")
    assert "already holds a run" in refused(*again, "folder=run", "search.repeats=2")
    assert "already holds a run" in refused(*again, "folder=run")
    assert main([*again, "resume=run", "search.repeats=3"]) == 0
    assert "3 are begun in run; ask for at least 3" in refused(*again, "resume=run", "search.repeats=2")


def test_commands_take_the_network_of_the_best_repeat(repeated, capsys):
    number = read(repeated / "result.json")["best"]["repeat"]
    assert main(["evaluate", "run=run", "space.pool=tiny.py:build"]) == 0
    first, _, of_all = capsys.readouterr().out.partition("\n")
    assert first == f"the best repeat: run/repeats/{number}"
    assert "as reported" in of_all
    assert main(["evaluate", f"run=run/repeats/{number}", "space.pool=tiny.py:build"]) == 0
    assert capsys.readouterr().out == of_all


@pytest.mark.parametrize("words", [["weights=best"], ["weights=pool"], ["trial=1"]])
def test_what_one_repeat_alone_has_is_asked_of_it(repeated, refused, words):
    said = refused("train", "run=run", "space.pool=tiny.py:build", *words, "train.steps=2", "folder=trained")
    assert "run holds repeats of a search; name one of them, such as run=run/repeats/0" in said


@pytest.mark.long
@pytest.mark.slow
def test_a_sweep_of_repeats_compares_their_means(pool, tmp_path, capsys):
    words = [word for word in WORDS if not word.startswith("folder")]
    assert main([words[0], "-m", *words[1:], "sampler=random,gp_hamming", "folder=sweep"]) == 0
    rows = read(tmp_path / "sweep" / "summary.json")
    for number, row in enumerate(rows):
        result = read(tmp_path / "sweep" / str(number) / "result.json")
        assert row["accuracy"] == result["mean_values"]["accuracy"]
    before = contents(tmp_path / "sweep" / "0" / "repeats")
    shutil.rmtree(tmp_path / "sweep" / "1" / "repeats" / "1")
    assert main(["search", "-m", "space.pool=tiny.py:build", "resume=sweep"]) == 0
    assert contents(tmp_path / "sweep" / "0" / "repeats") == before
    assert read(tmp_path / "sweep" / "summary.json")[1]["accuracy"] == rows[1]["accuracy"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "said",
    [["search.trainings=3", "search.finalist_steps=20"], pytest.param(["search.time=12s"], marks=pytest.mark.long)],
)
def test_a_time_or_trainings_are_divided_once_for_all_repeats(pool, tmp_path, said):
    assert main(["search", "space.pool=tiny.py:build", *said, "export=false", "search.repeats=2", "folder=run"]) == 0

    def numbers() -> list[dict[str, Any]]:
        configs = sorted((tmp_path / "run" / "repeats").glob("*/config.yaml"))
        sections = [yaml.safe_load(path.read_text())["search"] for path in configs]
        return [{name: one[name] for name in one if name not in ("time", "trainings")} for one in sections]

    assert numbers()[0] == numbers()[1]
    assert main(["search", "space.pool=tiny.py:build", "resume=run", "search.repeats=3"]) == 0
    assert [len(events(tmp_path / "run" / "repeats" / name, "start")) for name in "012"] == [1, 1, 1]
    assert numbers()[2] == numbers()[0]


def test_steps_of_runs_that_were_learned_from_are_said_not_to_count(repeated, capsys):
    said = "The steps of the earlier runs that the search learned from are not counted."
    assert said not in (repeated / "report.html").read_text()
    knows = "search.learn_from=run/repeats/0"
    assert main(["search", *RACE, "search.repeats=2", knows, "folder=two"]) == 0
    assert said in capsys.readouterr().out
    assert said in Path("two/report.html").read_text()
    assert said in Path("two/repeats/1/report.html").read_text()
    assert main(["search", *RACE, "search.baseline=random", knows, "folder=one"]) == 0
    assert said in capsys.readouterr().out
