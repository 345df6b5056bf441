"""`train` after a search, from scratch and from its weights: resumed, stopped, refused; then evaluated and exported."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from l2l_nas import AdamW, Classification, ParamServer, Relay, plain_module
from l2l_nas.__main__ import main
from l2l_nas.eps.checkpoint import Checkpoint
from l2l_nas.report.text import with_error
from l2l_nas.runs.locate import load_problem
from l2l_nas.training.fit import evaluate, in_micro_batches
from tests.cli.runs import TINY, contents, events
from tests.nursery import Nursery

OWN = "space.pool=tiny.py:build"
SHORT = ("train", OWN, "train.steps=20", "train.validation_steps=5", "folder=out")
QUICK = (*SHORT, "export=false")


def read(folder: Path | str, name: str = "result.json"):
    return json.loads((Path(folder) / name).read_text())


def digests(folder: Path) -> dict[str, str]:
    return {key: entry["sha256"] for key, entry in read(folder, "manifest.json")["states"].items()}


def problem():
    return load_problem("tiny.py:build", {}, source="digits", validation_fraction=0.2)


@pytest.mark.slow
def test_what_a_search_found_is_trained_evaluated_and_exported_with_one_metric_throughout(finished, capsys):
    for number, source in enumerate(("scratch", "pool")):
        folder = f"trained{number}"
        words = [*SHORT, f"weights={source}", f"folder={folder}"]
        assert main([*words, "architecture=run/architecture.json"]) == 0
        capsys.readouterr()
        best = read(folder)["best"]
        assert best["architecture"] == read("run")["best"]["architecture"]
        assert {"accuracy", "loss", "parameters"} <= best["values"].keys() <= read("run")["best"]["values"].keys()
        assert main(["evaluate", f"run={folder}", "space.pool=tiny.py:build"]) == 0
        assert capsys.readouterr().out.count("as reported") == 2
        given = read(folder, "export/export.json")
        assert given["values"] == {name: best["values"][name] for name in ("accuracy", "loss")}
        assert [entry["values"] for entry in given["formats"].values()] == [given["values"]] * 3
        assert given["weights"] == f"{folder}/best"
        network = torch.export.load(f"{folder}/export/model.pt2").module()
        split = problem().data.validation
        with torch.no_grad():
            got = in_micro_batches(lambda batch: (network(*batch),), split.inputs, 128)  # noqa: B023
        assert Classification().measure(got, split.targets)["accuracy"] == best["values"]["accuracy"]
        assert (Path(folder) / "learning_curve.png").exists()
        assert best["validation"] == given["values"]
        assert main(["evaluate", f"run={folder}", "space.pool=tiny.py:build", "split=test"]) == 0
        lines = capsys.readouterr().out.splitlines()[1:]
        for (name, value), line in zip(best["test"].items(), lines, strict=True):
            error = best["standard_error"]["test"][name]
            assert line.split() == ["test", name, *with_error(name, value, error).split(), "as", "reported"]
    assert digests(Path("trained0/best")) != digests(Path("trained1/best"))


@pytest.mark.slow
def test_onnx_gives_the_reported_accuracy_too(finished, capsys):
    onnxruntime = pytest.importorskip("onnxruntime")
    assert main([*QUICK, "run=run"]) == 0
    assert (
        main(["export", "run=out", "space.pool=tiny.py:build", "formats=[state_dict,program,onnx]", "out=network"]) == 0
    )
    said = capsys.readouterr().out
    best = read("out")["best"]["values"]
    assert said.count(f"accuracy {best['accuracy']:.4f} as reported") == 4
    assert "warning" not in said
    given = read("network", "export.json")
    assert {entry["values"]["accuracy"] for entry in given["formats"].values()} == {best["accuracy"]}
    assert given["reported"] == best
    x, y = problem().data.validation.inputs[0], problem().data.validation.targets
    session = onnxruntime.InferenceSession("network/model.onnx")
    hits = (session.run(None, {"input": x.numpy()})[0].argmax(-1) == y.numpy()).mean()
    assert hits == best["accuracy"]


@pytest.mark.slow
def test_the_network_is_had_as_a_plain_module_by_two_calls_of_python(finished):
    from safetensors.torch import load_file

    from l2l_nas import Architecture

    assert main([*SHORT, "run=run"]) == 0
    architecture = Architecture.from_json(Path("out/architecture.json").read_text())
    network = plain_module(problem().pool, architecture)
    network.load_state_dict(load_file("out/export/state_dict.safetensors"))
    split = problem().data.validation
    with torch.no_grad():
        values = Classification().measure((network(*split.inputs),), split.targets)
    assert values["accuracy"] == read("out")["best"]["values"]["accuracy"]


@pytest.mark.slow
def test_a_training_begins_with_the_weights_named(finished):
    best = read("run")["best"]
    assert main([*QUICK, "architecture=run/result.json", "weights=best"]) == 0
    first = read("out")["validations"][0]
    assert first["step"] == 0
    assert first["values"] == {name: best["values"][name] for name in ("accuracy", "loss")}
    words = [*QUICK, "run=run", "folder=pool", "weights=run/weights", "optimizer=sgd", "seed=5"]
    assert main(words) == 0
    pool = problem().pool
    server = ParamServer(pool, optimizer=AdamW((0.9, 0.98), 1e-8, 0.05), seed=0)
    Checkpoint(Path("run/weights")).load(server)
    expected = evaluate(
        Relay(server, device="cpu"),
        pool.architecture(best["architecture"]),
        problem().data.validation,
        task=Classification(),
        micro_batch=128,
    )
    assert read("pool")["validations"][0]["values"] == expected
    assert read("pool")["weights"] == "run/weights"


@pytest.mark.slow
def test_no_steps_score_the_last_weights_of_a_training(finished):
    assert main([*QUICK, "run=run"]) == 0
    again = [*QUICK, "run=out", "weights=out/weights", "train.steps=0", "folder=last"]
    assert main(again) == 0
    assert read("last")["best"]["values"] == read("out")["last"]["values"]
    assert read("last")["best"]["step"] == 0


@pytest.mark.slow
def test_settings_are_those_of_the_run_named_unless_given(pool, tmp_path):
    own = [f"space.pool={pool}", "space.args.depth=3", "space.args.width=6", "train.batch_size=32", "seed=3"]
    relay = ["relay.update=exact", "relay.threads=1", "objectives=[loss]"]
    assert main(["search", *own, *TINY, *relay, "folder=run", "search.trials=3"]) == 0
    assert main([*QUICK, "run=run", "space.args.samples=200", "train.batch_size=40"]) == 0
    config = yaml.safe_load((tmp_path / "out" / "config.yaml").read_text())
    assert config["space"] == {"pool": pool, "args": {"depth": 3, "width": 6, "samples": 200}}
    assert (config["seed"], config["train"]["batch_size"], config["relay"]["update"]) == (3, 40, "exact")
    assert config["metric"] == "loss"
    assert config["train"]["learning_rate"] == 0.008  # the command's own
    assert read("out")["objectives"] == [{"name": "loss", "maximize": False}]


def test_other_data_than_those_of_the_run_are_told(finished, capsys):
    others = "the validation and test data are others than those of run;"
    assert main([*QUICK, "run=run"]) == 0
    assert others not in capsys.readouterr().out
    own = finished.parent / "tiny.py"
    own.write_text(own.read_text().replace("manual_seed(0)", "manual_seed(1)"))
    assert main([*QUICK, "run=run", "weights=best", "folder=other"]) == 0
    assert others in " ".join(capsys.readouterr().out.split())
    for damaged in ("[1]", "{"):
        Path("run/result.json").write_text(damaged)  # a training does not need it
        assert main([*QUICK, "run=run", "weights=best", f"folder=again{len(damaged)}"]) == 0


@pytest.mark.slow
def test_any_trial_of_a_search_can_be_trained(finished):
    trial = next(event for event in events(finished) if not event["cached"] and event["number"] > 2)
    assert main([*QUICK, "run=run", f"trial={trial['number']}"]) == 0
    assert read("out")["best"]["architecture"] == trial["architecture"]


@pytest.mark.slow
def test_layers_that_the_weights_lack_are_told(finished, capsys):
    best = read("run")["best"]["architecture"]
    other = ["tanh" if name != "tanh" else "relu" for name in best[1:-1]]
    Path("mine.json").write_text(json.dumps({"choices": ["linear", *other, "linear"]}))
    assert main([*QUICK, "architecture=mine.json", "weights=run/best"]) == 0
    assert "4 of 6 layers are not in there and begin from seed 0" in capsys.readouterr().out


@pytest.mark.slow
def test_the_relay_s_settings_work(finished):
    words = ["relay.precision=bf16", "relay.update=exact", "relay.clip=1.0", "relay.storage=file", "relay.slots=1"]
    assert main([*QUICK, "run=run", *words, "relay.budget=none", "relay.trace=true"]) == 0
    assert not Path("out/pool").exists()
    assert Path("out/trace.json").exists()
    assert main(["evaluate", "run=out", "space.pool=tiny.py:build"]) == 0


@pytest.mark.slow
def test_a_sweep_trains_once_for_each_seed(finished, capsys):
    assert main([*QUICK, "-m", "run=run", "seed=0,1", "folder=sweep"]) == 0
    for number in range(2):
        assert 0 < read(f"sweep/{number}")["best"]["values"]["accuracy"] <= 1
    assert digests(Path("sweep/0/weights")) != digests(Path("sweep/1/weights"))


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
        "data.splits=[8,1,1]",
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


def test_micro_batches_of_one_sample_are_refused_before_a_folder_is_begun(pool, tmp_path, refused):
    text = Path("tiny.py").read_text()
    Path("tiny.py").write_text(text.replace("nn.Linear(width, width), act()", "nn.BatchNorm1d(width), act()"))
    words = ["train", OWN, "architecture=original.json", "train.steps=5", "folder=out"]
    Path("original.json").write_text(json.dumps({"choices": ["linear", *["tanh"] * 4, "linear"]}))
    line = refused(*words, "train.batch_size=16", "train.micro_batch=5")
    assert "cannot train on one sample alone" in line
    assert "choose train.batch_size and train.micro_batch" in line
    assert not Path("out").exists()
    assert main([*words, "train.batch_size=16", "train.micro_batch=8", "export=false"]) == 0


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
@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "name what to train: run=runs/..., its best; architecture=FILE.json; or architecture=original"),
        (["architecture=missing.json"], "missing.json: no such file or folder"),
        (["architecture=run"], "architecture=run is a folder; the best of a run is named run=run"),
        (["run=missing"], "run=missing: no such folder"),
        (["run=empty"], "empty: holds no architecture.json"),
        (["architecture=torn.json"], "torn.json: damaged, not JSON"),
        (["architecture=list.json"], "list.json: not an architecture"),
        (["architecture=number.json"], "number.json: not an architecture"),
        (["architecture=other.json"], "'layer0' is 'stem' here); name the space it is from by space.pool="),
        (["architecture=short.json"], "short.json: made for another search space (2 positions, there are 6 here)"),
        (["architecture=unknown.json"], "position 'layer0': no candidate 'conv3'"),
        (["run=run", "space.args.depth=5"], "made for another search space"),
        (["architecture=run/result.json", "space.args.depth=5"], "has 7 choices, got 6"),
        (["run=run", "trial=99"], "study.log: has no trial 99; it has 0 to"),
        (["run=run", "trial=-7"], "trial must be at least -1, the best, got -7"),
        (["architecture=mine.json", "trial=1"], "trial=1 is one of a search: name that by run="),
        (["run=run", "weights=pol"], "weights: no 'pol'; did you mean 'pool'?"),
        (["run=run", "weights=some/where"], "some/where: holds no weights"),
        (["architecture=mine.json", "weights=best"], "weights=best: of which run?"),
        (["run=run", "weights=run"], "run: holds no weights; in a run they are in weights/ and best/"),
        (
            ["run=run", "weights=foreign"],
            "foreign/manifest.json: these weights belong to another layer by the name stem/linear",
        ),
        (["run=run", "metric=acuracy"], "metric: no metric 'acuracy'; did you mean 'accuracy'?"),
        (["run=run", "train.steps=-1"], "train.steps must be at least 0, got -1"),
        (["run=run", "train.learning_rate=0"], "the learning rate must be above 0"),
        (["run=run", "train.micro_batch=0"], "train.micro_batch must be at least 1, got 0"),
        (["run=run", "seed=-1"], "seed must be at least 0"),
        (["run=run", "relay.storage=disk"], "relay.storage: no 'disk'; choose from ram, file"),
        (["run=run", "folder=run"], "run already holds a run"),
        (["resume=nowhere"], "resume=nowhere: no such folder"),
        (["resume=run"], "run holds a search; go on with it by: python -m l2l_nas search resume=run"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(finished, tmp_path, refused, words, says):
    best = read("run")["best"]["architecture"]
    names = read("run", "architecture.json")["positions"]
    Path("empty").mkdir()
    Path("torn.json").write_text('{"choices": ["lin')
    files = {
        "list": ["linear"],
        "number": {"choices": 5},
        "mine": {"choices": best},
        "other": {"choices": best, "positions": ["layer0", *names[1:]]},
        "short": {"choices": best[:2], "positions": names[:2]},
        "unknown": {"choices": ["linear", "conv3", *best[2:]]},
    }
    for name, content in files.items():
        Path(f"{name}.json").write_text(json.dumps(content))
    wider = load_problem("tiny.py:build", {"width": 9}, source="digits", validation_fraction=0.2).pool
    Checkpoint(Path("foreign")).save(ParamServer(wider, optimizer=AdamW(), seed=0))
    before = contents(tmp_path)
    line = refused(*QUICK, *words)
    assert says in line, line
    assert contents(tmp_path) == before
    assert not Path("out").exists()


@pytest.mark.slow
def test_a_pool_of_ones_own_is_never_imported_unless_it_is_named(finished, tmp_path, refused):
    Path("tiny.py").write_text("open('imported', 'w')\n")
    says = "one of your own; name it again: space.pool=tiny.py:build"
    assert says in refused("train", "run=run", "folder=out")
    config = yaml.safe_load(Path("run/config.yaml").read_text())
    config["space"]["pool"] = {"_target_": "os.system"}
    Path("run/config.yaml").write_text(yaml.safe_dump(config))
    assert "config.yaml: damaged (space.pool is" in refused("train", "run=run", "folder=out")
    assert not Path("imported").exists()


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
def test_another_architecture_and_other_data_are_not_gone_on_with(finished, refused):
    assert main([*QUICK, "run=run"]) == 0
    best = read("run")["best"]["architecture"]
    Path("mine.json").write_text(json.dumps({"choices": ["linear", "tanh", "tanh", "tanh", "relu", "linear"]}))
    assert best != read(".", "mine.json")["choices"]
    assert "architecture=mine.json is not the architecture that out trains" in refused(
        "train", OWN, "resume=out", "architecture=mine.json"
    )
    assert "trained with other validation data" in refused("train", OWN, "resume=out", "space.args.samples=200")
    assert main(["train", OWN, "resume=out", "run=run"]) == 0


@pytest.mark.slow
def test_an_unfinished_training_has_no_result_and_says_how_to_get_one(finished, tmp_path, refused):
    assert main([*QUICK, "run=run"]) == 0
    Path("out/result.json").unlink()
    assert "go on with: python -m l2l_nas train resume=out space.pool=tiny.py:build" in refused(
        "evaluate", "run=out", "space.pool=tiny.py:build"
    )


NORMED = """\
import torch
from torch import nn
from l2l_nas import Candidate, Data, LayerPool, Position, Problem, TensorSpec

