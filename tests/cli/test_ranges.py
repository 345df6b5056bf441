from __future__ import annotations

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from l2l_nas.cli.ranges import distribution_of, refuse_places
from l2l_nas.errors import SettingError
from l2l_nas.nas.sweep_study import described, ends_of
from l2l_nas.runs.settings import SearchConf

DEFAULTS = OmegaConf.structured(SearchConf)


def read(word):
    (override,) = OverridesParser.create().parse_overrides([word])
    refuse_places([override])
    return distribution_of(override, OmegaConf.select(DEFAULTS, override.key_or_group))


@pytest.mark.parametrize(
    ("word", "drawn"),
    [
        ("seed=0,1", "choice(0,1)"),
        ("optimizer=choice(sgd,adamw)", "choice(adamw,sgd)"),
        ("train.learning_rate=interval(0.001,0.02)", "interval(0.001,0.02)"),
        ("train.learning_rate=tag(log,interval(1e-4,0.1))", "tag(log,interval(0.0001,0.1))"),
        ("train.batch_size=interval(16,64)", "int(interval(16,64))"),
        ("train.batch_size=tag(log,interval(16,64))", "tag(log,interval(16,64))"),
        ("train.batch_size=range(16,65,16)", "range(16,80,16)"),
        ("optimizer.beta1=range(0.8,1.0,0.05)", "range(0.8,1,0.05)"),
        ("++space.args.depth=int(interval(2,5))", "int(interval(2,5))"),
        ("++space.args.width=range(9,1,-4)", "range(5,13,4)"),
    ],
)
def test_hydra_s_own_words_for_sweeps_are_read(word, drawn):
    assert described(read(word)) == drawn


def test_ends_are_every_choice_or_both_ends():
    assert ends_of(read("seed=1,2,3")) == ["1", "2", "3"]
    assert ends_of(read("train.batch_size=interval(16,64)")) == [16, 64]


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
