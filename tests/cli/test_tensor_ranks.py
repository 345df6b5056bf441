"""Commands on ranks that share each layer: the numbers of one process, and one line where ranks cannot."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from l2l_nas.__main__ import main
from l2l_nas.runs.saved import load_found
from tests.cli.test_ranks import alone, apart, result, together
from tests.cli.test_ranks_read import LARGE

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
TRAIN = (
    "train", "space=gpt2", "data.source=small.txt", "data.tokenizer=bytes", "data.length=16", "space.args.hidden=16",
    "space.args.depth=1", "space.args.heads=2", "architecture=network.json", "train.steps=4", "train.batch_size=16",
    "train.micro_batch=4", "train.validation_steps=4", "relay.clip=0.5", "relay.update=exact", "relay.threads=1",
    "schedule=constant",
)  # fmt: skip
SEARCH = (
    "search", *TRAIN[1:7], "space.args.heads=4", "search.trials=3", "search.steps_per_trial=2", "search.finalists=1",
    "search.finalist_steps=2", "search.warmup_steps=2", "search.trial_weights=shared", "train.batch_size=8",
    "train.micro_batch=2", "relay.threads=1", "export=false", "objectives=[loss,parameters]",
)  # fmt: skip
NETWORK = ["learned", "heads_2", "width_32", "layer", "tied"]


@pytest.fixture(autouse=True)
def _place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("small.txt").write_text("".join(f"{number} and {number + 1} are {2 * number + 1}.\n" for number in range(150)))
    Path("network.json").write_text(json.dumps({"choices": NETWORK}))


def values(folder):
    return [one for validation in result(folder)["validations"] for one in validation["values"].values()]


def test_a_mesh_trains_as_one_process_and_goes_on_as_one():
    alone(*TRAIN, "parallel.chunks=2", "folder=one", "train.steps=8", "export=false")
    out = together(*TRAIN, "parallel.tensor=2", "folder=four", size=4)
    assert (
        "4 ranks share each step and all weights (tensor parallel, 2 to each layer; data parallel, parallel.chunks=2)"
        in out
    )
    assert out.count("whole on every rank: norm/layer\n") == 1
    assert result("four")["mesh"] == {"data": 2, "tensor": 2, "whole": ["norm/layer"]}
    assert Path("four/export/state_dict.safetensors").exists()
    assert values("four") == pytest.approx(values("one")[:4], abs=1e-5)
    alone("train", "resume=four", "parallel.tensor=1", "train.steps=8", "export=false")
    assert values("four") == pytest.approx(values("one"), abs=1e-5)
    assert "mesh" not in result("four")


@pytest.mark.parametrize(
    ("words", "size"),
    [
        (["evaluate"], 2),
        pytest.param(["evaluate", "split=test"], 4, marks=pytest.mark.long),
        pytest.param(["evaluate", "task=text", "file=small.txt"], 2, marks=pytest.mark.long),
        (["generate", "prompt=12 and", "tokens=12", "temperature=0"], 2),
        pytest.param(["generate", "prompt=12 and", "tokens=12", "temperature=0"], 4, marks=pytest.mark.long),
    ],
    ids=lambda value: "_".join(value[:2]) if isinstance(value, list) else str(value),
)
def test_what_is_read_on_ranks_that_share_layers_is_what_one_process_has(words, size, capsys):
    assert main([*TRAIN, "folder=run", "train.steps=20", "export=false"]) == 0
    capsys.readouterr()
    words = [*words, "run=run"]
    assert main(words) == 0
    expected = capsys.readouterr().out
    Path("large.py").write_text(LARGE)
    out = together(*words, "parallel.tensor=2", size=size, program=("large.py",))
    out, expected = (re.sub(" (as )?reported.*", "", text) for text in (out, expected))
    numbers = r"\d+\.\d{4}"  # whose last digit may be rounded otherwise
    assert re.sub(numbers, "#", out) == re.sub(numbers, "#", expected)
    found, wanted = ([float(one) for one in re.findall(numbers, text)] for text in (out, expected))
    assert found == pytest.approx(wanted, rel=1e-5, abs=2e-4)


def test_experts_are_divided_and_trained_as_in_one_process():
    words = ("space=hybrid", "architecture=original", "space.args.depth=1", "space.args.heads=4", "export=false")
    assert main([*TRAIN, *words, "folder=one"]) == 0
    together(*TRAIN, *words, "parallel.tensor=2", "folder=two")
    assert result("two")["mesh"] == {"data": 1, "tensor": 2, "whole": ["norm/rms"]}
    assert "experts" in result("two")["best"]["architecture"]
    assert values("two") == pytest.approx(values("one"), abs=1e-6)
    one, two = (load_found(name).server for name in ("one", "two"))
    states = [(one.state(key).parameters(), two.state(key).parameters()) for key in sorted(one.visited)]
    assert any("experts.3.down.weight" in names for names, _ in states)
    gaps = [float((a[name] - b[name]).abs().max()) for a, b in states for name in a if a[name].numel()]
    assert max(gaps) < 1e-5


@pytest.mark.long
def test_a_search_on_ranks_that_share_layers_is_that_of_one_process():
    alone(*SEARCH, "folder=one")
    out = together(*SEARCH, "parallel.tensor=2", "folder=two")
    assert "2 ranks share each step and all weights (tensor parallel, 2 to each layer)" in out
    found, one = result("two"), result("one")
    assert found["mesh"] == {"data": 1, "tensor": 2, "whole": ["norm/layer"]}
    assert found["trials"] == one["trials"]
    assert [row["architecture"] for row in found["pareto"]] == [row["architecture"] for row in one["pareto"]]
    for name in ("loss", "parameters", "flops"):
        assert found["best"]["values"][name] == pytest.approx(one["best"]["values"][name], abs=1e-5)


@pytest.mark.parametrize(
    ("words", "size", "said"),
    [
        (["parallel.tensor=3"], 2, "parallel.tensor=3: there are 2 ranks, which it must divide; take 1 or 2"),
        pytest.param(
            ["parallel.tensor=4"], 4, "'query.weight' has 2 units of 8 to divide among 4 ranks; 2 would divide it",
            marks=pytest.mark.long,
        ),
        pytest.param(
            ["parallel.tensor=2", "optimizer=muon"], 2, "or have parallel.tensor=1", marks=pytest.mark.long
        ),
    ],
    ids=["ranks", "heads", "rule"],
)  # fmt: skip
def test_sizes_that_do_not_divide_are_one_line_on_all_ranks(words, size, said):
    codes, lines = apart([[*TRAIN, "folder=run", *words]] * size)
    assert codes == [2] * size
    assert len(lines) == 1
    assert said in lines[0]
    assert not Path("run").exists()
