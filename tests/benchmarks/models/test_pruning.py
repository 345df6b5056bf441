"""The comparison: what is done goes on where it stopped, and the table has the differences."""

from __future__ import annotations

import argparse
import json
import math
import shlex
from pathlib import Path

import pytest
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from benchmarks.__main__ import main
from benchmarks.models import pruning
from benchmarks.models.pruners import PRUNERS
from benchmarks.models.pruning_table import table
from l2l_nas.files import read_json


def row(losses: list[float], hits: str, **more: object) -> dict[str, object]:
    words = [1.0 - float(hit) for hit in hits]
    return {"layer_parameters": 1000, "losses": losses, "hits": hits, "word_losses": words, **more}


def test_the_table_has_differences_to_the_search_of_the_same_share():
    rows = {
        "flap_25": row([2.0, 3.0, 4.0], "0100", losses_before=[5.0], prune_processor_seconds=60),
        "search_15": row([9.0, 9.0, 9.0], "0000"),
        "search_25": row([1.0, 2.5, 3.0], "0110", search_processor_seconds=120),
    }
    first, second, third = (line.split(" | ") for line in table({"rows": rows}).splitlines()[2:])
    assert first[:2] == ["| 15 %", "**search**"]
    assert second[:5] == ["| 25 %", "`flap`", "1,000", f"{math.exp(5):.2f}", f"{math.exp(3):.2f}"]
    # of three windows 0.8333 is five errors, of four passages a quarter is one: not resolved
    assert second[5:] == ["+5.0", "25.0 ± 25.0 %", "(+1.0)", "(+1.0)", "1 min |"]
    assert third[-1] == "2 min |"


def test_rows_that_are_there_are_not_measured_again(tmp_path, monkeypatch, capsys):
    measured: list[tuple[str, int]] = []

    class Counting:
        def __init__(self, options: object) -> None: ...

        def row(self, arm: str, share: int) -> dict[str, object]:
            measured.append((arm, share))
            if arm == "slicegpt":
                raise KeyboardInterrupt
            return row([1.0, 2.0], "01")

    monkeypatch.setattr(pruning, "Comparison", Counting)
    out = tmp_path / "out.json"
    command = f"pruning run --model hf:x --corpus c --folder f --text t --lambada l --out {out} --shares 15 25"
    words = [*shlex.split(command), "--arms", "original", "flap", "slicegpt"]
    assert main(words) == 130
    assert measured == [("original", 0), ("flap", 15), ("slicegpt", 15)]
    assert list(read_json(out)["rows"]) == ["original_0", "flap_15"]
    measured.clear()
    assert main(words) == 130
    assert measured == [("slicegpt", 15)]
    assert main([*words, "--steps", "61"]) == 2
    assert "its rows have another --steps" in capsys.readouterr().err
    assert main([*words, "--rate", "3e-5"]) == 2
    assert "its rows have another --rate" in capsys.readouterr().err


def test_the_search_finds_one_network_of_each_size():
    parser = argparse.ArgumentParser()
    pruning.add_options(parser)
    options = parser.parse_args(["run", "--model", "hf:m", "--corpus", "c", "--steps", "7", "--precision", "fp32"])
    one = object.__new__(pruning.Comparison)
    one.options = options
    words = shlex.split(one._words())
    assert {"strategy.sizes=[0.15,0.25,0.4]", "search.finalists=3", "search.finalist_steps=0"} <= set(words)
    assert {"strategy=blockwise", "relay.precision=fp32"} <= set(words)


def test_a_corpus_holds_all_of_its_texts(tmp_path):
    texts = [tmp_path / "a.txt", tmp_path / "b.txt"]
    for path in texts:
        path.write_text(path.stem * 5000)
    pruning.corpus(texts, tmp_path / "c.jsonl")
    lines = Path(tmp_path / "c.jsonl").read_text().splitlines()
    pieces = [json.loads(line)["text"] for line in lines]
    assert sorted(map(len, pieces)) == [1000, 1000, 4000, 4000]


