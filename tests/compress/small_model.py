"""A small Llama with its tokenizer, as `transformers` saves it."""

from __future__ import annotations

from pathlib import Path

import torch
import transformers as hf
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers


def save_small_llama(folder: Path | str, *, layers: int = 1, places: int = 24) -> None:
    """Write one of 264 tokens, with random weights."""
    torch.manual_seed(0)
    config = {"hidden_size": 16, "num_hidden_layers": layers, "num_attention_heads": 2, "intermediate_size": 32}
    config |= {"vocab_size": 264, "max_position_embeddings": places, "bos_token_id": 0, "eos_token_id": 1}
    hf.LlamaForCausalLM(hf.LlamaConfig(**config)).save_pretrained(folder)
    made = Tokenizer(models.BPE())
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet, special = pre_tokenizers.ByteLevel.alphabet(), ["<s>", "</s>"]
    trainer = trainers.BpeTrainer(vocab_size=262, special_tokens=special, initial_alphabet=alphabet)
    made.train_from_iterator(["a line of text in a line"], trainer)
    hf.PreTrainedTokenizerFast(tokenizer_object=made, eos_token="</s>").save_pretrained(folder)
