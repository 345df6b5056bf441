"""Weights on disk: one safetensors file for each state, and a manifest with checksums as the single point of commit.

Files are named by their content. A save writes the states that changed, then replaces the manifest, then deletes what
no manifest names any more: whenever it is interrupted, the last manifest and all its files are there.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load as parse
from safetensors.torch import save as serialize

from l2l_nas.eps.layout import fingerprint
from l2l_nas.eps.server import ParamServer
from l2l_nas.eps.state import LayerState
from l2l_nas.errors import StorageError
from l2l_nas.files import make_folder, named_failures, read_json, write_atomically, write_json

FORMAT = "l2l_nas weights 1"
_MANIFEST = "manifest.json"


class Checkpoint:
    """A folder of weights. One object remembers what it saved, so that the next save writes only what changed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._saved: dict[str, tuple[LayerState, int, dict[str, Any]]] = {}

    def exists(self) -> bool:
        """Whether something was saved here."""
        return (self._folder / _MANIFEST).exists()

    def save(self, server: ParamServer, *, extra: Mapping[str, Any] | None = None) -> None:
        """Write all states that exist, one after the other.

        Args:
            extra: JSON to keep with them, such as the training step.

        Raises:
            StorageError: a file could not be written; what was saved before is whole.
        """
        make_folder(self._folder)
        entries: dict[str, dict[str, Any]] = {}
        for key in server.visited:
            state = server.state(key)
            saved = self._saved.get(key)
            if saved is None or saved[0] is not state or saved[1] != state.version:
                version = state.version
                saved = (state, version, self._write_state(key, state))
                self._saved[key] = saved
            entries[key] = saved[2]
        manifest: dict[str, Any] = {
            "format": FORMAT,
            "fingerprint": fingerprint(server.pool),
            "optimizer": server.optimizer.name,
            "seed": server.seed,
            "extra": dict(extra or {}),
            "states": entries,
        }
        manifest["sha256"] = _digest(manifest)
        write_json(self._folder / _MANIFEST, manifest)
        wanted = {entry["file"] for entry in entries.values()}
        for path in (*self._folder.glob("*.safetensors"), *self._folder.glob(".*.safetensors.*.tmp")):
            if path.name not in wanted:
                path.unlink(missing_ok=True)

    def load(self, server: ParamServer) -> dict[str, Any]:
        """Replace the server's states by the saved ones; returns `extra`.

        Raises:
            StorageError: a file is missing, damaged, or of another pool or optimizer; the server is as it was.
        """
        path = self._folder / _MANIFEST
        manifest = read_json(path)
        try:
            if manifest["format"] != FORMAT:
                raise StorageError(f"{path}: format {manifest['format']!r}, this version reads {FORMAT!r}")
            if manifest.pop("sha256") != _digest(manifest):
                raise StorageError(f"{path}: damaged (checksum differs); restore it from a copy, or start a new run")
            found = {"fingerprint": manifest["fingerprint"], "optimizer": manifest["optimizer"]}
            entries = {str(key): dict(entry) for key, entry in manifest["states"].items()}
            extra = dict(manifest["extra"])
            seed = int(manifest["seed"])
        except (KeyError, TypeError, AttributeError) as error:
            raise StorageError(f"{path}: not a manifest of weights (missing {error})") from None
        if found["fingerprint"] != fingerprint(server.pool):
            raise StorageError(
                f"{path}: these weights belong to another search space; use the space they were saved with"
            )
        if found["optimizer"] != server.optimizer.name:
            raise StorageError(
                f"{path}: saved with optimizer {found['optimizer']}, this run uses {server.optimizer.name}; "
                f"set optimizer={found['optimizer']}"
            )
        if seed != server.seed:
            raise StorageError(f"{path}: saved with seed={seed}, this run has seed={server.seed}; set seed={seed}")
        states = {key: self._read_state(server, key, entry) for key, entry in entries.items()}
        server.adopt(states)
        self._saved = {key: (state, state.version, entries[key]) for key, state in states.items()}
        return extra

    def _write_state(self, key: str, state: LayerState) -> dict[str, Any]:
        data = serialize({name: tensor.contiguous() for name, tensor in state.tensors().items()})
        digest = hashlib.sha256(data).hexdigest()
        name = f"{re.sub(r'[^A-Za-z0-9_.-]+', '-', key)}-{digest[:12]}.safetensors"
        path = self._folder / name
        write_atomically(path, data)  # even where one of this name is: it may be damaged
        return {"file": name, "sha256": digest, "bytes": len(data)}

    def _read_state(self, server: ParamServer, key: str, entry: dict[str, Any]) -> LayerState:
        path = self._folder / Path(str(entry.get("file", ""))).name  # the name alone: never outside this folder
        advice = "restore it from a copy, or start a new run"
        with named_failures(path):
            data = path.read_bytes()
        if hashlib.sha256(data).hexdigest() != entry.get("sha256"):
            detail = f"{len(data)} bytes, expected {entry.get('bytes')}"
            raise StorageError(f"{path}: damaged ({detail}, checksum differs); {advice}")
        if key not in server.pool.states:
            raise StorageError(f"{path}: holds the layer '{key}', which this search space does not have")
        state = LayerState.zeros(server.layout(key), num_moments=server.optimizer.num_moments)
        try:
            state.load_tensors(parse(data))
        except (SafetensorError, KeyError, ValueError) as error:
            raise StorageError(f"{path}: does not fit the layer '{key}' ({error}); {advice}") from None
        return state


def _digest(manifest: Mapping[str, Any]) -> str:
    """The checksum of a manifest, over what it says once read back."""
    content = json.loads(json.dumps(manifest))
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
