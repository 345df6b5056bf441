"""A pool file that is edited between two runs of one study, through the command line."""

from __future__ import annotations

import json
import signal
import time

import pytest
import torch
from safetensors.torch import load_file

from l2l_nas.__main__ import main
from tests.cli.runs import TINY, events, start
from tests.studies import saved_study

OWN = "space.pool=tiny.py:build"
WORDS = ("search", OWN, *TINY)
LAYERS = tuple(f"layer{i}" for i in range(4))
KINDS = 'kinds = {"linear": nn.Identity, "tanh": nn.Tanh, "relu": nn.ReLU}'


def edit(folder, kinds=KINDS, **others) -> None:
    text = (folder / "tiny.py").read_text().replace(KINDS, kinds)
    for before, after in others.items():
        assert before in text
        text = text.replace(before, after)
    (folder / "tiny.py").write_text(text)


def read(path):
    return json.loads(path.read_text())


def trials_of(folder):
    return saved_study(folder).trials


def weights_of(folder, layer):
    entries = read(folder / "weights" / "manifest.json")["states"]
    return load_file(folder / "weights" / entries[layer]["file"])


def check_consistent(folder, count=None):
    """Numbers without gaps, and choices that only grow."""
    trials = trials_of(folder)
    assert [trial.number for trial in trials] == list(range(len(trials)))
    choices: dict = {}
    for trial in trials:
        for name, one in trial.distributions.items():
            assert set(choices.get(name, ())) <= set(one.choices)
            choices[name] = one.choices
    if count is not None:
        assert sum(t.state.name == "COMPLETE" and not t.user_attrs["cached"] for t in trials) == count
    return trials


@pytest.mark.slow
def test_a_study_goes_on_after_a_candidate_is_added_and_another_removed(finished, capsys):
    """The default run of the other tests, then the pool file with `gelu` and without `relu`."""
    before = trials_of(finished)
    relu = weights_of(finished, "layer0/relu")
    edit(finished.parent, 'kinds = {"linear": nn.Identity, "tanh": nn.Tanh, "gelu": nn.GELU}')
    saved = (finished / "study.log").read_bytes()
    assert main([*WORDS, "search.trials=30", "resume=run"]) == 0
    assert "catch-up" in capsys.readouterr().out
    assert (finished / "study.log").read_bytes().startswith(saved)
    trials = check_consistent(finished, 30)
    for old, new in zip(before, trials, strict=False):
        assert (old.number, old.params, old.values) == (new.number, new.params, new.values)
    late = [set(t.user_attrs["architecture"][1:-1]) for t in trials[len(before) :]]
    assert not any("relu" in names for names in late)
    assert any("gelu" in names for names in late)
    ever = ("gelu", "linear", "relu", "skip", "tanh")
    assert {name: one.choices for name, one in trials[-1].distributions.items()} == dict.fromkeys(LAYERS, ever)
    # it did not get its score untrained, and what is gone stays stored
    coverage = read(finished / "result.json")["coverage"]["warmup"]["layer1"]
    mean = (coverage["linear"] + coverage["tanh"] + coverage["skip"]) / 3
    assert coverage["gelu"] >= round(mean) - 3
    assert coverage["relu"] > 0
    after = weights_of(finished, "layer0/relu")
    assert all(torch.equal(relu[name], after[name]) for name in relu)
    result = read(finished / "result.json")
    assert result["trials"]["complete"] == 30
    assert "relu" not in result["best"]["architecture"]
    assert main(["evaluate", "run=run", "space.pool=tiny.py:build"]) == 0
    # and back: its weights and trials are there
    edit(finished.parent, KINDS, **{'"gelu": nn.GELU': '"relu": nn.ReLU'})
    assert main([*WORDS, "search.trials=33", "resume=run", "objectives=[accuracy,parameters]"]) == 0
    assert all(t.params.keys() == set(LAYERS) for t in check_consistent(finished, 33))


