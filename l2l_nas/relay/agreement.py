"""Before a step: all ranks are about to do the same.

Each makes its own plan, from its own settings and data. If two differed, an exchange of one would meet another one's:
all would wait, or sum what does not belong together.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Mapping

import torch

from l2l_nas.eps.exchange import Channel, Exchange
from l2l_nas.errors import SettingError
from l2l_nas.relay.interface import MiniBatch
from l2l_nas.relay.plan import Plan
from l2l_nas.relay.schedule import COLLECTIVES

DIGEST_BYTES = 8  # of a fact
FACTS = 11  # that ranks compare before a training step


def require_same(exchange: Exchange, facts: Mapping[str, object]) -> None:
    """All ranks call it with what they are about to do.

    Args:
        facts: by what a message calls them; their texts are compared.

    Raises:
        SettingError: on all ranks, if two differ; it names what and which.
    """
    digests = [hashlib.sha256(str(fact).encode()).digest()[:DIGEST_BYTES] for fact in facts.values()]
    own = torch.frombuffer(bytearray(b"".join(digests)), dtype=torch.uint8)
    every = own.new_empty(exchange.size, len(own))
    exchange.all_gather(own, every, Channel.STEP)
    for name, column in zip(facts, every.view(exchange.size, -1, DIGEST_BYTES).unbind(1), strict=True):
        others = [rank for rank in range(exchange.size) if not torch.equal(column[rank], column[0])]
        if others:
            raise SettingError(
                f"rank {others[0]} has another {name} than rank 0 at this step; all ranks must be given the same"
            )


def collectives(plan: Plan) -> list[tuple[str, int]]:
    """The steps of a plan that ranks do together, in order: what is done, and of which layer of the path."""
    return [(step.op.value, step.layer) for step in plan.steps if step.op in COLLECTIVES]


def checksum_of(batch: MiniBatch) -> int:
    """A checksum of a mini-batch, inputs and targets."""
    checksum = 0
    targets = [part if isinstance(part, tuple) else (part,) for part in batch.targets]
    for tensor in (*batch.inputs, *(tensor for part in targets for tensor in part)):
        checksum = zlib.crc32(tensor.detach().cpu().contiguous().view(torch.uint8).numpy(), checksum)
    return checksum
