from __future__ import annotations

import json

import pytest

from l2l_nas import SGD, AdamW, ParamServer
from l2l_nas.eps.manifest import FORMAT, Manifest, content_of
from l2l_nas.errors import StorageError
from tests.toys import dense_pool, language_pool

POOL = dense_pool(depth=1)
ENTRIES = {"head/mlp": {"file": "head-mlp-0.safetensors", "sha256": "0", "bytes": 1}}


def server(pool=POOL, *, optimizer=None, seed=0):
    return ParamServer(pool, optimizer=optimizer or AdamW(), seed=seed)


def written(path, **changes):
    values = {"number": 7, "extra": {"step": 3, "rate": 0.1}, "entries": ENTRIES, "layouts": {}}
    path.write_text(json.dumps(content_of(server(), **{**values, **changes})))
    return path


def test_what_was_written_is_read_back(tmp_path):
    manifest = Manifest.read(written(tmp_path / "manifest.json"))
    assert (manifest.number, manifest.extra, manifest.entries) == (7, {"step": 3, "rate": 0.1}, ENTRIES)
    assert (manifest.optimizer, manifest.seed, manifest.loss_scale) == ("adamw", 0, None)
    manifest.check_belongs(server())


def test_keys_and_numbers_that_json_changes_do_not_change_the_checksum(tmp_path):
    Manifest.read(written(tmp_path / "manifest.json", extra={1: (2, 3), "x": float("inf")}))


@pytest.mark.parametrize("place", range(0, 600, 7))
def test_any_changed_character_is_noticed(tmp_path, place):
    path = written(tmp_path / "manifest.json")
    text = path.read_text()
    place = place % len(text)
    other = "7" if text[place] != "7" else "8"
    path.write_text(text[:place] + other + text[place + 1 :])
    with pytest.raises(StorageError, match=r"manifest\.json"):
        Manifest.read(path)


def test_another_format_is_refused_with_the_one_this_version_reads(tmp_path):
    path = written(tmp_path / "manifest.json")
    path.write_text(path.read_text().replace(FORMAT, "l2l_nas weights 9"))
    with pytest.raises(StorageError, match="format 'l2l_nas weights 9', this version reads 'l2l_nas weights 1'"):
        Manifest.read(path)


@pytest.mark.parametrize(
    ("other", "advice"),
    [
        (server(language_pool()), "use the space they were saved with"),
        (server(optimizer=SGD()), "set optimizer=adamw"),
        (server(seed=4), "set seed=0"),
    ],
    ids=["pool", "optimizer", "seed"],
)
def test_a_server_of_another_run_is_refused_with_what_to_do(tmp_path, other, advice):
    with pytest.raises(StorageError, match=advice):
        Manifest.read(written(tmp_path / "manifest.json")).check_belongs(other)