@pytest.mark.slow
def test_retired_candidates_are_not_proposed_and_frozen_ones_are_used_and_not_trained(finished):
    before = trials_of(finished)
    relu = weights_of(finished, "layer0/relu")
    old = {layer: weights_of(finished, layer) for layer in ("layer1/tanh", "layer1/linear", "stem/linear")}
    words = [*WORDS, "search.trials=40", "sampler=random", "resume=run", "search.freeze=[layer1/tanh]"]
    assert main([*words, "search.retire=[*/relu,layer0/skip]"]) == 0
    trials = check_consistent(finished, 40)
    for trial in trials[len(before) :]:
        choices = trial.user_attrs["architecture"]
        assert "relu" not in choices
        assert choices[1] != "skip"
    for name, tensor in weights_of(finished, "layer0/relu").items():
        assert torch.equal(tensor, relu[name])
    assert any(t.user_attrs["architecture"][2] == "tanh" and not t.user_attrs["cached"] for t in trials[len(before) :])
    for layer, was in old.items():
        new = weights_of(finished, layer)
        assert all(torch.equal(was[name], new[name]) for name in was) == (layer == "layer1/tanh")
    assert main(["search", OWN, "search.trials=41", "resume=run"]) == 0  # the folder knows it
    assert "relu" not in trials_of(finished)[-1].user_attrs["architecture"]
    assert main(["search", OWN, "search.trials=42", "resume=run", "search.retire=[]"]) == 0  # they are back
    assert "layer0" in trials_of(finished)[-1].params


@pytest.mark.slow
def test_a_group_of_a_candidate_goes_with_it_and_comes_back(pool, tmp_path):
    group = ["optimizer.groups.g.match=*/relu/*", "optimizer.groups.g.lr_scale=0.5"]
    assert main([*WORDS, "search.trials=3", "folder=run", *group]) == 0
    assert main(["search", OWN, "search.trials=4", "resume=run", "search.retire=[*/relu]"]) == 0
    assert main(["search", OWN, "search.trials=5", "resume=run", "search.retire=[]"]) == 0
    check_consistent(tmp_path / "run", 5)


@pytest.mark.slow
def test_a_pool_that_is_not_the_same_grown_is_refused_in_one_line(refused, finished):
    place = finished.parent
    before = (finished / "study.log").read_bytes()
    words = [*WORDS, "resume=run"]
    original = (place / "tiny.py").read_text()
    for old, new, says in (
        ("width=8", "width=9", "this study knows another layer by the name stem/linear and "),
        ('f"layer{i}"', 'f"layer_{i}"', "this study searches another space"),
        ('Position("head"', 'Position("neck", Candidate("x", nn.Identity)), Position("head"', "another space"),
        ("act())", "act(), nn.Linear(width, width))", "give the new one another name"),
    ):
        (place / "tiny.py").write_text(original.replace(old, new))
        assert says in refused(*words)
    (place / "tiny.py").write_text(original)
    assert "search.retire: no candidate 'layer0/relo'; did you mean 'layer0/relu'?" in refused(
        *words, "search.retire=[layer0/relo]"
    )
    assert "would leave position 'stem' without candidates" in refused(*words, "search.retire=[stem/linear]")
    assert "search.freeze: no candidate 'x'" in refused(*words, "search.freeze=[x]")
    assert (finished / "study.log").read_bytes() == before


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_kill_9_at_any_moment_of_the_change_leaves_a_study_that_goes_on(finished):
    edit(finished.parent, 'kinds = {"linear": nn.Identity, "tanh": nn.Tanh, "gelu": nn.GELU}')
    words = [*WORDS, "search.trials=40", "resume=run", "search.checkpoint_seconds=0.05"]
    before = trials_of(finished)
    for moment in ("study", "catch-up", "trials"):
        process = start(*words, cwd=finished.parent)
        count = len(events(finished))
        while process.poll() is None:
            if moment == "study":
                if b"gelu" in (finished / "study.log").read_bytes():
                    break
            elif moment == "catch-up" and any(e["name"] == "catch-up" for e in events(finished, "phase")):
                time.sleep(0.05)
                break
            elif moment == "trials" and len(events(finished)) >= count + 2:
                break
            time.sleep(0.002)
        process.kill()
        assert process.communicate()[1] == ""
        assert process.returncode == -signal.SIGKILL
        trials = check_consistent(finished)
        assert [t.params for t in trials[: len(before)]] == [t.params for t in before]
    assert main(words) == 0
    check_consistent(finished, 40)
    assert read(finished / "result.json")["trials"]["complete"] == 40
