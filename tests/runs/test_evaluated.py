"""What `evaluate` measures on texts of a run's best network stands in the card of its export."""

from __future__ import annotations

import json
import re
from contextlib import closing
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
from l2l_nas.runs.evaluated import figures_of, note_evaluation
from l2l_nas.runs.folder import RunFolder
from l2l_nas.runs.log import LogFile
from l2l_nas.runs.saved import LoadedRun, SavedRun, original_of
from l2l_nas.runs.section_settings import RelayConf
from l2l_nas.training.export import build_network
from l2l_nas.training.score import Score
from tests.compress.code_cache import use_code_cache
from tests.compress.small_model import save_small_llama
from tests.test_readme import PAGES

PERPLEXITY = "token_perplexity"
BEST = {"architecture": ["a"], "values": {"loss": 2.0}}
WHOLE = {"of": BEST, "what": "text of `a` (0)", "values": {"p": 1.0}, "errors": {}}
DAMAGED = [{**WHOLE, "values": 7}, {**WHOLE, "errors": []}, {**WHOLE, "what": 3}, {"what": "text"}, 3]
NETWORK, ORIGINAL = "network", "original"


def run_of(folder: Path, best: dict[str, object] = BEST) -> str:
    folder.mkdir(exist_ok=True, parents=True)
    with closing(LogFile(folder / "log.jsonl")) as log:
        log.write("result", content={"best": best})
    return str(folder)


def texts_of(run: str | Path, original: str = "") -> dict[str, dict[str, object]]:
    """Values by text and network, of texts alone."""
    result = SavedRun(RunFolder(Path(run))).result()
    found = figures_of(str(run), result, original=original)
    assert list(found)[:2] == ["validation", "test"]
    return {
        what.partition(" (")[0]: {network: one["values"] for network, one in pair.items()}
        for what, pair in [*found.items()][2:]
    }


def note(run: str | Path, file: Path, value: float, *, task: str = "text", tokenizer: str = "", original: str = ""):
    note_evaluation(str(run), task, file, Score({"p": value}, {"p": 0.5}), tokenizer=tokenizer, original=original)


@pytest.fixture
def text(tmp_path):
    (tmp_path / "a.txt").write_text("a")
    return tmp_path / "a.txt"


def test_parts_of_the_data_are_as_the_result_has_them(tmp_path):
    errors = {"validation": {"loss": 0.5}, "test": None}
    result = {"best": {**BEST, "test": {"loss": 3.0}, "standard_error": errors}}
    assert figures_of(run_of(tmp_path / "run"), result, original="") == {
        "validation": {NETWORK: {"values": {"loss": 2.0}, "errors": {"loss": 0.5}}},
        "test": {NETWORK: {"values": {"loss": 3.0}, "errors": {}}},
    }


def test_the_last_figures_of_a_task_and_a_text_stay(tmp_path, text):
    run = run_of(tmp_path / "run")
    assert texts_of(run) == {}
    for task, value in (("text", 3.0), ("lambada", 4.0), ("text", 2.5)):
        note(run, text, value, task=task)
    assert texts_of(run) == {"lambada of `a.txt`": {NETWORK: {"p": 4.0}}, "text of `a.txt`": {NETWORK: {"p": 2.5}}}


def test_figures_of_another_network_are_not_its_own(tmp_path, text):
    run = run_of(tmp_path / "run")
    note(run, text, 3.0)
    run_of(tmp_path / "run", {**BEST, "values": {"loss": 1.9}})
    assert texts_of(run) == {}
    note(run, text, 2.0)
    assert texts_of(run) == {"text of `a.txt`": {NETWORK: {"p": 2.0}}}


