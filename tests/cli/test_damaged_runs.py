"""A run whose files are damaged, or that is not there, is refused in one line and left as it is."""

from __future__ import annotations

import json
import re
import shutil

import pytest

from l2l_nas.runs.folder import locked
from tests.cli.runs import TINY, contents
from tests.studies import change_result


def damage_study(run):
    lines = (run / "study.log").read_bytes().splitlines(keepends=True)
    (run / "study.log").write_bytes(b"".join([*lines[:8], lines[8][:100] + b"\n", *lines[9:]]))


def garbage_study(run):
    (run / "study.log").write_bytes(b"garbage\n" * 3000)


def no_study(run):
    (run / "study.log").unlink()


def truncated_weights(run):
    path = next((run / "weights").glob("*.safetensors"))
    path.write_bytes(path.read_bytes()[:-5])


def no_manifest(run):
    (run / "weights" / "manifest.json").unlink()


def changed_manifest(run):
    path = run / "weights" / "manifest.json"
    path.write_text(re.sub(r'"warm_steps": \d+', '"warm_steps": 1', path.read_text()))


def empty_manifest(run):
    (run / "weights" / "manifest.json").write_text("{}")


def untouched(run):
    pass


@pytest.mark.parametrize(
    ("harm", "words", "says"),
    [
        (damage_study, [], "study.log: damaged"),
        (garbage_study, [], "study.log: damaged"),
        (no_study, [], "study.log: there is no study; check the folder"),
        (truncated_weights, [], ".safetensors: damaged"),
        (no_manifest, [], "manifest.json: no such file"),
        (changed_manifest, [], "manifest.json: damaged (checksum differs)"),
        (empty_manifest, [], "manifest.json: not a manifest of weights"),
        (untouched, ["space.args.depth=3"], "this study searches another space"),
        (untouched, ["space.args.samples=200"], "scored on other validation data"),
    ],
    ids=lambda value: value.__name__ if callable(value) else None,
)
def test_a_run_that_cannot_be_resumed_is_refused_and_left_as_it_is(refused, finished, harm, words, says):
    harm(finished)
    before = contents(finished)
    assert says in refused("search", "space.pool=tiny.py:build", *TINY, "resume=run", *words)
    assert contents(finished) == before


def test_a_second_search_in_the_same_folder_is_refused(refused, finished):
    before = contents(finished)
    with locked(finished):
        assert "another process is at work in this folder" in refused(
            "search", "space.pool=tiny.py:build", *TINY, "resume=run"
        )
    assert contents(finished) == before


def test_a_folder_that_holds_no_run_is_not_resumed(refused, pool, tmp_path):
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "letter").write_text("dear")
    assert "there is no study; check the folder" in refused("search", f"space.pool={pool}", "resume=home")
    assert contents(tmp_path / "home").keys() == {"letter"}


def test_a_folder_that_holds_a_run_is_not_overwritten(refused, finished):
    before = contents(finished)
    assert (
        "run already holds a run; go on with it by: python -m l2l_nas search resume=run space.pool=tiny.py:build;"
        in refused("search", "space.pool=tiny.py:build", "folder=run")
    )
    assert contents(finished) == before


@pytest.mark.slow
def test_evaluate_and_export_refuse_what_is_damaged(refused, finished):
    mine = "space.pool=tiny.py:build"
    assert "no split 'validaton'; did you mean 'validation'?" in refused("evaluate", "run=run", "split=validaton")
    path = next((finished / "best").glob("*.safetensors"))
    whole = path.read_bytes()
    path.write_bytes(whole[:-3])
    before = contents(finished)
    for command in ("evaluate", "export"):
        assert f"{path.name}: damaged" in refused(command, "run=run", mine)
    assert contents(finished) == before
    path.write_bytes(whole)
    study = (finished / "study.log").read_bytes()
    change_result(finished, lambda content: json.loads(json.dumps(content).replace('"loss": 0.', '"loss": 1.')))
    assert "let it finish with: python -m l2l_nas search resume=run space.pool=tiny.py:build" in refused(
        "evaluate", "run=run", mine
    )
    change_result(finished, lambda _: None)
    assert (
        "the search has not finished; go on with: python -m l2l_nas search resume=run space.pool=tiny.py:build"
        in refused("evaluate", "run=run", mine)
    )
    (finished / "study.log").write_bytes(study)
    (finished / "config.yaml").write_text("space: 5")
    assert "config.yaml, or the result of the run: damaged" in refused("evaluate", "run=run", mine)


def test_the_copy_is_what_tests_harm(finished_once, finished):
    assert contents(finished_once / "run") == contents(finished)
    shutil.rmtree(finished)
    assert contents(finished_once / "run")
