"""A training that is killed, stopped or damaged goes on to the very same weights, or is refused by name."""

from __future__ import annotations

import json
import os
import shlex
import signal
import time
from pathlib import Path

import pytest
import torch

from l2l_nas.__main__ import main
from tests.cli.runs import contents, events
from tests.cli.test_train import OWN, QUICK, digests, read
from tests.nursery import Nursery
from tests.studies import change_result

LONG = ("train", OWN, "run=run", "export=false", "train.steps=150", "train.validation_steps=4")
EAGER_SAVES = ("train.checkpoint_seconds=0.02",)


@pytest.fixture(scope="module")
def nursery():
    nursery = Nursery(__name__, "l2l_nas.cli.train", "torch._dynamo", "matplotlib.figure")
    yield nursery
    nursery.close()


def command(place: str, *words: str) -> None:
    """The command in a process that has its imports behind it; what it says into files."""
    os.chdir(place)
    for number, name in ((1, "out.txt"), (2, "err.txt")):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    torch.set_num_threads(1)
    os._exit(main(list(words)))


def wait_for(folder: Path, validations: int) -> None:
    deadline = time.monotonic() + 60
    while len(events(folder, "validation")) < validations:
        assert time.monotonic() < deadline
        time.sleep(0.002)


# masks and dropout are drawn at each step; the order of the sequences anew in each epoch
TEXT = (
    *(
        "train",
        "space=bert",
        "architecture=original",
        "data.source=text.jsonl",
        "data.length=16",
        "data.validation_fraction=0.1",
        "data.test_fraction=0.1",
    ),
    *("space.args.hidden=16", "space.args.depth=1", "space.args.heads=2", "train.batch_size=8", "train.micro_batch=3"),
    *("train.steps=50", "train.validation_steps=4"),
)


@pytest.mark.slow
@pytest.mark.parametrize(("words", "moments"), [(LONG, (3, 15, 27)), (TEXT, (2, 6, 9))], ids=["digits", "text"])
def test_a_training_killed_at_any_moment_goes_on_to_the_very_same_weights(words, moments, finished, tmp_path, nursery):
    lines = [json.dumps({"text": f"document {number} says {number * number}"}) for number in range(160)]
    Path("text.jsonl").write_text("\n".join(lines))
    assert main([*words, "folder=whole"]) == 0
    folder = tmp_path / "cut"
    for validations in moments:
        go_on = ["resume=cut"] if folder.exists() else []
        process = nursery.start(command, str(tmp_path), *words, *EAGER_SAVES, "folder=cut", *go_on)
        wait_for(folder, validations)
        assert nursery.kill(process) == -signal.SIGKILL
        assert not Path("err.txt").read_text()
    assert not (folder / "result.json").exists()
    own = [word for word in words if word == OWN]
    assert main(["train", *own, "resume=cut"]) == 0  # the settings are those of the folder
    for name in ("weights", "best"):
        assert digests(folder / name) == digests(tmp_path / "whole" / name)
    for name in ("best", "last", "validations", "objectives"):
        assert read("cut")[name] == read("whole")[name]
    assert not list(folder.rglob("*.tmp*"))


@pytest.mark.slow
def test_ctrl_c_saves_and_says_how_to_go_on(finished, tmp_path, nursery):
    process = nursery.start(command, str(tmp_path), *LONG, "folder=cut")
    wait_for(tmp_path / "cut", 3)
    os.kill(process, signal.SIGINT)
    assert nursery.wait(process) == 130
    assert not Path("err.txt").read_text()
    step = read("cut/weights", "manifest.json")["extra"]["step"]
    assert 0 < step < 150
    assert Path("out.txt").read_text().splitlines()[-1] == (
        f"stopped after {step} of 150 steps, all saved. "
        "Go on with: python -m l2l_nas train resume=cut space.pool=tiny.py:build"
    )
    assert main(["train", OWN, "resume=cut"]) == 0
    assert read("cut")["last"]["step"] == 150


@pytest.mark.slow
def test_a_training_that_was_killed_before_it_had_settings_is_started(finished):
    Path("cut").mkdir()
    for folder in ("cut", "never"):
        assert main([*QUICK, "run=run", f"folder={folder}", f"resume={folder}"]) == 0
        assert read(folder)["last"]["step"] == 20


@pytest.mark.slow
def test_a_damaged_training_is_refused_by_name_and_left_as_it_is(finished, tmp_path, refused):
    assert main([*QUICK, "run=run", "weights=pool"]) == 0
    state = next(Path("out/weights").glob("stem-*.safetensors"))
    whole = state.read_bytes()
    state.write_bytes(whole[:-1] + b"x")
    before = contents(tmp_path)
    assert f"{state}: damaged" in refused("train", OWN, "resume=out")
    assert contents(tmp_path / "out" / "weights") == {
        name.removeprefix("out/weights/"): digest for name, digest in before.items() if name.startswith("out/weights/")
    }
    state.write_bytes(whole)
    Path("out/config.yaml").write_text("space: [")
    assert "out/config.yaml: damaged" in refused("train", OWN, "resume=out")


@pytest.mark.slow
def test_an_unfinished_training_has_no_result_and_says_how_to_get_one(finished, tmp_path, refused):
    assert main([*QUICK, "run=run"]) == 0
    change_result("out", lambda _: None)
    assert "go on with: python -m l2l_nas train resume=out space.pool=tiny.py:build" in refused(
        "evaluate", "run=out", "space.pool=tiny.py:build"
    )


TOY = ("train", OWN, "architecture=original", "train.validation_steps=5", "export=false")


def test_a_finished_training_says_so_and_writes_nothing(pool, tmp_path, capsys):
    assert main([*TOY, "train.steps=10", "folder=out"]) == 0
    before = contents(tmp_path)
    capsys.readouterr()
    assert main(["train", OWN, "resume=out", "relay.threads=1"]) == 0  # how fast it was is nothing else
    line = capsys.readouterr().out.strip()
    said, _, command = line.partition("; for more: ")
    assert said == "finished: 10 of 10 steps are done and the result is written, nothing to do"
    assert contents(tmp_path) == before
    assert main(shlex.split(command)[3:]) == 0
    assert read("out")["last"]["step"] == 20
    for lost in ("result.json", "log.jsonl"):
        Path("out", lost).unlink()
        assert main(["train", OWN, "resume=out"]) == 0
        assert read("out")["last"]["step"] == 20


def test_a_training_that_goes_on_counts_the_seconds_of_earlier_sessions(pool):
    assert main([*TOY, "train.steps=10", "folder=out"]) == 0
    log = Path("out/log.jsonl")
    first, *others = map(json.loads, log.read_text().splitlines())
    assert first["event"] == "start"
    first["time"] -= 1000
    log.write_text("".join(json.dumps(event) + "\n" for event in (first, *others)))
    assert main(["train", OWN, "resume=out", "train.steps=15"]) == 0
    assert 1000 < read("out")["seconds"] < 1100


@pytest.mark.slow
def test_a_finished_training_exports_what_it_has_not_yet(pool):
    assert main([*TOY, "train.steps=5", "folder=out"]) == 0
    assert main(["train", OWN, "resume=out", "export=true"]) == 0
    assert Path("out/export/model.pt2").exists()
