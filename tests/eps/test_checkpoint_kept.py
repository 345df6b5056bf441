"""The last k saves: which are kept, how an older one is loaded, and what else a save holds."""

from __future__ import annotations

import json
import resource
import shutil
from functools import partial
from pathlib import Path

import pytest
from torch import nn

from l2l_nas import AdamW, Candidate, LayerPool, ParamServer, Position, TensorSpec
from l2l_nas.eps.checkpoint import Checkpoint
from l2l_nas.eps.manifest import Manifest, digest_of
from l2l_nas.eps.scale import LossScale
from l2l_nas.errors import SettingError, StorageError
from tests.eps.saves import POOL, assert_is, assert_tidy, assert_whole, flip, fresh, saved_up_to, write
from tests.nursery import Nursery


@pytest.mark.parametrize("keep", [1, 2, 3, 10])
def test_the_last_saves_are_kept_and_their_files_and_no_others(tmp_path, keep):
    for step in range(1, 7):
        folder = tmp_path / str(step)
        saved_up_to(step, folder, keep=keep)
        assert_whole(folder, tuple(range(max(1, step - keep + 1), step + 1)))
        assert_tidy(folder)


def test_the_newest_save_is_what_load_gives_and_what_stands_in_manifest_json(tmp_path):
    saved_up_to(4, tmp_path, keep=3)
    server = fresh()
    assert Checkpoint(tmp_path).load(server) == {"step": 4}
    assert_is(server, 4)
    assert sorted(path.name for path in tmp_path.glob("*.json")) == [
        "manifest-000002.json",
        "manifest-000003.json",
        "manifest.json",
    ]


def test_less_than_one_save_cannot_be_kept(tmp_path):
    with pytest.raises(SettingError, match="keep=0"):
        Checkpoint(tmp_path, keep=0)


def test_saves_share_the_files_of_states_that_did_not_change(tmp_path):
    saved_up_to(6, tmp_path, keep=2)
    third = [path.name for path in tmp_path.glob("layer1-dense-*")]
    assert len(third) == 2  # steps 3 and 6; save 5 needs the former
    saved_up_to(8, tmp_path / "more", keep=2)
    assert len(list((tmp_path / "more").glob("layer1-dense-*"))) == 1


def test_another_process_with_another_setting_goes_on_with_the_numbers(tmp_path):
    server, _ = saved_up_to(4, tmp_path, keep=4)
    Checkpoint(tmp_path, keep=2).save(write(server, 5), extra={"step": 5})
    assert_whole(tmp_path, (4, 5))
    assert_tidy(tmp_path)


def test_after_going_back_to_an_older_save_the_numbers_still_rise(tmp_path):
    saved_up_to(4, tmp_path, keep=3)
    server, checkpoint = fresh(), Checkpoint(tmp_path, keep=3)
    checkpoint.load(server, save=2)
    checkpoint.save(write(server, 5), extra={"step": 5})
    assert_whole(tmp_path, (3, 4, 5))


def test_a_save_that_is_not_there_is_refused_with_those_that_are(tmp_path):
    saved_up_to(4, tmp_path, keep=2)
    with pytest.raises(StorageError, match=r"has no save 1; there are: 3, 4"):
        Checkpoint(tmp_path).load(fresh(), save=1)
    with pytest.raises(StorageError, match=r"has no save 1; there are: none"):
        Checkpoint(tmp_path / "empty").load(fresh(), save=1)


@pytest.mark.parametrize("harm", [flip, Path.unlink], ids=["flipped", "missing"])
@pytest.mark.parametrize("which", ["manifest.json", "layer0-normed"])
def test_a_damaged_newest_save_names_its_file_and_the_save_to_use_instead(tmp_path, harm, which):
    saved_up_to(4, tmp_path, keep=3)
    entries = Manifest.read(tmp_path / "manifest.json").entries
    path = tmp_path / (which if which == "manifest.json" else entries["layer0/normed"]["file"])
    harm(path)
    server = write(fresh(), 9)
    with pytest.raises(StorageError) as caught:
        Checkpoint(tmp_path).load(server)
    assert str(path) in str(caught.value)
    advice = "save 3 is there: load it with save=3, or copy manifest-000003.json over manifest.json"
    assert str(caught.value).endswith(advice)
    assert_is(server, 9)
    assert Checkpoint(tmp_path).load(server, save=3) == {"step": 3}
    assert_is(server, 3)
    shutil.copy(tmp_path / "manifest-000003.json", tmp_path / "manifest.json")
    assert Checkpoint(tmp_path).load(server) == {"step": 3}
    Checkpoint(tmp_path, keep=3).save(write(server, 4), extra={"step": 4})
    assert_whole(tmp_path, (2, 3, 4))


def test_a_new_server_has_nothing_of_a_save_that_is_damaged(tmp_path):
    saved_up_to(1, tmp_path, keep=1)
    flip(next(tmp_path.glob("head-mlp-*")))  # the last one that is read
    server = fresh()
    with pytest.raises(StorageError, match="head-mlp"):
        Checkpoint(tmp_path).load(server)
    assert server.visited == ()


