"""Each benchmark does once, as small as it can be, what it does at length."""

from __future__ import annotations

import itertools
import lzma
import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from tokenizers import Tokenizer

from benchmarks import ROOT
from benchmarks.__main__ import main
from benchmarks.models import own_layers
from benchmarks.models.pruners import PRUNERS
from benchmarks.relay import small_networks, throughput
from benchmarks.relay.work import StackSizes
from benchmarks.search import nas201, search_quality
from l2l_nas.files import read_json
from tests.cli.runs import environment


def run(*words: object) -> str:
    """A benchmark in a process of its own; what it printed."""
    command = [sys.executable, "-m", "benchmarks", *map(str, words)]
    done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def called(out, *words: object):
    """A benchmark in this process; what it wrote."""
    assert main([*map(str, words), "--out", str(out)]) == 0
    return read_json(out)


def test_depth(tmp_path):
    rows = called(tmp_path / "out.json", "depth", "--depths", 1, 6, "--device", "cpu")["rows"]
    peaks = {(row["side"], row["depth"]): row["device_bytes"] for row in rows}
    assert peaks["relay_host", 6] < peaks["relay", 6] < peaks["checkpointed", 6] < peaks["plain", 6]
    assert all(row["agreement"]["agrees"] for row in rows)


def test_throughput(tmp_path, monkeypatch):
    small = {"hidden": 32, "feedforward": 64, "sequence": 8, "batch": 8}
    monkeypatch.setattr(throughput, "StackSizes", lambda depth, device: StackSizes(depth, device=device, **small))
    words = ("--sides", "relay", "relay_kept", "plain", "fsdp2", "--depths", 1, "--rounds", 1, "--steps", 1)
    rows = called(tmp_path / "out.json", "throughput", *words)["rows"]
    sides = {row["side"]: row for row in rows}
    assert list(sides) == ["checkpointed", "relay", "relay_kept", "plain", "fsdp2", "control"]
    assert all(sides[side]["agreement"]["largest_difference"] == 0 for side in ("relay", "relay_kept", "plain"))


def test_larger_than_memory(tmp_path):
    words = ("--depth", 2, "--hidden", 64, "--candidates", 2, "--rounds", 1, "--steps", 1, "--folder", tmp_path)
    found = called(tmp_path / "out.json", "larger_than_memory", *words)
    assert found["rows"][0]["agreement"] == {"largest_difference": 0.0, "tolerance": 0.0, "agrees": True}
    assert [path.name for path in tmp_path.iterdir()] == ["out.json"]


@pytest.mark.slow
def test_small_networks(tmp_path, monkeypatch):
    monkeypatch.setattr(small_networks, "NETWORKS", 1)
    monkeypatch.setattr(small_networks, "STEPS", 1)
    rows = called(tmp_path / "out.json", "small_networks", "--threads", 1, "--rounds", 2)["rows"]
    assert len(rows) == 2 * len(small_networks.ROWS)


@pytest.mark.slow
def test_scaling(tmp_path):
    words = ("--rounds", 1, "--depth", 1, "--hidden", 64, "--sequence", 8, "--batch", 8)
    run("scaling", *words, "--out", tmp_path / "out.json")
    rows = {row["side"]: row for row in read_json(tmp_path / "out.json")["rows"]}
    assert rows["relay_chunks, 2 ranks"]["losses"]["largest_difference"] == 0
    assert all(row["losses"]["agrees"] for row in rows.values())


@pytest.mark.slow
def test_bits():
    said = run("bits", ".", "--only", "dense eager batch=5 micro_batch=1 ")
    assert said.splitlines()[-1].startswith("1 of 1 configurations are equal (0 refused)")


@pytest.mark.slow
def test_before_after():
    assert "control" in run("before_after", ".", "--kinds", "relay", "--depth", 1, "--rounds", 1)


def test_search_quality(tmp_path, monkeypatch):
    def searched(folder, *words):
        entry = {"architecture": ["a"], "steps": 5, "validation": {"accuracy": 0.5}, "test": {"accuracy": 0.6}}
        entry["standard_error"] = {"test": {"accuracy": 0.1}}
        alone = {**entry, "test": {"accuracy": 0.5}, "total_steps": 9, "networks": 6}
        return {"best": entry, "baseline": alone, "finalists": [], "versions": {}}

    monkeypatch.setattr(search_quality, "searched", searched)
    found = called(tmp_path / "out.json", "search_quality", "--seeds", 0, 1, "--beside", "sampler=random")
    assert found["summary"]["search_minus"]["random_search"]["test"]["mean"] == pytest.approx(0.1)


