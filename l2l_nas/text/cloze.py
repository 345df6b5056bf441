"""The last word of a passage, as LAMBADA asks for it (arXiv 1606.06031)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from l2l_nas.errors import DataError
from l2l_nas.relay.interface import Batch
from l2l_nas.text.documents import json_objects
from l2l_nas.text.perplexity import exponential
from l2l_nas.text.tokenizer import Tokenizer
from l2l_nas.training.samples import Split
from l2l_nas.training.task import Tokens


class Continuations(Split):
    """Texts, each padded to the network's length."""

    is_padded = True


@dataclass(frozen=True)
class Passage:
    """A text without its last word, and that word."""

    context: str  # what stands before
    target: str  # the last word
    # a space, which belongs to the word behind it; empty where the context ends with other white space
    between: str = " "


class Cloze(Tokens):
    """How well last words are predicted, each from its whole context and its own tokens before.

    A last word has some tokens. `accuracy` is the share of words of which the most likely token is right at each place
    (arXiv 1909.08053, section 5.3); `last_token_accuracy` that of words of which it is right at the last place, given
    the others (Megatron-LM's evaluation where it is not strict). `target_perplexity` is
    exp(mean negative log likelihood of a word).
    """

    metrics = {"accuracy": True, "last_token_accuracy": True, "target_perplexity": False}

    names = ("samples", "hits", "last", "loss")
    reads_what_counts = True

    def figures(self, outputs: Batch, targets: Tensor) -> Tensor:
        """1; whether the word is predicted in either sense; its negative log likelihood."""
        counts, is_right, losses = self.places(outputs, targets)
        last = counts.long().cumsum(dim=1).argmax(dim=1, keepdim=True)
        hits, last_hits = (is_right | ~counts).all(dim=1).double(), is_right.gather(1, last)[:, 0].double()
        return torch.stack((torch.ones_like(hits), hits, last_hits, losses.sum(dim=1, dtype=torch.float64)), dim=1)

    def finish(self, totals: Mapping[str, Tensor]) -> dict[str, float]:
        samples = int(totals["samples"])
        return {
            "accuracy": int(totals["hits"]) / samples,
            "last_token_accuracy": int(totals["last"]) / samples,
            "target_perplexity": exponential(float(totals["loss"]) / samples),
        }


def read_passages(path: Path) -> list[Passage]:
    """The passages of a file of JSON objects, one a line: {"context", "target"}, or {"text"} with its last word.

    Raises:
        StorageError: it cannot be read.
        DataError: a line that is none, or no line.
    """
    found = []
    for number, entry in json_objects(path):
        context, target = entry.get("context"), entry.get("target")
        if isinstance(entry.get("text"), str):
            target = next(reversed(entry["text"].split()), "")
            context = entry["text"].rstrip().removesuffix(target)
        if not (isinstance(context, str) and isinstance(target, str) and context.strip() and target.strip()):
            raise DataError(
                f'{path}, line {number}: expected {{"text": "... last word"}} or '
                f'{{"context": "...", "target": "word"}}, got {json.dumps(entry)[:60]}'
            )
        between = "" if context[-1].isspace() and context[-1] != " " else " "
        found.append(Passage(context.lstrip().removesuffix(" "), target.strip(), between))
    if not found:
        raise DataError(f"{path}: holds no passage")
    return found


def lambada(
    passages: Sequence[Passage], tokenizer: Tokenizer, *, length: int, begin: int | None = None
) -> tuple[Cloze, Split]:
    """What is measured of passages, and the samples to measure it on.

    A passage's tokens are those of the whole; its last word's are those that the context alone does not begin with. Of
    a context that is too long, the end is taken.

    Raises:
        DataError: a last word of more tokens than the network takes.
    """
    pairs = []
    for passage in passages:
        before = [] if begin is None else [begin]
        context = before + tokenizer.encode(passage.context)
        whole = before + tokenizer.encode(passage.context + passage.between + passage.target)
        same = next((i for i, (a, b) in enumerate(zip(context, whole, strict=False)) if a != b), len(context))
        start = min(same, len(whole) - 1)
        pairs.append((whole[:start], whole[start:], f"the last word {passage.target!r}"))
    return Cloze(), continuations(pairs, length)


def continuations(pairs: Sequence[tuple[Sequence[int], Sequence[int], str]], length: int) -> Continuations:
    """Samples of a context's tokens and those that go on with it, which are to be predicted, and what these are called.

    Raises:
        DataError: a continuation of more tokens than the network takes, or of none, or one that nothing stands before.
    """
    inputs = torch.zeros(len(pairs), length, dtype=torch.int64)
    targets = torch.full_like(inputs, -1)
    for row, (context, continuation, name) in enumerate(pairs):
        count = len(continuation)
        if not context or not 0 < count <= length:
            raise DataError(f"{name} has {count} tokens, the network takes {length}")
        tokens = torch.tensor([*context, *continuation])[-length - 1 :]
        inputs[row, : len(tokens) - 1] = tokens[:-1]
        targets[row, len(tokens) - 1 - count : len(tokens) - 1] = tokens[-count:]
    return Continuations((inputs,), targets)
