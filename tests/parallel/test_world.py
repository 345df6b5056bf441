"""Ranks join, begin anew, and leave."""

from __future__ import annotations

import re
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from torch.distributed import HashStore

from l2l_nas.errors import RankError, SettingError
from l2l_nas.parallel import meeting
from l2l_nas.parallel.meeting import Place
from tests.parallel.ranked import Ranks, errors_of

VARIABLES = {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "node7", "MASTER_PORT": "29500"}


def test_a_place_is_read_from_the_environment():
    assert Place.of(VARIABLES) == Place(1, 4, 1, "node7", 29500, has_launcher_store=False)
    there = Place.of({**VARIABLES, "LOCAL_RANK": "0", "TORCHELASTIC_USE_AGENT_STORE": "True"})
    assert there == Place(1, 4, 0, "node7", 29500, has_launcher_store=True)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        *((name, None, f"{name} is not set; start with torchrun") for name in VARIABLES),
        ("RANK", "one", "RANK=one: must be a whole number"),
        ("RANK", "4", "RANK=4: with WORLD_SIZE=4, ranks are 0 to 3"),
        ("WORLD_SIZE", "6", "WORLD_SIZE=6: the number of ranks must be a power of two, .* start 4, or 8"),
        ("WORLD_SIZE", "0", "WORLD_SIZE=0: the number of ranks must be a power of two"),
        ("MASTER_PORT", "70000", "MASTER_PORT=70000: a port is"),
    ],
)
def test_a_variable_that_makes_no_sense_is_refused(name, value, said):
    variables = {key: text for key, text in {**VARIABLES, name: value}.items() if text is not None}
    with pytest.raises(SettingError, match=said):
        Place.of(variables)


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"WORLD_SIZE": 3}, "WORLD_SIZE=3: the number of ranks must be a power of two"),
        ({"MASTER_ADDR": ""}, "MASTER_ADDR is not set; start with torchrun"),
    ],
)
def test_what_all_ranks_are_refused_for_is_printed_once(variables, said, tmp_path):
    with Ranks(tmp_path, 2, "steps", **variables) as ranks:
        results = ranks.ended(10)
    assert [one.code for one in results] == [2, 2]
    (line,) = errors_of(results)
    assert line.startswith(f"error: {said}")


@pytest.mark.timeout(60)
def test_a_port_in_use_is_one_line(tmp_path):
    with socket.socket() as other:
        other.bind(("", 0))
        other.listen()
        port = other.getsockname()[1]
        with Ranks(tmp_path, 1, "steps", MASTER_PORT=port) as ranks:
            results = ranks.ended(10)
    assert [one.code for one in results] == [2]
    (line,) = errors_of(results)
    assert line.startswith(f"error: port {port} of this machine is in use; choose another"), results


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_what_is_no_store_is_said_by_a_rank_that_no_launcher_ends(tmp_path):
    with socket.socket() as other:
        other.bind(("", 0))
        other.listen()
        port = other.getsockname()[1]
        with Ranks(tmp_path, 2, "steps", MASTER_PORT=port) as ranks:
            results = ranks.ended(10)
    assert [one.code for one in results] == [2, 2]
    assert [len(one.errors()) for one in results] == [1, 1]
    assert f"rank 1: what listens at 127.0.0.1:{port} is no store of ranks" in results[1].err


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.parametrize("missing", [0, 1])
def test_a_rank_that_never_comes_is_named(missing, tmp_path):
    with Ranks(tmp_path, 2, "steps", JOIN_S=2, LONELY=missing) as ranks:
        ranks.processes[missing].kill()
        results = ranks.ended(15, without=(missing,))
    (line,) = errors_of(results)
    assert re.search(("rank 1 did not reach the store", "rank 1 of 2 did not come within 2 s")[missing], line), line
    assert [one.code for one in results] == [2]


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_ranks_with_other_versions_are_refused(tmp_path):
    with Ranks(tmp_path, 2, "steps", VERSION_OF_RANK_1="0.0.1") as ranks:
        results = ranks.ended(15)
    (line,) = errors_of(results)
    assert re.match(r"error: rank 1 \([^ ]+\) has l2l_nas 0.0.1, and rank 0 [^ ]+: install the same everywhere", line)
    assert [one.code for one in results] == [2, 2]


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("size", "count"), [(2, 4), pytest.param(2, 50, marks=pytest.mark.slow), pytest.param(4, 8, marks=pytest.mark.slow)]
)
def test_a_failed_trial_costs_a_rejoin_and_leaves_nothing_behind(size, count, tmp_path):
    with Ranks(tmp_path, size, "rejoins", count) as ranks:
        results = ranks.ended(110)
    assert [(one.code, one.err) for one in results] == [(0, "")] * size, results
    for one in results:
        (descriptors,) = re.fullmatch(r"descriptors \[(.*)\]\n", one.out).groups()
        assert len(set(descriptors.split(", "))) == 1, descriptors


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(280)
def test_every_clean_end_has_exit_code_0(tmp_path):
    for _ in range(30):
        with Ranks(tmp_path, 2, "steps", -1, 0, "", 9) as ranks:
            results = ranks.ended(30)
        assert [(one.code, one.err) for one in results] == [(0, "")] * 2, results


@pytest.mark.parametrize("package", ["l2l_nas", "torch"])
def test_ranks_are_refused_whose_version_of_any_package_differs(package):
    first = {"host": "here", "versions": meeting.VERSIONS}
    meeting.refuse_other_versions([first, first])
    with pytest.raises(SettingError, match=f"^rank 1 .* has {package} 0.0.1, and rank 0 .*: install the same"):
        meeting.refuse_other_versions([first, {**first, "versions": {**meeting.VERSIONS, package: "0.0.1"}}])


def place(rank):
    return Place(rank, 2, rank, "here", 1, has_launcher_store=True)


def test_what_ranks_wrote_before_a_restart_is_not_believed():
    store, keys = HashStore(), []
    for start in range(2):
        with ThreadPoolExecutor(2) as threads:
            late = threads.submit(meeting.meet, place(1 - start), store, 20)
            time.sleep(0.1)
            met = [one.result() for one in (late, threads.submit(meeting.meet, place(start), store, 20))]
        assert met[0] == met[1]
        keys.append(met[0][0])
    assert keys[0] != keys[1]
    with pytest.raises(RankError, match=r"^rank 1 of 2 did not come"):
        meeting.meet(place(0), store, 0.1)
    with pytest.raises(RankError, match=r"^rank 0 of 2 did not begin"):
        meeting.meet(place(1), store, 0.1)