def test_search_peers(tmp_path, capsys):
    words = ["search_peers", "--landscapes", "trees", "--budgets", "3", "--methods", "race", "random", "asha3", "dehb"]
    called(tmp_path / "out.json", *words, "--repetitions", 1)
    assert "left out: dehb; make an environment for them" in capsys.readouterr().out
    rows = called(tmp_path / "out.json", *words, "--repetitions", 2)["rows"]
    assert {(row["method"], len(row["test"])) for row in rows} == {("race", 2), ("random", 2), ("asha3", 2)}


def test_nas201(tmp_path, monkeypatch):
    keys = ("".join(digits) for digits in itertools.product("01234", repeat=6))
    table = {key: {"val_acc": [80.0 + key.count("3") + noise for noise in (-0.25, 0.0, 0.25)]} for key in keys}
    for dataset in nas201.DATASETS:
        (tmp_path / f"{dataset}.pkl").write_bytes(pickle.dumps(table))
    monkeypatch.setattr(nas201, "table_folder", lambda: tmp_path)
    words = ("--samplers", "random", "gp_hamming", "--runs", 1, "--trials", 12)
    found = called(tmp_path / "out.json", "nas201", *words)
    assert found["optimum"] == dict.fromkeys(nas201.DATASETS, 86.0)
    assert all(80 < row["best"]["mean"] <= 86 for row in found["rows"])


def test_images(tmp_path):
    images = np.zeros((4, 28, 28), np.uint8)
    np.savez(tmp_path / "fashion.npz", x_train=images, y_train=[0] * 4, x_test=images, y_test=[0] * 4)
    Image.new("RGB", (32, 32)).save(tmp_path / "one.jpg")
    jpeg = (tmp_path / "one.jpg").read_bytes()
    (tmp_path / "cifar.xz").write_bytes(lzma.compress((len(jpeg).to_bytes(2, "little") + b"\x01" + jpeg) * 2004))
    assert main(["images", str(tmp_path / "fashion.npz"), str(tmp_path / "cifar.xz"), "--out", str(tmp_path)]) == 0
    with np.load(tmp_path / "cifar10_5k.npz") as made:
        assert (made["x_train"].shape, made["x_test"].shape) == ((2, 16, 16, 3), (2000, 16, 16, 3))


def test_published(place):
    words = ("--model", f"hf:{place / 'model'}", "--lambada", place / "words.jsonl", "--text", place / "text.txt")
    found = called(place / "out.json", "published", *words, "--bytes", 200, "--length", 32)
    for name, value in found["transformers"].items():
        assert value == pytest.approx(found["l2l_nas"][name], rel=1e-4)


def _pruning(place, *arms: str) -> list[object]:
    files = {"corpus": "text.txt", "text": "text.txt", "lambada": "words.jsonl", "folder": "runs"}
    words = [word for name, file in files.items() for word in (f"--{name}", place / file)]
    numbers = {"text-from": 7, "windows": 3, "items-from": 1, "items": 3, "steps": 1, "samples": 5, "shares": 25}
    words += [word for name, number in numbers.items() for word in (f"--{name}", number)]
    return ["pruning", "--model", f"hf:{place / 'model'}", "--precision", "fp32", *words, "--arms", *arms]


@pytest.mark.slow
def test_pruning(place):
    rows = called(place / "out.json", *_pruning(place, "original", *PRUNERS))["rows"]
    assert list(rows) == ["original_0", *(f"{arm}_25" for arm in PRUNERS)]
    model = transformers.LlamaForCausalLM.from_pretrained(place / "model").eval()
    tokenizer = Tokenizer.from_file(str(place / "model" / "tokenizer.json"))
    text = (place / "text.txt").read_bytes()[7:].decode()
    windows = torch.tensor(tokenizer.encode(text).ids[: 3 * 512]).view(3, 512)
    with torch.no_grad():
        expected = [float(model(window[None], labels=window[None]).loss) for window in windows]
    assert rows["original_0"]["losses"] == pytest.approx(expected, abs=2e-5)
    for name in list(rows)[1:]:
        assert rows[name]["losses"] != rows[name]["losses_before"]
        assert rows[name]["layer_parameters"] <= 0.8 * rows["original_0"]["layer_parameters"] or "shortgpt" in name


