"""What is said and changes nothing gets a line; what changes something gets none."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

import l2l_nas
from l2l_nas import AdamW, ParamServer, Relay
from l2l_nas.__main__ import main
from l2l_nas.nas.strategies.default import default_phases
from l2l_nas.relay.device import Cpu
from l2l_nas.runs.fields import changed, declared
from l2l_nas.runs.output import greet, without_effect
from l2l_nas.runs.settings import SearchConf
from tests.cli.runs import ROOT, TINY, write_pool
from tests.compress.test_blockwise import problem


def lines(said, **changes):
    values = {"search.steps_per_trial": 5, **{name.replace("__", "."): value for name, value in changes.items()}}
    return list(without_effect(changed(SearchConf(explicit=frozenset(said)), values), default_phases()))


@pytest.mark.parametrize(
    ("said", "used"),
    [
        ("relay.clip_scope", {"relay__clip": 1.0}),
        ("data.masked", {"data__objective": "masked"}),
        ("data.predictions", {"data__objective": "masked"}),
        ("data.text_key", {"data__source": "texts.jsonl"}),
    ],
)
def test_a_setting_counts_where_what_it_depends_on_is_set(said, used):
    (line,) = lines([said])
    assert line.startswith(f"{said} has no effect with ")
    assert lines([said], **used) == []
    assert lines([]) == []


def test_states_on_a_device_that_is_the_host(monkeypatch):
    assert lines(["relay.resident"]) == ["relay.resident has no effect with relay.device=cpu"]
    monkeypatch.setattr("l2l_nas.relay.device.open_device", lambda name: Cpu(copies=True))
    assert lines(["relay.resident"]) == []


def test_settings_of_finalists_without_finalists():
    said = ["search.finalist_rounds", "search.finalist_steps"]
    assert lines(said, search__finalists=0, search__trial_weights="shared") == [
        "search.finalist_steps has no effect with search.finalists=0",
        "search.finalist_rounds has no effect with search.finalists=0",
    ]
    assert len(lines(said, search__finalists=0)) == 1  # in a race they decide the learning rate of trials


def test_a_setting_of_a_phase_that_is_not_there():
    conf, said = SearchConf(), ["search.baseline", "search.trials"]
    phases = [l2l_nas.WarmUp(), l2l_nas.Trials(), l2l_nas.Finalists()]
    assert list(without_effect(replace(conf, explicit=frozenset(said)), phases)) == [
        "search.baseline has no effect with strategy=default, which has no RandomSearch()"
    ]
    assert list(without_effect(replace(conf, explicit=frozenset(said)), default_phases())) == []


def test_a_sampler_where_trials_are_drawn_at_random():
    said = ["sampler", "sampler.n_startup_trials"]
    random = "sampler, sampler.n_startup_trials has no effect with strategy=random_search"
    assert lines(said, strategy={"name": "random_search"}) == [random]
    assert lines(said) == []


@pytest.mark.slow
def test_data_that_a_pool_has_no_use_for(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bare.py").write_text(
        "from l2l_nas import LayerPool\nfrom search_spaces.digits_conv import build as conv\n\n"
        "def build():\n    return conv(depth=1, channels=2)\n"
    )
    write_pool(tmp_path)
    monkeypatch.syspath_prepend(ROOT)
    line = "has no effect with space.pool=tiny.py:build, which brings its own data"
    for words, expected in (
        (["space=tiny.py:build", "data=digits", "data.test_fraction=0.3", "folder=a"], "data, data.source, "),
        (["space=tiny.py:build", "data=gone.npz", "folder=b"], "data, data.source has no effect"),
        (["space=tiny.py:build", "folder=c"], ""),
        (["space=bare.py:build", "data=digits", "folder=d"], ""),
    ):
        assert main(["search", *TINY, "search.trials=2", *words]) == 0
        said = " ".join(capsys.readouterr().out.split())
        assert (line in said) == bool(expected)
        assert expected in said


def test_what_decides_an_effect_is_a_setting_and_who_reads_one_a_phase():
    known = {one.name: one for one in declared(SearchConf)}
    assert {one.effect.setting for one in known.values() if one.effect} <= known.keys()
    assert {one.read_by for one in known.values() if one.read_by} <= vars(l2l_nas).keys() | set(l2l_nas.__all__)


@pytest.mark.slow
def test_a_search_says_so_on_the_command_line_and_in_a_call(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_pool(tmp_path)
    words = ["search", "space.pool=tiny.py:build", *TINY, "relay.device=cpu", "relay.resident=all"]
    assert main([*words, "relay.clip_scope=layer", "folder=run"]) == 0
    said = capsys.readouterr().out
    assert "warning: relay.resident has no effect with relay.device=cpu" in said
    assert "warning: relay.clip_scope has no effect with relay.clip=0.0" in said
    assert said.count("has no effect") == 2
    assert re.search(r"slots, [\d,]+(\.\d [KMG]iB| B); ", said)
    l2l_nas.search("tiny.py:build", resume="run", trials=13, relay={"device": "cpu", "resident": "all"})
    assert capsys.readouterr().out.count("warning: relay.resident has no effect") == 1


def test_threads_are_divided_among_all_workers(monkeypatch):
    monkeypatch.setattr("l2l_nas.runs.build._SMALL_LAYER_BYTES", 0)
    monkeypatch.setattr("l2l_nas.runs.build._TORCH_THREADS", 16)
    found = problem()
    conf = changed(SearchConf(), {"search.workers": 8})
    relay = Relay(ParamServer(found.pool, optimizer=AdamW(), seed=0), device="cpu")
    parts = SimpleNamespace(conf=conf, problem=found, relay=relay, phases=default_phases(), division=None, learned=None)
    console = Console(file=io.StringIO(), width=200)
    greet(console, parts, sampler="random", folder=Path("run"))
    assert re.search(r"(\S+) threads? each", console.file.getvalue())[1] == "2"
