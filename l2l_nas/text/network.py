"""What a network must be to be measured on text, or to write it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from l2l_nas.errors import DataError
from l2l_nas.relay.interface import Batch, Executor
from l2l_nas.space.architecture import Architecture
from l2l_nas.space.candidate import TensorSpec, describe
from l2l_nas.space.pool import LayerPool
from l2l_nas.space.shapes import check_shapes
from l2l_nas.training.lengths import Texts, are_near
from l2l_nas.training.samples import SCORING, Key, Loaded, Samples

# places that show whether a network sees what it predicts, and what of outputs is rounding
_FEW, _ROUNDING = 16, 1e-2


def length_of(pool: LayerPool, vocabulary: int) -> int:
    """The length of a language model's input: int64 [length] in, logits [length, vocabulary] out.

    A second input may be `documents`, the number of the document that each token belongs to.

    Raises:
        DataError: the pool is none of a language model, or has fewer tokens than there are.
    """
    outputs = check_shapes(pool).outputs
    length = pool.inputs[0].shape[0] if pool.inputs and pool.inputs[0].shape else 0
    takes = (TensorSpec((length,), torch.int64),) * (2 if has_documents(pool) else 1)
    if pool.inputs != takes or len(outputs) != 1 or outputs[0].shape[:-1] != (length,):
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


def has_documents(pool: LayerPool) -> bool:
    """Whether the second input is the number of each token's document."""
    return tuple(pool.sources)[1:] == ("documents",)


def inputs_of(pool: LayerPool, tokens: Tensor) -> Batch:
    """A network's input for tokens [batch, length], each sequence of one document."""
    return (tokens, torch.zeros_like(tokens)) if has_documents(pool) else (tokens,)


@dataclass(frozen=True)
class OfOneDocument(Samples):
    """Samples of tokens as a network takes them that is given documents; each sample is one."""

    tokens: Samples
    is_by_row = is_padded = True  # of windows of a text, and of passages

    @property
    def groups(self) -> Tensor | None:  # type: ignore[override]
        return self.tokens.groups

    def __len__(self) -> int:
        return len(self.tokens)

    def batch(self, rows: Tensor, *, key: Key = SCORING) -> Loaded:
        (tokens,), targets = self.tokens.batch(rows, key=key)
        return (tokens, torch.zeros_like(tokens)), targets


def predict_first(executor: Executor, architecture: Architecture, tokens: Tensor, places: int | None) -> Tensor:
    """Logits of tokens [batch, length], of their first places alone if it is said how many."""
    inputs, batch = inputs_of(executor.server.whole_pool, tokens), len(tokens)
    if places is None:
        return executor.predict(architecture, inputs, micro_batch=batch)[0]
    cuts = [(batch, places)]
    return executor.predict_population([architecture], inputs, micro_batch=batch, cuts=cuts)[0][0]


def refuse_no_numbers(logits: Tensor) -> None:
    """Refuse logits [..., vocabulary] that are NaN or infinity with a DataError; some may be minus infinity."""
    if not logits.amax(-1).isfinite().all():
        raise DataError(
            "the network's outputs are NaN or infinity: its weights are damaged or too large, or its layers need more "
            "precision (relay.precision=fp32)"
        )


def refuse_foresight(executor: Executor, architecture: Architecture, length: int) -> None:
    """Refuse a network that sees the tokens that it predicts, as a masked language model does, with a DataError."""
    tokens = torch.zeros(2, length, dtype=torch.int64)
    texts = Texts.taken_by(executor, [architecture])
    places = length if texts is None else texts.length_for(inputs_of(executor.server.whole_pool, tokens[:1]), _FEW)
    tokens[1, places - 1] = 1
    one, other = predict_first(executor, architecture, tokens, None if texts is None else places)[:, :-1]
    refuse_no_numbers(one)
    if not are_near(other, one, _ROUNDING):
        raise DataError(
            "the network sees later tokens than it predicts, as masked language models do: likelihoods of a text and "
            "generation need a causal one"
        )
