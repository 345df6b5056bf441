"""`resume=FOLDER`: the folder knows its settings, what is said again counts, and what would mix scores is refused."""

from __future__ import annotations

import json
import shlex
import signal
import time
from pathlib import Path

import pytest
import yaml

from l2l_nas.__main__ import main
from l2l_nas.runs.choice_settings import CHOICES
from l2l_nas.runs.command_line import spell
from l2l_nas.runs.fields import settings
from l2l_nas.runs.settings import PLACES, RetrainConf, SearchConf, rule_of
from tests.cli.runs import TINY, contents, events, start, write_pool
from tests.studies import saved_study

OWN = "space.pool=tiny.py:build"
OTHERS = (
    "seed=3",
    "sampler=random",
    "objectives=[loss,parameters]",
    "search.limits.parameters=2000",
    "search.retire=[*/relu]",
    "search.finalists=2",
    "space.args.width=6",
    "train.batch_size=32",
    "train.learning_rate=0.01",
    "relay.update=exact",
    "optimizer.weight_decay=0.1",
)


def config_of(folder: Path | str) -> dict:
    return yaml.safe_load((Path(folder) / "config.yaml").read_text())


def result_of(folder: Path | str) -> dict:
    return json.loads((Path(folder) / "result.json").read_text())


def trials_of(folder: Path | str) -> list:
    return saved_study(folder).trials


def stopped(*words: str, folder: str = "run", after: int = 3) -> str:
    """Start a command, stop it in the midst of its trials; the last line it said."""
    process = start(*words, f"folder={folder}", cwd=Path.cwd())
    while len(events(Path(folder))) < after:
        assert process.poll() is None, process.communicate()
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, ""), out + err
    return out.splitlines()[-1]


@pytest.mark.slow
def test_a_stopped_search_goes_on_with_exactly_its_settings_by_the_command_that_it_prints(pool, capsys):
    last = stopped("search", OWN, *TINY, *OTHERS, "search.trials=40")
    before, done = config_of("run"), trials_of("run")
    assert 3 <= len(done) < 40
    command = shlex.split(last.partition("Go on with: ")[2])
    assert command == ["python", "-m", "l2l_nas", "search", "resume=run", OWN]
    assert main(command[3:]) == 0
    after = config_of("run")
    assert after["search"]["trials"] == 40
    assert {name: value for name, value in after.items() if name not in PLACES} == {
        name: value for name, value in before.items() if name not in PLACES
    }
    trials = trials_of("run")
    assert [(t.number, t.params, t.values) for t in trials[: len(done)]] == [
        (t.number, t.params, t.values) for t in done
    ]
    assert not any("relu" in t.user_attrs["architecture"] for t in trials)
    assert result_of("run")["objectives"] == [
        {"name": "loss", "maximize": False},
        {"name": "parameters", "maximize": False},
    ]
    # weights are those of a run that was never stopped: nothing else than the saved settings was used
    manifest = json.loads(Path("run/weights/manifest.json").read_text())
    assert manifest["seed"] == 3


@pytest.mark.slow
def test_a_new_total_is_gone_on_to_and_kept(finished):
    before = trials_of("run")
    assert main(["search", OWN, "resume=run", "search.trials=15"]) == 0
    trials = trials_of("run")
    assert [t.number for t in trials[: len(before)]] == [t.number for t in before]
    assert sum(t.state.name == "COMPLETE" and not t.user_attrs["cached"] for t in trials) == 15
    assert config_of("run")["search"]["trials"] == 15
    assert config_of("run")["search"]["steps_per_trial"] == 2  # as TINY has it


def test_a_total_below_what_is_done_is_refused(finished, tmp_path, refused):
    before = contents(tmp_path)
    line = refused("search", OWN, "resume=run", "search.trials=3")
    assert line == "error: search.trials=3: 12 trials are already evaluated; ask for at least 12"
    assert contents(tmp_path) == before


@pytest.mark.slow
def test_a_finished_search_says_so_and_trains_nothing(finished, tmp_path, capsys):
    before = contents(tmp_path)
    assert main(["search", OWN, "resume=run"]) == 0
    line = capsys.readouterr().out.strip()
    assert "\n" not in line
    assert line.startswith(
        "finished: 12 of 12 trials are evaluated and the result is written, nothing to do; for more: "
    )
    assert contents(tmp_path) == before
    command = shlex.split(line.partition("for more: ")[2])
    assert main(command[3:]) == 0
    assert result_of("run")["trials"]["complete"] == 24


@pytest.mark.slow
def test_a_finished_search_that_has_not_exported_says_which_command_does(finished, tmp_path, capsys):
    before = contents(tmp_path)
    assert main(["search", OWN, "resume=run", "export=true"]) == 0
    line = capsys.readouterr().out.strip()
    assert contents(tmp_path) == before
    command = line.partition("nothing to do; to export its network: ")[2].partition("; for more: ")[0]
    assert command == f"python -m l2l_nas export run=run {OWN}"
    assert main(shlex.split(command)[3:]) == 0
    assert Path("run/export/model.pt2").exists()
    capsys.readouterr()
    assert main(["search", OWN, "resume=run", "export=true"]) == 0
    assert "nothing to do; for more: " in capsys.readouterr().out


