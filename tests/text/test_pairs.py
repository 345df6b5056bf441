"""Sentences and pairs of them, told apart by a network of BERT's kind."""

from __future__ import annotations

import torch
import transformers as hf
from torch.nn import functional

from l2l_nas.pretrained.families import family_of
from search_spaces import bert

SMALL = {"vocab_size": 61, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}


def test_logits_and_gradients_are_those_of_transformers():
    torch.manual_seed(3)
    config = hf.BertConfig(**SMALL, intermediate_size=128, max_position_embeddings=17, num_labels=3)
    model = hf.BertForSequenceClassification(config).eval()
    with torch.no_grad():  # initial biases and norms are all alike
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    published, sources = dict(model.named_parameters()), family_of(config.to_dict()).sources
    heads = {"pooler": "bert.pooler.dense", "out": "classifier"}

    def source(position, name):
        if position == "head":
            layer, _, kind = name.partition(".")
            return f"{heads[layer]}.{kind}", lambda tensor: tensor
        return sources[position, name].name, sources[position, name].take

    pool = bert.build(vocabulary=61, length=17, hidden=32, depth=2, heads=4, classes=3)
    modules = {position.name: position.candidates[0].factory().eval() for position in pool.positions}
    for position, module in modules.items():
        for name, parameter in module.named_parameters():
            tensor, take = source(position, name)
            parameter.data.copy_(take(published[tensor]))
    generator = torch.Generator().manual_seed(0)
    tokens, kinds = torch.randint(1, 61, (3, 17), generator=generator), torch.arange(17).ge(6).long().repeat(3, 1)
    padding = torch.arange(17) >= torch.tensor([17, 12, 9])[:, None]
    tokens, kinds = tokens.masked_fill(padding, 0), kinds.masked_fill(padding, 0)
    labels = torch.tensor([2, 0, 1])
    x = modules["embedding"](tokens, kinds)
    for position, module in modules.items():
        if position.startswith("attention"):
            x = module(x, torch.zeros_like(tokens).masked_fill(padding, -1))
        elif position.startswith("feedforward"):
            x = module(x)
    logits = modules["head"](x)
    expected = model(input_ids=tokens, token_type_ids=kinds, attention_mask=(~padding).long()).logits
    torch.testing.assert_close(logits, expected, atol=1e-6, rtol=1e-5)
    functional.cross_entropy(logits, labels).backward()
    functional.cross_entropy(expected, labels).backward()
    compared = set()
    for position, module in modules.items():
        for name, parameter in module.named_parameters():
            tensor, take = source(position, name)
            compared.add(tensor)
            torch.testing.assert_close(parameter.grad, take(published[tensor].grad), atol=1e-6, rtol=1e-4)
    assert compared == set(published)
