"""A published folder beside `transformers`: what differs is refused, what cannot be compared is said."""

from __future__ import annotations

import json

import pytest
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from l2l_nas.compress.pool import published_pool
from l2l_nas.errors import StorageError
from tests.compress.small_model import save_small_llama


@pytest.fixture
def folder(tmp_path):
    save_small_llama(tmp_path, layers=2)
    return tmp_path


def pool(folder):
    return published_pool(f"hf:{folder}", skips=False)


def test_what_is_alike_is_said_of_logits_and_tokens(folder):
    said = pool(folder).compare()
    assert "logits of 24 tokens are those of transformers" in said
    assert "tokens of a text are those of transformers" in said


def test_logits_that_differ_are_refused(folder, monkeypatch):
    opened = pool(folder)
    config = json.loads((folder / "config.json").read_text())
    config["rms_norm_eps"] = 1.0  # as if our reader did not know the field
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(StorageError, match="gives other logits for this llama model than the layers here"):
        opened.compare()


def test_tokens_that_differ_are_refused(folder):
    opened = pool(folder)
    made = Tokenizer.from_file(str(folder / "tokenizer.json"))
    content = json.loads(made.to_str())
    content["model"]["merges"] = []  # as if our reader did not know a field of the tokenizer
    ours = opened.published.tokenizer()
    (folder / "tokenizer.json").write_text(json.dumps(content))
    assert AutoTokenizer.from_pretrained(folder)("a line of text")["input_ids"] != ours.encode("a line of text")
    opened.published.tokenizer = lambda: ours
    with pytest.raises(StorageError, match="its tokenizer is another one in transformers"):
        opened.compare()


def test_what_transformers_does_not_load_is_not_compared_and_that_is_said(folder):
    opened = pool(folder)
    (folder / "config.json").unlink()
    assert opened.compare().startswith("not compared with transformers: it does not run in transformers")