@pytest.mark.slow
def test_a_finished_search_goes_on_if_something_else_is_asked_for_or_its_result_is_lost(finished, capsys):
    assert main(["search", OWN, "resume=run", "relay.threads=1"]) == 0  # how fast it was is nothing else
    assert capsys.readouterr().out.startswith("finished: ")
    assert main(["search", OWN, "resume=run", "search.finalists=2"]) == 0
    assert len(result_of("run")["finalists"]) == 2
    Path("run/result.json").unlink()
    assert main(["search", OWN, "resume=run"]) == 0
    assert len(result_of("run")["finalists"]) == 2
    # killed between two results: the one there is from before
    with Path("run/log.jsonl").open("a") as log:
        log.write('{"event": "start", "time": 0}\n')
    capsys.readouterr()
    assert main(["search", OWN, "resume=run"]) == 0
    assert "resumed with" in capsys.readouterr().out


CHANGED = {
    "seed": 5,
    "objectives.names": ["accuracy"],
    "search.warmup_steps": 31,
    "search.time": "5m",
    "search.trainings": 9.0,
    "search.warmup_paths": "fair",
    "search.steps_per_trial": 3,
    "search.trial_weights": "fork",
    "search.hardware": "laptop",
    "search.early_stop": "halving",
    "strategy": "mine.py:phases",
    "data.source": "other.npz",
    "data.validation_fraction": 0.3,
    "data.test_fraction": 0.3,
    "data.size": [8, 8],
    "data.length": 64,
    "data.tokenizer": "bytes",
    "data.objective": "masked",
    "data.documents": "apart",
    "data.masked": 0.3,
    "data.predictions": 7,
    "data.text_key": "body",
    "train.batch_size": 32,
    "train.micro_batch": 32,
    "train.learning_rate": 0.005,
    "optimizer": "sgd",
    "schedule": "linear",
    "parallel.chunks": 2,
    "relay.clip": 1.0,
    "relay.clip_scope": "layer",
    "relay.precision": "bf16",
}


@pytest.mark.parametrize("name", [name for name, _, _ in settings(SearchConf) if rule_of(name).stays])
def test_what_must_stay_is_refused_by_name_with_both_values(finished_once, monkeypatch, refused, name):
    monkeypatch.chdir(finished_once)
    before = contents(finished_once)
    value = CHANGED.get(name)
    if value is None:  # a setting that is newer than this test
        default = {known: default for known, default, _ in settings(SearchConf)}[name]
        value = default / 2 + 0.05 if isinstance(default, float) else default
    said = spell(value)
    line = refused("search", OWN, "resume=run", "search.trials=20", f"{name.removesuffix('.names')}={said}")
    had = config_of("run")
    for part in name.split("."):
        had = had[part]
    shown = spell(had["name"] if name in CHOICES else had)
    name = name.removesuffix(".names")
    assert line.startswith(f"error: {name}={said}: the run in run has {name}={shown} and must keep it: ")
    assert line.endswith(f"; leave {name} out, or start a new run in another folder")
    # the same value again is no other
    assert contents(finished_once) == before


@pytest.mark.parametrize(
    ("weights", "name", "may"),
    [
        ("shared", "search.finalist_steps", True),
        ("scratch", "search.finalist_steps", False),
        ("scratch", "search.finalist_learning_rate", False),
        ("scratch", "search.finalists", True),
    ],
)
def test_what_trials_from_first_weights_share_with_finalists_must_stay(weights, name, may):
    assert (rule_of(name).refusal({"search": {"trial_weights": weights}}) == "") == may


def test_a_race_goes_on_as_it_was_begun(tmp_path, monkeypatch, refused):
    monkeypatch.chdir(tmp_path)
    write_pool(tmp_path)
    race = [*TINY, "objectives=[accuracy]", "search.trial_weights=scratch", "search.warmup_steps=0"]
    assert main(["search", OWN, *race, "search.trials=3", "folder=run"]) == 0
    line = refused("search", OWN, "resume=run", "search.trials=5", "search.finalist_steps=9")
    assert "must keep it: from first weights, trials are the first steps of the finalists' training" in line
    assert main(["search", OWN, "resume=run", "search.trials=5", "search.finalists=2"]) == 0
    assert json.loads((tmp_path / "run" / "result.json").read_text())["trials"]["complete"] == 5


@pytest.mark.parametrize("schema", [SearchConf, RetrainConf])
def test_every_setting_declares_what_a_resume_does_with_another_value(schema):
    for name, _, _ in settings(schema):
        assert rule_of(name) is not None


