"""A published model with the tokens of some texts alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, processors, trainers

from benchmarks.__main__ import main
from benchmarks.models.cut_vocabulary import _renumbered, cut_tokenizer
from l2l_nas.errors import SettingError

TEXTS = ["the cat sat on the mat", "a cat and a dog", "that mat, the dog\u2026"]
OTHERS = ["never before the other thing here", "whatever others never thought"]


def trained() -> Tokenizer:
    made = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    made.normalizer, made.decoder = normalizers.Replace(" ", "\u2581"), decoders.Replace("\u2581", " ")
    special = ["<pad>", "<eos>", "<bos>", "<unk>", *(f"<0x{number:02X}>" for number in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=360, special_tokens=special, min_frequency=1, show_progress=False)
    made.train_from_iterator([*TEXTS, *OTHERS], trainer)
    made.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 2)])
    return made


@pytest.fixture
def folder(tmp_path) -> Path:
    """Of a small Llama, and a file of texts beside it."""
    made = trained()
    config = transformers.LlamaConfig(
        vocab_size=made.get_vocab_size(), hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=24, tie_word_embeddings=True, bos_token_id=2, eos_token_id=1, pad_token_id=0,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path / "whole")
    made.save(str(tmp_path / "whole" / "tokenizer.json"))
    about = {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>", "unk_token": "<unk>"}
    (tmp_path / "whole" / "tokenizer_config.json").write_text(json.dumps(about))
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    return tmp_path


def test_texts_keep_their_tokens_and_logits(folder, capsys):
    names = ["--model", str(folder / "whole"), "--text", str(folder / "texts.jsonl"), "--out", str(folder / "cut")]
    assert main(["cut_vocabulary", *names]) == 0
    whole, cut = (Tokenizer.from_file(str(folder / name / "tokenizer.json")) for name in ("whole", "cut"))
    assert f"{cut.get_vocab_size()} tokens" in capsys.readouterr().out
    assert 260 < cut.get_vocab_size() < whole.get_vocab_size()
    models_ = [transformers.LlamaForCausalLM.from_pretrained(folder / name).eval() for name in ("whole", "cut")]
    assert models_[1].config.vocab_size == cut.get_vocab_size()
    assert models_[1].config.bos_token_id == cut.token_to_id("<bos>")
    rows = [whole.token_to_id(cut.id_to_token(number)) for number in range(cut.get_vocab_size())]
    for text in TEXTS:
        pair = [made.encode(text) for made in (whole, cut)]
        assert pair[0].tokens == pair[1].tokens
        assert pair[1].tokens[0] == "<bos>"
        assert cut.decode(pair[1].ids) == text
        logits = [model(torch.tensor([one.ids])).logits for model, one in zip(models_, pair, strict=True)]
        torch.testing.assert_close(logits[0][..., rows], logits[1])


def test_other_texts_are_made_of_what_is_left():
    content: dict[str, Any] = json.loads(trained().to_str())
    cut = Tokenizer.from_str(json.dumps(cut_tokenizer(content, ["<unk>", "<bos>"], TEXTS)))
    assert cut.decode(cut.encode("the other cat").ids, skip_special_tokens=True) != ""
    assert len(cut.encode(OTHERS[0]).ids) > len(trained().encode(OTHERS[0]).ids)


def test_numbers_of_special_tokens_are_the_new_ones():
    config = {"eos_token_id": [5, 3], "bos_token_id": 3, "pad_token_id": 5, "unk_token_id": None, "vocab_size": 6}
    old, new = {"a": 3, "b": 4, "c": 5}, {"a": 0, "b": 1}
    found = {"eos_token_id": [0], "bos_token_id": 0, "pad_token_id": None, "unk_token_id": None, "vocab_size": 2}
    assert _renumbered(config, old, new) == found


def test_a_tokenizer_of_another_kind_is_refused():
    with pytest.raises(SettingError, match="its model is WordPiece, not BPE"):
        cut_tokenizer({"model": {"type": "WordPiece"}}, [], TEXTS)


def test_a_folder_whose_head_is_another_table_is_refused(folder, capsys):
    config = transformers.LlamaConfig.from_pretrained(folder / "whole")
    config.tie_word_embeddings = False
    transformers.LlamaForCausalLM(config).save_pretrained(folder / "whole")
    names = ["--model", str(folder / "whole"), "--text", str(folder / "texts.jsonl"), "--out", str(folder / "cut")]
    assert main(["cut_vocabulary", *names]) == 2
    assert "tables of" in capsys.readouterr().err
    assert not (folder / "cut").exists()