def test_a_save_that_shares_the_damaged_file_is_not_offered(tmp_path):
    saved_up_to(5, tmp_path, keep=3)  # saves 3, 4 and 5 share layer1/dense
    flip(next(tmp_path.glob("layer1-dense-*")))
    with pytest.raises(StorageError, match=r"restore it from a copy, or start a new run$"):
        Checkpoint(tmp_path).load(fresh())


def test_of_a_damaged_older_save_the_newest_is_offered(tmp_path):
    saved_up_to(3, tmp_path, keep=2)
    flip(tmp_path / "manifest-000002.json")
    with pytest.raises(StorageError, match=r"manifest-000002.*; save 3 is there: load it with save=3$"):
        Checkpoint(tmp_path).load(fresh(), save=2)


def test_a_folder_that_lost_its_newest_manifest_is_not_taken_for_an_empty_one(tmp_path):
    saved_up_to(2, tmp_path, keep=2)
    (tmp_path / "manifest.json").unlink()
    assert Checkpoint(tmp_path).exists()


def test_a_file_that_an_unreadable_manifest_may_need_is_not_deleted(tmp_path):
    server, checkpoint = saved_up_to(3, tmp_path, keep=3)
    whole = (tmp_path / "manifest-000002.json").read_bytes()
    flip(tmp_path / "manifest-000002.json")
    checkpoint.save(write(server, 4), extra={"step": 4})
    (tmp_path / "manifest-000002.json").write_bytes(whole)
    assert_whole(tmp_path, (2, 3, 4))


def test_folders_of_versions_that_kept_one_save_still_load_and_go_on(tmp_path):
    saved_up_to(1, tmp_path, keep=1)
    path = tmp_path / "manifest.json"
    content = {name: value for name, value in json.loads(path.read_text()).items() if name not in ("save", "sha256")}
    path.write_text(json.dumps({**content, "sha256": digest_of(content)}))
    server = fresh()
    checkpoint = Checkpoint(tmp_path, keep=2)
    assert checkpoint.load(server) == {"step": 1}
    assert_is(server, 1)
    checkpoint.save(write(server, 2), extra={"step": 2})
    assert_whole(tmp_path, (1, 2))
    assert_tidy(tmp_path)


def test_a_state_whose_file_was_deleted_is_written_again(tmp_path):
    server, checkpoint = saved_up_to(1, tmp_path, keep=1)
    next(tmp_path.glob("head-mlp-*")).unlink()
    checkpoint.save(server, extra={"step": 2})
    assert Checkpoint(tmp_path).load(fresh()) == {"step": 2}


def scaled(value: float | None) -> ParamServer:
    server = ParamServer(POOL, optimizer=AdamW(), seed=0)
    server.gradients.loss_scale = None if value is None else LossScale(value)
    return server


def test_the_loss_scale_comes_back_also_to_a_server_that_has_none_yet(tmp_path):
    for saved, found, expected in ((8192.0, 1.0, 8192.0), (None, 16.0, 16.0), (8192.0, None, 8192.0)):
        folder = tmp_path / f"{saved}-{found}"
        Checkpoint(folder).save(write(scaled(saved), 1))
        server = scaled(found)
        Checkpoint(folder).load(server)
        assert server.gradients.loss_scale is not None
        assert server.gradients.loss_scale.scale == expected


def test_a_loss_scale_that_cannot_be_used_is_refused_by_the_manifest_s_name(tmp_path):
    server = write(scaled(1.0), 1)
    server.gradients.loss_scale.state = dict  # nothing in it
    Checkpoint(tmp_path).save(server)
    other = write(scaled(1.0), 5)
    with pytest.raises(StorageError, match=r"manifest\.json: its loss scale cannot be used"):
        Checkpoint(tmp_path).load(other)
    assert_is(other, 5)


def wide_server() -> ParamServer:
    """Twelve states of 12 MB."""
    layers = [Position(f"p{index}", Candidate("linear", partial(nn.Linear, 1024, 1024))) for index in range(12)]
    server = ParamServer(LayerPool(layers, inputs=TensorSpec((1024,))), optimizer=AdamW(), seed=0)
    for key in server.pool.states:
        for tensor in server.state(key).tensors().values():
            tensor.add_(1)  # its pages are there now
    return server


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def save_and_load(folder: str) -> None:
    server = wide_server()
    checkpoint = Checkpoint(Path(folder))
    before = peak_bytes()
    checkpoint.save(server)
    checkpoint.load(server)
    grown = peak_bytes() - before
    assert grown < 6 * 12 * 2**20, f"{grown / 2**20:.0f} MB"  # a file, its parsed tensors, one state; not 144 MB


@pytest.mark.slow
def test_saving_and_loading_needs_memory_for_one_state_not_for_all(tmp_path):
    nursery = Nursery(__name__)
    try:
        nursery.run(save_and_load, str(tmp_path))
    finally:
        nursery.close()
