"""`train` after a search, from scratch and from its weights: what it takes over, begins with and refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import yaml

from l2l_nas import AdamW, Classification, ParamServer, Relay
from l2l_nas.__main__ import main
from l2l_nas.eps.checkpoint import Checkpoint
from l2l_nas.runs.locate import load_problem
from l2l_nas.training.fit import evaluate, in_micro_batches
from tests.cli.runs import TINY, contents, events, write_pool
from tests.studies import change_result

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
        assert capsys.readouterr().out.count("as reported") == 2
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


def test_the_best_weights_are_read_once(tmp_path, monkeypatch):
    write_pool(tmp_path)
    monkeypatch.chdir(tmp_path)
    load, read_folders = Checkpoint.load, []

    def noted(checkpoint, *args, **options):
        read_folders.append(checkpoint.folder.name)
        return load(checkpoint, *args, **options)

    monkeypatch.setattr(Checkpoint, "load", noted)
    assert main(["train", OWN, "architecture=original", "train.steps=2", "folder=out", "export=false"]) == 0
    assert read_folders.count("best") == 1


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
    for damaged in ([1], "best"):
        change_result("run", lambda _, damaged=damaged: damaged)  # a training does not need it
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
@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["architecture=missing.json"], "missing.json: no such file or folder"),
        (["architecture=run"], "architecture=run is a folder; the best of a run is named run=run"),
        (["run=empty"], "empty: holds no architecture.json"),
        (["architecture=torn.json"], "torn.json: damaged, not JSON"),
        (["architecture=number.json"], "number.json: not an architecture"),
        (["architecture=other.json"], "'layer0' is 'stem' here); name the space it is from by space.pool="),
        (["architecture=unknown.json"], "position 'layer0': no candidate 'conv3'"),
        (["architecture=run/result.json", "space.args.depth=5"], "has 7 choices, got 6"),
        (["run=run", "trial=99"], "study.log: has no trial 99; it has 0 to"),
        (["architecture=mine.json", "trial=1"], "trial=1 is one of a search: name that by run="),
        (["run=run", "weights=pol"], "weights: no 'pol'; did you mean 'pool'?"),
        (["architecture=mine.json", "weights=best"], "weights=best: of which run?"),
        (["run=run", "weights=run"], "run: holds no weights; in a run they are in weights/ and best/"),
        (
            ["run=run", "weights=foreign"],
            "foreign/manifest.json: these weights belong to another layer by the name stem/linear",
        ),
        (["run=run", "folder=run"], "run already holds a run"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(finished, tmp_path, refused, words, says):
    best = read("run")["best"]["architecture"]
    names = read("run", "architecture.json")["positions"]
    Path("empty").mkdir()
    Path("torn.json").write_text('{"choices": ["lin')
    files = {
        "number": {"choices": 5},
        "mine": {"choices": best},
        "other": {"choices": best, "positions": ["layer0", *names[1:]]},
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
    says = "name it again: space.pool=tiny.py:build"
    assert says in refused("train", "run=run", "folder=out")
    config = yaml.safe_load(Path("run/config.yaml").read_text())
    config["space"]["pool"] = {"_target_": "os.system"}
    Path("run/config.yaml").write_text(yaml.safe_dump(config))
    assert "config.yaml: damaged (space.pool is" in refused("train", "run=run", "folder=out")
    assert not Path("imported").exists()


def test_the_first_candidates_are_trained_without_a_search(pool, refused):
    assert main(["train", OWN, "architecture=original", "train.steps=5", "folder=first", "export=false"]) == 0
    assert read("first", "architecture.json")["choices"] == ["linear", *["linear"] * 4, "linear"]
    assert main(["train", OWN, "resume=first"]) == 0
    assert "name what to train" in refused("train", OWN, "folder=second")
