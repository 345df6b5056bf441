"""The mesh of a run must be that of its ranks."""

from __future__ import annotations

import pytest

from l2l_nas.errors import SettingError
from l2l_nas.runs.mesh import check_mesh
from l2l_nas.runs.section_settings import ParallelConf


@pytest.mark.parametrize(
    ("conf", "ranks", "said"),
    [
        (ParallelConf(data=2), 1, "parallel.data=2: there is 1 process; leave it out, or start 2 with torchrun"),
        (ParallelConf(data=2), 4, "parallel.data=2: there are 4 ranks; leave it out, or start 2 with torchrun"),
        (ParallelConf(tensor=3), 4, "parallel.tensor=3: there are 4 ranks, which it must divide"),
        (ParallelConf(tensor=2), 1, "parallel.tensor=2: there is 1 process, which it must divide"),
    ],
)
def test_a_mesh_of_other_ranks_is_refused(conf, ranks, said):
    with pytest.raises(SettingError) as raised:
        check_mesh(conf, ranks)
    assert str(raised.value) == said


@pytest.mark.parametrize("conf", [ParallelConf(), ParallelConf(data=4)])
def test_a_mesh_of_all_ranks_is_taken(conf):
    check_mesh(conf, 4)
