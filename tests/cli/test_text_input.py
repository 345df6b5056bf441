"""Bad text and bad models on the command line: one line, exit code 2, nothing written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

SPACE = (
    "space=gpt2",
    "space.args.hidden=16",
    "space.args.depth=1",
    "space.args.heads=2",
    "data.length=16",
    "folder=run",
)


@pytest.fixture
def texts(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", "cache")
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9 " * 99)
    (tmp_path / "torn.jsonl").write_text('{"text": "a"}\n{"text": \n')
    (tmp_path / "other.jsonl").write_text('{"body": "a"}\n')
    (tmp_path / "three.jsonl").write_text("".join(json.dumps({"text": "some words " * 9}) + "\n" for _ in range(3)))
    (tmp_path / "short.txt").write_text("too short for three parts")
    (tmp_path / "sorts.csv").write_text("text,label\n" + "some words,yes\nothers,no\n" * 20)
    (tmp_path / "model").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("data.source=empty.txt", "the text is empty"),
        ("data.source=latin.txt", "latin.txt, byte 3: no UTF-8"),
        ("data.source=other.jsonl", "line 1: no text at 'text' (it has body); name the key: data.text_key=KEY"),
        ("data.source=nowhere.txt", "there is no file nowhere.txt"),
        ("data.documents=near", "data.documents must be across or apart, got 'near'"),
        ("space=bert data.objective=causal", "bert sees the tokens that data.objective=causal has it guess; write"),
        ("data.objective=masked", "gpt2 sees no tokens behind one that data.objective=masked has it guess"),
        ("data.size=[8,8]", "data.size is of a folder of images, which data.source=pydoc is not"),
        ("data=digits", "is of language models, and data.source=digits is no text; write data=text"),
        ("space.args.length=32", "say data.length alone"),
        ("space.pool=hf:model", "model has no config.json"),
    ],
)
def test_it_is_one_line_and_nothing_is_written(texts, refused, words, says):
    given = words.split()
    keep = () if "hf:" in words else SPACE[:-1]
    more = ("data=text",) if not keep else ()
    assert says in refused("search", *keep, *more, SPACE[-1], *given)
    assert not Path("run").exists()


def test_a_cache_that_cannot_be_written_is_one_line(texts, refused, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "short.txt/a")
    line = refused("search", *SPACE, "data.source=three.jsonl")
    assert "name another folder for token files: XDG_CACHE_HOME=FOLDER" in line
    assert not Path("run").exists()


def test_a_source_of_images_takes_no_settings_of_text(texts, refused):
    assert "data.length is of text, which data.source=digits is not" in refused(
        "search", "data=digits", "data.length=64", "folder=run"
    )
