"""What a folder of somebody else's may say: what is declared so, and nothing else."""

from __future__ import annotations

import shlex
import subprocess
import sys

import pytest
import yaml

from l2l_nas.errors import StorageError
from l2l_nas.runs.choice_settings import CHOICES
from l2l_nas.runs.fields import FromFolder, changed, content, declared, entries, value_of
from l2l_nas.runs.folder import RUN_NAMES, RunFolder
from l2l_nas.runs.folder_settings import left_out, must_be_named, name_again, own_settings, read_settings, settings_in
from l2l_nas.runs.groups import flat
from l2l_nas.runs.settings import RetrainConf, SearchConf
from tests.cli.runs import ROOT, environment

# code, modules, addresses, shell lines, paths that are no plain files
HOSTILE = (
    *("evil.py:build", "evil:build", "os:system", "/tmp/evil.py", "package.module"),
    *("tcp://127.0.0.1:1", "postgresql://me:x@127.0.0.1/x", "hf:http://127.0.0.1/m", "127.0.0.1:8786", "ray://h:1"),
    *("touch /tmp/x", "$(touch /tmp/x)", "'; touch /tmp/x; '", "`touch /tmp/x`", "${oc.env:HOME}", "/dev/stdin"),
)
SCHEMAS = (SearchConf, RetrainConf)


def planted(schema, values):
    """Settings by default, some of them with other values, by name."""
    whole = content(schema())
    for name, value in values.items():
        *sections, leaf = name.split(".")
        within = whole
        for section in sections:
            within = within[section]
        within[leaf] = value
    return whole


def places():
    """Rounds of settings to plant at once: schema, and by name the setting or argument and what makes its value."""
    for schema in SCHEMAS:
        by_name = {}
        for one in declared(schema):
            found = by_name.setdefault(one.name, [(one, lambda value: value)])
            for kind, arguments in CHOICES.get(one.name, {}).items():
                for argument in declared(arguments):
                    made = lambda value, kind=kind, argument=argument: {"name": kind, argument.name: value}  # noqa: E731
                    found.append((argument, made))
        for row in range(max(map(len, by_name.values()))):
            yield schema, {name: found[row] for name, found in by_name.items() if row < len(found)}


def texts(value):
    """All texts in a value."""
    if isinstance(value, dict):
        return {text for key, entry in value.items() for text in (key, *texts(entry))}
    if isinstance(value, list):
        return {text for entry in value for text in texts(entry)}
    return {value} if isinstance(value, str) else set()


@pytest.mark.slow
@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("shape", [lambda one: one, lambda one: [one], lambda one: {one: 1}, lambda one: {"a": one}])
def test_nothing_of_a_folder_is_taken_but_what_is_declared_so(text, shape):
    for schema, chosen in places():
        values = {name: made(shape(text)) for name, (_, made) in chosen.items()}
        # of a choice, what is no dict is damaged, see below
        values = {name: value for name, value in values.items() if name not in CHOICES or isinstance(value, dict)}
        found = settings_in(planted(schema, values)).config
        for name in values:
            if text in texts(value_of(found, name)):
                one = chosen[name][0]
                where = f"{name}, {one.name}"
                assert one.from_folder in (FromFolder.TEXT, FromFolder.PATH), where
                assert not one.is_code, where
                assert not ("//" in text and one.from_folder is FromFolder.PATH), where
                assert text != "/dev/stdin" or one.from_folder is not FromFolder.PATH, where


def test_what_is_run_where_and_by_whom_is_never_taken():
    never = {one.name for schema in SCHEMAS for one in declared(schema) if one.from_folder is FromFolder.NEVER}
    assert {"executor", "callbacks", "relay.device", "folder", "resume"} <= never
    assert {one.name for one in declared(SearchConf) if one.name.startswith("parallel.patience")} <= never
    taken = {one.name for one in declared(SearchConf)} - never
    assert {"space.pool", "space.args", "data.source", "train.batch_size", "objectives.names", "seed"} <= taken
    assert {"search.trials", "sampler", "optimizer", "schedule", "strategy"} <= taken


def test_what_a_folder_may_not_give_is_withheld_and_its_defaults_are_not():
    executor = {"name": "submitit", "parameters": {"setup": ["touch /tmp/x"]}}
    saved = settings_in(planted(SearchConf, {"executor": executor}))
    assert "executor" not in saved.config
    assert {name.partition(".")[0] for name in saved.withheld} == {"executor"}
    assert settings_in(content(SearchConf())).withheld == {}


