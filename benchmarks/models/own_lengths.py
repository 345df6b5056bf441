"""How long it takes to measure a language model, beside a plain loop over `transformers` and the same batches.

Both sides hold all weights. The plain side is given the library's batches: the same rows, cut to the same length.
Sides take turns; the figures of both must agree.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.paired import in_turns, ratios, shown
from l2l_nas import SGD, ParamServer, Relay
from l2l_nas.errors import SettingError
from l2l_nas.pretrained.pool import open_published, published_pool
from l2l_nas.text.cloze import Passage, lambada
from l2l_nas.text.perplexity import perplexity_of
from l2l_nas.training.fit import score
from l2l_nas.training.lengths import Texts
from l2l_nas.training.samples import Samples
from l2l_nas.training.task import Task

Works = dict[str, Callable[[], object]]
Batches = Sequence[tuple[Tensor, Tensor]]

_SAME = 1e-4  # of losses, in float32


def compared(
    model: str, network: Any, text: str, passages: Sequence[Passage], *, rounds: int, micro_batch: int
) -> dict[str, Any]:
    """Ratios of seconds, by what is measured.

    Args:
        network: `transformers`' own, of the same file.
    """
    pool, tokenizer = published_pool(model), open_published(model).tokenizer()
    length = pool.inputs[0].shape[0]
    server = ParamServer(pool, optimizer=SGD(momentum=0.0), seed=0)
    relay = Relay(server, device="cpu", device_budget="all")
    begin = tokenizer.begin
    asked: dict[str, tuple[Task, Samples]] = {
        "token_perplexity": perplexity_of(text, tokenizer, words=1, length=length, begin=begin),
        "last_words": lambada(passages, tokenizer, length=length, begin=begin),
    }
    works: dict[str, Works] = {}
    for name, (task, samples) in asked.items():
        batches, values = _batches_of(relay, task, samples, micro_batch)
        _check(name, values, _plain(network, batches), len(samples))
        works[name] = {
            "l2l_nas": partial(score, relay, pool.original, samples, task=task, micro_batch=micro_batch),
            "transformers": partial(_plain, network, batches),
        }
    found: dict[str, Any] = {}
    for name, sides in works.items():
        seconds = in_turns(sides, rounds=rounds)
        found[name] = {"seconds": seconds, "ratio": ratios(seconds, over="transformers")["l2l_nas"]}
        print(name, {clock: shown(one) for clock, one in found[name]["ratio"].items()}, flush=True)
    return found


def _batches_of(relay: Relay, task: Task, samples: Samples, micro_batch: int) -> tuple[Batches, dict[str, float]]:
    """The library's own batches, and what it measures on them."""
    calls: list[list[tuple[int, int]]] = []
    whole = relay.predict_population

    def watching(*arguments: Any, cuts: Any, **others: Any) -> Any:
        calls.append(cuts)
        return whole(*arguments, cuts=cuts, **others)

    original = relay.pool.original
    relay.predict_population = watching  # type: ignore[method-assign]
    try:
        values = score(relay, original, samples, task=task, micro_batch=micro_batch).values
    finally:
        relay.predict_population = whole  # type: ignore[method-assign]
    texts = Texts.of(relay, [original], samples, task)
    (tokens,), targets = samples.batch(torch.arange(len(samples)))
    taken = [cut for cuts in calls for cut in cuts]
    if sum(size for size, _ in taken) > len(samples):
        taken = taken[len(calls[0]) :]  # what was tried out first is no batch
    if texts is None or sum(size for size, _ in taken) != len(samples):
        raise SettingError("more samples than one chunk: take fewer of --items and --bytes")
    lengths = texts.lengths((tokens,), targets)
    orders = texts.cut(lengths, 1, places=1, waiting=1).order.split([size for size, _ in taken])
    batches = [(tokens[rows, :n], targets[rows, :n]) for rows, (_, n) in zip(orders, taken, strict=True)]
    return batches, dict(values)


@torch.no_grad()
def _plain(network: Any, batches: Batches) -> tuple[float, int]:
    """The loop that anybody would write: the sum of losses, and how many tokens there were."""
    loss, count = 0.0, 0
    for tokens, targets in batches:
        logits = network(tokens, use_cache=False).logits
        counts = targets >= 0
        likely, wanted = logits[counts], targets[counts]
        (likely.argmax(dim=-1) == wanted).sum().item()
        loss += float(functional.cross_entropy(likely, wanted, reduction="sum"))
        count += len(wanted)
    return loss, count


def _check(name: str, values: dict[str, float], plain: tuple[float, int], samples: int) -> None:
    loss, count = plain
    ours = math.log(values["token_perplexity"]) * count if "token_perplexity" in values else 0.0
    if "target_perplexity" in values:
        ours = math.log(values["target_perplexity"]) * samples
    if not math.isclose(ours, loss, rel_tol=_SAME):
        raise SettingError(f"{name}: the library's loss is {ours}, the plain loop's {loss}")
