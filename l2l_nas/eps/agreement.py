"""What ranks do together is a value, which they compare before they do it.

[Note: passes] Each rank makes its own plan, from its own settings and data. If two differed, an exchange of one would
meet another one's: all would wait, or sum what does not belong together, or the process would be aborted, as gloo does
where messages differ in size. So whatever ranks do together, a pass, begins with one exchange of a fixed size, the
same for all kinds of pass: what is about to be done, a digest of each fact that must be alike, and numbers of which
all get the least. No user's code runs between it and exchanges of another size on its channel (`Channel.STEP`). A pass
that a rank may fail at alone ends with one more: done, or what it failed with.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import NamedTuple

import torch
from torch import Tensor

from l2l_nas.contents.described import digest_of
from l2l_nas.eps.exchange import Channel, Exchange
from l2l_nas.errors import L2LError, RankError, SettingError, StorageError, agreed, one_line

MESSAGE_BYTES = 1024  # of every message of this file
_NUMBERS = MESSAGE_BYTES // 8
_MINIMA = 4  # at the end of a message
MOST_FACTS = _NUMBERS - 2 - _MINIMA
_TEXT_BYTES = MESSAGE_BYTES - 16


class Pass(StrEnum):
    """What ranks do together, as a message says it behind "to"."""

    TRAIN = "train"
    PREDICT = "predict"
    EXTEND = "extend texts"
    RECALIBRATE = "measure statistics"
    READ = "read a state"
    SAVE = "save"
    LOAD = "load"
    COMPARE = "compare weights"
    BUILD = "build a relay"
    AGREE = "agree on values"
    SHARE = "share tensors"
    WAIT = "wait for all"
    LEAD = "do what rank 0 does"


_PASSES = list(Pass)


class Fact(NamedTuple):
    """What must be alike on all ranks.

    Args:
        name: as a message calls it, such as "learning rate".
        digest: of its value.
    """

    name: str
    digest: int


def facts_of(values: Mapping[str, object]) -> list[Fact]:
    """Facts by name. See `described` for what is known of a value."""
    return [Fact(name, digest_of(value)) for name, value in values.items()]


def begin(exchange: Exchange, what: Pass, facts: Sequence[Fact] = (), minima: Sequence[int] = ()) -> list[int]:
    """Begin a pass; all ranks call it with what they are about to do.

    Args:
        facts: in one order; a fact that decides which others follow stands before them.
        minima: numbers of which all get the least, at most 4.

    Returns:
        The least of each number.

    Raises:
        SettingError: on all ranks, if two differ; it names what and which.
        RankError: see `Exchange`.
    """
    if exchange.size == 1:
        return list(minima)
    assert len(facts) <= MOST_FACTS, f"{len(facts)} facts"
    digests = [fact.digest for fact in facts]
    rest = [0] * (MOST_FACTS - len(facts) + _MINIMA - len(minima))
    every = _exchanged(exchange, torch.tensor([_PASSES.index(what), len(facts), *digests, *rest, *minima]))
    told = every[:, : _NUMBERS - _MINIMA]
    if not torch.equal(told, told[:1].expand_as(told)):
        _require_same_pass(exchange, every)
        for fact, column in zip(facts, every[:, 2:].unbind(1), strict=False):
            _require_same(exchange, f"another {fact.name}", what, column)
        _require_same(exchange, "other settings", what, every[:, 1])  # more of them, or fewer
    return every[:, _NUMBERS - len(minima) :].amin(0).tolist() if minima else []


def end(exchange: Exchange, what: Pass, problem: str = "") -> str:
    """End a pass; all ranks call it.

    Args:
        problem: what this rank failed with; empty if it is done.

    Returns:
        What the first rank failed with that did, and which it is; empty if all are done.

    Raises:
        SettingError: on all ranks, if one is about to do something else.
    """
    if exchange.size == 1:
        return problem
    text = one_line(problem, most=400).encode()[:_TEXT_BYTES]
    own = torch.zeros(_NUMBERS, dtype=torch.int64)
    own[0], own[1] = len(_PASSES) + _PASSES.index(what), len(text)
    own[2:].view(torch.uint8)[: len(text)] = torch.frombuffer(bytearray(text or b"\0"), dtype=torch.uint8)[: len(text)]
    every = _exchanged(exchange, own)
    _require_same_pass(exchange, every)
    for rank, row in zip(exchange.members, every, strict=True):
        if length := int(row[1]):
            said = bytes(row[2:].view(torch.uint8)[:length].tolist()).decode(errors="replace")
            return f"rank {rank} could not {what}: {said}"
    return ""


@contextmanager
def together(exchange: Exchange, what: Pass, values: Mapping[str, object]) -> Iterator[None]:
    """A pass that ends in done or failed on all ranks.

    Args:
        values: facts of it, by name.

    Raises:
        StorageError: on all ranks, where one failed; that one raises its own error.
    """
    begin(exchange, what, facts_of(values) if exchange.size > 1 else ())
    try:
        yield
    except RankError:
        raise
    except L2LError as error:
        end(exchange, what, str(error))
        agreed(error)
        raise
    if problem := end(exchange, what):
        raise agreed(StorageError(problem))


def all_reduce_min(exchange: Exchange, number: int, of: str) -> int:
    """The least of all ranks' numbers; all of them call it.

    Args:
        of: what they are of; ranks that ask for others are refused.
    """
    return begin(exchange, Pass.AGREE, facts_of({"question": of}) if exchange.size > 1 else (), [number])[0]


def broadcast(exchange: Exchange, own: Tensor) -> Tensor:
    """Rank 0's tensor, on the host; all ranks call it with one of its shape."""
    if exchange.size == 1:
        return own
    return all_gather_alike(exchange, own.cpu().contiguous())[0]