def test_all_that_must_be_named_again_stands_in_one_line_that_a_shell_takes_apart():
    conf = changed(SearchConf(), {"space.pool": "my pool.py:build", "sampler": {"name": "mine.py:S", "n": 3}})
    conf = changed(conf, {"search.costs": ["mine.py:cost"], "optimizer": {"name": "mine.py:O"}})
    line = name_again(own_settings(conf))
    words = shlex.split(line.rpartition("again: ")[2])
    names = {word.partition("=")[0] for word in words}
    assert {"space.pool", "search.costs"} <= names
    assert {name.removesuffix(".name") for name in names} >= {"sampler", "optimizer"}
    assert "space.pool=my pool.py:build" in [word.replace("'", "").replace('"', "") for word in words]


SETUP = {"setup": ["touch /tmp/x"]}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("executor", {"name": "submitit", "cluster": "local", "parameters": SETUP}),
        ("data.size", [SETUP]),
        ("search.costs", [[{"mine": "touch /tmp/x"}]]),
    ],
)
def test_a_shell_line_of_a_folder_stands_in_no_command_to_copy(name, value):
    line = name_again(settings_in(planted(SearchConf, {name: value})).withheld)
    said, _, command = line.rpartition("again: ")
    assert "touch /tmp/x" in said
    assert "touch" not in command


def test_what_changes_no_result_is_told_in_one_line_and_not_asked_for():
    callbacks = {"C": {"name": "mine.py:C", "at": "tcp://127.0.0.1:1"}}
    conf = changed(SearchConf(), {"relay.threads": 3, "parallel.patience_s": 7.0, "callbacks": callbacks})
    withheld = own_settings(conf)
    assert must_be_named(withheld, explicit=(), schema=SearchConf) == {}
    line = left_out(withheld, explicit={"relay.threads"}, schema=SearchConf)
    words = shlex.split(line.rpartition(": ")[2])
    assert set(words) == {"parallel.patience_s=7.0", "callbacks.C.name=mine.py:C", 'callbacks.C.at="???"'}
    assert "127.0.0.1" not in line
    assert left_out(withheld, explicit={"relay", "relay.threads", "parallel", "callbacks"}, schema=SearchConf) == ""
    assert left_out(own_settings(changed(conf, {"callbacks": {}})), explicit={"relay.threads"}, schema=SearchConf)


def test_what_is_taken_is_what_was_written():
    conf = changed(SearchConf(), {"search.trials": 7, "train.batch_size": 3, "space.args": {"width": 4}, "seed": 5})
    saved = settings_in(content(conf))
    assert flat(SearchConf, saved.config)["search.trials"] == 7
    assert entries(saved.config)["space.args.width"] == 4
    assert saved.config["seed"] == 5
    assert saved.withheld == {}


def test_settings_and_arguments_that_this_version_does_not_have_are_left_out(tmp_path):
    gone = {"name": "tpe", "n_startup_trials": 3, "multivariate": True, "n_ei_candidates": 24}
    whole = planted(SearchConf, {"sampler": gone, "search.keep_fraction": 0.3})
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(whole))
    saved = read_settings(tmp_path / "config.yaml")
    assert saved.config["sampler"] == saved.whole["sampler"] == {"name": "tpe", "n_startup_trials": 3}
    assert saved.withheld == {}


@pytest.mark.parametrize("name", [name for name in RUN_NAMES if "." not in name.strip(".")])
def test_a_folder_of_a_run_that_leads_elsewhere_is_refused(tmp_path, name):
    (tmp_path / "theirs").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / name).symlink_to(tmp_path / "theirs")
    with pytest.raises(StorageError, match=f"{name}: a link to .*theirs"):
        RunFolder(tmp_path / "run").refuse_links()


def test_a_link_within_a_run_is_refused_where_it_is_read_and_the_run_itself_may_be_one(tmp_path):
    (tmp_path / "theirs").write_text("seed: 1\n")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").symlink_to(tmp_path / "theirs")
    with pytest.raises(StorageError, match=r"config.yaml: a link to"):
        read_settings(RunFolder(tmp_path / "run").config)
    (tmp_path / "run" / "config.yaml").unlink()
    (tmp_path / "run" / "config.yaml").write_text("seed: 1\n")
    (tmp_path / "again").symlink_to(tmp_path / "run")
    assert read_settings(RunFolder(tmp_path / "again").config).config == {"seed": 1}


@pytest.mark.slow
def test_planted_lines_are_not_executed_connected_to_or_written_elsewhere():
    words = [sys.executable, "-m", "benchmarks", "foreign", "--lines", "12", "--seed", "7"]
    done = subprocess.run(words, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("chosen", [["x"], "tpe", {"name": 3}, 7])
def test_a_damaged_choice_is_named(tmp_path, chosen):
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(planted(SearchConf, {"sampler": chosen})))
    with pytest.raises(StorageError, match=r"config.yaml: damaged \(sampler is"):
        read_settings(tmp_path / "config.yaml")
