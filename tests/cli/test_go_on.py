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
from l2l_nas.runs.settings import PLACES, rule_of
from tests.cli.runs import TINY, contents, events, start, write_pool
from tests.report.pages import Reader
from tests.studies import add_event, change_result, saved_study

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


def stopped(*words: str, by: signal.Signals, after: int) -> str:
    """Start a command, stop it in the midst of its trials; the last line it said."""
    process = start(*words, cwd=Path.cwd())
    while len(events(Path("run"))) < after:
        assert process.poll() is None, process.communicate()
        time.sleep(0.005)
    process.send_signal(by)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, ""), out + err
    assert not list(Path("run").glob("*.tmp*"))
    assert " stopped " in Reader(Path("run/report.html").read_text()).text
    *before, last = out.splitlines()
    assert not any("Go on" in line for line in before)
    return last


@pytest.mark.slow
def test_a_stopped_search_goes_on_with_exactly_its_settings_by_the_command_that_it_prints(pool, capsys):
    command = ["search", OWN, *TINY, *OTHERS, "search.trials=40", "folder=run"]
    for number, after in ((signal.SIGINT, 3), (signal.SIGTERM, 6)):
        last = stopped(*command, by=number, after=after)
        before, done, reported = config_of("run"), trials_of("run"), events(Path("run"))
        assert after <= len(done) < 40
        evaluated = sum(not event["cached"] for event in reported)
        assert last.startswith(f"stopped after {evaluated} of 40 trials, all saved. Go on with: python -m l2l_nas ")
        command = shlex.split(last.partition("-m l2l_nas ")[2])
        assert command == ["search", "resume=run", OWN]
    assert main(command) == 0
    assert events(Path("run"))[: len(reported)] == reported
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
def test_a_finished_search_goes_on_if_something_else_is_asked_for_or_its_result_is_lost(finished, capsys):
    assert main(["search", OWN, "resume=run", "relay.threads=1"]) == 0  # how fast it was is nothing else
    assert capsys.readouterr().out.startswith("finished: ")
    assert main(["search", OWN, "resume=run", "search.finalists=2"]) == 0
    assert len(result_of("run")["finalists"]) == 2
    for lose in (lambda: Path("run/result.json").unlink(), lambda: change_result("run", lambda _: None)):
        lose()
        assert main(["search", OWN, "resume=run"]) == 0
        assert len(result_of("run")["finalists"]) == 2
    # killed between two results: the one there is from before
    add_event("run", "start")
    capsys.readouterr()
    assert main(["search", OWN, "resume=run"]) == 0
    assert "resumed with" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("word", "had"),
    [
        ("seed=5", "0"),
        ("objectives=[accuracy]", "[accuracy,parameters]"),
        ("search.steps_per_trial=3", "2"),
        ("data.size=[8,8]", "[]"),
        ("optimizer=sgd", "adamw"),
        ("relay.clip=1.0", "0.0"),
    ],
)
def test_what_must_stay_is_refused_by_name_with_both_values(finished_once, monkeypatch, refused, word, had):
    monkeypatch.chdir(finished_once)
    before, name = contents(finished_once), word.partition("=")[0]
    line = refused("search", OWN, "resume=run", "search.trials=20", word)
    assert line.startswith(f"error: {word}: the run in run has {name}={had} and must keep it: ")
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
            assert "no setting 'resume'" in refused(command, "resume=run")
            assert "no setting 'folder'" in refused(command, "folder=run")
    assert "no setting 'run'" in refused("search", "run=run")


def test_settings_of_a_config_file_count_as_said(finished, refused):
    Path("mine").mkdir()
    Path("mine/more.yaml").write_text("defaults: [search, _self_]\ntrain:\n  learning_rate: 0.5\n")
    line = refused("search", "--config-dir", "mine", "--config-name", "more", OWN, "resume=run", "search.trials=20")
    assert line.startswith("error: train.learning_rate=0.5: the run in run has train.learning_rate=0.008")


@pytest.mark.slow
def test_a_run_of_a_version_with_fewer_settings_goes_on(finished, refused):
    config = config_of("run")
    del config["search"]["failures"], config["relay"]["trace"], config["strategy"]
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
