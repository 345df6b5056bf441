"""Config groups as users of Hydra know them: choices with arguments, a config folder of one's own, experiments."""

from __future__ import annotations

import logging
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig

from l2l_nas.__main__ import main
from l2l_nas.cli.schema import register
from l2l_nas.compress.blockwise import STRATEGIES
from l2l_nas.eps.optimizers.registry import OPTIMIZERS, build_optimizer
from l2l_nas.nas.evaluation.engines import ENGINES
from l2l_nas.nas.samplers.registry import SAMPLERS, build_sampler
from l2l_nas.nas.strategies.default import build_phases
from l2l_nas.runs.choice_settings import CHOICES
from l2l_nas.runs.groups import ABOUT, GROUPS, arguments, choices, shipped
from l2l_nas.runs.settings import SearchConf, SearchSection
from l2l_nas.runs.workers import check_workers
from l2l_nas.training.schedule import SCHEDULES, build_schedule
from tests.cli.runs import TINY, contents

OWN = "space=tiny.py:build"
MINE = """\
import optuna
from l2l_nas import Callback, Finalists, Trials

class Sampler(optuna.samplers.RandomSampler):
    def __init__(self, seed, depth=1):
        super().__init__(seed)
        print("own depth", depth)

def phases(rest=()):
    print("own phases", rest)
    return [Trials(), Finalists()]

class Table(Callback):
    def __init__(self, every=1):
        self.every = every

    def trial(self, record, records):
        if len(records) % self.every == 0:
            print("row", len(records))
"""


def config_of(folder: str) -> dict:
    return yaml.safe_load(Path(folder, "config.yaml").read_text())


def shown(capsys, *words: str) -> dict:
    capsys.readouterr()
    assert main(["search", *words, "--cfg", "job"]) == 0
    return yaml.safe_load(capsys.readouterr().out)


def test_a_choice_brings_its_arguments_and_words_behind_it_change_them(capsys):
    config = shown(capsys, "sampler=tpe", "sampler.n_startup_trials=20", "optimizer=sgd", "optimizer.momentum=0.8")
    assert config["sampler"] == {"name": "tpe", "n_startup_trials": 20}
    common = {"moments": "fp32", "no_decay": "none", "layer_decay": 1.0, "groups": {}}
    assert config["optimizer"] == {"name": "sgd", "momentum": 0.8, "weight_decay": 0.0, "nesterov": False, **common}
    config = shown(capsys, "relay=small_device", "relay.slots=3", "data=digits", "objectives=accuracy_flops")
    assert (config["relay"]["budget"], config["relay"]["stash"], config["relay"]["slots"]) == ("none", "host", 3)
    assert (config["data"]["source"], config["objectives"]["names"]) == ("digits", ["accuracy", "flops"])


@pytest.mark.parametrize("group", sorted(CHOICES))
def test_every_choice_is_one_that_the_program_has(group):
    known = {"sampler": SAMPLERS, "strategy": STRATEGIES, "optimizer": OPTIMIZERS, "schedule": SCHEDULES}
    known["executor"] = {"inline": None, **ENGINES}
    assert set(CHOICES[group]) == set(known[group])
    for name in CHOICES[group]:
        chosen = {"name": name, **arguments(group, name)}
        if group == "sampler":
            build_sampler(chosen, seed=0, num_trials=20, num_finished=0)
        elif group == "strategy":
            assert build_phases(chosen, STRATEGIES)
        elif group == "executor":
            if name in ("ray", "dask", "submitit") and find_spec({"dask": "distributed"}.get(name, name)) is None:
                continue  # an extra
            conf = SearchConf(executor=chosen, search=SearchSection(workers=2))
            check_workers(conf)
        elif group == "optimizer":
            assert build_optimizer(chosen)
        else:
            assert build_schedule(chosen)(0.1, 50).at(5) > 0


def test_arguments_reach_the_sampler():
    found = {"tpe": "_n_startup_trials", "nsga2": "_population_size", "evolution": "_population"}
    for name, place in found.items():
        argument = "n_startup_trials" if name == "tpe" else "population_size"
        assert getattr(build_sampler({"name": name, argument: 7}, seed=0, num_trials=20, num_finished=0), place) == 7


@pytest.mark.parametrize("group", sorted(ABOUT))
def test_each_group_offers_hydra_what_help_says(group):
    register("search")
    stored = {name.removesuffix(".yaml") for name in ConfigStore.instance().list(group)} if group in CHOICES else set()
    files = {path.stem for path in (shipped("conf") / group).glob("*.yaml")}
    offered = set(choices(group)) - {"none"}
    assert offered <= stored | files
    assert files <= offered
    assert ABOUT[group][1] in (*offered, "none", "")


