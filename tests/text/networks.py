"""Small language models of bytes, with random weights."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from l2l_nas.compress.families import family_of
from l2l_nas.eps.optimizers.rules import SGD
from l2l_nas.eps.server import ParamServer
from l2l_nas.relay.reference import ReferenceTrainer
from l2l_nas.space.architecture import Architecture
from l2l_nas.space.pool import LayerPool

SMALL = {"vocab_size": 257, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4}
SMALL |= {"tie_word_embeddings": False}
LLAMA = {**SMALL, "intermediate_size": 48, "num_key_value_heads": 2, "hidden_act": "silu"}
CONFIGS = {
    "gpt2": {"model_type": "gpt2", "vocab_size": 257, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 48}
    | {"activation_function": "gelu_new", "tie_word_embeddings": False},
    "llama": {"model_type": "llama", "max_position_embeddings": 48, **LLAMA},
    "mistral": {"model_type": "mistral", "max_position_embeddings": 48, "sliding_window": 5, **LLAMA},
    "qwen3": {"model_type": "qwen3", "max_position_embeddings": 48, "head_dim": 12, **LLAMA},
    "bert": {"model_type": "bert", "max_position_embeddings": 48, "intermediate_size": 48, **SMALL}
    | {"hidden_act": "gelu"},
}
WHOLE = Architecture(("original",) * 9)


def pool_of(name: str = "llama", *, length: int = 12) -> LayerPool:
    return family_of(CONFIGS[name]).pool(length=length)


@torch.no_grad()
def server_of(pool: LayerPool, *, seed: int = 3) -> ParamServer:
    """Weights so large that what is said depends on all tokens before."""
    server = ParamServer(pool, optimizer=SGD(momentum=0.0), seed=seed)
    resident = ReferenceTrainer(server, device="cpu")
    for layer in pool.path(Architecture(tuple(position.candidates[0].name for position in pool.positions))):
        for name, parameter in resident.module(layer).named_parameters():
            parameter.mul_(3.0 if name.endswith(("value.weight", "out.weight", "query.weight")) else 1.0)
    resident.write_back()
    return server


def plain(server: ParamServer, architecture: Architecture) -> nn.Sequential:
    """The network as anybody would write it."""
    resident = ReferenceTrainer(server, device="cpu")
    return nn.Sequential(*(resident.module(layer) for layer in server.pool.path(architecture))).eval()


@torch.no_grad()
def log_likelihoods(network: nn.Module, context: list[int] | Tensor) -> Tensor:
    """Of each token that may come next, float64."""
    return network(torch.as_tensor(context)[None])[0, -1].double().log_softmax(dim=-1)
