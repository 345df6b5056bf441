from __future__ import annotations

import torch
import torch.distributed as dist

from benchmarks.relay.group import join_world_of_one


def test_a_world_of_one_is_made_once_and_kept():
    join_world_of_one(torch.device("cpu"))
    first = dist.group.WORLD
    join_world_of_one(torch.device("cpu"))
    assert dist.group.WORLD is first
    assert (dist.get_rank(), dist.get_world_size()) == (0, 1)
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [1, 1, 1]