def build():
    kinds = {"tanh": nn.Tanh, "relu": nn.ReLU}
    def layer(act):
        return lambda: nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), act())
    pool = LayerPool(
        [
            Position("stem", Candidate("linear", lambda: nn.Linear(2, 8))),
            *(Position(f"layer{i}", [Candidate(name, layer(act)) for name, act in kinds.items()]) for i in range(2)),
            Position("head", Candidate("linear", lambda: nn.Linear(8, 2))),
        ],
        inputs=TensorSpec((2,)),
    )
    x = torch.rand(300, 2, generator=torch.Generator().manual_seed(0)) * 4 - 2
    return Problem(pool, Data.from_arrays(x, (torch.sin(2 * x[:, 0]) > x[:, 1]).long()))
"""


def plainly_recalibrated(network: torch.nn.Module, batches: list[torch.Tensor]) -> torch.nn.Module:
    """PyTorch's own cumulative averages."""
    for module in network.modules():
        if isinstance(module, torch.nn.BatchNorm1d):
            module.reset_running_stats()
            module.momentum = None
            module.train()
    with torch.no_grad():
        for batch in batches:
            network(batch)
    return network.eval()


@pytest.mark.slow
def test_batch_norm_is_measured_anew_as_plain_pytorch_would(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("normed.py").write_text(NORMED)
    own = "space.pool=normed.py:build"
    Path("mine.json").write_text(json.dumps({"choices": ["linear", "tanh", "relu", "linear"]}))
    words = ["train", own, "architecture=mine.json", "folder=out", "train.steps=25", "train.batch_size=16"]
    assert main([*words, "train.micro_batch=16", "train.recalibrate=2", "train.validation_steps=10"]) == 0
    before = contents(tmp_path)
    capsys.readouterr()
    assert main(["evaluate", "run=out", "space.pool=normed.py:build", "recalibrate=9"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert contents(tmp_path) == before
    assert [line.split()[-2:] for line in said[1:3]] == [["as", "reported"]] * 2
    assert said[3].startswith("BatchNorm measured anew on 9 training batches")

    problem = load_problem("normed.py:build", {}, source="digits", validation_fraction=0.2)
    network = torch.export.load("out/export/model.pt2").module()
    architecture = problem.pool.architecture(["linear", "tanh", "relu", "linear"])
    plain = plain_module(problem.pool, architecture)
    plain.load_state_dict(network.state_dict())
    order = np.random.default_rng([0, 0]).permutation(len(problem.data.train))
    batches = [problem.data.train.inputs[0][order[16 * i : 16 * i + 16]] for i in range(9)]
    plainly_recalibrated(plain, batches)
    with torch.no_grad():
        outputs = torch.cat([plain(part) for part in problem.data.validation.inputs[0].split(16)])
    expected = Classification().measure((outputs,), problem.data.validation.targets)
    printed = {line.split()[1]: line.split()[2] for line in said[4:6]}
    assert printed == {name: f"{value:.4f}" for name, value in expected.items()}
    reported = read("out")["best"]["values"]
    assert f"{reported['loss']:.4f}" != printed["loss"]

    # the same, held: no steps from the best weights
    again = ["train", own, "run=out", "weights=best", "train.steps=0", "train.recalibrate=9", "folder=held"]
    assert main(again) == 0
    held = read("held")["best"]["values"]
    assert {name: held[name] for name in expected} == expected
    assert read("held", "export/export.json")["values"] == expected


def test_recalibration_of_a_network_without_statistics_says_so(finished, capsys, refused):
    assert main(["evaluate", "run=run", "space.pool=tiny.py:build", "recalibrate=3"]) == 0
    assert "there is nothing to recalibrate" in capsys.readouterr().out
    assert "recalibrate must be at least 0" in refused("evaluate", "run=run", "recalibrate=-1")


@pytest.mark.slow
def test_export_says_what_is_missing_and_names_the_extra(finished, refused, monkeypatch):
    assert "formats: no format 'onyx'; did you mean 'onnx'?" in refused("export", "run=run", "formats=[onyx]")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    line = refused("export", "run=run", "formats=[onnx]")
    assert line.endswith("not installed: pip install 'l2l-nas[onnx]'")


def test_the_first_candidates_are_trained_without_a_search(pool, refused):
    assert main(["train", OWN, "architecture=original", "train.steps=5", "folder=first", "export=false"]) == 0
    assert read("first", "architecture.json")["choices"] == ["linear", *["linear"] * 4, "linear"]
    assert main(["train", OWN, "resume=first"]) == 0
    assert "name what to train" in refused("train", OWN, "folder=second")
