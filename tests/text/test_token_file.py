"""Token files: every document once and whole, made once, whatever process is killed."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, trainers

from l2l_nas.errors import DataError, StorageError
from l2l_nas.text import documents as documents_module
from l2l_nas.text import token_file as token_file_module
from l2l_nas.text.data import TextForm, spans
from l2l_nas.text.documents import read_documents, text_files
from l2l_nas.text.token_file import build, joined, token_file
from l2l_nas.text.tokenizer import Bytes, Library, load_tokenizer
from tests.text.test_tokenizer import DATA, needs_data, small_bpe

ROOT = Path(__file__).parents[2]


def write_json(path, texts, key="text"):
    path.write_text("\n".join(json.dumps({key: text, "other": 1}) for text in texts) + "\n")
    return path


def documents_of(file, tokenizer):
    return [
        tokenizer.decode([int(n) for n in file.tokens[start:stop] if n != tokenizer.end])
        for start, stop in zip(file.documents, file.documents[1:], strict=False)
    ]


def test_files_are_documents_and_lines_of_json_are(tmp_path):
    texts = ["one\ntwo", "ünï", "", "x" * 3000]
    write_json(tmp_path / "a.jsonl", texts)
    (tmp_path / "b.txt").write_text("plain\n\ntext")
    (tmp_path / "c.png").write_text("no text")
    paths = text_files(str(tmp_path))
    assert [path.name for path in paths] == ["a.jsonl", "b.txt"]
    file = token_file(paths, Bytes(), cache=tmp_path / "cache")
    assert documents_of(file, Bytes()) == ["one\ntwo", "ünï", "x" * 3000, "plain\n\ntext"]
    assert file.tokens.dtype == np.dtype("<u2")
    assert all(file.tokens[place - 1] == 256 for place in file.documents[1:])


@pytest.mark.slow
@needs_data
@pytest.mark.parametrize("name", ["gpt2", "bert-base-uncased"])
def test_a_long_file_in_pieces_has_the_tokens_of_the_whole(tmp_path, name):
    tokenizer = load_tokenizer(str(DATA / "tokenizers" / name))
    path = DATA / "text/wikitext2/test.txt"
    assert len(list(next(read_documents([path])))) > 1
    file = token_file([path], tokenizer, cache=tmp_path)
    assert file.tokens[:-1].tolist() == tokenizer.encode(path.read_text())


# the last one has marks and other spaces where it could be cut
SCRIPTS = ["Он пришёл вчера вечером домой\n", "春天来了。\n花开了。\n", "é è\u0301 \u0301a\u00a0 ß\n\u3000b "]


@pytest.mark.parametrize("text", SCRIPTS)
def test_text_of_any_script_is_read_in_pieces(tmp_path, monkeypatch, text):
    monkeypatch.setattr(documents_module, "_PIECE", 31)  # letters are cut, too
    (tmp_path / "a.txt").write_text(text * 40)
    (pieces,) = read_documents([tmp_path / "a.txt"])
    found = list(pieces)
    assert "".join(found) == text * 40
    assert len(found) > 10
    for kind, trainer, before in (
        (models.BPE(), trainers.BpeTrainer(vocab_size=300, show_progress=False), pre_tokenizers.ByteLevel(False)),
        (models.WordPiece(), trainers.WordPieceTrainer(vocab_size=99), pre_tokenizers.BertPreTokenizer()),
    ):
        made = tokenizers.Tokenizer(kind)
        made.normalizer, made.pre_tokenizer = normalizers.NFKC(), before
        made.train_from_iterator([text * 40], trainer)
        tokenizer = Library(made)
        assert [token for piece in found for token in tokenizer.encode(piece)] == tokenizer.encode(text * 40)


BYTES = pre_tokenizers.ByteLevel(False, use_regex=False)
WORDS = {  # by what makes words: what comes before that, and whether all pieces stay, some, or one
    "bytes": (None, pre_tokenizers.ByteLevel(False), "all"),
    "BERT": (normalizers.NFKC(), pre_tokenizers.BertPreTokenizer(), "all"),
    "bytes behind a space": (None, pre_tokenizers.ByteLevel(True), "some"),
    "SentencePiece": (None, pre_tokenizers.Metaspace(), "some"),
    "white space, with a mark": (normalizers.Prepend("_"), pre_tokenizers.WhitespaceSplit(), "one"),
    "bytes without ends": (normalizers.Strip(), pre_tokenizers.ByteLevel(False), "one"),
    "lines": (None, pre_tokenizers.Sequence([pre_tokenizers.Split("\n", "isolated"), BYTES]), "some"),
    "nothing that divides": (None, BYTES, "one"),
    "nothing": (None, None, "one"),
}


@pytest.mark.parametrize("kind", WORDS)
def test_pieces_are_put_together_where_a_tokenizer_has_other_numbers_for_them(tmp_path, monkeypatch, kind):
    text = "".join(random.Random(0).choices(["ab", "abc", "//", "12", " ", " ", "\n", ",\n"], k=3000))
    monkeypatch.setattr(documents_module, "_PIECE", 50)
    (tmp_path / "a.txt").write_text(text)
    made = tokenizers.Tokenizer(models.BPE())
    normalizer, before, left = WORDS[kind]
    if normalizer is not None:
        made.normalizer = normalizer
    if before is not None:
        made.pre_tokenizer = before
    made.train_from_iterator([text], trainers.BpeTrainer(vocab_size=400, show_progress=False))
    tokenizer = Library(made)
    (pieces,) = map(list, read_documents([tmp_path / "a.txt"]))
    found = list(joined(iter(pieces), tokenizer))
    assert [token for piece in found for token in tokenizer.encode(piece)] == tokenizer.encode(text)
    assert left == ("all" if len(found) == len(pieces) else "one" if len(found) == 1 else "some")
    if left != "all":
        assert [token for piece in pieces for token in tokenizer.encode(piece)] != tokenizer.encode(text)


def test_text_without_an_end_of_a_word_is_searched_once(tmp_path, monkeypatch):
    searched, boundary = [], documents_module._boundary
    monkeypatch.setattr(documents_module, "_PIECE", 1000)
    monkeypatch.setattr(documents_module, "_boundary", lambda text: searched.append(len(text)) or boundary(text))
    (tmp_path / "a.txt").write_text("春天来了" * 4000)
    (pieces,) = read_documents([tmp_path / "a.txt"])
    assert list(pieces) == ["春天来了" * 4000]
    assert sum(searched) < 1.02 * 48000


def test_a_mark_of_byte_order_is_no_text(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b'\xef\xbb\xbf{"text": "one"}\n')
    (tmp_path / "b.txt").write_bytes(b"\xef\xbb\xbftwo")
    file = token_file(text_files(str(tmp_path)), Bytes(), cache=tmp_path / "cache")
    assert documents_of(file, Bytes()) == ["one", "two"]


def test_two_processes_may_make_the_same_file(tmp_path):
    documents = [iter(("some text",))]
    build(tmp_path / "made", [iter(("some text",))], Bytes())
    build(tmp_path / "made", documents, Bytes())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["made"]


def test_letters_without_a_token_are_counted_in_a_warning(tmp_path, caplog):
    small_bpe(tmp_path / "bpe")
    build(tmp_path / "made", [iter(["ab é ab é"])], load_tokenizer(str(tmp_path / "bpe")))
    assert caplog.messages == ["the tokenizer has no token for 2 characters of the text, and leaves them out"]


def test_numbers_of_tokens_may_have_gaps(tmp_path):
    words = {"[UNK]": 0, "a": 1, "b": 70_000}
    made = {"version": "1.0", "model": {"type": "WordLevel", "vocab": words, "unk_token": "[UNK]"}}
    made |= {"pre_tokenizer": {"type": "Whitespace"}, "added_tokens": []}
    made |= {"normalizer": None, "post_processor": None, "decoder": None, "truncation": None, "padding": None}
    (tmp_path / "tokenizer.json").write_text(json.dumps(made))
    (tmp_path / "a.txt").write_text("a b a")
    tokenizer = load_tokenizer(str(tmp_path / "tokenizer.json"))
    assert tokenizer.size == 70_001
    file = token_file([tmp_path / "a.txt"], tokenizer, cache=tmp_path / "cache")
    assert file.tokens.tolist() == [1, 70_000, 1]


def test_a_token_file_is_made_once_and_anew_for_what_changed(tmp_path, monkeypatch):
    path, cache = tmp_path / "a.txt", tmp_path / "cache"
    path.write_text("some text")
    token_file([path], Bytes(), cache=cache)
    monkeypatch.setattr(Bytes, "encode", lambda *_: pytest.fail("made twice"))
    token_file([path], Bytes(), cache=cache)
    monkeypatch.undo()
    path.write_text("other text")
    os.utime(path, ns=(1, 1))
    assert documents_of(token_file([path], Bytes(), cache=cache), Bytes()) == ["other text"]
    small_bpe(tmp_path / "bpe")
    path.write_text("ab ab")
    bpe = load_tokenizer(str(tmp_path / "bpe"))
    assert documents_of(token_file([path], bpe, cache=cache), bpe) == ["ab ab"]
    assert len(list(cache.iterdir())) == 3


@pytest.mark.parametrize("hashed", [1 << 30, 0])
def test_a_text_that_changed_is_known_by_more_than_its_size_and_time(tmp_path, monkeypatch, hashed):
    """By its content; a file that is too long to be read for it, by a time that nobody can set back."""
    monkeypatch.setattr(token_file_module, "_HASHED", hashed)
    path, cache = tmp_path / "a.txt", tmp_path / "cache"
    path.write_text("some text")
    before = path.stat()
    token_file([path], Bytes(), cache=cache)
    time.sleep(0.02)  # a tick of the file system's clock
    with path.open("r+") as file:
        file.write("else")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = path.stat()
    assert [getattr(after, name) == getattr(before, name) for name in ("st_size", "st_mtime_ns", "st_ino")] == [
        True
    ] * 3
    assert documents_of(token_file([path], Bytes(), cache=cache), Bytes()) == ["else text"]


def test_lines_of_json_end_at_newlines_alone(tmp_path):
    texts = ["next\u0085line", "para\u2029graph\u2028", "form\x0cfeed\x0b\x1c"]
    lines = [json.dumps({"text": text}, ensure_ascii=False) for text in texts[:2]]
    (tmp_path / "a.jsonl").write_text("\r\n".join(lines), newline="")
    (tmp_path / "b.txt").write_text(texts[2], newline="")
    paths = [tmp_path / "a.jsonl", tmp_path / "b.txt"]
    assert documents_of(token_file(paths, Bytes(), cache=tmp_path / "cache"), Bytes()) == texts


def _other_places(folder):
    np.save(folder / "documents.npy", np.array([0, 4, 10]))
    _manifest(folder, documents=2)


def _manifest(folder, **fields):
    path = folder / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda f: (f / "tokens.bin").write_bytes(b"xx"), "2 bytes of 10 tokens"),
        (lambda f: (f / "manifest.json").write_text("{}"), r"manifest\.json: dtype is missing"),
        (lambda f: _manifest(f, tokens=float("inf")), r"tokens is inf, expected a whole number"),
        (lambda f: _manifest(f, dtype="<u2,("), "expected '<u2' or '<u4'"),
        (lambda f: [(f / "documents.npy").unlink(), os.mkfifo(f / "documents.npy")], "is damaged"),
        (lambda f: (f / "manifest.json").unlink(), "manifest.json"),
        (lambda f: (f / "tokens.bin").write_bytes(bytes([1, *(f / "tokens.bin").read_bytes()[1:]])), "other tokens"),
        (lambda f: np.save(f / "documents.npy", np.array([0, 20])), "places of documents"),
        (lambda f: _other_places(f), "other places of documents than were written"),
        (lambda f: np.save(f / "documents.npy", np.array([{}], dtype=object), allow_pickle=True), "is damaged"),
    ],
)
def test_a_damaged_token_file_is_one_line(tmp_path, damage, words):
    (tmp_path / "a.txt").write_text("some text")
    token_file([tmp_path / "a.txt"], Bytes(), cache=tmp_path / "cache")
    damage(next((tmp_path / "cache").iterdir()))
    with pytest.raises(StorageError, match=words) as caught:
        token_file([tmp_path / "a.txt"], Bytes(), cache=tmp_path / "cache")
    assert "\n" not in str(caught.value)


def test_another_tokenizer_s_token_file_is_refused(tmp_path):
    (tmp_path / "a.txt").write_text("some text")
    token_file([tmp_path / "a.txt"], Bytes(), cache=tmp_path / "cache")
    folder = next((tmp_path / "cache").iterdir())
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**manifest, "tokenizer": "f" * 16}))
    with pytest.raises(StorageError, match="was made by another tokenizer"):
        token_file([tmp_path / "a.txt"], Bytes(), cache=tmp_path / "cache")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.txt", b"", "the text is empty"),
        ("a.txt", b"good\nbad \xff", "a.txt, byte 9: no UTF-8"),
        ("a.jsonl", b'{"text": "a"}\n{"text": \n', "a.jsonl, line 2: no JSON"),
        ("a.json", b'[\n {"text": "a"},\n {"text": "b"}\n]\n', "a.json, line 1: a JSON array, where an object is exp"),
        ("a.jsonl", b'{"text": null}\n', "line 1: no text at 'text' .it is null.; mend or remove the line"),
        ("a.jsonl", b'{"body": "a", "n": 1}\n', "a.jsonl, line 1: no text at 'text' .it has body, n.; name the key"),
        ("a.jsonl", b'{"text": "a\\ud800b"}\n', "line 1: half of a surrogate pair"),
        ("a.jsonl", b'{"text": ' + b"[" * 100_000 + b"\n", "line 1: no JSON"),
    ],
)
def test_bad_text_is_named_with_its_place(tmp_path, name, content, words):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=words) as caught:
        token_file([tmp_path / name], Bytes(), cache=tmp_path / "cache")
    assert "\n" not in str(caught.value)
    assert list((tmp_path / "cache").iterdir()) == []


def test_no_document_is_in_two_parts(tmp_path):
    texts = [f"{number}-" * random.Random(number).randint(1, 50) for number in range(100)]
    file = token_file([write_json(tmp_path / "a.jsonl", texts)], Bytes(), cache=tmp_path / "cache")
    pairs = list(zip(documents_of(file, Bytes()), file.documents, strict=False))
    found = {
        name: [text for text, place in pairs if one.start <= place < one.stop]
        for name, one in spans(file, TextForm(validation_fraction=0.06, test_fraction=0.04).shares).items()
    }
    assert found == {"training": texts[:90], "validation": texts[90:96], "test": texts[96:]}


def test_one_document_is_cut_and_too_few_are_refused(tmp_path):
    (tmp_path / "a.txt").write_text("x" * 999)
    file = token_file([tmp_path / "a.txt"], Bytes(), cache=tmp_path / "cache")
    parts = spans(file, TextForm().shares).values()
    assert [(one.start, one.stop) for one in parts] == [(0, 900), (900, 950), (950, 1000)]
    write_json(tmp_path / "b.jsonl", ["a", "b", "c"])
    file = token_file([tmp_path / "b.jsonl"], Bytes(), cache=tmp_path / "cache")
    with pytest.raises(DataError, match=r"3 documents, of which 0\.05 are for the validation part, leave it none"):
        spans(file, TextForm(test_fraction=0.001).shares)


@pytest.mark.slow
def test_kills_while_it_is_made_leave_nothing_that_is_taken_for_whole(tmp_path):
    write_json(tmp_path / "a.jsonl", [f"document {number} " * 40 for number in range(20_000)])
    program = (
        "import sys; from pathlib import Path; from l2l_nas.text.token_file import build, token_file\n"
        "from l2l_nas.text.tokenizer import Bytes\n"
        "print('go', flush=True); token_file([Path(sys.argv[1])], Bytes(), cache=Path(sys.argv[2])); print('done')"
    )
    words = [sys.executable, "-c", program, str(tmp_path / "a.jsonl"), str(tmp_path / "cache")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    killed = 0
    for delay in (0.02, 0.1, 0.2, 0.3, 0.5):
        process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment)
        assert process.stdout.readline() == "go\n"
        time.sleep(delay)
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            killed += 1
        process.communicate()
        whole = [path for path in (tmp_path / "cache").glob("*") if not path.name.startswith(".")]
        assert len(whole) <= 1
    assert killed >= 2
    file = token_file([tmp_path / "a.jsonl"], Bytes(), cache=tmp_path / "cache")
    assert len(file.documents) == 20_001
    assert documents_of(file, Bytes())[12345] == "document 12345 " * 40
    assert [path.name.startswith(".") for path in (tmp_path / "cache").iterdir()] == [False]
