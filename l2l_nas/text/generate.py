"""A language model writes on: the next token, again and again.

With layers that go on token by token (`l2l_nas.relay.extend`), each token is computed once. They are those with a
method `extend`, and those that treat every place alike. Where a path has others, the whole text is computed again for
each token.

A network sees as many tokens as its input is long. Where a text is longer, its context begins anew with the later half
of that: at places that follow from the length of the input alone, whatever the prompts.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from l2l_nas.eps.agreement import broadcast
from l2l_nas.errors import DataError, SettingError
from l2l_nas.relay.device import stream_seed
from l2l_nas.relay.extend import Caches, extend_of, is_placewise
from l2l_nas.relay.interface import Executor
from l2l_nas.space.architecture import Architecture
from l2l_nas.space.pool import LayerPool
from l2l_nas.text.network import (
    has_documents,
    inputs_of,
    length_of,
    predict_first,
    refuse_foresight,
    refuse_no_numbers,
)
from l2l_nas.training.lengths import Texts


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen. Raises SettingError: a value that makes no sense."""

    temperature: float = 1.0  # logits are divided by it; 0: always the most likely token
    top_k: int = 0  # only of so many most likely tokens; 0: of all
    top_p: float = 1.0  # only of the fewest tokens that have this probability together (arXiv 1904.09751, section 3.1)
    seed: int = 0  # of the choice. What a prompt gets does not depend on those beside it.

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise SettingError(f"temperature must be at least 0, got {self.temperature}")
        if self.top_k < 0:
            raise SettingError(f"top_k must be at least 0, got {self.top_k}")
        if not 0 < self.top_p <= 1:
            raise SettingError(f"top_p must be above 0 and at most 1, got {self.top_p}")

    def generator(self, row: int) -> torch.Generator:
        return torch.Generator().manual_seed(stream_seed(self.seed, row, 0, 0))

    def pick(self, logits: Tensor, generator: torch.Generator) -> int:
        """One token, of logits [vocabulary]."""
        if self.temperature == 0:
            return int(logits.argmax())
        return int(torch.multinomial(self.probabilities(logits), 1, generator=generator))

    def probabilities(self, logits: Tensor) -> Tensor:
        values = (logits.double() - logits.max()) / self.temperature  # no temperature is too small then
        if 0 < self.top_k < len(values):
            values = values.masked_fill(values < values.topk(self.top_k).values[-1], -torch.inf)
        found = values.softmax(dim=-1)
        if self.top_p == 1:
            return found
        ordered, order = found.sort(descending=True, stable=True)
        ordered[1:][ordered.cumsum(dim=-1)[:-1] >= self.top_p] = 0
        return torch.zeros_like(found).scatter(0, order, ordered / ordered.sum())


def generate(
    executor: Executor,
    architecture: Architecture,
    prompts: Sequence[Sequence[int]],
    *,
    tokens: int,
    vocabulary: int,
    sampling: Sampling | None = None,
    ends: Collection[int] = (),
) -> Iterator[tuple[int, int]]:
    """Go on with prompts, all of them together: each layer is loaded once for the next token of all.

    Args:
        executor: a `Relay` streams layers, a `ReferenceTrainer` holds them.
        prompts: at least 1 token each. Shorter ones begin to go on while longer ones are read.
        tokens: how many new ones each prompt gets at most.
        vocabulary: tokens below it can be chosen.
        sampling: how they are; one at a time at temperature 1 by default.
        ends: tokens, each of which ends a text, and is the last that is given.

    Returns:
        As they come: the index of a prompt, and its next token.

    Raises:
        DataError: a network that is no causal language model, or a prompt without tokens or with unknown ones.
        SettingError: fewer than 1 token.
    """
    sampling = sampling or Sampling()
    length = length_of(executor.server.whole_pool, vocabulary)
    if tokens < 1:
        raise SettingError(f"tokens must be at least 1, got {tokens}")
    for prompt in prompts:
        if not prompt or not all(0 <= token < vocabulary for token in prompt):
            raise DataError(f"a prompt needs at least 1 token, and tokens below {vocabulary}; got {list(prompt)[:9]}")
    context = _Context(executor, architecture, length, vocabulary)
    return context.write(prompts, tokens=tokens, sampling=sampling, ends=ends)


