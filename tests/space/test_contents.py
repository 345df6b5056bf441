"""What an object holds."""

from __future__ import annotations

from torch import nn

from l2l_nas.space.contents import Snapshot


class Shared:
    def __init__(self):
        self.items = [(number, object()) for number in range(50)]


def parts_with(shared, count):
    module = nn.ModuleList([nn.Identity() for _ in range(count)])
    for part in module:
        part.shared = shared
    return module


def test_what_many_parts_of_a_module_share_is_looked_at_once():
    one, many = (len(Snapshot(parts_with(Shared(), count)).marks) for count in (1, 40))
    assert many < 2 * one + 40 * 20


def test_a_change_in_what_parts_share_is_seen_wherever_it_lies():
    shared = Shared()
    module = nn.ModuleList([parts_with([[[shared]]], 1), parts_with(shared, 2)])
    before = Snapshot(module)
    assert before.changed(Snapshot(module)) is None
    shared.items[30] = (30, object())
    assert before.changed(Snapshot(module)) is not None
