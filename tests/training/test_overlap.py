"""Samples of one part that are among those of another run's part."""

from __future__ import annotations

import json

import pytest
import torch

from l2l_nas.training.overlap import HeldOut, RowHashes, chosen_by, hashes_of
from l2l_nas.training.samples import Samples, Split


def part(first, last, *, dtype=torch.float32):
    rows = torch.arange(first, last)
    return Split((torch.stack([rows, rows**2, rows % 7], dim=1).to(dtype), rows % 5), torch.zeros(last - first))


class Slow(Samples):
    """Samples that do not lie in memory."""

    def __init__(self, whole):
        self.whole, self.rows = whole, 0

    def __len__(self):
        return len(self.whole)

    def batch(self, rows, *, key=(0, 0)):
        self.rows += len(rows)
        return self.whole.batch(rows)


def stored(rows):
    return RowHashes.from_json(json.loads(json.dumps(rows.to_json())))


def test_samples_that_two_parts_share_are_counted_whatever_their_order():
    earlier = stored(RowHashes.of(part(0, 700).some(torch.randperm(700))))
    assert HeldOut(part(690, 1050)).overlap(earlier) == "10 of the 360 test samples"
    assert HeldOut(part(0, 360)).overlap(earlier) == "360 of the 360 test samples"
    assert HeldOut(part(700, 1060)).overlap(earlier) == ""


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.uint8, torch.bool, torch.complex64])
def test_samples_of_any_type_are_compared(dtype):
    earlier = RowHashes.of(part(0, 6, dtype=dtype))
    assert HeldOut(part(0, 6, dtype=dtype)).overlap(earlier) == "6 of the 6 test samples"


def test_of_a_large_part_few_hashes_tell_the_share():
    rows = RowHashes.of(part(0, 200_000))
    assert len(json.dumps(rows.to_json())) < 25_000
    about = HeldOut(part(170_000, 230_000)).overlap(stored(rows))
    number = int(about.removeprefix("about ").split()[0].replace(",", ""))
    assert number == pytest.approx(30_000, rel=0.15)
    assert HeldOut(part(200_000, 260_000)).overlap(rows) == ""


def test_of_what_does_not_lie_in_memory_some_samples_are_read():
    slow = Slow(part(0, 20_000))
    rows = RowHashes.of(slow)
    assert slow.rows < 3000
    assert (rows.samples, rows.hashed) == (20_000, 2048)
    about = HeldOut(part(0, 10_000)).overlap(rows)
    number = int(about.removeprefix("about ").split()[0].replace(",", ""))
    assert number == pytest.approx(10_000, rel=0.15)


def test_rows_that_differ_have_other_hashes():
    assert len(set(hashes_of(part(0, 50_000)).tolist())) == 50_000
    assert not len(hashes_of(part(0, 0)))


@pytest.mark.parametrize(
    "change", [{"hashes": "?"}, {"hashes": "AAAA"}, {"hashes": ""}, {"hashed": 10**9}, {"samples": "3"}]
)
def test_what_is_damaged_or_of_an_earlier_version_tells_nothing(change):
    content = RowHashes.of(part(0, 30)).to_json()
    assert chosen_by({"data": {"validation_rows": content}}) is not None
    assert chosen_by({"data": {"validation_rows": {**content, **change}}}) is None
    for other in ({}, {"data": {"digest": "0"}}, {"data": 7}, None, {"data": {"validation_rows": [1]}}):
        assert chosen_by(other) is None
