"""Whether samples of one part of the data are among those of another one, of another run: found by hashes of rows.

[Note: overlap] Digests of whole parts tell only whether two parts are the same. So a run keeps 64-bit hashes of the
inputs of its validation samples, by which it chose: all up to 2,048, else the lowest of them. That is a random sample
of the distinct rows, the same rows of every data set that has them (Broder, On the resemblance and containment of
documents, 1997), so that shares are found of parts of any size. Samples in memory are all hashed; of others as many as
that, evenly spread. Alike are rows whose inputs are bit by bit the same: other cuts of a text, and images that were
scaled otherwise, are not recognised.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from l2l_nas.training.samples import Samples, Split, read, rows_to_see

_MOST = 2048  # hashes that are kept, and rows that are read of what does not lie in memory
_CHUNK_BYTES = 1 << 26


@dataclass(frozen=True)
class RowHashes:
    """Hashes of rows of a part.

    Args:
        samples: of the part.
        hashed: how many of them were read.
        distinct: of these, how many have hashes of their own.
        hashes: the lowest of these, in order.
    """

    samples: int
    hashed: int
    distinct: int
    hashes: tuple[int, ...]

    @classmethod
    def of(cls, part: Samples, *, most: int = _MOST) -> RowHashes:
        """Of a part; keeps so many hashes. Raises DataError: a sample cannot be read."""
        found = hashes_of(part)
        distinct = np.unique(found)
        return cls(len(part), len(found), len(distinct), tuple(distinct[:most].tolist()))

    def to_json(self) -> dict[str, Any]:
        """As results hold it."""
        text = base64.b64encode(np.array(self.hashes, dtype="<u8").tobytes()).decode()
        return {"samples": self.samples, "hashed": self.hashed, "distinct": self.distinct, "hashes": text}

    @classmethod
    def from_json(cls, content: object) -> RowHashes | None:
        """The other way round; None: nothing is known, as of runs of earlier versions."""
        try:
            counts = [content[name] for name in ("samples", "hashed", "distinct")]  # type: ignore[index]
            hashes = np.frombuffer(base64.b64decode(content["hashes"], validate=True), dtype="<u8")  # type: ignore[index]
        except (TypeError, KeyError, ValueError):
            return None
        is_known = all(type(one) is int for one in counts) and 0 < len(hashes) <= counts[2] <= counts[1] <= counts[0]
        return cls(counts[0], counts[1], counts[2], tuple(np.unique(hashes).tolist())) if is_known else None


@dataclass(frozen=True)
class HeldOut:
    """The test part of a run that uses an earlier one."""

    part: Samples

    @cached_property
    def _hashes(self) -> np.ndarray:
        return hashes_of(self.part)

    def overlap(self, chosen_by: RowHashes) -> str:
        """How many of its samples an earlier run chose by, in words: "355 of the 360 test samples"; empty for none."""
        mine = self._hashes
        is_all = len(chosen_by.hashes) == chosen_by.distinct
        comparable = mine if is_all else mine[mine <= np.uint64(chosen_by.hashes[-1])]
        found = int(np.isin(comparable, np.array(chosen_by.hashes, dtype=np.uint64)).sum())
        if not found:
            return ""
        share = min(1.0, found / len(comparable) * chosen_by.samples / chosen_by.hashed)
        is_exact = is_all and chosen_by.hashed == chosen_by.samples and len(mine) == len(self.part)
        number = max(1, round(share * len(self.part)))
        return f"{'' if is_exact else 'about '}{number:,} of the {len(self.part):,} test samples"


def chosen_by(result: object) -> RowHashes | None:
    """The samples that a run chose by, as its `result.json` tells; None: it does not."""
    data = result.get("data") if isinstance(result, Mapping) else None
    return RowHashes.from_json(data.get("validation_rows")) if isinstance(data, Mapping) else None


def hashes_of(part: Samples) -> np.ndarray:
    """Of each sample that is read; uint64. See [Note: overlap]."""
    if not len(part):
        return np.zeros(0, dtype=np.uint64)
    rows = torch.arange(len(part)) if isinstance(part, Split) else rows_to_see(part, _MOST)
    (first, *others), _ = read(part, rows[:1])
    row_bytes = sum(tensor.nbytes for tensor in (first, *others))
    size = max(1, min(part.at_once or len(rows), _CHUNK_BYTES // max(1, row_bytes)))
    return np.concatenate([_hashed(read(part, some)[0]) for some in rows.split(size)])


def _hashed(inputs: tuple[Tensor, ...]) -> np.ndarray:
    """Sums of the words of a row, each times an odd number of its place, modulo 2^64; then mixed (splitmix64)."""
    count = len(inputs[0])
    parts = [tensor.reshape(count, -1).contiguous().view(torch.uint8) for tensor in inputs]
    whole = torch.cat(parts, dim=1).numpy()
    words = np.pad(whole, ((0, 0), (0, -whole.shape[1] % 8))).view("<u8")
    factors = np.random.Generator(np.random.PCG64(0)).integers(1 << 63, size=words.shape[1], dtype=np.uint64) * 2 + 1
    found: np.ndarray = (words * factors).sum(axis=1, dtype=np.uint64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        found = (found ^ (found >> np.uint64(shift))) * np.uint64(factor)
    return found ^ (found >> np.uint64(31))
