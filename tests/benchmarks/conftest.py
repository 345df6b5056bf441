from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from benchmarks.__main__ import main


@pytest.fixture
def refused(capsys) -> Callable[..., str]:
    """Runs a benchmark that must end with exit code 2 and one line; returns the line."""

    def run(*words: str) -> str:
        capsys.readouterr()
        assert main(words) == 2
        said = capsys.readouterr()
        assert said.err.count("\n") == 1, said.err
        assert said.err.startswith("error: ")
        assert not said.out
        return said.err.strip()

    return run


@pytest.fixture
def place(tmp_path) -> Path:
    """A folder with a model of two blocks whose tokens are bytes, and texts."""
    torch.manual_seed(0)
    made = Tokenizer(models.BPE())
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator([], trainers.BpeTrainer(vocab_size=256, initial_alphabet=alphabet))
    config = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    config |= {"vocab_size": 256, "max_position_embeddings": 512, "tie_word_embeddings": True}
    config |= dict.fromkeys(("bos_token_id", "eos_token_id"))
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**config)).save_pretrained(tmp_path / "model")
    made.save(str(tmp_path / "model" / "tokenizer.json"))
    (tmp_path / "model" / "tokenizer_config.json").write_text("{}")
    text = "It jumped over the dogs, and over the cats; it did not jump over the river.\n" * 22000
    (tmp_path / "text.txt").write_text(text)
    passages = [{"text": f"passage {number} has a last word"} for number in range(4)]
    (tmp_path / "words.jsonl").write_text("".join(json.dumps(one) + "\n" for one in passages))
    return tmp_path
