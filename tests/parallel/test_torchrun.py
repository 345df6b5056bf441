"""Ranks under torchrun: restarts, nodes that go, and what the launcher says."""

from __future__ import annotations

import re
import time

import pytest

from tests.parallel.ranked import PROGRAM, end_torchrun, errors_of, free_port, kill_tree, start_torchrun, torchrun

TWO = ("--nproc-per-node", 2)


def rendezvous(kind):
    """Words for the ways in which torchrun's agents find each other."""
    return {
        "standalone": ("--standalone",),
        "static": ("--rdzv-backend", "static", "--master-port", free_port()),
        "c10d": ("--rdzv-backend", "c10d", "--rdzv-id", "job", "--rdzv-endpoint", f"localhost:{free_port()}"),
    }[kind]


@pytest.mark.slow
@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    "kind", ["standalone", *(pytest.param(kind, marks=pytest.mark.long) for kind in ("static", "c10d"))]
)
def test_a_run_that_was_restarted_ends_well(kind, tmp_path):
    words = ("-m", PROGRAM, "restarts", tmp_path / "failed", 2)
    ended = torchrun(tmp_path, *rendezvous(kind), *TWO, "--max-restarts", 2, *words, PATIENCE_S=5)
    assert ended.code == 0, ended
    assert ended.out.count("done") == 2
    assert 1 <= len(errors_of([ended])) <= 2  # the launcher may end the others before they miss the one that is killed


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(200)
@pytest.mark.parametrize("how", ["raise", "kill", "stop"])
@pytest.mark.parametrize("who", [0, 1])
def test_the_rank_that_failed_is_named(how, who, tmp_path):
    ended = torchrun(tmp_path, "--standalone", *TWO, "-m", PROGRAM, "steps", who, 20, how, PATIENCE_S=3)
    assert ended.code != 0
    lines = errors_of([ended])
    if how == "kill":
        assert len(lines) <= 1, lines  # see above
    else:
        said = {"raise": "failed", "stop": "did not answer"}[how]
        assert [re.match(rf"error: rank {who} \([^ ]+, pid \d+\) {said}", line) is not None for line in lines] == [True]
    if how != "stop":  # of that one, the launcher sees only that the other has given up
        cause = ended.err.partition("Root Cause")[2]
        assert re.search(rf"rank +: {who} ", cause), cause


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(200)
def test_a_rank_that_is_stopped_ends_the_run_by_defaults(tmp_path):
    ended = torchrun(tmp_path, "--standalone", *TWO, "-m", PROGRAM, "steps", 1, 20, "stop")
    assert ended.code != 0
    (line,) = errors_of([ended])
    assert re.match(
        r"error: rank 1 \([^ ]+, pid \d+\) did not answer for \d+ s, and was (at the start|in join 1|in step .+)", line
    ), line


@pytest.mark.slow
@pytest.mark.timeout(280)
def test_a_run_goes_on_without_a_node_that_is_gone(tmp_path):
    """Two agents on one machine stand for two nodes; `kill -9` ends the second one with all that it started."""
    conf = "last_call_timeout=3,keep_alive_interval=1,keep_alive_max_attempt=3"
    words = ("--nnodes", "1:2", "--nproc-per-node", 1, "--max-restarts", 3, *rendezvous("c10d"), "--rdzv-conf", conf)
    agents = []
    try:
        for number in range(2):
            more = (*words, "-m", PROGRAM, "lasts")
            agents.append(start_torchrun(tmp_path, *more, name=number, PATIENCE_S=5))
            time.sleep(1)
        until(tmp_path, "in a world of 2", agents[0])
        kill_tree(agents[1].pid)
        assert agents[0].wait(120) == 0, (tmp_path / "err0").read_text()
    finally:
        for agent in agents:
            end_torchrun(agent)
    assert "done in a world of 1" in (tmp_path / "out0").read_text()


def until(folder, text, agent):
    end = time.monotonic() + 60
    while text not in (folder / "out0").read_text():
        assert time.monotonic() < end, (folder / "err0").read_text()
        assert agent.poll() is None, (folder / "err0").read_text()
        time.sleep(0.1)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(200)
def test_every_clean_end_has_exit_code_0_under_torchrun(tmp_path):
    for _ in range(10):
        ended = torchrun(tmp_path, "--standalone", *TWO, "-m", PROGRAM, "steps", -1, 0, "", 9)
        assert (ended.code, errors_of([ended])) == (0, []), ended