def all_gather_alike(exchange: Exchange, own: Tensor) -> Tensor:
    """The tensors of all ranks, which are of one shape, [rank, ...]; all ranks call it."""
    begin(exchange, Pass.SHARE, facts_of({"shape of tensors": (own.dtype, tuple(own.shape))}))
    every = own.new_empty(exchange.size, *own.shape)
    exchange.all_gather(own, every, Channel.STEP)
    return every


def all_gather_bytes(exchange: Exchange, own: bytes) -> list[bytes]:
    """The bytes of all ranks, of any length; all ranks call it."""
    if exchange.size == 1:
        return [own]
    most = -begin(exchange, Pass.AGREE, facts_of({"question": "values"}), [-len(own)])[0]
    row = torch.zeros(8 + most, dtype=torch.uint8)
    row[:8] = torch.tensor([len(own)]).view(torch.uint8)
    if own:
        row[8 : 8 + len(own)] = torch.frombuffer(bytearray(own), dtype=torch.uint8)
    rows = row.new_empty(exchange.size, len(row))
    exchange.all_gather(row, rows, Channel.STEP)
    values = (bytes(one.tolist()) for one in rows)
    return [one[8 : 8 + int.from_bytes(one[:8], sys.byteorder)] for one in values]


def broadcast_bytes(exchange: Exchange, own: bytes, *, asks: bool = False) -> tuple[bytes, bool]:
    """Rank 0's bytes, of any length; all ranks call it.

    Args:
        own: of rank 0; of other ranks none.
        asks: a flag of this rank.

    Returns:
        Rank 0's bytes; and whether the flag of any rank is set.

    Raises:
        SettingError: on all ranks, if one is about to do something else.
    """
    row = torch.zeros(_NUMBERS, dtype=torch.int64)
    row[0], row[1], row[2] = _PASSES.index(Pass.LEAD), len(own), int(asks)
    start = min(len(own), _TEXT_BYTES - 8)
    if start:
        row[3:].view(torch.uint8)[:start] = torch.frombuffer(bytearray(own[:start]), dtype=torch.uint8)
    every = _exchanged(exchange, row)
    _require_same_pass(exchange, every)
    length = int(every[0, 1])
    content = bytes(every[0, 3:].view(torch.uint8)[:length].tolist())
    if length > len(content):
        rest = torch.zeros(length - len(content), dtype=torch.uint8)
        if own:
            rest.copy_(torch.frombuffer(bytearray(own[start:]), dtype=torch.uint8))
        rows = rest.new_empty(exchange.size, len(rest))
        exchange.all_gather(rest, rows, Channel.STEP)
        content += rows[0].numpy().tobytes()
    return content, bool(every[:, 2].any())


def wait_for_all(exchange: Exchange) -> None:
    """Return when all ranks have called it."""
    begin(exchange, Pass.WAIT)


def _exchanged(exchange: Exchange, own: Tensor) -> Tensor:
    every = own.new_empty(exchange.size, _NUMBERS)
    exchange.all_gather(own, every, Channel.STEP)
    return every


def _require_same_pass(exchange: Exchange, every: Tensor) -> None:
    for rank, index in zip(exchange.members, every[:, 0].tolist(), strict=True):
        if index != every[0, 0]:
            raise SettingError(
                f"rank {rank} is about to {_said(index)}, and rank {exchange.members[0]} to {_said(int(every[0, 0]))}; "
                "all ranks must make the same calls in the same order"
            )


def _said(index: int) -> str:
    return _PASSES[index].value if index < len(_PASSES) else f"end: {_PASSES[index - len(_PASSES)]}"


def _require_same(exchange: Exchange, difference: str, what: Pass, column: Tensor) -> None:
    for rank, digest in zip(exchange.members, column.tolist(), strict=True):
        if digest != column[0]:
            raise SettingError(
                f"rank {rank} has {difference} than rank {exchange.members[0]}, and they are about to {what} together; "
                "all ranks must be given the same"
            )
