from __future__ import annotations

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from l2l_nas.cli.ranges import read_swept
from l2l_nas.errors import SettingError
from l2l_nas.nas.sweeps.sweep_space import Between, SettingChoice
from l2l_nas.runs.settings import SearchConf

DEFAULTS = OmegaConf.structured(SearchConf)


def read(*words):
    overrides = OverridesParser.create().parse_overrides(list(words))
    return read_swept(overrides, lambda name: OmegaConf.select(DEFAULTS, name))


@pytest.mark.parametrize(
    ("word", "setting"),
    [
        ("seed=0,1", SettingChoice("seed", ("0", "1"))),
        ("optimizer=choice(adamw,sgd)", SettingChoice("optimizer", ("adamw", "sgd"))),
        ("train.learning_rate=interval(0.001,0.02)", Between("train.learning_rate", 0.001, 0.02)),
        (
            "train.learning_rate=tag(log,interval(1e-4,0.1))",
            Between("train.learning_rate", 1e-4, 0.1, is_log=True),
        ),
        ("train.batch_size=interval(16,64)", Between("train.batch_size", 16, 64, is_whole=True)),
        (
            "train.batch_size=tag(log,interval(16,64))",
            Between("train.batch_size", 16, 64, is_whole=True, is_log=True),
        ),
        ("train.batch_size=range(16,65,16)", Between("train.batch_size", 16, 64, is_whole=True, step=16)),
        ("optimizer.beta1=range(0.8,1.0,0.05)", Between("optimizer.beta1", 0.8, 0.95, step=0.05)),
        ("++space.args.depth=int(interval(2,5))", Between("space.args.depth", 2, 5, is_whole=True)),
        ("++space.args.width=range(9,1,-4)", Between("space.args.width", 5, 9, is_whole=True, step=4)),
    ],
)
def test_hydra_s_own_words_for_sweeps_are_read(word, setting):
    found = read(word)
    assert found.settings == (setting,)
    assert found.fixed == ()


def test_overrides_of_a_run_are_what_is_fixed_and_what_was_chosen():
    found = read("seed=3", "++space.args.depth=2,4", "train.learning_rate=interval(0.1,0.2)", "~export")
    values = {"space.args.depth": "4", "train.learning_rate": 0.15}
    assert found.overrides(values) == (
        "seed=3",
        "~export",
        "++space.args.depth=4",
        "train.learning_rate=0.15",
    )


def test_corners_hold_every_choice_and_both_ends():
    corners = read("seed=1,2,3", "train.batch_size=interval(16,64)").corners()
    assert [corner["seed"] for corner in corners] == ["1", "2", "3"]
    assert {corner["train.batch_size"] for corner in corners} == {16, 64}


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("folder=a,b", "folder cannot be swept"),
        ("resume=a,b", "resume cannot be swept"),
        ("objectives=choice([accuracy],[loss])", "objectives cannot be swept"),
        ("optimizer=interval(0,1)", r"optimizer is not a number: write optimizer=choice"),
        ("export=range(0,2)", "export is not a number"),
        ("space=interval(0,1)", "space is not a number"),
        ("train.learning_rate=tag(lgo,interval(0.1,1))", "no tag 'lgo'"),
        ("seed=range(3,3)", "seed: the range is empty"),
        ("seed=interval(0.5,3)", "seed takes whole numbers"),
    ],
)
def test_what_cannot_be_swept_is_refused(word, says):
    with pytest.raises(SettingError, match=says):
        read(word)
