"""What the README shows, run as it stands."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser

from l2l_nas.__main__ import main
from l2l_nas.cli.launch import _openended, _sort
from l2l_nas.cli.names import OPEN
from l2l_nas.runs.settings import COMMANDS, HYDRA, settings
from tests.cli.runs import ROOT, TINY, environment, write_pool

README = (ROOT / "README.md").read_text()
COMMAND_LINES = [line.split("#")[0].strip() for line in README.splitlines() if line.startswith("python -m l2l_nas ")]
POOL = re.search(r"<!-- my_pool.py -->\n```python\n(.*?)```", README, re.S).group(1)  # type: ignore[union-attr]
TEN_LINES = re.search(r"## Ten lines of Python\n\n```python\n(.*?)```", README, re.S).group(1)  # type: ignore[union-attr]


@pytest.mark.slow
def test_a_pool_of_ones_own_takes_at_most_25_lines_and_one_command(tmp_path):
    assert len(POOL.splitlines()) <= 25
    (tmp_path / "my_pool.py").write_text(POOL)
    budget = ["search.warmup_steps=30", "search.trials=4", "search.finalists=1", "search.finalist_steps=20"]
    done = subprocess.run(
        [sys.executable, "-m", "l2l_nas", "search", "space.pool=my_pool.py:build", "folder=run", *budget],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["best"]["architecture"][0] == "linear"
    assert result["trials"]["complete"] == 4
    assert (tmp_path / "run" / "export" / "model.pt2").exists()


@pytest.mark.parametrize("name", ["search.py", "loop.py"])
def test_the_search_in_python_runs_as_it_stands(tmp_path, name):
    code = re.search(rf"<!-- {name} -->\n```python\n(.*?)```", README, re.S).group(1)  # type: ignore[union-attr]
    (tmp_path / "my_pool.py").write_text(POOL)
    told = "\nassert len(study.trials) >= 24"
    if name == "search.py":  # in small
        code = code.replace("trials=24", "trials=24, steps_per_trial=2, finalist_steps=9, export=False")
        told += "\nassert network(torch.zeros(3, 2)).shape == (3, 2)"
    (tmp_path / name).write_text("import torch\n" + code + told)
    done = subprocess.run([sys.executable, name], cwd=tmp_path, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_ten_lines_of_python_run_as_they_stand(capsys):
    assert len(TEN_LINES.splitlines()) <= 12
    torch.manual_seed(0)
    exec(compile(TEN_LINES, "README.md", "exec"), {})
    assert 0 < float(capsys.readouterr().out) < 10


@pytest.mark.parametrize("line", COMMAND_LINES)
def test_every_command_shown_names_only_settings_that_exist_and_composes(line):
    command, *words = shlex.split(line)[3:]
    if command.startswith("-"):
        return
    if "--help" in words:
        assert main([command, "--help"]) == 0
        return
    _, overrides = _sort(words)
    known = {name for name, _, _ in settings(COMMANDS[command])} | {"space", "hydra/sweeper", "hydra/launcher"}
    known |= {
        name for section, schema in HYDRA.get(command, {}).items() for name, _, _ in settings(schema, f"{section}.")
    }
    if any(word.startswith("hydra/launcher=") for word in words):
        pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
        pytest.importorskip("hydra_plugins.hydra_submitit_launcher")
    for word in overrides:
        name = word.split("=")[0]
        assert name in known or name.startswith(OPEN), name
    ConfigStore.instance().store(name=f"{command}_schema", node=COMMANDS[command])
    single = [override for override in map(_openended, overrides) if not _is_sweep(override)]
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        assert compose(command, single)


def _is_sweep(word: str) -> bool:
    return OverridesParser.create().parse_override(word).is_sweep_override()


EXTRA = [word for line in COMMAND_LINES for word in shlex.split(line)[3:] if "=" in word]
CHEAP = [
    ["search.objectives=[accuracy]", "search.sampler=tpe"],
    ["search.limits.parameters=200", "relay.update=serial", "relay.slots=3"],
    ["train.optimizer=sgd", "train.learning_rate=0.05", "train.micro_batch=32"],
    ["search.sampler=random", "search.steps_per_trial=0", "search.warmup_steps=0", "search.finalist_steps=0"],
    ["search.objectives=[loss,parameters]", "sgd.nesterov=true", "relay.threads=1", "relay.slots=1"],
]


@pytest.mark.parametrize("words", CHEAP, ids=" ".join)
def test_documented_settings_run(words, tmp_path, monkeypatch):
    write_pool(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert main(["search", "space.pool=tiny.py:build", "folder=run", *TINY, "search.trials=4", *words]) == 0
    result = json.loads(Path("run/result.json").read_text())
    assert result["trials"]["complete"] == 4
    if "search.limits.parameters=200" in words:
        assert all(entry["values"]["parameters"] <= 200 for entry in result["pareto"])


def test_the_settings_above_are_those_of_the_readme():
    for word in (
        "search.objectives=[accuracy]",
        "search.limits.parameters=10000",
        "relay.update=serial",
        "relay.slots=3",
    ):
        assert word in EXTRA


def test_the_file_tree_names_every_module():
    tree = README.split("## The files")[1]
    for path in (ROOT / "l2l_nas").rglob("*.py"):
        room = path.relative_to(ROOT / "l2l_nas").parts[0].removesuffix(".py")
        assert room in tree or room.startswith("__"), room