def test_experiments_that_come_with_the_program_are_searches(capsys):
    assert set(choices("experiment")) == {"quick", "smaller"}
    config = shown(capsys, "experiment=quick")
    assert (config["space"]["pool"], config["search"]["trials"]) == ("digits_conv", 8)
    config = shown(capsys, "experiment=smaller", "space.pool=hf:model", "strategy.sizes=[0.3]")
    assert (config["space"]["pool"], config["strategy"]["name"]) == ("hf:model", "blockwise")
    assert (config["strategy"]["sizes"], config["objectives"]["names"]) == ([0.3], ["loss", "parameters"])
    config = shown(capsys, "experiment=quick", "search.trials=5", "space=digits_shared")
    assert (config["space"]["pool"], config["search"]["trials"]) == ("digits_shared", 5)


@pytest.fixture
def mine(pool, tmp_path) -> Path:
    """A folder of configs, and code, of one's own."""
    (tmp_path / "mine.py").write_text(MINE)
    files = {
        "sampler/few.yaml": "defaults: [tpe]\nn_startup_trials: 3\n",
        "sampler/deep.yaml": "name: mine.py:Sampler\ndepth: 4\n",
        "objectives/losses.yaml": "names: [loss, parameters]\n",
        "callbacks/table.yaml": "table: {name: 'mine.py:Table', every: 6}\n",
        "relay/slim.yaml": "slots: 1\n",
        "experiment/night.yaml": (
            "# @package _global_\ndefaults:\n  - override /sampler: few\n  - override /callbacks: [table]\n"
            "  - override /objectives: losses\nseed: 5\nsearch: {trials: 9}\n"
        ),
    }
    for name, text in files.items():
        path = tmp_path / "conf" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


@pytest.mark.slow
def test_a_config_folder_of_ones_own_has_groups_and_experiments(mine, capsys):
    few = [word for word in TINY if not word.startswith(("objectives", "search.trials"))]
    words = ["search", "--config-dir", "conf", OWN, *few]
    assert main([*words, "experiment=night", "relay=slim", "callbacks.table.every=3", "folder=run"]) == 0
    assert capsys.readouterr().out.count("row ") == 3
    config = config_of("run")
    assert config["sampler"] == {**arguments("sampler", "tpe"), "name": "tpe", "n_startup_trials": 3}
    assert (config["seed"], config["search"]["trials"], config["objectives"]["names"]) == (5, 9, ["loss", "parameters"])
    assert config["callbacks"] == {"table": {"name": "mine.py:Table", "every": 3}}
    assert main([*words, "search.trials=4", "sampler=deep", "folder=other"]) == 0
    assert "own depth 4" in capsys.readouterr().out
    # the run goes on without that folder, and what it imported is named again
    assert main(["search", OWN, "resume=run", "search.trials=11"]) == 0
    assert config_of("run")["sampler"]["n_startup_trials"] == 3
    assert "row" not in capsys.readouterr().out


@pytest.mark.slow
def test_ones_own_takes_arguments_in_its_group(mine, capsys, refused):
    words = ["search", OWN, *TINY, "search.trials=4"]
    own = ["sampler=mine.py:Sampler", "sampler.depth=7", "strategy=./mine.py:phases", "strategy.rest=[1,2]"]
    callbacks = ["callbacks=[mine.py:Table,nowhere:Table]", "callbacks.Table_.every=2"]
    assert "no module 'nowhere'" in refused(*words, *callbacks, "folder=run")
    callbacks[0] = f"callbacks=[mine.py:Table,{mine}/mine.py:Table]"
    assert main([*words, *own, *callbacks, "folder=run"]) == 0
    said = capsys.readouterr().out
    assert "own depth 7" in said
    assert "own phases [1, 2]" in said
    assert said.count("row ") == 4 + 2
    line = refused(*words, *own[:1], "sampler.deep=7", "folder=other")
    assert line == "error: sampler=mine.py:Sampler takes no 'deep'; did you mean 'depth'?"
    assert "sampler=mine.py:Sampler" in refused("search", OWN, "resume=run", "search.trials=5")
    again = [own[0], "strategy=./mine.py:phases", "strategy.rest=[1,2]"]
    assert main(["search", OWN, "resume=run", "search.trials=5", *again]) == 0
    assert "own depth 1" in capsys.readouterr().out  # a choice that is made anew takes nothing of the run's