@pytest.fixture
def command(tmp_path) -> list[str]:
    """The comparison on a model of two blocks, whose tokens are bytes."""
    torch.manual_seed(0)
    made = Tokenizer(models.BPE())
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator([], trainers.BpeTrainer(vocab_size=256, initial_alphabet=alphabet))
    config = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    config |= {"vocab_size": 256, "max_position_embeddings": 512, "tie_word_embeddings": True}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**config)).eval()
    model.save_pretrained(tmp_path / "model")
    made.save(str(tmp_path / "model" / "tokenizer.json"))
    text = "It jumped over the dogs, and over the cats; it did not jump over the river.\n" * 200
    (tmp_path / "text.txt").write_text(text)
    (tmp_path / "corpus.jsonl").write_text((json.dumps({"text": text[:1200]}) + "\n") * 400)
    passages = [{"text": f"passage {number} has a last word"} for number in range(4)]
    (tmp_path / "words.jsonl").write_text("".join(json.dumps(one) + "\n" for one in passages))
    files = {
        "corpus": "corpus.jsonl",
        "text": "text.txt",
        "lambada": "words.jsonl",
        "folder": "runs",
        "out": "out.json",
    }
    words = [word for name, file in files.items() for word in (f"--{name}", str(tmp_path / file))]
    numbers = {"text-from": 7, "windows": 3, "items-from": 1, "items": 3, "steps": 1, "samples": 5}
    words += [word for name, number in numbers.items() for word in (f"--{name}", str(number))]
    words += ["--precision", "fp32"]
    return ["pruning", "run", "--model", f"hf:{tmp_path / 'model'}", "--shares", "25", *words]


def test_all_ways_are_made_tuned_and_measured(command, tmp_path, capsys):
    assert main([*command, "--arms", "original", *PRUNERS]) == 0
    result = read_json(tmp_path / "out.json")
    assert list(result["rows"]) == ["original_0", *(f"{arm}_25" for arm in PRUNERS)]
    model = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "model").eval()
    text = (tmp_path / "text.txt").read_bytes()[7:]
    tokenizer = Tokenizer.from_file(str(tmp_path / "model" / "tokenizer.json"))
    windows = torch.tensor(tokenizer.encode(text.decode()).ids[: 3 * 512]).view(3, 512)
    with torch.no_grad():
        expected = [float(model(window[None], labels=window[None]).loss) for window in windows]
    assert result["rows"]["original_0"]["losses"] == pytest.approx(expected, abs=2e-5)
    for name, one in result["rows"].items():
        assert len(one["losses"]) == len(one["hits"]) == len(one["word_losses"]) == 3
        if name != "original_0":
            assert one["losses"] != one["losses_before"]
            assert len(one["tuning_losses"]) == 1
    assert str(tmp_path) not in (tmp_path / "out.json").read_text()
    assert main(["pruning", "table", "--out", str(tmp_path / "out.json")]) == 0
    assert len(capsys.readouterr().out.splitlines()) >= 2 + 9


@pytest.mark.slow
def test_what_the_search_found_is_measured(command, tmp_path):
    small = "strategy=blockwise strategy.samples=4 strategy.steps=1 space.args.widths=[0.5] search.trials=1"
    assert main([*command, "--arms", "search", "--search", small]) == 0
    one = read_json(tmp_path / "out.json")["rows"]["search_25"]
    whole = pruning.num_layer_parameters(pruning.plain_llama(f"hf:{tmp_path / 'model'}"))
    assert one["layer_parameters"] <= 0.75 * whole
    assert one["changed"]
    assert one["search_processor_seconds"] >= 1
    assert one["losses"] != one["losses_before"]
    tuned = [*command, "--arms", "search", "--search", small, "--out", str(tmp_path / "other.json")]
    assert main([*tuned, "--rate", "1e-5"]) == 0  # of the same search, whose blocks do not depend on it
    other = read_json(tmp_path / "other.json")["rows"]["search_25"]
    assert other["losses_before"] == one["losses_before"]
    assert other["losses"] != one["losses"]


@pytest.mark.slow
def test_without_fine_tuning_networks_are_as_they_were_made(command, tmp_path, capsys):
    small = "strategy=blockwise strategy.samples=4 strategy.steps=1 space.args.widths=[0.5] search.trials=1"
    assert main([*command, "--arms", "original", "search", "wanda_sp", "--steps", "0", "--search", small]) == 0
    rows = read_json(tmp_path / "out.json")["rows"]
    assert rows["wanda_sp_25"]["losses"] == rows["wanda_sp_25"]["losses_before"]
    assert rows["wanda_sp_25"]["tuning_losses"] == []
    assert rows["search_25"]["losses"] == rows["search_25"]["losses_before"]
    assert rows["search_25"]["changed"]
    assert read_json(tmp_path / "runs" / "search_25" / "result.json")["best"]["steps"] == 0
    assert main(["pruning", "table", "--out", str(tmp_path / "out.json")]) == 0
    assert "| 25 % | **search** |" in capsys.readouterr().out
    again = [*command, "--arms", "search", "--search", f"{small} search.seed=1", "--out", str(tmp_path / "other.json")]
    assert main(again) == 2
    assert "its search had other settings; name another --folder" in capsys.readouterr().err


@pytest.mark.slow
def test_a_search_that_is_refused_is_one_line(command, tmp_path, capfd):
    assert main([*command, "--arms", "search", "--search", "strategy=blockwise strategy.steps=no"]) == 2
    *_, said = capfd.readouterr().err.splitlines()
    assert "search_25: its search ended with 2, and said why" in said