@pytest.mark.slow
def test_pruning_by_a_search(place):
    small = "strategy=blockwise strategy.samples=4 strategy.steps=1 space.args.widths=[0.5] search.trials=1"
    row = called(place / "out.json", *_pruning(place, "search"), "--search", small)["rows"]["search_25"]
    assert row["changed"]
    assert row["losses"] != row["losses_before"]


@pytest.mark.slow
def test_own_layers(tmp_path, monkeypatch):
    small = {"vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    monkeypatch.setattr(own_layers, "_SMALL", {**own_layers._SMALL, **small})
    rows = called(tmp_path / "out.json", "own_layers", "--rounds", 6)["models"]
    assert list(rows) == ["Llama", "Gemma 3"]
    for model in rows.values():
        assert [*model] == [f"{what}, {how}" for how in ("streamed", "on the device") for what in ("train", "score")]
        assert all(side["pairs"] == 6 for row in model.values() for side in row.values())


def test_cut_vocabulary(place):
    words = ("--model", place / "model", "--text", place / "words.jsonl", "--out", place / "cut")
    assert main(["cut_vocabulary", *map(str, words)]) == 0
    whole, cut = (Tokenizer.from_file(str(place / name / "tokenizer.json")) for name in ("model", "cut"))
    assert cut.get_vocab_size() < whole.get_vocab_size()
    networks = [transformers.LlamaForCausalLM.from_pretrained(place / name).eval() for name in ("model", "cut")]
    pair = [one.encode("passage 3 has a last word") for one in (whole, cut)]
    assert pair[0].tokens == pair[1].tokens
    logits = [network(torch.tensor([one.ids])).logits for network, one in zip(networks, pair, strict=True)]
    rows = [whole.token_to_id(cut.id_to_token(number)) for number in range(cut.get_vocab_size())]
    torch.testing.assert_close(logits[0][..., rows], logits[1])


@pytest.mark.slow
def test_language_training(place):
    found = called(place / "out.json", "language_training", "--source", place / "text.txt", "--steps", 2)
    assert (found["steps"], found["steps_with_another_loss"], found["weights_are_equal"]) == (2, 0, True)


@pytest.mark.long
@pytest.mark.slow
def test_gpu(tmp_path):
    run("gpu", "--quick", "--device", "cpu", "--out", tmp_path)
    sections = read_json(tmp_path / "gpu.json")["sections"]
    assert list(sections) == ["rates", "exactness", "steps", "layers", "peers", "memory", "segments"]
    losses = {row["name"]: row["value"] for row in sections["exactness"]["rows"]}
    assert losses.pop("layers=graphs") is None
    assert set(losses.values()) == {0.0}
    assert any(row.get("predicted") for row in sections["steps"]["rows"])


@pytest.mark.long
@pytest.mark.slow
def test_simulator(tmp_path):
    run("simulator", "--triples", 3, "--out", tmp_path / "out.json")
    assert read_json(tmp_path / "out.json")["summary"]["device_exact"] == 3


@pytest.mark.slow
def test_kills(tmp_path):
    run("kills", "--kills", 2, "--scenario", "report", "--out", tmp_path / "out.json")
    found = read_json(tmp_path / "out.json")
    assert (found["by_command"], found["failures"]) == ({"report": found["kills"]}, [])


@pytest.mark.long
@pytest.mark.slow
def test_clusters(tmp_path):
    run("clusters", "--engine", "processes", "--kills", 1, "--out", tmp_path / "out.json")
    assert read_json(tmp_path / "out.json")[0]["failures"] == []


@pytest.mark.long
@pytest.mark.slow
def test_ranks(tmp_path):
    run("ranks", "--kind", "raise", "--moments", 1, "--out", tmp_path / "out.json")
    assert read_json(tmp_path / "out.json")["failures"]["table"]["raise"]["wrong"] == 0


@pytest.mark.long
@pytest.mark.slow
def test_mutations():
    said = run("mutations", "--files", 10, "--inputs", 6, "--seed", 1)
    assert '"files": 10, "inputs": 6' in said
    assert '"failures": 0' in said


@pytest.mark.slow
def test_readers():
    assert '"failures": 0' in run("readers", "--files", 300, "--seed", 1)


@pytest.mark.long
@pytest.mark.slow
def test_mutate(tmp_path):
    words = (
        "mutate",
        "--rooms",
        "contents",
        "--count",
        400,
        "--first",
        1,
        "--seconds",
        100,
        "--out",
        tmp_path / "out.json",
    )
    main([*map(str, words)])
    (change,) = read_json(tmp_path / "out.json")["changes"]
    assert change["before"] != change["after"]
