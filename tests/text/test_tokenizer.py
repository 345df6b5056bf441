"""Tokenizers of local files are those of `transformers`; bytes need nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from l2l_nas.errors import L2LError
from l2l_nas.text.tokenizer import Bytes, Library, load_tokenizer

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


class OfNumbers:
    """Has tokens with some numbers, and writes none of them."""

    def __init__(self, *numbers):
        self.get_vocab = lambda: {str(number): number for number in numbers}

    def no_padding(self):
        pass

    no_truncation = no_padding

    def to_str(self):
        raise ValueError("all numbers are looked at")


@pytest.mark.parametrize(("number", "words"), [(2**31, "the number 2147483648, at most"), (9, "all numbers are")])
def test_a_token_s_number_is_bounded_before_all_numbers_are_looked_at(number, words):
    with pytest.raises(L2LError, match=words):
        Library(OfNumbers(number))


def as_library(folder, **about):
    """The same tokenizer as one file, and what stands beside it."""
    tokens = small_bpe(folder)
    (folder / "tokenizer.json").write_text(load_tokenizer(str(folder)).texts["tokenizer.json"])
    (folder / "tokenizer_config.json").write_text(json.dumps(about))
    return tokens


def test_a_template_says_what_stands_before_a_text(tmp_path):
    tokens = as_library(tmp_path)
    made = json.loads((tmp_path / "tokenizer.json").read_text())
    frame = lambda name: {"SpecialToken": {"id": name, "type_id": 0}}  # noqa: E731
    single = [frame("a"), {"Sequence": {"id": "A", "type_id": 0}}, frame("z")]
    special = {name: {"id": name, "ids": [tokens.index(name)], "tokens": [name]} for name in "az"}
    made["post_processor"] = {"type": "TemplateProcessing", "single": single, "pair": single, "special_tokens": special}
    (tmp_path / "tokenizer.json").write_text(json.dumps(made))
    assert load_tokenizer(str(tmp_path)).begin == tokens.index("a")


@pytest.mark.parametrize(("is_added", "begin"), [(True, "b"), (False, None)])
def test_a_config_says_what_stands_before_a_text(tmp_path, is_added, begin):
    tokens = as_library(tmp_path, add_bos_token=is_added, bos_token="b")
    assert load_tokenizer(str(tmp_path)).begin == (begin and tokens.index(begin))


def test_an_end_and_further_tokens_may_be_named_beside_the_vocabulary_alone(tmp_path):
    more = {"100": {"content": "<x>"}}
    tokens = as_library(tmp_path, added_tokens_decoder={str(10**6): more["100"]})
    with pytest.raises(L2LError, match="'<x>' has the number 1000000 there, and 100 behind the tokens"):
        load_tokenizer(str(tmp_path))
    assert len(tokens) == 100
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": more}))
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"eos_token": "z"}))
    made = load_tokenizer(str(tmp_path))
    assert made.encode("a<x>") == [tokens.index("a"), 100]
    assert (made.end, made.size) == (tokens.index("z"), 101)


def test_a_tokenizer_and_its_config_that_differ_are_refused(tmp_path):
    as_library(tmp_path, add_prefix_space=True)
    with pytest.raises(L2LError, match="has ByteLevel with add_prefix_space=false, and tokenizer_config"):
        load_tokenizer(str(tmp_path))


def test_two_files_of_another_family_do_not_say_how_a_text_is_cut(tmp_path):
    small_bpe(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "Qwen2Tokenizer"}')
    with pytest.raises(L2LError, match="how a Qwen2Tokenizer cuts a text before its merges is said there alone"):
        load_tokenizer(str(tmp_path))


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
