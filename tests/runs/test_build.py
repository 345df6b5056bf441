"""The relay's settings on the command line: what they change, and what they may not change."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from l2l_nas.__main__ import main
from l2l_nas.cost.feasible import extremes
from l2l_nas.errors import SettingError
from l2l_nas.relay.device import Cpu
from l2l_nas.runs.build import parse_budget
from l2l_nas.runs.locate import load_problem
from tests.cli.runs import TINY


def result_of(pool: str, folder: str, *words: str) -> dict:
    assert main(["search", f"space.pool={pool}", f"folder={folder}", *TINY, *words]) == 0
    found = json.loads((Path(folder) / "result.json").read_text())
    for one in (found["best"], *found["pareto"]):
        for cost in ("streamed_bytes", "device_bytes"):  # what the settings are about
            del one["values"][cost], one["costs"][cost]
    return {name: found[name] for name in ("best", "pareto", "trials")}


@pytest.mark.slow
def test_where_things_are_kept_and_when_they_are_copied_changes_no_number(pool):
    plain = result_of(pool, "plain", "relay.budget=none")
    settings = {
        "all": ["relay.budget=all"],
        "some": ["relay.budget=40KiB", "relay.stash=host"],
        "host": ["relay.budget=none", "relay.stash=host", "relay.slots=3", "relay.lanes=threads"],
        "file": ["relay.storage=file"],
        "exact": ["relay.update=exact", "relay.lanes=threads"],
    }
    for name, words in settings.items():
        assert result_of(pool, name, *words) == plain, name
    assert not (Path("file") / "pool").exists()


@pytest.mark.slow
def test_a_run_in_low_precision_reports_what_its_weights_give_in_full(pool, capsys):
    for precision in ("bf16", "fp16"):
        result_of(pool, precision, f"relay.precision={precision}", "relay.update=exact", "relay.clip=1.0")
        capsys.readouterr()
        assert main(["evaluate", f"run={precision}", f"space.pool={pool}"]) == 0
        said = capsys.readouterr().out
        assert said.count("as reported") == 2, said


@pytest.mark.slow
def test_a_resumed_run_keeps_on_the_device_what_the_first_one_kept(pool, monkeypatch):
    result_of(pool, "run")
    first = yaml.safe_load((Path("run") / "config.yaml").read_text())["relay"]
    assert (first["budget"], first["keep"]) == ("none", 6)
    monkeypatch.setattr(Cpu, "free_bytes", lambda self: 1)  # nothing would fit now
    result_of(pool, "run", "resume=run", "search.trials=14")
    assert yaml.safe_load((Path("run") / "config.yaml").read_text())["relay"] == first


@pytest.mark.slow
def test_a_trace_is_written_with_its_picture(pool):
    result_of(pool, "traced", "relay.trace=true", "relay.lanes=threads")
    events = json.loads((Path("traced") / "trace.json").read_text())["traceEvents"]
    assert {"forward", "tail", "load", "send", "update"} & {event["name"].split(" ")[0] for event in events}
    assert (Path("traced") / "timeline.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("text", "budget"),
    [("none", None), ("all", "all"), ("auto", "auto"), ("12", 12), ("4KiB", 4096), ("1.5MB", 1_500_000)],
)
def test_budgets_are_read_with_their_units(text, budget):
    assert parse_budget(text) == budget


@pytest.mark.parametrize("text", ["", "-1", "4XB", "KiB", "1e3"])
def test_other_budgets_are_refused(text):
    with pytest.raises(SettingError, match=r"relay\.budget must be like 4GiB"):
        parse_budget(text)


def test_the_median_is_of_random_architectures_and_the_ends_are_of_all():
    problem = load_problem("digits_conv", {}, source="digits", validation_fraction=0.2)
    first, again, other = (extremes(problem.pool, seed=seed) for seed in (0, 0, 1))
    assert first == again
    assert first["median"] != other["median"]
    assert all(first[end] == other[end] for end in ("smallest", "largest"))
