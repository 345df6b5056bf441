"""Masks as tokenizers give them, in converted models of `transformers`."""

from __future__ import annotations

import threading

import pytest
import torch

from l2l_nas import convert, plain_module
from l2l_nas.space.convert.masks import masks_always_made

transformers = pytest.importorskip("transformers")
masking = pytest.importorskip("transformers.masking_utils")

SIZES = {"vocab_size": 50, "hidden_size": 32, "num_attention_heads": 2, "num_hidden_layers": 2, "intermediate_size": 64}
IDS = torch.arange(16).reshape(2, 8)
FULL = torch.ones(2, 8, dtype=torch.int64)
PADDED = FULL.index_put((torch.tensor([1, 1]), torch.tensor([6, 7])), torch.tensor(0))
MODELS = {
    "decoder": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES)),
    "window": lambda: transformers.MistralForCausalLM(
        transformers.MistralConfig(**SIZES, num_key_value_heads=2, sliding_window=4)
    ),
    "encoder": lambda: transformers.BertForMaskedLM(transformers.BertConfig(**SIZES)),
}
BLOCKS = {"decoder": "model.layers", "window": "model.layers", "encoder": "bert.encoder.layer"}


@pytest.mark.parametrize("example", [PADDED, FULL], ids=["padding", "no padding"])
@pytest.mark.parametrize("name", MODELS)
def test_a_mask_of_a_row_a_sample_means_what_it_means_to_the_model(name, example):
    torch.manual_seed(0)
    model = MODELS[name]().eval()
    caches = {} if name == "encoder" else {"use_cache": False}
    pool = convert(model, {"input_ids": IDS, "attention_mask": example, **caches}, blocks=BLOCKS[name])
    network = plain_module(pool, pool.original).eval()
    with torch.no_grad():
        for mask in (PADDED, FULL):
            expected = model(input_ids=IDS, attention_mask=mask, **caches).logits
            torch.testing.assert_close(network(IDS, mask), expected)
        if name != "encoder":  # no token sees a later one
            other = IDS.index_put((torch.tensor([0]), torch.tensor([7])), torch.tensor(49))
            assert torch.equal(network(IDS, PADDED)[:, :7], network(other, PADDED)[:, :7])


def test_a_model_that_warns_of_padding_without_a_mask_needs_none():
    model = transformers.RoFormerForMaskedLM(transformers.RoFormerConfig(**SIZES)).eval()
    pool = convert(model, {"input_ids": IDS}, blocks="roformer.encoder.layer")
    torch.testing.assert_close(plain_module(pool, pool.original)(IDS), model(input_ids=IDS).logits)


def test_the_library_is_as_it_was_after_models_ran_in_several_threads():
    before, begun, ended = masking.is_tracing, threading.Event(), threading.Event()

    def run():
        with masks_always_made():
            begun.set()
            ended.wait()

    thread = threading.Thread(target=run)
    thread.start()
    begun.wait()
    with masks_always_made():
        assert masking.is_tracing(PADDED)
    assert masking.is_tracing(PADDED)
    ended.set()
    thread.join()
    assert masking.is_tracing is before
