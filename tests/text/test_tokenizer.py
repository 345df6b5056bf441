"""Tokenizers of local files are those of `transformers`; bytes need nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from l2l_nas.errors import L2LError
from l2l_nas.text.tokenizer import Bytes, load_tokenizer

DATA = Path(__file__).parents[3] / "shared" / "data"
needs_data = pytest.mark.skipif(not DATA.exists(), reason="the real data are not here")
TEXT = " = Robert Boulter = \n\n Robert <unk> is an English film and theatre actor . It's 2,015\n\t naïve 東京"


def small_bpe(folder):
    """GPT-2's two files, for a few letters."""
    folder.mkdir(exist_ok=True)
    letters = [chr(code) for code in range(33, 127)] + ["Ġ", "Ċ"]
    tokens = [*letters, "ab", "Ġa", "Ġab", "<|endoftext|>"]
    (folder / "vocab.json").write_text(json.dumps({token: number for number, token in enumerate(tokens)}))
    (folder / "merges.txt").write_text("#version: 0.2\na b\nĠ a\nĠ ab\n")
    return tokens


def test_bytes_come_back_whatever_the_text():
    tokenizer = Bytes()
    assert tokenizer.decode(tokenizer.encode(TEXT)) == TEXT
    assert max(tokenizer.encode(TEXT)) < 256 == tokenizer.end
    assert tokenizer.decode([*"é".encode(), 256, 0xFF]) == "é�"


def test_files_of_gpt_2(tmp_path):
    tokens = small_bpe(tmp_path / "gpt2")
    tokenizer = load_tokenizer(str(tmp_path / "gpt2"))
    assert [tokens[n] for n in tokenizer.encode("ab abc")] == ["ab", "Ġab", "c"]
    assert tokenizer.decode(tokenizer.encode("ab abc\nx")) == "ab abc\nx"
    assert tokens[tokenizer.end] == "<|endoftext|>"
    assert tokenizer.size == len(tokens)
    (tmp_path / "gpt2/tokenizer.json").write_text(tokenizer.texts["tokenizer.json"])
    assert load_tokenizer(str(tmp_path / "gpt2")).fingerprint == tokenizer.fingerprint
    (tmp_path / "gpt2/tokenizer_config.json").write_text('{"eos_token": {"content": "z"}}')
    assert tokens[load_tokenizer(str(tmp_path / "gpt2")).end] == "z"


def test_what_ends_a_text_is_said_by_the_tokenizer_the_config_and_the_generation_config(tmp_path):
    tokens = small_bpe(tmp_path)
    end = tokens.index("<|endoftext|>")
    assert load_tokenizer(str(tmp_path)).ends == {end}
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": 3}))
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, 6]}))
    assert load_tokenizer(str(tmp_path)).ends == {end, 3, 5, 6}
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": None}))
    assert load_tokenizer(str(tmp_path)).ends == {end, 5, 6}
    for wrong in ("x", -1, [True], {"a": 1}):
        (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": wrong}))
        with pytest.raises(L2LError, match=r"config\.json: eos_token_id is"):
            load_tokenizer(str(tmp_path))


def test_words_of_bert(tmp_path):
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "play", "##ing", "##s", "the"]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    tokenizer = load_tokenizer(str(tmp_path))
    numbers = tokenizer.encode("The Playing plays xyz")
    assert [words[n] for n in numbers] == ["the", "play", "##ing", "play", "##s", "[UNK]"]
    assert [tokenizer.begins_word(n) for n in numbers] == [True, True, False, True, False, True]
    assert (tokenizer.mask, tokenizer.first, tokenizer.last) == (4, 2, 3)


@needs_data
@pytest.mark.parametrize("name", ["gpt2", "bert-base-uncased"])
def test_real_vocabularies_give_what_transformers_gives(name, tmp_path):
    import transformers

    folder = DATA / "tokenizers" / name
    ours = load_tokenizer(str(folder))
    if name == "gpt2":
        (tmp_path / "vocab.json").write_bytes((folder / "encoder.json").read_bytes())
        (tmp_path / "merges.txt").write_bytes((folder / "vocab.bpe").read_bytes())
        theirs = transformers.GPT2TokenizerFast.from_pretrained(tmp_path)
    else:
        (tmp_path / "vocab.txt").write_bytes((folder / "vocab.txt").read_bytes())
        theirs = transformers.BertTokenizerFast.from_pretrained(tmp_path)
    for text in (TEXT, (DATA / "text/wikitext2/valid.txt").read_text()[:50_000]):
        assert ours.encode(text) == theirs(text, add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda f: (f / "merges.txt").unlink(), "has no tokenizer.json, no vocab.json with merges.txt"),
        (lambda f: (f / "vocab.json").write_text("{"), "damaged, not merges of vocab.json"),
        (lambda f: (f / "tokenizer.json").write_text("[]"), "damaged, not a tokenizer"),
        (lambda f: (f / "tokenizer.json").write_bytes(b"\xff"), "damaged, not a tokenizer"),
    ],
)
def test_a_damaged_tokenizer_is_one_line(tmp_path, damage, words):
    small_bpe(tmp_path)
    damage(tmp_path)
    with pytest.raises(L2LError, match=words) as caught:
        load_tokenizer(str(tmp_path))
    assert "\n" not in str(caught.value)


def test_what_is_not_there_is_named(tmp_path):
    with pytest.raises(L2LError, match=r"there is no file or folder .*nowhere; name one, or write"):
        load_tokenizer(str(tmp_path / "nowhere"))


def test_characters_without_a_token_are_counted_also_behind_a_space_that_the_tokenizer_puts_there(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    made = tokenizers.Tokenizer(tokenizers.models.BPE({"\u2581": 0, "a": 1, "b": 2}, []))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(prepend_scheme="always")
    made.decoder = tokenizers.decoders.Metaspace(prepend_scheme="always")
    made.save(str(tmp_path / "tokenizer.json"))
    assert load_tokenizer(str(tmp_path)).num_lost("ab \u00e9a\u00e9") == 2


def doubling(count):
    """Steps each of which makes a text twice as long."""
    steps = [{"type": "Replace", "pattern": {"String": "a"}, "content": "aa"} for _ in range(count)]
    return {"type": "Sequence", "normalizers": steps, "decoders": steps}


@pytest.mark.parametrize("step", ["normalizer", "decoder"])
def test_replacements_that_would_fill_the_memory_are_refused_before_a_text_is_read(tmp_path, step):
    pytest.importorskip("tokenizers")
    about = {"version": "1.0", "added_tokens": [], "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}
    load = lambda count: (  # noqa: E731
        (tmp_path / "tokenizer.json").write_text(json.dumps({**about, step: doubling(count)})),
        load_tokenizer(str(tmp_path)),
    )[1]
    assert load(9).size == 1
    with pytest.raises(L2LError, match="its replacements may make a text more than 1,000 times as long"):
        load(12)
