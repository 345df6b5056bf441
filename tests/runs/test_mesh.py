"""The mesh of a run must be that of its ranks."""

from __future__ import annotations

import pytest

from l2l_nas.errors import SettingError
from l2l_nas.runs.mesh import check_mesh, check_planned, idle_ranks
from l2l_nas.runs.section_settings import MeshConf, ParallelConf


@pytest.mark.parametrize(
    ("conf", "ranks", "said"),
    [
        (ParallelConf(data=2), 1, "parallel.data=2: there is 1 process; leave it out, or start 2 with torchrun"),
        (ParallelConf(data=2), 4, "parallel.data=2: there are 4 ranks; leave it out, or start 2 with torchrun"),
        (ParallelConf(tensor=3), 4, "parallel.tensor=3: there are 4 ranks, which it must divide; take 1, 2 or 4"),
        (
            ParallelConf(tensor=2),
            1,
            "parallel.tensor=2: there is 1 process, which it must divide; take 1, or start 2 with torchrun",
        ),
        (
            ParallelConf(data=4, tensor=2),
            4,
            "parallel.data=4: there are 4 ranks; leave it out, or start 8 with torchrun",
        ),
    ],
)
def test_a_mesh_of_other_ranks_is_refused(conf, ranks, said):
    with pytest.raises(SettingError) as raised:
        check_mesh(conf, ranks)
    assert str(raised.value) == said


@pytest.mark.parametrize(
    "conf", [ParallelConf(), ParallelConf(data=4), ParallelConf(data=2, tensor=2), ParallelConf(tensor=4)]
)
def test_a_mesh_of_all_ranks_is_taken(conf):
    check_mesh(conf, 4)


@pytest.mark.parametrize(
    ("conf", "said"),
    [
        (MeshConf(data=6), "parallel.data=6: ranks add their sums in pairs, so take a power of two, such as 4 or 8"),
        (MeshConf(data=4, chunks=2), "parallel.chunks=2: 4 ranks cannot divide it; take 4 or a multiple"),
    ],
)
def test_a_mesh_that_no_ranks_could_be_is_refused(conf, said):
    with pytest.raises(SettingError) as raised:
        check_planned(conf)
    assert str(raised.value) == said


def test_ranks_without_a_micro_batch_are_told_of():
    assert idle_ranks(4, batch_size=64, micro_batch=16) == ""
    said = "a step has 1 micro-batch, so that 3 of 4 ranks have none: train.micro_batch=16 gives each one"
    assert idle_ranks(4, batch_size=64, micro_batch=64) == said
