"""Whatever Hydra and OmegaConf raise is one line that says which word it was and what to write."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest

from l2l_nas.__main__ import main
from l2l_nas.cli.words import explain_value, is_of_hydra
from l2l_nas.runs.groups import GROUPS


@pytest.fixture(autouse=True)
def own_configs(tmp_path, monkeypatch):
    """A folder `conf` with a group of its own and an experiment."""
    for group, name in (("size", "small"), ("experiment", "mine")):
        (tmp_path / "conf" / group).mkdir(parents=True)
        (tmp_path / "conf" / group / f"{name}.yaml").write_text("# @package _global_\nsearch:\n  trials: 3\n")
    monkeypatch.chdir(tmp_path)


_GROUPS = [group for group in GROUPS["search"] if group != "objectives"]  # of which a list is a list of objectives
_OTHERS = ("5", "1.5", "true", "[5]", "[[5]]", "5,6")


@pytest.mark.parametrize(
    ("group", "value"),
    [*zip(_GROUPS, itertools.cycle(_OTHERS), strict=False), ("hydra/launcher", "[5]"), ("objectives", "5")],
)
def test_a_choice_that_is_no_name_is_one_line_that_names_the_group(refused, group, value):
    assert f"no {group} '" in refused("search", "-m", f"{group}={value}")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["search.finalists=1", "seed=0,1"], "error: 'seed=0,1' has several values: add -m"),
        (["search.finalists=1", "sampler=tpe,nsga2"], "error: 'sampler=tpe,nsga2' has several values: add -m"),
        (["seed=range(3)"], "'seed=range(3)' has several values: add -m"),
        (["-m", "sampler=5,tpe", "seed=0,1"], "no sampler '5'; choose from "),
        (["--config-dir", "conf", "size=small"], "use +size=small"),
        (["--config-dir", "conf", "+size=large"], "no size 'large'; choose from small"),
        (["--config-dir", "conf", "+size=[1,2]"], "no size '1'; choose from small"),
        (["--config-path", "conf"], "--config-dir conf"),
        (["--config-dir", "missing"], "missing' not found"),
        (["--config-name", "missing"], "primary config 'missing'"),
        (
            ["+experiment=mine"],
            "no experiment 'mine'; choose from quick, smaller; your own is DIR/experiment/*.yaml",
        ),
        (["experiment=mine", "+size=small"], "A config group of your own needs --config-dir DIR"),
        (["--info", "nothing"], "--info/-i: invalid choice: 'nothing' (choose from 'all', 'config', "),
        (["--cfg", "jobs"], "--cfg/-c: invalid choice: 'jobs' (choose from 'job', 'hydra', 'all')"),
        (["-m", "seed=0,1", "hydra.sweep.dir=${oc.env:NOT_THERE}"], "error: hydra.sweep.dir: "),
        (["hydra.verbose=5"], "hydra.verbose"),
        (["hydra.run=5"], "error: hydra.run: "),
        (["search.trials=x"], "error: search.trials: Value 'x' of type 'str' could not be converted to Integer\n"),
        (["seed='"], "error: 'seed='' cannot be read"),
        (["experiment={"], "error: 'experiment={' cannot be read"),
        (["resume=${"], "error: 'resume=${' cannot be read"),
        (["space=choice()"], "empty choice is not legal"),
        (["folder=${nope}"], "nope"),
    ],
)
def test_words_that_hydra_refuses_are_one_line_with_its_reason(refused, words, says):
    assert says in refused("search", *words) + "\n"


def test_an_own_group_is_added_and_an_experiment_may_be(capsys):
    for words in (["+size=small"], ["experiment=mine"], ["+experiment=mine"]):
        assert main(["search", "--config-dir", "conf", *words, "--cfg", "job"]) == 0
        assert "trials: 3\n" in capsys.readouterr().out


def test_a_folder_that_no_system_can_have_is_one_line(refused):
    Path("conf/mine.yaml").write_text('defaults:\n  - search\n  - _self_\nfolder: "a\\x00b"\n')
    mine = ["search", "--config-dir", "conf", "--config-name", "mine"]
    assert "folder holds a zero byte" in refused(*mine)
    assert "folder holds a zero byte" in refused(*mine, "-m", "seed=0,1")


def test_a_folder_may_be_named_by_what_hydra_knows(pool, capsys):
    """Of a sweep, too, in a process in which no run was before."""
    from hydra.core.hydra_config import HydraConfig

    HydraConfig.instance().cfg = None
    words = [
        "search",
        "-m",
        "seed=0,1",
        f"space.pool={pool}",
        "hydra.sweep.dir=${hydra:runtime.cwd}/x",
    ]
    Path("x").mkdir()
    Path("x/summary.json").write_text("mine")
    assert main(words) == 2
    assert capsys.readouterr().err.startswith(f"error: {os.getcwd()}/x/summary.json is there already")


def test_an_error_is_hydras_by_where_it_comes_from():
    from hydra.core.override_parser.overrides_parser import OverridesParser

    def mistake():
        raise ValueError("ours")

    for raises, is_hydras in ((mistake, False), (lambda: OverridesParser.create().parse_overrides([5]), True)):
        with pytest.raises(Exception) as raised:  # noqa: PT011
            raises()
        assert is_of_hydra(raised.value) is is_hydras
        assert "\n" not in explain_value(raised.value)