@pytest.mark.slow
def test_two_folders_and_folders_of_other_commands_are_refused(finished, refused, tmp_path):
    before = contents(tmp_path)
    assert "folder=other and resume=run: a run goes on in its own folder" in refused(
        "search", OWN, "resume=run", "folder=other"
    )
    assert "run holds a search; go on with it by" in refused("train", OWN, "resume=run", "folder=other")
    line = refused("train", OWN, "resume=run")
    assert f"run holds a search; go on with it by: python -m l2l_nas search resume=run {OWN}" in line
    assert contents(tmp_path) == before
    assert main(["train", OWN, "run=run", "train.steps=2", "export=false", "folder=trained"]) == 0
    line = refused("search", OWN, "resume=trained")
    assert f"trained holds a training; go on with it by: python -m l2l_nas train resume=trained {OWN}" in line


@pytest.mark.slow
def test_a_pool_of_ones_own_is_named_again_with_the_word_that_is_told(finished, refused):
    line = refused("search", "resume=run")
    word = line.rpartition("name it again: ")[2]
    assert word == OWN
    assert main(["search", "resume=run", word]) == 0
    for command in ("evaluate", "export", "train"):
        line = refused(command, "run=run")
        assert line.endswith(f"run: space.pool is never taken from a folder; name it again: {OWN}")
        assert "no setting 'pool'; did you mean 'space.pool'?" in refused(command, "run=run", "pool=tiny.py:build")
        if command != "train":
            assert "no setting 'resume'; did you mean 'run'?" in refused(command, "resume=run")
            assert "no setting 'folder'; did you mean 'run'?" in refused(command, "folder=run")
    assert "no setting 'run'; did you mean 'resume'?" in refused("search", "run=run")


def test_settings_of_a_config_file_count_as_said(finished, refused):
    Path("mine").mkdir()
    Path("mine/more.yaml").write_text("defaults: [search, _self_]\ntrain:\n  learning_rate: 0.5\n")
    line = refused("search", "--config-dir", "mine", "--config-name", "more", OWN, "resume=run", "search.trials=20")
    assert line.startswith("error: train.learning_rate=0.5: the run in run has train.learning_rate=0.008")


def test_numbered_folders_of_a_sweep_stay_so_in_a_config_file_too(pool, refused):
    Path("mine").mkdir()
    Path("mine/more.yaml").write_text("defaults: [search, _self_]\nhydra:\n  sweep: {subdir: a}\n")
    line = refused("search", "--config-dir", "mine", "--config-name", "more", OWN, *TINY, "-m", "seed=0,1")
    assert line.startswith("error: hydra.sweep.subdir has no effect: a run is in its folder")


@pytest.mark.slow
def test_a_run_of_a_version_with_fewer_settings_goes_on(finished, refused):
    config = config_of("run")
    del config["search"]["catch_up_fraction"], config["relay"]["trace"], config["strategy"]
    Path("run/config.yaml").write_text(yaml.safe_dump(config))
    line = refused("search", OWN, "resume=run", "strategy=mine.py:phases")
    assert "the run in run has strategy=default and must keep it" in line
    assert main(["search", OWN, "resume=run", "search.trials=14"]) == 0
    assert result_of("run")["trials"]["complete"] == 14


@pytest.mark.slow
def test_a_training_goes_on_with_its_settings_and_refuses_others(finished, refused, capsys):
    words = [
        "train",
        OWN,
        "run=run",
        "train.steps=12",
        "train.validation_steps=4",
        "train.learning_rate=0.02",
        "seed=7",
    ]
    assert main([*words, "weights=pool", "optimizer=sgd", "export=false", "folder=out"]) == 0
    before = config_of("out")
    for said, shown in (
        ("train.learning_rate=0.03", "train.learning_rate=0.02"),
        ("optimizer=adamw", "optimizer=sgd"),
        ("train.recalibrate=3", "train.recalibrate=8"),
        ("metric=loss", "metric=accuracy"),
        ("seed=8", "seed=7"),
        ("weights=scratch", "weights=run/weights"),
    ):
        line = refused("train", OWN, "resume=out", said)
        assert line.startswith(f"error: {said}: the run in out has {shown} and must keep it: ")
    assert "trial=0 is not the architecture that out trains" in refused("train", OWN, "resume=out", "trial=0")
    line = refused("train", OWN, "resume=out", "train.steps=11")
    assert line == "error: train.steps=11: 12 steps are done; ask for at least as many, or train in another folder"
    assert config_of("out") == before
    assert main(["train", OWN, "resume=out", "weights=pool", "train.steps=16"]) == 0
    assert result_of("out")["last"]["step"] == 16
    after = config_of("out")
    assert after["train"].pop("steps") == 16
    assert before["train"].pop("steps") == 12
    assert {**after, "folder": ""} == {**before, "folder": ""}


@pytest.mark.parametrize("kind", ["search", "train"])
def test_the_command_on_a_full_disk_is_whole(kind):
    """What is reported from below, of a folder it does not know, is filled in by who does."""
    from l2l_nas.runs.command_line import fill_in, resume_command

    message = "x: the disk is full; then go on with: resume=FOLDER"
    assert fill_in(message) == "x: the disk is full; then give the same command again"
    line = fill_in(message, resume_command(kind, "a b", {"space.pool": "m.py:f"}))
    assert line == f"x: the disk is full; then go on with: python -m l2l_nas {kind} 'resume=\"a b\"' space.pool=m.py:f"
