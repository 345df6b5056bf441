"""Checkpoints: bit-exact, incremental, and safe against whatever happens to the files."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from l2l_nas import SGD, AdamW, ParamServer, Relay
from l2l_nas.eps import checkpoint as module
from l2l_nas.eps.checkpoint import Checkpoint
from l2l_nas.eps.manifest import digest_of
from l2l_nas.errors import StorageError
from tests.toys import NextToken, SquaredError, dense_pool, language_pool, random_data

DENSE, LANGUAGE = dense_pool(depth=2), language_pool()


def trained(pool, *, steps=3, optimizer=None, seed=0, server=None, first=0, path=None):
    """A server after some steps."""
    server = server or ParamServer(pool, optimizer=optimizer or AdamW(), seed=seed)
    relay = Relay(server, device="cpu")
    path = path or (
        ["embed", "attention", "feed", "attention", "head"] if pool is LANGUAGE else ["normed", "partial", "mlp"]
    )
    for step in range(first, first + steps):
        inputs, targets = random_data(pool, 5, seed=step)
        relay.train_step(
            pool.architecture(path), inputs, targets,
            objective=NextToken() if pool is LANGUAGE else SquaredError(), micro_batch=2, lr=0.1, step=step,
        )  # fmt: skip
    return server


def tensors(server):
    return {
        (key, name): tensor.clone() for key in server.visited for name, tensor in server.state(key).tensors().items()
    }


def assert_same(server, expected):
    got = tensors(server)
    assert got.keys() == expected.keys()
    assert all(torch.equal(got[name], expected[name]) and got[name].dtype == expected[name].dtype for name in got)


def state_files(folder):
    return sorted(folder.glob("*.safetensors"))


@pytest.mark.parametrize("optimizer", [AdamW(), SGD(), SGD(momentum=0.0)], ids=["adamw", "sgd", "plain"])
@pytest.mark.parametrize("pool", [DENSE, LANGUAGE], ids=["buffers", "tied"])
def test_a_round_trip_is_bit_exact_and_training_goes_on_the_same(tmp_path, pool, optimizer):
    server = trained(pool, optimizer=optimizer)
    Checkpoint(tmp_path).save(server, extra={"step": 3, "lr": 0.1})
    other = ParamServer(pool, optimizer=optimizer, seed=0)
    assert Checkpoint(tmp_path).load(other) == {"step": 3, "lr": 0.1}
    assert_same(other, tensors(server))
    trained(pool, server=server, first=3)
    trained(pool, server=other, first=3)
    assert_same(other, tensors(server))


def test_batchnorm_counts_come_back_as_integers(tmp_path):
    Checkpoint(tmp_path).save(trained(DENSE))
    other = ParamServer(DENSE, optimizer=AdamW(), seed=0)
    Checkpoint(tmp_path).load(other)
    count = other.state("layer0/normed").named_buffers()["after.num_batches_tracked"]
    assert (count.dtype, count.item()) == (torch.int64, 9)


def test_a_save_writes_only_what_changed(tmp_path, monkeypatch):
    server = trained(DENSE)
    checkpoint = Checkpoint(tmp_path)
    checkpoint.save(server)
    written = []
    real = module.write_atomically
    monkeypatch.setattr(module, "write_atomically", lambda path, data: (written.append(path.name), real(path, data)))
    checkpoint.save(server)
    assert written == []
    trained(DENSE, server=server, path=["skip", "skip", "mlp"], first=3)
    checkpoint.save(server)
    assert [name.partition("-mlp")[0] for name in written] == ["head"]
    assert len(state_files(tmp_path)) == len(server.visited)
    other = ParamServer(DENSE, optimizer=AdamW(), seed=0)
    Checkpoint(tmp_path).load(other)
    assert_same(other, tensors(server))


def truncate(path):
    path.write_bytes(path.read_bytes()[:-5])


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def empty(path):
    path.write_bytes(b"")


@pytest.mark.parametrize("harm", [truncate, flip, empty, Path.unlink], ids=lambda harm: harm.__name__)
@pytest.mark.parametrize("which", ["state", "manifest"])
def test_a_damaged_file_is_refused_by_name_and_the_server_stays_as_it_was(tmp_path, harm, which):
    Checkpoint(tmp_path).save(trained(DENSE))
    path = state_files(tmp_path)[-1] if which == "state" else tmp_path / "manifest.json"
    harm(path)
    server = trained(DENSE, steps=1)
    before = tensors(server)
    with pytest.raises(StorageError) as caught:
        Checkpoint(tmp_path).load(server)
    assert str(path) in str(caught.value)
    assert_same(server, before)


@pytest.mark.parametrize(
    "content", ["[]", '"x"', "{}", '{"format": "other"}', '{"format": "l2l_nas weights 1"}', "\x00"]
)
def test_a_foreign_manifest_is_refused(tmp_path, content):
    (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(StorageError, match=r"manifest\.json"):
        Checkpoint(tmp_path).load(ParamServer(DENSE, optimizer=AdamW(), seed=0))


def test_a_changed_number_in_the_manifest_is_noticed(tmp_path):
    Checkpoint(tmp_path).save(trained(DENSE), extra={"step": 3})
    path = tmp_path / "manifest.json"
    path.write_text(path.read_text().replace('"step": 3', '"step": 4'))
    with pytest.raises(StorageError, match="checksum"):
        Checkpoint(tmp_path).load(ParamServer(DENSE, optimizer=AdamW(), seed=0))


@pytest.mark.parametrize(
    ("pool", "optimizer", "seed", "advice"),
    [
        (LANGUAGE, AdamW(), 0, "another search space"),
        (DENSE, SGD(), 0, "set optimizer=adamw"),
        (DENSE, AdamW(), 1, "set seed=0"),
    ],
    ids=["pool", "optimizer", "seed"],
)
def test_weights_of_another_run_are_refused_with_what_to_do(tmp_path, pool, optimizer, seed, advice):
    Checkpoint(tmp_path).save(trained(DENSE))
    with pytest.raises(StorageError, match=advice):
        Checkpoint(tmp_path).load(ParamServer(pool, optimizer=optimizer, seed=seed))


@pytest.mark.parametrize("surviving", [0, 1, 2, 3])
def test_a_crash_between_the_writes_leaves_the_previous_checkpoint(tmp_path, monkeypatch, surviving):
    server = trained(DENSE)
    checkpoint = Checkpoint(tmp_path)
    checkpoint.save(server, extra={"step": 3})
    before = tensors(server)
    trained(DENSE, server=server, first=3)
    real, calls = module.write_atomically, []

    def crash(path, data):
        calls.append(path)
        if len(calls) > surviving:
            raise KeyboardInterrupt
        real(path, data)

    with monkeypatch.context() as patch:
        patch.setattr(module, "write_atomically", crash)
        patch.setattr(module, "write_json", crash)
        with pytest.raises(KeyboardInterrupt):
            checkpoint.save(server, extra={"step": 6})
    other = ParamServer(DENSE, optimizer=AdamW(), seed=0)
    assert Checkpoint(tmp_path).load(other) == {"step": 3}
    assert_same(other, before)
    checkpoint.save(server, extra={"step": 6})  # the very same object can try again
    assert Checkpoint(tmp_path).load(other) == {"step": 6}
    assert_same(other, tensors(server))
    assert len(state_files(tmp_path)) == len(server.visited)


def test_a_damaged_file_is_written_again_by_a_new_run(tmp_path):
    Checkpoint(tmp_path).save(trained(DENSE))
    flip(state_files(tmp_path)[0])
    Checkpoint(tmp_path).save(trained(DENSE))
    Checkpoint(tmp_path).load(ParamServer(DENSE, optimizer=AdamW(), seed=0))


def test_a_file_outside_the_folder_is_never_read(tmp_path):
    folder = tmp_path / "weights"
    Checkpoint(folder).save(trained(DENSE))
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest.pop("sha256")
    entry = next(iter(manifest["states"].values()))
    (folder / entry["file"]).rename(tmp_path / entry["file"])
    entry["file"] = "../" + entry["file"]
    path.write_text(json.dumps(manifest | {"sha256": digest_of(manifest)}))
    with pytest.raises(StorageError, match="no such file"):
        Checkpoint(folder).load(ParamServer(DENSE, optimizer=AdamW(), seed=0))


@pytest.mark.slow
def test_a_full_disk_is_one_clear_error_and_the_previous_checkpoint_stays(tmp_path):
    resource = pytest.importorskip("resource", reason="file size limits are POSIX")
    assert resource.RLIMIT_FSIZE is not None
    code = """
