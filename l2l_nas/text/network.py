"""What a network must be to be measured on text, or to write it."""

from __future__ import annotations

import torch

from l2l_nas.errors import DataError
from l2l_nas.relay.interface import Executor
from l2l_nas.space.architecture import Architecture
from l2l_nas.space.candidate import TensorSpec
from l2l_nas.space.pool import LayerPool
from l2l_nas.space.shapes import check_shapes, describe


def length_of(pool: LayerPool, vocabulary: int) -> int:
    """The length of a language model's input: int64 [length] in, logits [length, vocabulary] out.

    Args:
        vocabulary: tokens that there are; a network may have room for more.

    Raises:
        DataError: the pool is none of a language model, or has fewer tokens.
    """
    outputs = check_shapes(pool).outputs
    length = pool.inputs[0].shape[0] if pool.inputs and pool.inputs[0].shape else 0
    if pool.inputs != (TensorSpec((length,), torch.int64),) or len(outputs) != 1 or outputs[0].shape[:-1] != (length,):
        raise DataError(
            f"a language model takes tokens, int64 [length], and gives logits [length, vocabulary]; the pool takes "
            f"{describe(pool.inputs)} and gives {describe(outputs)}"
        )
    if outputs[0].shape[-1] < vocabulary:
        raise DataError(
            f"the tokenizer has {vocabulary} tokens, the network {outputs[0].shape[-1]}; name the tokenizer that it "
            "was trained with"
        )
    return length


def refuse_foresight(executor: Executor, architecture: Architecture, length: int) -> None:
    """Refuse a network that sees the tokens that it predicts, as a masked language model does.

    Raises:
        DataError: an output depends on a later token.
    """
    tokens = torch.zeros(2, length, dtype=torch.int64)
    tokens[1, -1] = 1
    one, other = executor.predict(architecture, (tokens,), micro_batch=2)[0][:, :-1]
    if not torch.allclose(one, other, rtol=1e-2, atol=1e-2 * float(one.abs().max())):
        raise DataError(
            "the network sees later tokens than it predicts, as masked language models do: likelihoods of a text and "
            "generation need a causal one"
        )
