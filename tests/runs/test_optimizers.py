"""Optimizers, groups of parameters and schedules by words, by objects, in runs that go on, and refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

import l2l_nas
from l2l_nas.__main__ import main
from l2l_nas.eps.optimizers.groups import Group, Groups, layer_decay
from l2l_nas.eps.optimizers.precision import LowPrecision
from l2l_nas.eps.optimizers.rules import Lion
from l2l_nas.errors import SettingError
from l2l_nas.training.schedule import Linear
from tests.cli.runs import TINY
from tests.runs.calls import SAID, trials_of

MINE = """
from dataclasses import dataclass
from pathlib import Path
from l2l_nas.eps.optimizers.base import StateTensor

Path("imported").touch()

@dataclass(frozen=True)
class Heavy:
    "Heavy ball, by hand."
    momentum: float = 0.9
    weight_decay: float = 0.0
    name = "heavy"

    def state(self, shape):
        return (StateTensor("velocity", shape),)

    def update(self, weights, gradients, moments, steps, *, lr):
        for weight, gradient, velocity, step in zip(weights, gradients, moments[0], steps):
            velocity.mul_(self.momentum).add_(gradient)
            weight.mul_(1 - lr * self.weight_decay).sub_(lr * velocity)
            step.add_(1)

def halving(peak, steps, every=10):
    return lambda step: peak * 0.5 ** (step // every)
"""
WORDS = ("search", "space.pool=tiny.py:build", *TINY)


@pytest.fixture
def place(problem, tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    return tmp_path


def config_of(folder):
    return yaml.safe_load((Path(folder) / "config.yaml").read_text())


@pytest.mark.slow
def test_words_and_objects_train_alike(problem, place):
    words = [
        "optimizer=lion", "optimizer.weight_decay=0.1", "optimizer.moments=bf16", "optimizer.layer_decay=0.9",
        "optimizer.groups.stem.match=stem/*", "optimizer.groups.stem.frozen=true",
        "optimizer.groups.head.match=head/*", "optimizer.groups.head.lr_scale=0.5", "schedule=linear",
        "schedule.rise=0.2", "train.learning_rate=0.002",
    ]  # fmt: skip
    assert main([*WORDS, *words, "folder=words"]) == 0
    groups = [layer_decay(0.9), Group("stem/*", frozen=True), Group("head/*", lr_scale=0.5)]
    l2l_nas.search(
        problem,
        folder="objects",
        progress=False,
        optimizer=Groups(LowPrecision(Lion(weight_decay=0.1), "bf16"), groups),
        schedule=lambda peak, steps: Linear(peak, steps, rise=0.2),
        train={"learning_rate": 0.002},
        **SAID,
    )
    assert trials_of(place / "words") == trials_of(place / "objects")
    found = config_of("words")
    assert found["optimizer"]["groups"] == {
        "stem": {"match": "stem/*", "frozen": True}, "head": {"match": "head/*", "lr_scale": 0.5},
    }  # fmt: skip
    assert found["schedule"] == {"name": "linear", "rise": 0.2, "floor": 0.0}
    (stem,) = (place / "words" / "weights").glob("stem*.safetensors")
    assert b"moment0" not in stem.read_bytes()[:2000]


@pytest.mark.slow
def test_a_run_goes_on_with_its_optimizer_and_refuses_another(place, refused, capsys):
    words = ["optimizer=muon", "optimizer.moments=bf16", "optimizer.no_decay=norms_and_biases", "schedule=restarts"]
    assert main([*WORDS, *words, "folder=run"]) == 0
    again = ["search", "space.pool=tiny.py:build", "resume=run", "search.trials=14"]
    assert "optimizer.moments=fp32: the run in run has optimizer.moments=bf16" in refused(
        *again, "optimizer.moments=fp32"
    )
    assert "schedule=cosine: the run in run has schedule=restarts" in refused(*again, "schedule=cosine")
    assert "optimizer.groups" in refused(*again, "optimizer.groups.all.match=all")
    assert main(again) == 0
    assert len(trials_of(place / "run")) == 14
    assert config_of("run")["optimizer"]["moments"] == "bf16"


@pytest.mark.slow
def test_an_optimizer_and_a_schedule_of_one_s_own_by_name(place, refused):
    own = ["optimizer=mine.py:Heavy", "schedule=mine.py:halving"]
    words = ["optimizer.momentum=0.5", "optimizer.no_decay=norms_and_biases", "schedule.every=20"]
    assert main([*WORDS, *own, *words, "folder=run"]) == 0
    assert config_of("run")["optimizer"] == {
        "name": "mine.py:Heavy", "momentum": 0.5, "no_decay": "norms_and_biases",
    }  # fmt: skip
    saved = json.loads((place / "run" / "weights" / "manifest.json").read_text())
    assert saved["optimizer"] == "heavy"
    (place / "imported").unlink()
    # what stands in a folder is never imported, and to score a network no optimizer is needed
    assert main(["evaluate", "run=run", "space.pool=tiny.py:build"]) == 0
    again = ["search", "space.pool=tiny.py:build", "resume=run", "search.trials=14"]
    line = refused(*again)
    assert "are never taken from a folder; name them again: " in line
    assert all(word in line for word in (*own, *words))
    line = refused(*again, own[0], *words[:2])
    assert own[0] not in line
    assert own[1] in line
    assert not (place / "imported").exists()
    assert main([*again, *own, *words]) == 0
    assert (place / "imported").exists()
    assert len(trials_of(place / "run")) == 14


@pytest.mark.slow
def test_a_network_is_trained_by_them_as_well(place, refused):
    (place / "a.json").write_text(json.dumps({"choices": ["linear", "tanh", "tanh", "skip", "relu", "linear"]}))
    words = ["train", "space.pool=tiny.py:build", "architecture=a.json", "export=false", "train.validation_steps=5"]
    more = ["optimizer=adafactor", "optimizer.groups.stem.match=stem/*", "optimizer.groups.stem.frozen=true"]
    assert main([*words, *more, "schedule=inverse_sqrt", "train.steps=10", "folder=out"]) == 0
    assert main(["train", "space.pool=tiny.py:build", "resume=out", "train.steps=15"]) == 0
    assert config_of("out")["schedule"]["name"] == "inverse_sqrt"
    assert config_of("out")["optimizer"]["groups"] == {"stem": {"match": "stem/*", "frozen": True}}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["optimizer.groups.a.match=stm/*"], "group 'a': match finds no parameter; write a pattern"),
        (["optimizer=mine.py:Heavy", "optimizer.mass=3"], "takes no 'mass'"),
        (["schedule=mine.py:Heavy"], "gave Heavy; expected a function of the step"),
    ],
)
def test_what_makes_no_sense_is_one_line_and_nothing_is_written(place, refused, words, says):
    assert says in refused(*WORDS, *words, "folder=out")
    assert not (place / "out").exists()


def test_an_optimizer_that_is_none_is_refused(problem, place):
    with pytest.raises(SettingError, match=r"expected a name or an l2l_nas\.Optimizer, got 3"):
        l2l_nas.search(problem, optimizer=3, folder="out", progress=False, **SAID)
