"""What `evaluate` measures on texts of a run's best network stands in the card of its export."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
import transformers as hf
from torch import nn

from l2l_nas import SGD, Candidate, Data, LayerPool, ParamServer, Position, Problem, TensorSpec, skip
from l2l_nas.__main__ import main
from l2l_nas.errors import SettingError, StorageError
from l2l_nas.files import write_json
from l2l_nas.runs.evaluated import Measurement, evaluations_of, note_evaluation
from l2l_nas.runs.saved import LoadedRun, original_of
from l2l_nas.runs.section_settings import RelayConf
from l2l_nas.training.export import build_network
from l2l_nas.training.score import Score
from tests.pretrained.code_cache import use_code_cache
from tests.pretrained.small_model import save_small_llama
from tests.test_readme import PAGES

PERPLEXITY = "token_perplexity"
BEST = {"architecture": ["a"], "values": {"loss": 2.0}}
WHOLE = {"network": "best", "of": BEST, "task": "text", "file": "a", "digest": "", "stride": 0, "tokenizer": ""}
WHOLE |= {"values": {"p": 1.0}, "errors": {}}
DAMAGED = [{**WHOLE, "values": {"p": "high"}}, {**WHOLE, "errors": []}, {**WHOLE, "file": 3}, {"task": "text"}, 3]


def run_of(folder: Path, best: dict[str, object] = BEST) -> str:
    folder.mkdir(exist_ok=True, parents=True)
    write_json(folder / "result.json", {"best": best})
    return str(folder)


def test_the_last_figures_of_a_task_and_a_file_stay(tmp_path):
    run = run_of(tmp_path / "run")
    assert evaluations_of(run) == []
    for file, value in [("x/a.txt", 3.0), ("b.txt", 4.0), ("y/a.txt", 2.5)]:
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text(file)
        note_evaluation(run, Measurement.of("text", tmp_path / file), Score({"p": value}, {"p": 0.5}))
    assert [(one["task"], one["file"], one["values"]["p"]) for one in evaluations_of(run)] == [
        ("text", "b.txt", 4.0),
        ("text", "a.txt", 2.5),
    ]
    measured = Measurement.of("text", tmp_path / "b.txt")
    assert measured.digest
    assert replace(measured, digest="") == Measurement("text", "b.txt")


def test_figures_of_another_network_are_not_its_own(tmp_path):
    run = run_of(tmp_path / "run")
    note_evaluation(run, Measurement("text", "a.txt"), Score({"p": 3.0}))
    run_of(tmp_path / "run", {**BEST, "values": {"loss": 1.9}})
    assert evaluations_of(run) == []
    note_evaluation(run, Measurement("text", "b.txt"), Score({"p": 2.0}))
    assert [one["file"] for one in evaluations_of(run)] == ["b.txt"]


def test_the_original_stands_beside_the_network_where_both_were_measured_alike(tmp_path):
    run, what = run_of(tmp_path / "run"), Measurement("text", "a.txt", "digest", stride=8, tokenizer="t")
    note_evaluation(run, what, Score({"p": 3.0}, {"p": 0.5}))
    note_evaluation(run, what, Score({"p": 2.0}, {"p": 0.25}), original="pool")
    (found,) = evaluations_of(run, original="pool")
    assert (found["values"], found["errors"]) == ({"p": 3.0}, {"p": 0.5})
    assert found["original"] == {"values": {"p": 2.0}, "errors": {"p": 0.25}}
    assert evaluations_of(run, original="another")[0]["original"]["values"] == {}
    note_evaluation(run, replace(what, digest="of another text"), Score({"p": 1.0}), original="pool")
    assert [(one["values"], one["original"]["values"]) for one in evaluations_of(run, original="pool")] == [
        ({"p": 3.0}, {}),
        ({}, {"p": 1.0}),
    ]


def test_sizes_have_one_original(tmp_path):
    run_of(tmp_path / "run")
    (tmp_path / "run" / "config.yaml").write_text("{}")
    one, two = (run_of(tmp_path / "run" / "sizes" / name) for name in ("0.2", "0.4"))
    what = Measurement("text", "a.txt")
    note_evaluation(one, what, Score({"p": 2.0}), original="pool")
    note_evaluation(two, what, Score({"p": 3.0}))
    for run, values in ((one, {}), (two, {"p": 3.0}), (str(tmp_path / "run"), {})):
        (found,) = evaluations_of(run, original="pool")
        assert (found["values"], found["original"]["values"]) == (values, {"p": 2.0})


@pytest.mark.parametrize(
    "content", ["{", "[]", '{"best": 1}', '{"evaluations": 3}', json.dumps({"evaluations": DAMAGED})]
)
def test_a_damaged_file_tells_nothing_and_is_written_anew(tmp_path, content):
    run = run_of(tmp_path / "run")
    (tmp_path / "run" / "evaluations.json").write_text(content)
    assert evaluations_of(run) == []
    note_evaluation(run, Measurement("text", "a.txt"), Score({"p": 3.0}))
    assert len(evaluations_of(run)) == 1


def test_a_run_without_a_result_is_named(tmp_path):
    with pytest.raises(StorageError, match=r"result\.json"):
        note_evaluation(str(tmp_path), Measurement("text", "a.txt"), Score({"p": 3.0}))


def found_in(positions, root) -> LoadedRun:
    pool = LayerPool(
        [Position("a", positions), Position("head", [Candidate("own", partial(nn.Linear, 3, 2))])],
        inputs=TensorSpec((3,)),
    )
    problem = Problem(pool, Data.from_arrays(torch.rand(40, 3), torch.arange(40) % 2))
    server = ParamServer(pool, optimizer=SGD(momentum=0.0), seed=0)
    return LoadedRun(root, problem, pool.architecture(["skip", "own"]), server, {}, 4, 4, RelayConf())


def test_the_original_has_the_weights_that_it_came_with(tmp_path):
    layer = nn.Linear(3, 3)
    found = original_of(found_in([Candidate("own", layer), skip()], tmp_path))
    pool = found.problem.pool
    assert found.architecture == pool.original
    assert torch.equal(build_network(found.server, pool.original)[0].weight, layer.weight)
    with pytest.raises(SettingError, match="its pool has no original with weights"):
        original_of(found_in([Candidate("own", partial(nn.Linear, 3, 3)), skip()], tmp_path))


@pytest.mark.slow
def test_the_card_tells_what_was_removed_measured_and_evaluated(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    use_code_cache(monkeypatch, tmp_path / "modules")
    save_small_llama("model")
    Path("model/README.md").write_text("---\nlicense: mit\n---\n# Theirs\n")
    Path("text.txt").write_text("A line of text, and one more of the same kind.\n" * 40)
    write_json(Path("choice.json"), {"choices": ["original", "original", "skip", "original", "original"]})
    data = ["data=text", "data.source=text.txt", "data.length=24", "data.cache=cache"]
    steps = ["train.steps=3", "train.batch_size=4", "folder=run"]
    assert main(["train", "space.pool=hf:model", "architecture=choice.json", *data, *steps]) == 0
    assert main(["evaluate", "run=run", "task=text", "file=text.txt"]) == 0
    assert main(["evaluate", "run=run", "task=text", "file=text.txt", "original=true"]) == 0
    assert main(["evaluate", "run=run", "original=true"]) == 0
    assert "reported" not in capsys.readouterr().out
    assert main(["export", "run=run", "formats=[hugging_face,gguf]", "out=carded"]) == 0
    said = capsys.readouterr().out
    assert "trust_remote_code=True" in said
    card = Path("carded/README.md").read_text()
    assert "license: mit" in card
    assert "# Theirs" not in card
    assert "| feedforward_0 | left out | 1,552 | 0 |" in card
    assert "Data: `text.txt`" in card
    assert "It was trained for 3 steps." in card
    best = json.loads(Path("run/result.json").read_text())["best"]
    errors = best["standard_error"]
    assert f"| {best['values']['loss']:.4g} ± {errors['validation']['loss']:.2g} |\n" in card
    assert f"|  | {best['test']['loss']:.4g} ± {errors['test']['loss']:.2g} |\n" in card
    both = [json.loads(Path("run/evaluations.json").read_text())["evaluations"][index] for index in (1, 0)]
    assert [one["network"] for one in both] == ["original", "best"]
    shown = [f"{one['values'][PERPLEXITY]:.4g} ± {one['errors'][PERPLEXITY]:.2g}" for one in both]
    assert shown[0] != shown[1]
    assert f"| `text.txt`, text {PERPLEXITY} | {shown[0]} | {shown[1]} |\n" in card
    # what `lm_eval --model hf` reads a folder by, with the arguments that the page shows
    (shown,) = re.findall(r"--model_args pretrained=EXPORT,(\w+)=True", PAGES["docs/tutorials/evaluate_text.md"])
    tokenizer = hf.AutoTokenizer.from_pretrained("carded", **{shown: True})
    model = hf.AutoModelForCausalLM.from_pretrained("carded", **{shown: True})
    written = model.generate(**tokenizer("A line", return_tensors="pt"), max_new_tokens=3, do_sample=False)
    assert main(["generate", "space.pool=hf:carded", "prompt=A line", "tokens=3", "temperature=0"]) == 0
    text = capsys.readouterr().out.removesuffix("\n")
    assert tokenizer(text).input_ids == [token for token in written[0].tolist() if token != 1]
