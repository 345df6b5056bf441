"""Weights alone, for a training that begins from those of another run."""

from __future__ import annotations

import pytest
import torch

from l2l_nas import SGD, AdamW, ParamServer
from l2l_nas.eps.checkpoint import Checkpoint
from l2l_nas.eps.file_storage import FileStorage
from l2l_nas.errors import StorageError
from tests.eps.test_checkpoint import DENSE, LANGUAGE, state_files, tensors, trained


@pytest.mark.parametrize("pool", [DENSE, LANGUAGE], ids=["buffers", "tied"])
@pytest.mark.parametrize("storage", ["ram", "file"])
def test_weights_and_buffers_are_taken_and_the_rest_begins_anew(tmp_path, pool, storage):
    source = trained(pool)
    Checkpoint(tmp_path / "saved").save(source)
    server = ParamServer(pool, optimizer=SGD(), seed=7)
    if storage == "file":
        server.move_to(FileStorage(tmp_path / "pool"))
    saved = Checkpoint(tmp_path / "saved")
    assert saved.load_weights(server, source.visited) == ()
    before = tensors(source)
    for (key, name), tensor in tensors(server).items():
        if name.startswith(("weights.", "buffers.")):
            assert torch.equal(tensor, before[key, name])
        else:
            assert not tensor.any(), name
    if storage == "file":
        server.storage.close()


def test_only_what_is_asked_for_is_read_and_what_was_never_saved_is_told(tmp_path):
    source = trained(DENSE)
    Checkpoint(tmp_path).save(source)
    asked = ["layer0/normed", "layer0/dense"]
    for path in state_files(tmp_path):
        if not path.name.startswith("layer0-normed"):
            path.unlink()
    server = ParamServer(DENSE, optimizer=AdamW(), seed=0)
    assert Checkpoint(tmp_path).load_weights(server, asked) == ("layer0/dense",)
    assert server.visited == ("layer0/normed",)


def test_weights_of_another_space_and_damaged_ones_are_refused(tmp_path):
    Checkpoint(tmp_path).save(trained(DENSE))
    with pytest.raises(StorageError, match="belong to another search space"):
        Checkpoint(tmp_path).load_weights(ParamServer(LANGUAGE, optimizer=AdamW(), seed=0), [])
    path = next(path for path in state_files(tmp_path) if path.name.startswith("layer0-normed"))
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(StorageError, match=r"layer0-normed-.*: damaged"):
        Checkpoint(tmp_path).load_weights(ParamServer(DENSE, optimizer=AdamW(), seed=0), ["layer0/normed"])
    with pytest.raises(StorageError, match=r"nothing.manifest\.json: no such file"):
        Checkpoint(tmp_path / "nothing").load_weights(ParamServer(DENSE, optimizer=AdamW(), seed=0), [])