@pytest.mark.slow
def test_hydra_s_folders_are_the_run_s(pool, capsys):
    assert main(["search", OWN, *TINY, "search.trials=3", "hydra.run.dir=deep/run"]) == 0
    assert config_of("deep/run")["folder"] == "deep/run"
    hydra = {name: Path("deep/run/.hydra", f"{name}.yaml").read_text() for name in ("config", "hydra", "overrides")}
    assert yaml.safe_load(hydra["config"])["space"]["pool"] == "tiny.py:build"
    # what it was started with stays
    assert main(["search", OWN, "resume=deep/run", "search.trials=4"]) == 0
    assert {name: Path("deep/run/.hydra", f"{name}.yaml").read_text() for name in hydra} == hydra
    assert main(["train", OWN, "run=deep/run", "train.steps=2", "export=false", "hydra.run.dir=trained"]) == 0
    assert yaml.safe_load(Path("trained/.hydra/overrides.yaml").read_text())[1] == "run=deep/run"
    assert main(["search", "-m", OWN, *TINY, "search.trials=2", "seed=0,1", "hydra.sweep.dir=sweep"]) == 0
    assert yaml.safe_load(Path("sweep/1/.hydra/overrides.yaml").read_text())[-1] == "seed=1"
    assert sorted(path.name for path in Path().iterdir()) == ["deep", "sweep", "tiny.py", "trained"]


@pytest.mark.slow
def test_a_config_file_names_the_folder_in_hydra_s_words_too(pool, tmp_path, refused):
    Path("conf").mkdir()
    Path("conf/mine.yaml").write_text("defaults: [search, _self_]\nhydra: {run: {dir: mine}}\n")
    words = ["search", "--config-dir", "conf", "--config-name", "mine", OWN, *TINY, "search.trials=2"]
    before = contents(tmp_path)
    assert "folder=other and hydra.run.dir=mine name two folders" in refused(*words, "folder=other")
    assert contents(tmp_path) == before
    assert not Path("mine").exists()
    assert main(words) == 0
    assert config_of("mine")["folder"] == "mine"


@pytest.mark.slow
def test_a_run_that_is_refused_leaves_no_folder_of_hydra_s(pool, tmp_path, refused):
    refused("search", OWN, *TINY, "folder=a/b/c", "search.trials=0")
    refused("train", OWN, "run=nowhere", "hydra.run.dir=a/b/c")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tiny.py"]
    Path("a/b").mkdir(parents=True)
    refused("search", OWN, *TINY, "folder=a/b", "search.trials=0")
    assert Path("a/b").is_dir()  # it was there before


@pytest.mark.parametrize(
    "flag", [["--cfg", "hydra"], ["--info", "defaults"], ["--info", "searchpath"], ["--hydra-help"]]
)
def test_hydra_s_own_flags_are_hydra_s(capsys, flag):
    root = logging.getLogger()
    before = root.level, list(root.handlers)
    try:
        own = [] if flag == ["--hydra-help"] else ["sampler=tpe"]  # Hydra's own config has no such group
        assert main(["search", *own, *flag]) == 0
    finally:  # --info has the whole process log everything
        root.setLevel(before[0])
        root.handlers[:] = before[1]
    said = capsys.readouterr().out
    assert {"hydra": "sampler: tpe", "--hydra-help": "--config-dir"}.get(flag[-1], "conf") in said


def test_a_group_of_one_s_own_is_added_and_an_experiment_may_be(mine, capsys):
    (mine / "conf/size").mkdir()
    (mine / "conf/size/small.yaml").write_text("# @package _global_\nsearch: {trials: 9}\n")
    for words in (["+size=small"], ["experiment=night"], ["+experiment=night"]):
        assert shown(capsys, "--config-dir", "conf", *words)["search"]["trials"] == 9


def test_a_folder_may_be_named_by_what_hydra_knows(pool, capsys):
    """Of a sweep, too, in a process in which no run was before."""
    HydraConfig.instance().cfg = None
    words = ["search", "-m", "seed=0,1", f"space.pool={pool}", "hydra.sweep.dir=${hydra:runtime.cwd}/x"]
    Path("x").mkdir()
    Path("x/summary.json").write_text("mine")
    assert main(words) == 2
    assert capsys.readouterr().err.startswith(f"error: {Path.cwd()}/x/summary.json is there already")


def test_every_group_of_a_command_stands_in_its_defaults():
    for command, groups in GROUPS.items():
        defaults = yaml.safe_load((shipped("conf") / f"{command}.yaml").read_text())["defaults"]
        chosen = {name: value for entry in defaults if isinstance(entry, dict) for name, value in entry.items()}
        for group in groups:
            assert (chosen[group] or ("none" if group == "callbacks" else "")) == ABOUT[group][1]
