"""Ranks that share the states of a pool train to the same bits as one process that sums by the same chunks."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch

from tests.accelerator.build import build, compiler
from tests.parallel.ranked import ROOT, free_port
from tests.parallel.same_bits import CASES, POOL_CASES, SPACES

ON_DEVICE = [name for name in CASES if name != "all"]  # ranks' states live on the host


def started(size, module, *words, seconds=250):
    """By rank, exit code, output and errors of a module of these tests; without ranks, of one process."""
    base = {name: value for name, value in os.environ.items() if not name.startswith(("TORCHELASTIC", "MASTER_"))}
    base |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    world = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    variables = [base] if size == 1 else [base | world | {"RANK": str(n), "LOCAL_RANK": str(n)} for n in range(size)]
    command = [sys.executable, "-m", f"tests.parallel.{module}", *map(str, words)]
    pipe = subprocess.PIPE
    ranks = [subprocess.Popen(command, cwd=ROOT, stdout=pipe, stderr=pipe, text=True, env=env) for env in variables]
    try:
        outputs = [rank.communicate(timeout=seconds) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait(10)
    return [(rank.returncode, *texts) for rank, texts in zip(ranks, outputs, strict=True)]


def trained(folder, size, names, *more, seconds=250):
    """By rank, what came of the cases."""
    folder.mkdir()
    ended = started(size, "same_bits", folder, ",".join(names), *more, seconds=seconds)
    assert [code for code, *_ in ended] == [0] * size, ended
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(size)]


def assert_same_bits(tmp_path, names, sizes, *, seconds=250):
    [expected] = trained(tmp_path / "1", 1, names, seconds=seconds)
    for size in sizes:
        for rank, found in enumerate(trained(tmp_path / str(size), size, names, seconds=seconds)):
            for name in names:
                for what in ("results", "outputs", "tensors", "put_back"):
                    assert found[name][what] == expected[name][what], (name, size, rank, what)
                if name in CASES:
                    whole = expected[name]["host_bytes"]
                    assert found[name]["host_bytes"] < whole * (1 / size + 0.2), (name, size)
                assert found[name]["races"] == {}, (name, size, rank)
    return expected


@pytest.mark.slow
def test_two_ranks_train_to_the_bits_of_one_process(tmp_path):
    expected = assert_same_bits(tmp_path, ["threads"], [2])
    assert expected["threads"]["put_back"] >= 1


@pytest.mark.slow
@pytest.mark.parametrize("part", [0, *(pytest.param(n, marks=pytest.mark.long) for n in (1, 2))])
def test_every_setting_trains_to_the_same_bits(tmp_path, part):
    names = list(CASES)[part::3]
    expected = assert_same_bits(tmp_path, names, [2])
    assert len({str(one["results"]) for one in expected.values()}) >= 2
    if "fp16" in names:
        skipped = [is_skipped for _, _, is_skipped, _ in expected["fp16"]["results"]]
        assert True in skipped
        assert False in skipped


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("part", [0, *(pytest.param(n, marks=pytest.mark.long) for n in (1, 2))])
def test_every_kind_of_pool_trains_to_the_same_bits(tmp_path, part):
    expected = assert_same_bits(tmp_path, [name for name in POOL_CASES if "space" not in name][part::3], [2])
    assert any(one["put_back"] for one in expected.values())


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("size", [2, 4])
def test_built_in_spaces_train_to_the_same_bits(tmp_path, size):
    assert_same_bits(tmp_path, [f"{space}_space" for space in SPACES], [size])


@pytest.mark.long
@pytest.mark.slow
def test_four_ranks_train_to_the_same_bits(tmp_path):
    names = ["threads", "tied_ahead", "elastic_ahead", "losses_eager"]
    expected = assert_same_bits(tmp_path, names, [4])
    assert expected["threads"]["put_back"] >= 1


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")
@pytest.mark.parametrize("names", [ON_DEVICE, list(POOL_CASES)], ids=["settings", "pools"])
def test_ranks_whose_layers_run_on_one_cuda_device_train_to_the_same_bits(tmp_path, monkeypatch, names):
    monkeypatch.setenv("SAME_BITS_DEVICE", "cuda")
    assert_same_bits(tmp_path, names, [2])


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(1700)
@pytest.mark.skipif(compiler() is None, reason="the simulated accelerator needs a C++ compiler")
@pytest.mark.parametrize(
    "names", [["threads", "host", "tied_ahead"], pytest.param([*ON_DEVICE, *POOL_CASES], marks=pytest.mark.long)],
    ids=["some", "all"],
)  # fmt: skip
def test_ranks_on_the_simulated_accelerator_train_to_the_same_bits_without_a_race(tmp_path, monkeypatch, names):
    build()
    monkeypatch.setenv("SAME_BITS_DEVICE", "simulated")
    expected = assert_same_bits(tmp_path, names, [2], seconds=800)
    assert [one["races"] for one in expected.values()] == [{}] * len(names)


def files_of(weights):
    return {path.name: path.read_bytes() for path in weights.glob("*.safetensors")}


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("case", ["ahead", pytest.param("elastic_eager", marks=pytest.mark.long)])
def test_a_checkpoint_of_some_ranks_goes_on_on_others(tmp_path, case):
    sizes, weights = [4, 2, 1, 4], {}
    for size in (1, 2):  # one that is never stopped
        weights[size] = tmp_path / f"weights_{size}"
        whole = trained(tmp_path / f"whole_{size}", size, [case], 0, 20, weights[size])
    assert files_of(weights[1]) == files_of(weights[2])
    part = tmp_path / "weights"
    for number, size in enumerate(sizes):
        found = trained(tmp_path / f"part_{number}", size, [case], 5 * number, 5 * number + 5, part)
        expected = whole[0][case]["results"][5 * number : 5 * number + 5]
        assert [one[case]["results"] for one in found] == [expected] * size
    assert found[0][case]["tensors"] == whole[0][case]["tensors"]
    assert files_of(part) == files_of(weights[1])
    manifests = [json.loads((folder / "manifest.json").read_text()) for folder in (part, *weights.values())]
    assert [one["save"] for one in manifests] == [4, 1, 1]
    own = {"save", "sha256"}  # the manifest's number and its checksum
    first, *others = [{name: value for name, value in one.items() if name not in own} for one in manifests]
    assert others == [first, first]


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 4])
def test_ranks_that_differ_say_so_and_go_on_as_if_nothing_had_been(size):
    plain, torn = (started(size, "differing", count, size) for count in (0, 150))
    assert [code for code, *_ in plain + torn] == [0] * (2 * size), plain + torn
    (_, losses), *others = (json.loads(out) for _, out, _ in plain)
    names = json.loads(torn[0][1])[0]
    assert len(names) > 70
    assert [one[1] for one in others] + [json.loads(out)[1] for _, out, _ in torn] == [losses] * (2 * size - 1)