import resource, sys
from pathlib import Path
from l2l_nas.eps.checkpoint import Checkpoint
from l2l_nas.eps.manifest import digest_of
from l2l_nas.errors import StorageError
from tests.eps.test_checkpoint import DENSE, trained
folder = Path(sys.argv[1])
server = trained(DENSE)
checkpoint = Checkpoint(folder)
checkpoint.save(server, extra={"step": 3})
trained(DENSE, server=server, first=3)
resource.setrlimit(resource.RLIMIT_FSIZE, (500, 500))
try:
    checkpoint.save(server, extra={"step": 6})
except StorageError as error:
    print(error)
"""
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], cwd=root, capture_output=True, text=True, check=True
    )
    assert str(tmp_path) in done.stdout
    assert "raise it (ulimit -f)" in done.stdout
    assert Checkpoint(tmp_path).load(ParamServer(DENSE, optimizer=AdamW(), seed=0)) == {"step": 3}
    assert not list(tmp_path.glob(".*"))


def test_a_folder_that_was_deleted_between_two_saves_is_not_made_again_with_a_part(tmp_path):
    checkpoint = Checkpoint(tmp_path / "weights")
    server = trained(DENSE)
    checkpoint.save(server)
    (tmp_path / "weights").rename(tmp_path / "elsewhere")
    with pytest.raises(StorageError, match="it was deleted or moved while the run was at work"):
        checkpoint.save(server)
    assert not (tmp_path / "weights").exists()


class Growing(ParamServer):
    """Weights that another process shares: whenever one looks, there is a state more."""

    @property
    def visited(self):
        found = super().visited
        left = [key for key in self.pool.states if key not in found]
        if left:
            self.state(left[0])
        return found


def test_a_save_has_the_states_that_there_are_when_it_begins(tmp_path):
    server = Growing(DENSE, optimizer=AdamW(), seed=0)
    server.state(next(iter(DENSE.states)))
    Checkpoint(tmp_path).save(server)
    other = ParamServer(DENSE, optimizer=AdamW(), seed=0)
    Checkpoint(tmp_path).load(other)
    assert 1 <= len(other.visited) < len(server.pool.states)
    Checkpoint(tmp_path).save(server)


def test_buffers_that_a_forward_changed_are_saved_though_no_weight_changed(tmp_path):
    checkpoint, server = Checkpoint(tmp_path / "weights"), trained(DENSE)
    key = next(key for key in server.visited if len(server.state(key).buffers))
    state = server.state(key)
    checkpoint.save(server)
    buffers = {name: (view + 1).tolist() for name, view in state.named_buffers().items()}
    changed = state.buffers.clone()
    for entry in state.layout.buffers:
        entry.view(changed).add_(1)
    state.store_buffers(changed)
    checkpoint.save(server)
    other = ParamServer(DENSE, optimizer=AdamW(), seed=0)
    Checkpoint(tmp_path / "weights").load(other)
    assert {name: view.tolist() for name, view in other.state(key).named_buffers().items()} == buffers
