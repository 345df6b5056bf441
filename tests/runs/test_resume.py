from __future__ import annotations

from dataclasses import replace

import pytest
import yaml

from l2l_nas.errors import SettingError, StorageError
from l2l_nas.runs.command_line import explicit_names
from l2l_nas.runs.fields import changed
from l2l_nas.runs.folder import RunFolder
from l2l_nas.runs.groups import completed
from l2l_nas.runs.resume import explicit_settings, inherit
from l2l_nas.runs.settings import PLACES, RetrainConf

RUN = {
    "seed": 4,
    "folder": "elsewhere",
    "space": {"pool": "digits_shared", "args": {"depth": 3, "channels": 8}},
    "train": {"batch_size": 32, "learning_rate": 1},
    "optimizer": {"name": "adamw", "eps": 1},
    "search": {"trials": 5},
}


def run_of(folder, config) -> RunFolder:
    (folder / "config.yaml").write_text(config if isinstance(config, str) else yaml.safe_dump(config))
    return RunFolder(folder)


def explicitly(conf, names):
    """Settings of which somebody named these."""
    return replace(conf, explicit=frozenset(names))


def test_names_of_settings_are_read_from_overrides():
    overrides = ["train.steps=5", "++space.args.depth=6", "~x", "space=digits_conv", "a='b=c'"]
    assert explicit_names(overrides) == {"train.steps", "space.args.depth", "x", "space", "a"}


def test_what_was_not_given_is_the_run_s_and_what_is_kept_is_not(tmp_path):
    conf = changed(RetrainConf(), {"train.batch_size": 64, "space.args": {"depth": 6}})
    explicit = {"train.batch_size", "space.args.depth"}
    conf = inherit(explicitly(conf, explicit), run_of(tmp_path, RUN), exempt={"folder", "train.learning_rate"})
    assert (conf.seed, conf.train.batch_size, conf.optimizer) == (4, 64, {"name": "adamw", "eps": 1})
    assert conf.space.pool == "digits_shared"
    assert conf.space.args == {"depth": 6, "channels": 8}
    assert conf.train.learning_rate == RetrainConf().train.learning_rate
    assert conf.folder == RetrainConf().folder


def test_a_space_that_is_given_as_a_whole_takes_nothing_of_the_run_s(tmp_path):
    conf = inherit(explicitly(RetrainConf(), {"space"}), run_of(tmp_path, RUN), exempt={"folder"})
    assert (conf.space.pool, conf.space.args, conf.seed) == ("image_blocks", {}, 4)


def test_a_section_that_is_kept_is_kept_whole(tmp_path):
    conf = inherit(RetrainConf(), run_of(tmp_path, RUN), exempt={"train", "folder"})
    assert conf.train == RetrainConf().train


def test_a_pool_of_ones_own_must_be_named_again(tmp_path):
    run = run_of(tmp_path, {"space": {"pool": "mine.py:build"}})
    with pytest.raises(SettingError, match=r"name it again: space\.pool=mine\.py:build"):
        inherit(RetrainConf(), run, exempt=())
    conf = changed(RetrainConf(), {"space.pool": "other.py:build"})
    conf = inherit(explicitly(conf, {"space.pool"}), run, exempt=())
    assert conf.space.pool == "other.py:build"


@pytest.mark.parametrize(
    "config",
    [
        "space: [",
        "just text",
        "!!python/object/apply:os.system ['touch x']",
        {"seed": "many"},
        {"space": {"args": [1]}},
    ],
)
def test_damaged_settings_are_refused_and_run_nothing(tmp_path, monkeypatch, config):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StorageError, match=r"config\.yaml: damaged"):
        inherit(RetrainConf(), run_of(tmp_path, config), exempt=())
    assert not (tmp_path / "x").exists()


def test_interpolations_are_plain_text(tmp_path):
    conf = inherit(
        RetrainConf(),
        run_of(tmp_path, {"data": {"source": "${oc.env:HOME}", "test_fraction": 0.2}}),
        exempt=(),
    )
    assert conf.data.source == "${oc.env:HOME}"


def test_a_run_without_settings_is_named(tmp_path):
    with pytest.raises(StorageError, match=r"config\.yaml: no such file"):
        inherit(RetrainConf(), RunFolder(tmp_path), exempt=())


def test_a_choice_that_is_made_anew_takes_no_arguments_of_the_run_s(tmp_path):
    sgd = {"name": "sgd", "momentum": 0.5, "nesterov": True}
    run = run_of(tmp_path, {"optimizer": sgd})
    default = {"name": "adamw", "eps": 1.0}
    conf = changed(RetrainConf(), {"optimizer": default})
    for explicit, found in (
        ((), sgd),
        (("optimizer",), default),
        (("optimizer.name", "optimizer.eps"), default),
        (("optimizer.eps",), {**sgd, "eps": 1.0}),
    ):
        assert inherit(explicitly(conf, explicit), run, exempt=()).optimizer == found
    again = changed(RetrainConf(), {"optimizer": {"name": "sgd", "momentum": 0.9, "nesterov": False}})
    for explicit, found in (  # the choice that the run has is none that is made anew
        (("optimizer",), sgd),
        (("optimizer", "optimizer.momentum"), {**sgd, "momentum": 0.9}),
    ):
        assert inherit(explicitly(again, explicit), run, exempt=()).optimizer == found
    with pytest.raises(SettingError, match=r"optimizer=sgd takes no 'eps'"):
        completed(inherit(explicitly(conf, ("optimizer.eps",)), run, exempt=()))


def test_a_group_that_is_added_or_changed_leaves_the_run_s_others(tmp_path):
    frozen = {"match": "layer_*", "frozen": True}
    run = run_of(tmp_path, {"optimizer": {"name": "adamw", "groups": {"f": frozen}}})
    head = {"match": "head/*", "lr_scale": 0.1}
    for groups, words, found in (
        ({"h": head}, ["optimizer.groups.h.match=head/*", "optimizer.groups.h.lr_scale=0.1"], {"f": frozen, "h": head}),
        ({"f": {"frozen": False}}, ["optimizer.groups.f.frozen=false"], {"f": {**frozen, "frozen": False}}),
        ({"h": head}, ["optimizer.groups={h:{match:head/*,lr_scale:0.1}}"], {"h": head}),
        ({"h": head}, [], {"f": frozen, "h": head}),  # from a config file
    ):
        conf = replace(RetrainConf(), optimizer={"name": "adamw", "groups": groups})
        explicit = explicit_settings(conf, words, [])
        assert inherit(explicitly(conf, explicit), run, exempt=PLACES).optimizer["groups"] == found
