"""Sentences and pairs of them with classes: beside transformers and tokenizers, scikit-learn, and by hand."""

from __future__ import annotations

import csv
import json
import random

import numpy as np
import pytest
import torch
from sklearn import metrics
from torch.nn import functional

from l2l_nas import AdamW, Architecture, Batches, ParamServer, ReferenceTrainer, Relay
from l2l_nas.errors import DataError, L2LError, SettingError
from l2l_nas.text.sentences import SentenceForm, Sentences, read_table, sentence_data, sentences_of
from l2l_nas.text.tokenizer import Bytes, load_tokenizer
from l2l_nas.training.task import BalancedClassification
from search_spaces import bert

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghij", *(f"##{letter}" for letter in "abcdefghij")]
ROWS = [("abc de", "fg", "yes"), ("a", "b c d", "no"), ("ee ee", "j", "yes"), ("b", "c", "maybe")] * 8


def tokenizer_of(folder):
    (folder / "words").mkdir(exist_ok=True)
    (folder / "words" / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    return load_tokenizer(str(folder / "words"))


def write_csv(path, rows, header=("sentence1", "sentence2", "label")):
    with path.open("w", newline="") as file:
        csv.writer(file, delimiter="\t" if path.suffix == ".tsv" else ",").writerows([header, *rows])
    return path


def texts(generator, count):
    return ["".join(generator.choices("abcdefghij ", k=generator.randint(1, 18))).strip() or "a" for _ in range(count)]


@pytest.mark.parametrize("length", [5, 8, 9, 24])
def test_pairs_are_framed_cut_and_padded_as_by_the_tokenizers_library(tmp_path, length):
    form = SentenceForm(tokenizer_of(tmp_path), length)
    theirs = pytest.importorskip("transformers").BertTokenizerFast.from_pretrained(tmp_path / "words")
    generator = random.Random(0)
    for first, second in zip(texts(generator, 200), texts(generator, 200), strict=True):
        for pair in ((first, second), (first,)):
            expected = theirs(*pair, truncation="longest_first", max_length=length, padding="max_length")
            rows = Sentences([pair], ["x"], SentenceForm(form.tokenizer, length, classes=("x",)))
            (tokens, kinds, padding), targets = rows.batch(torch.arange(1))
            assert tokens[0].tolist() == expected["input_ids"], pair
            assert kinds[0].tolist() == expected["token_type_ids"]
            assert (1 - padding[0]).tolist() == expected["attention_mask"]
            assert targets.tolist() == [0]


def sentences(folder, *, length=12):
    rows = [(a, b) for a, b in zip(texts(random.Random(1), 24), texts(random.Random(2), 24), strict=True)]
    form = SentenceForm(tokenizer_of(folder), length, classes=("0", "1", "2"))
    return Sentences(rows, [str(n % 3) for n in range(24)], form)


def test_the_space_is_bert_for_sequence_classification(tmp_path):
    """Logits and gradients, at a small random configuration."""
    hf = pytest.importorskip("transformers")
    samples = sentences(tmp_path)
    config = hf.BertConfig(
        vocab_size=len(WORDS), hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=12, num_labels=3, attn_implementation="eager",
    )  # fmt: skip
    model = hf.BertForSequenceClassification(config).eval()
    pool = bert.build(vocabulary=len(WORDS), length=12, hidden=16, depth=2, heads=2, classes=3)
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


def test_the_relay_trains_it_as_plain_pytorch_does(tmp_path):
    samples = sentences(tmp_path)
    pool = bert.build(vocabulary=len(WORDS), length=12, hidden=16, depth=2, heads=2, classes=3)
    path = pool.architecture([p.candidates[-1 if p.name == "attention_1" else 0].name for p in pool.positions])
    runs = []
    for kind in (Relay, ReferenceTrainer):
        executor, losses = kind(ParamServer(pool, optimizer=AdamW(), seed=0), device="cpu"), []
        for step in range(4):
            inputs, targets = Batches(samples, batch_size=8, seed=0).at(step)
            losses.append(
                executor.train_step(
                    path, inputs, targets, objective=BalancedClassification(), micro_batch=3, lr=0.01, step=step
                ).loss
            )
        runs.append(losses)
    assert runs[0] == runs[1]


@pytest.mark.parametrize("seed", range(4))
def test_figures_are_scikit_learns(seed):
    generator = np.random.default_rng(seed)
    logits, targets = torch.tensor(generator.normal(size=(60, 5))), torch.tensor(generator.integers(4, size=60))
    logits[:, 4 if seed % 2 else 3] = -9.0  # a class that is never chosen
    task = BalancedClassification()
    parts = [task.totals((logits[rows],), targets[rows]) for rows in (slice(0, 23), slice(23, 60))]
    found = task.finish({name: parts[0][name] + parts[1][name] for name in parts[0]})
    chosen = logits.argmax(dim=1)
    assert found["accuracy"] == metrics.accuracy_score(targets, chosen)
    assert found["f1"] == pytest.approx(metrics.f1_score(targets, chosen, average="macro"))
    assert found["matthews"] == pytest.approx(metrics.matthews_corrcoef(targets, chosen))
    assert task.finish(task.totals((logits[:2],), torch.zeros(2, dtype=torch.int64)))["matthews"] == 0


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.jsonl"])
def test_one_table_is_cut_so_that_each_class_keeps_its_share(tmp_path, name):
    path = tmp_path / name
    if name == "a.jsonl":
        lines = [json.dumps({"sentence1": a, "sentence2": b, "label": c, "id": 3}) for a, b, c in ROWS]
        path.write_text("\n".join(lines) + "\n")
    else:
        write_csv(path, ROWS)
    assert read_table(path) == ([(a, b) for a, b, _ in ROWS], [c for *_, c in ROWS])
    data = sentence_data(str(path), SentenceForm(Bytes(), 16), (0.5, 0.25, 0.25))
    assert data.train.form.classes == ("maybe", "no", "yes")
    counts = [torch.bincount(part.batch(torch.arange(len(part)))[1]).tolist() for part in data.parts.values()]
    assert counts == [[4, 4, 8], [2, 2, 4], [2, 2, 4]]
    again = sentence_data(str(path), SentenceForm(Bytes(), 16), (0.5, 0.25, 0.25))
    assert again.train.digest == data.train.digest


def test_a_folder_has_a_table_for_each_part_and_a_further_one_is_measured(tmp_path):
    columns = ("question", "sentence", "label")
    for name, rows in (("train", ROWS), ("dev", ROWS[:3]), ("test", ROWS[1:2])):
        write_csv(tmp_path / f"{name}.tsv", rows, columns)
    data = sentence_data(str(tmp_path), SentenceForm(Bytes(), 16), ())
    assert [len(part) for part in data.parts.values()] == [32, 3, 1]
    assert data.validation.batch(torch.arange(3))[1].tolist() == [2, 1, 2]
    further = sentences_of(write_csv(tmp_path / "more.csv", ROWS[3:4], columns), data.train.form)
    assert further.batch(torch.arange(1))[1].tolist() == [0]


def test_classes_that_are_numbers_are_in_their_order(tmp_path):
    path = write_csv(tmp_path / "a.csv", [("a", str(n % 12)) for n in range(48)], ("text", "label"))
    data = sentence_data(str(path), SentenceForm(Bytes(), 8), (0.5, 0.5))
    assert data.train.form.classes == tuple(map(str, range(12)))
    assert data.test is None


BAD = {
    "columns": ("a,b\nx,y\n", "which columns are sentences? It has a, b; name them: data.columns="),
    "class": ("text,b\nx,y\n", "which columns are classes? It has text, b"),
    "short": ("text,label\nx,y\nx\n", "line 3: 1 values, and the first line names 2 columns"),
    "quote": ('text,label\n"x,y\n', "line 2: unexpected end of data"),
    "empty": ("", "which columns are sentences? It has none"),
    "rows": ("text,label\n", "a table without rows"),
    "label": ("text,label\nx,\n", "line 2: no class in column 'label'"),
    "bytes": (b"text,label\nx\xff,y\n", "byte 12: no UTF-8"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_no_table_is_refused(tmp_path, case):
    content, words = BAD[case]
    path = tmp_path / "a.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(L2LError) as error:
        read_table(path)
    assert words in str(error.value)
    assert "a.csv" in str(error.value)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"text": "a", "label": 1}\n{"text": "b"', "line 2: no JSON"),
        ('{"text": "a", "label": 1}\n[1]', "line 2: a JSON array, where an object is expected"),
        ('{"text": "a", "label": 1}\n{"text": "a"}', "line 2: has text, and the first line text, label"),
    ],
)
def test_lines_that_are_no_rows_are_refused(tmp_path, content, words):
    (tmp_path / "a.jsonl").write_text(content)
    with pytest.raises(DataError, match=words):
        read_table(tmp_path / "a.jsonl")


def test_what_does_not_go_together_is_refused(tmp_path):
    form = SentenceForm(Bytes(), 16)
    with pytest.raises(SettingError, match=r"no table of sentences: name a file .*or a folder with a train and a dev"):
        sentence_data(str(tmp_path), form, (0.8, 0.2))
    write_csv(tmp_path / "train.csv", ROWS)
    write_csv(tmp_path / "dev.csv", [("a", "b", "perhaps")])
    with pytest.raises(DataError, match=r"dev.csv, row 1: class 'perhaps' is not in .* has maybe, no, yes"):
        sentence_data(str(tmp_path), form, ())
    write_csv(tmp_path / "validation.csv", ROWS)
    with pytest.raises(DataError, match=r"dev.csv and validation.csv are both of validation; leave one"):
        sentence_data(str(tmp_path), form, ())
    with pytest.raises(DataError, match=r"no column 'claim'; it has sentence1, sentence2, label"):
        read_table(tmp_path / "train.csv", ("claim", "label"))
    with pytest.raises(SettingError, match="are 1 columns"):
        SentenceForm(Bytes(), 16, ("label",))
    with pytest.raises(SettingError, match="at least 5 for sentences, got 4"):
        SentenceForm(Bytes(), 4)


@pytest.mark.parametrize("splits", [(0, 0, 1), (1,), (-1, 2)])
def test_shares_that_no_table_can_be_divided_by_are_refused(tmp_path, splits):
    path = tmp_path / "table.tsv"
    path.write_text("sentence\tlabel\n" + "".join(f"some words\t{n % 2}\n" for n in range(8)))
    with pytest.raises(SettingError, match=r"data\.splits"):
        sentence_data(str(path), SentenceForm(Bytes(), 8), splits)