def recomputed(pool: LayerPool, architecture: Architecture) -> str | None:
    """The position that makes every token recompute the whole text; None where there is none."""
    path = pool.path(architecture)
    for layer, reads in zip(path, pool.flow(path).reads, strict=True):
        module = pool.build_module(layer, device="meta")
        # all tokens are of one document, which needs no telling
        others = set(reads[1:]) - ({"documents"} if has_documents(pool) else set())
        goes_on = extend_of(module) is not None and not others
        if not goes_on and not is_placewise(module):
            return pool.positions[layer.position].name
    return None


class _Context:
    """What the network sees of texts, and says of their next tokens."""

    def __init__(self, executor: Executor, architecture: Architecture, length: int, vocabulary: int) -> None:
        self._executor = executor
        self._architecture = architecture
        self._length, self._vocabulary = length, vocabulary
        self._extends = recomputed(executor.server.whole_pool, architecture) is None
        self._start = self._seen = 0
        self._caches = self._fresh()
        self._texts = None if self._extends else Texts.taken_by(executor, [architecture])
        if not self._extends:
            refuse_foresight(executor, architecture, length)

    def write(
        self, prompts: Sequence[Sequence[int]], *, tokens: int, sampling: Sampling, ends: Collection[int]
    ) -> Iterator[tuple[int, int]]:
        rows = [list(prompt) for prompt in prompts]
        generators = [sampling.generator(row) for row in range(len(rows))]
        going = set(range(len(rows)))
        for place in range(min(map(len, rows), default=0), max(map(len, rows), default=0) + tokens):
            logits = self._next([row[:place] for row in rows])
            for index, row in enumerate(rows):
                if len(row) > place:  # a prompt that is longer than others
                    continue
                row.append(0)
                if index in going:
                    row[place] = sampling.pick(logits[index, : self._vocabulary], generators[index])
                    if row[place] in ends or len(row) == len(prompts[index]) + tokens:
                        going.remove(index)
                    yield index, row[place]
            if not going:
                return

    def _fresh(self) -> Caches:
        pool = self._executor.server.whole_pool
        path = pool.path(self._architecture)
        last = [place for place, layer in enumerate(path) if extend_of(pool.build_module(layer, device="meta"))]
        is_chain = all(len(set(reads) - {"documents"}) == 1 for reads in pool.flow(path).reads)
        return Caches(last[-1] if last and is_chain else None)

    def _next(self, rows: Sequence[Sequence[int]]) -> Tensor:
        """Logits [rows, vocabulary] of what comes next; all rows are of one length, and go on with those before."""
        place = len(rows[0])
        step = self._length // 2 + 1
        start = max(0, math.ceil((place - self._length) / step)) * step
        if start != self._start:
            self._start = self._seen = start
            self._caches = self._fresh()
        if self._extends:
            new = torch.tensor([row[self._seen :] for row in rows])
            self._seen = place
            inputs = inputs_of(self._executor.server.whole_pool, new)
            (outputs,) = self._executor.extend(self._architecture, inputs, self._caches, micro_batch=len(rows))
            logits = outputs[:, -1].float()
        else:
            seen = torch.zeros(len(rows), self._length, dtype=torch.int64)
            seen[:, : place - self._start] = torch.tensor([row[self._start :] for row in rows])
            places = None
            if self._texts is not None:
                row = inputs_of(self._executor.server.whole_pool, seen[:1])
                places = self._texts.length_for(row, place - self._start)
            outputs = predict_first(self._executor, self._architecture, seen, places)
            logits = outputs[:, place - self._start - 1].float()
        # ranks choose the same tokens, whatever their processors make of the same sums
        logits = broadcast(self._executor.server.world, logits)
        refuse_no_numbers(logits)
        return logits
