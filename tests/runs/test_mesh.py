"""The mesh of a run must be that of its ranks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from l2l_nas import AdamW, ParamServer, Relay
from l2l_nas.cost.catalogue import build_costs
from l2l_nas.eps.exchange import Mesh, PaperRanks
from l2l_nas.eps.sharded import ShardedServer
from l2l_nas.errors import SettingError, SpaceError
from l2l_nas.parallel.collectives import Ranks, Unjoined
from l2l_nas.parallel.split_pool import SplitPool
from l2l_nas.relay.device import Cpu
from l2l_nas.runs.build import build_relay
from l2l_nas.runs.mesh import check_mesh, check_possible_mesh, idle_ranks, paper_relay, refuse_undivided, sharers_of
from l2l_nas.runs.section_settings import MeshConf, ParallelConf
from l2l_nas.runs.settings import SearchConf
from tests.parallel.test_split_pool import space


@pytest.mark.parametrize(
    ("conf", "ranks", "said"),
    [
        (ParallelConf(data=2), 1, "parallel.data=2: there is 1 process; leave it out, or start 2 with torchrun"),
        (ParallelConf(tensor=3), 4, "parallel.tensor=3: there are 4 ranks, which it must divide; take 1, 2 or 4"),
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
        check_possible_mesh(conf)
    assert str(raised.value) == said


def test_ranks_without_a_micro_batch_are_told_of():
    assert idle_ranks(4, batch_size=64, micro_batch=16) == ""
    said = "a step has 1 micro-batch, so that 3 of 4 ranks have none: train.micro_batch=16 gives each one"
    assert idle_ranks(4, batch_size=64, micro_batch=64) == said


@pytest.mark.parametrize(
    ("workers", "executor", "sharers"),
    [(1, "inline", 1), (1, "processes", 2), (2, "processes", 3), (2, "inline", 3)],
)
def test_device_memory_is_shared_by_all_workers_and_the_search(workers, executor, sharers):
    conf = SearchConf(executor={"name": executor})
    assert sharers_of(replace(conf, search=replace(conf.search, workers=workers))) == sharers


def costs_of(rank):
    pool = space("gpt2", vocabulary=29)  # of which the first rank has one token more
    split = SplitPool(pool, Ranks(Unjoined(rank, 2)), gather_logits=None, is_lenient=True)
    mesh = Mesh(PaperRanks(2, rank), tensor=PaperRanks(2, rank))
    conf = SearchConf(parallel=ParallelConf(tensor=2))
    server = ShardedServer(split, mesh, optimizer=AdamW(), seed=0)
    paper = paper_relay(build_relay(server, conf.relay, seed=0, device=Cpu()), conf)
    costs = build_costs(paper, (2, 2), build=lambda architecture: None, inputs=())
    architecture = pool.architecture([position.candidates[0].name for position in pool.positions])
    return [costs[name].compute(architecture) for name in ("parameters", "flops", "streamed_bytes", "device_bytes")]


def test_costs_of_divided_layers_are_alike_on_all_ranks_and_count_whole_networks():
    first = costs_of(0)
    assert costs_of(1) == first
    pool = space("gpt2", vocabulary=29)
    whole = build_costs(Relay(ParamServer(pool, optimizer=AdamW(), seed=0)), (2, 2), build=lambda one: None, inputs=())
    architecture = pool.architecture([position.candidates[0].name for position in pool.positions])
    assert first[:2] == [whole[name].compute(architecture) for name in ("parameters", "flops")]
    assert first[2] < 0.7 * whole["streamed_bytes"].compute(architecture)


def test_layers_that_ranks_cannot_divide_are_refused_where_they_are_used():
    pool = space("gpt2", heads=4)  # its candidates of two heads divide among two ranks alone
    split = SplitPool(pool, Ranks(Unjoined(0, 4)), is_lenient=True)
    mesh = Mesh(PaperRanks(4, 0), tensor=PaperRanks(4, 0))
    server = ShardedServer(split, mesh, optimizer=AdamW(), seed=0)
    candidates = [[one.name for one in position.candidates] for position in pool.positions]
    fewer = pool.architecture(["heads_2" if "heads_2" in names else names[0] for names in candidates])
    others = pool.architecture([next(name for name in names if name != "heads_2") for names in candidates])
    refuse_undivided(server, others)
    for architecture in (fewer, None):
        with pytest.raises(SpaceError, match="heads_2"):
            refuse_undivided(server, architecture)


def test_times_of_ranks_that_share_layers_are_not_predicted_in_a_search():
    conf = SearchConf(parallel=ParallelConf(tensor=2))
    conf = replace(conf, search=replace(conf.search, hardware="h100"))
    with pytest.raises(SettingError, match="predicted by plan alone"):
        paper_relay(None, conf)
