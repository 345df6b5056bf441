"""Run folders that mean harm: nothing in them is executed, resolved, followed or shown raw; they end in one line.

What a single setting may say, `tests/runs/test_folder_settings.py` tries; whole lines at random,
`python -m benchmarks foreign`.
"""

from __future__ import annotations

import json
import os
import pickle
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from l2l_nas.__main__ import main
from l2l_nas.eps.manifest import digest_of
from tests.cli.runs import contents
from tests.studies import change_events, change_result

POOL = "space.pool=tiny.py:build"
READERS = {
    "resume": ["search", "resume=run", "search.trials=13"],
    "learn_from": ["search", "search.learn_from=run", "search.trials=2", "search.finalists=0", "folder=new"],
    "train": ["train", "run=run", "train.steps=2", "export=false", "folder=new"],
    "evaluate": ["evaluate", "run=run"],
    "export": ["export", "run=run", "formats=[state_dict]", "out=new"],
    "report": ["report", "run=run"],
}
SECRET = "the-secret-of-this-machine"
ESCAPE = "\x1b]0;owned\x07\x1b[2J\u202e"
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


class Executed:
    """Writes a file where it is unpickled."""

    def __reduce__(self):
        return Path.touch, (Path("outside/executed").absolute(),)


def config(change):
    def harm(run):
        content = yaml.safe_load((run / "config.yaml").read_text())
        change(content)
        (run / "config.yaml").write_text(yaml.safe_dump(content))

    return harm


def setting(name, value):
    def change(content):
        *sections, leaf = name.split(".")
        for section in sections:
            content = content.setdefault(section, {})
        content[leaf] = value

    return config(change)


def text(name, old, new):
    def harm(run):
        before = (run / name).read_text()
        assert re.search(old, before), name
        (run / name).write_text(re.sub(old, lambda match: new, before))

    return harm


def result(change):
    def changed(content):
        change(content)
        return content

    return lambda run: change_result(run, changed)


def state_file(name):
    """The file of each state has another name, and the manifest's own checksum is right."""

    def harm(run):
        path = run / "best" / "manifest.json"
        content = json.loads(path.read_text())
        for entry in content["states"].values():
            entry["file"] = name
        path.write_text(json.dumps({**content, "sha256": digest_of(content)}))

    return harm


def all_strings(run):
    """Every text of a result that is no key and no name of a candidate's, with escapes of a terminal."""

    def shown(value):
        if isinstance(value, dict):
            return {key: shown(one) for key, one in value.items()}
        if isinstance(value, list):
            return [shown(one) for one in value]
        return value + ESCAPE if isinstance(value, str) else value

    result(lambda content: content.update(shown(content)))(run)


def fifo(name):
    def harm(run):
        (run / name).unlink(missing_ok=True)
        os.mkfifo(run / name)

    return harm


def hard_link(name):
    """A second name of a file that lies outside of the run."""

    def harm(run):
        shutil.copy(run / name, f"outside/{name}")
        (run / name).unlink()
        os.link(f"outside/{name}", run / name)

    return harm


def link_to_outside(name):
    def harm(run):
        (run / name).parent.mkdir(exist_ok=True, parents=True)
        if (run / name).is_dir():
            shutil.rmtree(run / name)
        (run / name).unlink(missing_ok=True)
        (run / name).symlink_to(Path("outside").absolute())

    return harm


def pickled(run):
    np.savez("outside/data.npz", x=np.array([Executed()], dtype=object), y=np.array([0]))
    setting("data.source", "outside/data.npz")(run)


def weights_of_a_pickle(run):
    for path in (run / "best").glob("*.safetensors"):
        path.write_bytes(pickle.dumps(Executed()))
        torch.save({"x": Executed()}, path)


def fifo_of_data(run):
    os.mkfifo("outside/data.npz")
    setting("data.source", "outside/data.npz")(run)


