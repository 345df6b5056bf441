"""Sentences with classes: BERT's space beside transformers, and the example that reads a table of them."""

from __future__ import annotations

import json
import shlex
import shutil

import pytest
import torch
from torch.nn import functional

from l2l_nas import AdamW, Architecture, Batches, Classification, ParamServer, ReferenceTrainer, Relay, Split
from l2l_nas.__main__ import main
from search_spaces import bert
from tests.cli.runs import ROOT
from tests.test_readme import PAGES

VOCABULARY = 25


def sentences(length=12):
    """Tokens, kinds and padding of 24 pairs, and their classes."""
    generator = torch.Generator().manual_seed(1)
    tokens, kinds, padding = torch.zeros(3, 24, length, dtype=torch.int64)
    for row in range(24):
        first, both = (int(torch.randint(*ends, (), generator=generator)) for ends in ((2, 6), (7, length + 1)))
        tokens[row, :both] = torch.randint(1, VOCABULARY, (both,), generator=generator)
        kinds[row, first:both] = 1
        padding[row, both:] = 1
    return Split((tokens, kinds, padding), torch.arange(24) % 3)


def test_the_space_is_bert_for_sequence_classification():
    """Logits and gradients, at a small random configuration."""
    hf = pytest.importorskip("transformers")
    samples = sentences()
    config = hf.BertConfig(
        vocab_size=VOCABULARY, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=12, num_labels=3, attn_implementation="eager",
    )  # fmt: skip
    model = hf.BertForSequenceClassification(config).eval()
    pool = bert.build(vocabulary=VOCABULARY, length=12, hidden=16, depth=2, heads=2, classes=3)
    original = Architecture(tuple(position.candidates[0].name for position in pool.positions))
    resident = ReferenceTrainer(ParamServer(pool, optimizer=AdamW(), seed=0), device="cpu")
    modules = {pool.positions[layer.position].name: resident.module(layer).eval() for layer in pool.path(original)}
    names = {}
    for index in range(2):
        at = f"bert.encoder.layer.{index}."
        for ours, theirs in (("query", "query"), ("key", "key"), ("value", "value")):
            names[f"attention_{index}", ours] = f"{at}attention.self.{theirs}"
        names[f"attention_{index}", "out"] = f"{at}attention.output.dense"
        names[f"attention_{index}", "norm"] = f"{at}attention.output.LayerNorm"
        names[f"feedforward_{index}", "up"] = f"{at}intermediate.dense"
        names[f"feedforward_{index}", "down"] = f"{at}output.dense"
        names[f"feedforward_{index}", "norm"] = f"{at}output.LayerNorm"
    for ours, theirs in (
        ("token", "word_embeddings"),
        ("kind", "token_type_embeddings"),
        ("place", "position_embeddings"),
        ("norm", "LayerNorm"),
    ):
        names["embedding", ours] = f"bert.embeddings.{theirs}"
    names |= {("head", "dense"): "bert.pooler.dense", ("head", "out"): "classifier"}
    pairs = []
    for position, module in modules.items():
        for name, parameter in module.named_parameters():
            layer, _, kind = name.rpartition(".")
            pairs.append((parameter, model.get_parameter(f"{names[position, layer]}.{kind}")))
    assert len(pairs) == len(list(model.parameters()))
    with torch.no_grad():
        for ours, theirs in pairs:
            ours.copy_(theirs)
    (tokens, kinds, padding), targets = samples.batch(torch.arange(24))
    assert padding.any()
    x = modules["embedding"](tokens, kinds)
    for position in pool.positions[1:-1]:
        x = modules[position.name](x, padding) if position.name.startswith("attention") else modules[position.name](x)
    logits = modules["head"](x)
    expected = model(tokens, attention_mask=1 - padding, token_type_ids=kinds).logits
    torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-6)
    functional.cross_entropy(logits, targets).backward()
    functional.cross_entropy(expected, targets).backward()
    for ours, theirs in pairs:
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-6)


def test_the_relay_trains_it_as_plain_pytorch_does():
    samples = sentences()
    pool = bert.build(vocabulary=VOCABULARY, length=12, hidden=16, depth=2, heads=2, classes=3)
    path = pool.architecture([p.candidates[-1 if p.name == "attention_1" else 0].name for p in pool.positions])
    runs = []
    for kind in (Relay, ReferenceTrainer):
        executor, losses = kind(ParamServer(pool, optimizer=AdamW(), seed=0), device="cpu"), []
        for step in range(4):
            inputs, targets = Batches(samples, batch_size=8, seed=0).at(step)
            losses.append(
                executor.train_step(
                    path, inputs, targets, objective=Classification(), micro_batch=3, lr=0.01, step=step
                ).loss
            )
        runs.append(losses)
    assert runs[0] == runs[1]


@pytest.mark.slow
def test_a_table_of_sentences_is_searched_by_the_line_of_the_page(tmp_path, monkeypatch):
    pytest.importorskip("datasets")
    hf = pytest.importorskip("transformers")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    (tmp_path / "intents.csv").write_text("text,label\n" + "some words,yes\nothers,no\n" * 30)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "some", "words", "others"]
    (tmp_path / "words").mkdir()
    (tmp_path / "words" / "vocab.txt").write_text("\n".join(words) + "\n")
    hf.BertTokenizerFast.from_pretrained(tmp_path / "words").save_pretrained(tmp_path / "bert")
    (line,) = [line for line in PAGES["docs/tutorials/text.md"].splitlines() if "examples/sentences.py:build" in line]
    small = ["space.args.length=8", "space.args.hidden=16", "space.args.depth=1", "space.args.heads=2", "folder=run"]
    few = ["search.trials=2", "search.steps_per_trial=20", "search.finalists=1", "search.finalist_steps=60"]
    few += ["search.enqueue=[original]"]
    assert main([*shlex.split(line)[3:], *small, *few, "train.batch_size=16", "export=false"]) == 0
    assert json.loads((tmp_path / "run" / "result.json").read_text())["best"]["test"]["accuracy"] == 1