@pytest.mark.parametrize("changed", ["text", "tokenizer", ""])
def test_the_original_stands_beside_the_network_where_both_were_measured_alike(tmp_path, text, changed):
    run = run_of(tmp_path / "run")
    note(run, text, 3.0, tokenizer="t")
    if changed == "text":
        text.write_text("another")
    note(run, text, 2.0, tokenizer="other" if changed == "tokenizer" else "t", original="pool")
    result = SavedRun(RunFolder(tmp_path / "run")).result()
    *_, last = figures_of(run, result, original="pool").values()
    assert last[ORIGINAL]["values"] == {"p": 2.0}
    assert (NETWORK in last) is not bool(changed)
    assert ORIGINAL not in [*figures_of(run, result, original="another").values()][-1]


def test_sizes_have_one_original(tmp_path, text):
    run_of(tmp_path / "run")
    (tmp_path / "run" / "config.yaml").write_text("{}")
    one, two = (run_of(tmp_path / "run" / "sizes" / name) for name in ("0.2", "0.4"))
    note(one, text, 2.0, original="pool")
    note(two, text, 3.0)
    for run, own in ((one, {}), (two, {NETWORK: {"p": 3.0}}), (str(tmp_path / "run"), {})):
        assert texts_of(run, "pool") == {"text of `a.txt`": {ORIGINAL: {"p": 2.0}, **own}}


@pytest.mark.parametrize("content", ["{", "[]", '{"evaluations": 3}', json.dumps({"evaluations": DAMAGED})])
def test_a_damaged_file_tells_nothing_and_is_written_anew(tmp_path, text, content):
    run = run_of(tmp_path / "run")
    (tmp_path / "run" / "evaluations.json").write_text(content)
    assert texts_of(run) == {}
    note(run, text, 3.0)
    assert len(texts_of(run)) == 1


def test_a_run_without_a_result_is_named(tmp_path, text):
    with pytest.raises(StorageError, match="holds no run"):
        note(tmp_path, text, 3.0)


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
    monkeypatch.setenv("XDG_CACHE_HOME", "cache")
    use_code_cache(monkeypatch, tmp_path / "modules")
    save_small_llama("model")
    Path("model/README.md").write_text("---\nlicense: mit\n---\n# Theirs\n")
    Path("text.txt").write_text("A line of text, and one more of the same kind.\n" * 40)
    write_json(Path("choice.json"), {"choices": ["original", "original", "skip", "original", "original"]})
    data = ["data=text", "data.source=text.txt", "data.length=24"]
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
    assert "Data: `text.txt`; samples: " in card
    assert "; steps: 3." in card
    best = json.loads(Path("run/result.json").read_text())["best"]
    errors = best["standard_error"]
    assert f"| validation loss |  | {best['values']['loss']:.4g} ± {errors['validation']['loss']:.2g} |\n" in card
    assert f"| test loss |  | {best['test']['loss']:.4g} ± {errors['test']['loss']:.2g} |\n" in card
    both = [json.loads(Path("run/evaluations.json").read_text())["evaluations"][index] for index in (1, 0)]
    shown = [f"{one['values'][PERPLEXITY]:.4g} ± {one['errors'][PERPLEXITY]:.2g}" for one in both]
    assert shown[0] != shown[1]
    assert f"| {both[0]['what']} {PERPLEXITY} | {shown[0]} | {shown[1]} |\n" in card
    # what `lm_eval --model hf` reads a folder by, with the arguments that the page shows
    (shown,) = re.findall(r"--model_args pretrained=EXPORT,(\w+)=True", PAGES["docs/tutorials/evaluate_text.md"])
    tokenizer = hf.AutoTokenizer.from_pretrained("carded", **{shown: True})
    model = hf.AutoModelForCausalLM.from_pretrained("carded", **{shown: True})
    written = model.generate(**tokenizer("A line", return_tensors="pt"), max_new_tokens=3, do_sample=False)
    assert main(["generate", "space.pool=hf:carded", "prompt=A line", "tokens=3", "temperature=0"]) == 0
    text = capsys.readouterr().out.removesuffix("\n")
    assert tokenizer(text).input_ids == [token for token in written[0].tolist() if token != 1]