TAG = "!!python/object/apply:os.system ['touch outside/executed']"
TARGET = {"_target_": "os.system", "_args_": ["touch outside/executed"]}
HYDRA = {
    "run": {"dir": "outside/run"},
    "sweep": {"dir": "outside/sweep", "subdir": "../outside"},
    "launcher": TARGET,
    "callbacks": {"mine": TARGET},
    "output_subdir": "../outside/hydra",
    "searchpath": ["file://outside"],
}
HARMS = {
    "a tag of YAML": text("config.yaml", "seed: 0", f"seed: {TAG}"),
    "a target at the top": config(lambda content: content.update(TARGET)),
    "a target in a section": config(lambda content: content["train"].update(TARGET)),
    "a target as a choice": setting("sampler", {**TARGET, "name": "_target_"}),
    "settings of Hydra": setting("hydra", HYDRA),
    "defaults of Hydra": setting("defaults", [{"override hydra/launcher": "joblib"}, "_self_"]),
    "an interpolation in a number": setting("seed", "${oc.env:SECRET}"),
    "an interpolation in arguments": setting("space.args", {"width": "${oc.env:SECRET}"}),
    "an interpolation in a path": setting("data.source", "${oc.env:SECRET}"),
    "an interpolation in a name": setting("objectives", {"names": ["${oc.env:SECRET}"]}),
    "a device as a pool": setting("space.pool", "hf:/dev/zero"),
    "an address as a pool": setting("space.pool", "hf:http://127.0.0.1:9/model"),
    "a device of data": setting("data.source", "/dev/zero"),
    "a pipe of data": fifo_of_data,
    "a pickle of data": pickled,
    "a huge number": setting("train.batch_size", 10**400),
    "a huge seed": setting("seed", -(10**4000)),
    "many trials": setting("search.trials", 1e308),
    "no number": setting("train.learning_rate", float("nan")),
    "many steps": setting("search.finalist_steps", 2**63),
    "escapes in a setting": setting("objectives", {"names": ["accuracy" + ESCAPE]}),
    "escapes in a key": config(lambda content: content.update({ESCAPE: ESCAPE, "executor": {"name": ESCAPE}})),
    "escapes in a result": all_strings,
    "escapes in keys of a result": result(lambda content: content["best"]["values"].update({ESCAPE: 1.0})),
    "escapes in events": lambda run: change_events(run, lambda event: {**event, ESCAPE: 1}),
    "escapes for candidates": result(lambda content: content["best"].update(architecture=[ESCAPE] * 6)),
    "a repeat that is elsewhere": result(lambda content: content["best"].update(repeat=-1)),
    "a state's file elsewhere": state_file("../../outside/weights.safetensors"),
    "a state's file by its whole path": state_file("/dev/zero"),
    "weights that are a pickle": weights_of_a_pickle,
    "a link for the best": link_to_outside("best"),
    "a link within the best": link_to_outside("best/manifest.json"),
    "a link for the export": link_to_outside("export"),
    "a link for a size": link_to_outside("sizes/small"),
    "a link for weights": link_to_outside("weights"),
    "a pipe for the study": fifo("study.log"),
    "a pipe for the result": fifo("result.json"),
    "another's study by a second name": hard_link("study.log"),
    "another's result by a second name": hard_link("result.json"),
}


@pytest.mark.slow
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("harm", HARMS)
def test_a_folder_that_means_harm_ends_in_one_line_or_is_read_without_it(
    finished, tmp_path, capsys, monkeypatch, page_may_fail, harm, reader
):
    monkeypatch.setenv("SECRET", SECRET)
    (tmp_path / "outside").mkdir()
    HARMS[harm](finished)
    before, words = contents(tmp_path / "outside") if "pipe of data" not in harm else {}, READERS[reader]
    if words[0] != "report" and "as a pool" not in harm:
        words = [words[0], POOL, *words[1:]]
    capsys.readouterr()
    code = main(words)
    said = capsys.readouterr()
    errors = [line for line in said.err.splitlines() if not line.startswith("warning: ")]
    assert (code, len(errors)) in ((0, 0), (2, 1)), said.err
    assert "Traceback" not in said.err + said.out
    assert SECRET not in said.err + said.out
    assert not CONTROL.search((said.err + said.out).replace("\n", ""))
    if "pipe of data" not in harm:
        assert contents(tmp_path / "outside") == before
    assert {path.name for path in tmp_path.iterdir()} <= {"outside", "run", "new", "tiny.py", "__pycache__"}
    for path in [*finished.glob("*"), *(tmp_path / "new").glob("*")]:
        assert not path.is_file() or SECRET not in path.read_text(errors="replace")
