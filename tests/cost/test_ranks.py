"""What ranks exchange through: against the formulas."""

from __future__ import annotations

from dataclasses import replace

import pytest

from l2l_nas.cost.profiles import PROFILES
from l2l_nas.cost.ranks import RankLink, summed_bytes

H100, RTX4090 = PROFILES["h100"], PROFILES["rtx4090"]


def test_a_ring_moves_nearly_twice_the_bytes():
    assert summed_bytes(1e9, 1) == 0
    assert summed_bytes(1e9, 2) == 1e9
    assert summed_bytes(1e9, 1000) == pytest.approx(2e9, rel=0.01)


def test_ranks_exchange_by_their_links_through_the_host_or_beyond_a_server_through_the_network():
    assert RankLink.of(H100, 8).bandwidth == 450e9
    assert RankLink.of(RTX4090, 8).bandwidth == 25e9  # through the host
    assert RankLink.of(H100, 16).bandwidth == 400e9 / 8  # which the devices of a server share
    assert RankLink.of(replace(H100, rank_bandwidth=1e9), 16).bandwidth == 1e9
    assert RankLink(2e9, 0.5).seconds([1e9, 2e9]) == 2 * 0.5 + 1.5
