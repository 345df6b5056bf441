"""Weights on disk: one safetensors file for each state, and a manifest with checksums as the single point of commit.

[Note: saves] Saves are numbered. `manifest.json` is always the newest, older ones that stay are called
`manifest-000007.json`. Files of states are named by their content, so that saves share what did not change. A save
writes the states that changed, then stores the manifest of the save before under its number, then replaces
`manifest.json`, and only then deletes manifests beyond those that stay and files that none of these names: whenever a
save is interrupted, the last one is whole, and so are those before it that stay.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load as parse
from safetensors.torch import save as serialize

from l2l_nas.eps.agreement import Pass, broadcast, together
from l2l_nas.eps.manifest import ADVICE, Manifest, content_of
from l2l_nas.eps.server import ParamServer
from l2l_nas.eps.state import LayerState, Part
from l2l_nas.errors import L2LError, SettingError, StorageError
from l2l_nas.files import (
    make_folder,
    named_failures,
    parsing,
    read_bytes,
    remove_if_empty,
    remove_leftovers,
    short_name,
    sync_folder,
    write_atomically,
    write_json,
)

MANIFEST = "manifest.json"
_OLDER = re.compile(r"manifest-(\d+)\.json")
_STATE_FILE = re.compile(r".+-([0-9a-f]{12})\.safetensors", re.DOTALL)


class Checkpoint:
    """A folder of weights. One object remembers what it saved, so that the next save writes only what changed.

    Args:
        folder: made when first needed.
        keep: how many saves stay; the newest is one of them.

    Raises:
        SettingError: `keep` below 1.
    """

    def __init__(self, folder: Path, *, keep: int = 1) -> None:
        if keep < 1:
            raise SettingError(f"at least 1 save must stay, got keep={keep}")
        self.folder = folder
        self._keep = keep
        self._saved: dict[str, tuple[int, dict[str, Any]]] = {}  # by key, the version saved and its entry
        # of candidates that the pool no longer has: their weights stay, should they come back
        self._retired: dict[str, dict[str, Any]] = {}
        self._layouts: dict[str, str] = {}

    def exists(self) -> bool:
        return (self.folder / MANIFEST).exists() or bool(self._older())

    @property
    def saves(self) -> tuple[int, ...]:
        """Numbers of the saves, the newest last; without a newest one whose manifest is damaged."""
        newest = self._newest()
        return tuple(sorted({*self._older(), *([newest.number] if newest else [])}))

    def save(self, server: ParamServer, *, extra: Mapping[str, Any] | None = None) -> None:
        """Write all states that exist, one after the other; the memory needed is that of the largest.

        With several ranks all call it, and rank 0 writes what one process would: any number of ranks can load it.

        Args:
            extra: JSON to keep with them, such as the training step.

        Raises:
            StorageError: a file could not be written, or the folder's manifest is of another program; earlier saves are
                whole.
            NonFiniteError: an update under way had a gradient that is not finite; nothing was saved.
        """
        server.drain()
        visited = sorted(server.visited)  # ranks may have met them in another order
        with together(server.world, Pass.SAVE, {"states": visited}):
            if server.world.rank > 0:
                for key in self._chosen(server, visited, ()):
                    server.state(key)
            else:
                self._save(server, visited, extra or {})

    def _save(self, server: ParamServer, visited: Sequence[str], extra: Mapping[str, Any]) -> None:
        try:
            newest = self._prepare_folder()
            changed = [key for key in visited if not self._is_saved(server, key)]
        except L2LError:
            self._chosen(server, visited, ())
            raise
        failure: L2LError | None = None
        for key in self._chosen(server, visited, changed):
            state = server.state(key)  # all ranks read all that were chosen, whatever becomes of the files
            with server.world.working(f"the save of '{key}'"):
                try:
                    if failure is None:
                        self._write_state(key, state)
                except L2LError as error:
                    failure = error
        if failure is not None:
            raise failure
        with server.world.working("the save's manifest"):
            self._commit(server, visited, newest, extra)

    def _commit(
        self, server: ParamServer, visited: Sequence[str], newest: Manifest | None, extra: Mapping[str, Any]
    ) -> None:
        entries = {**self._retired, **{key: self._saved[key][1] for key in visited}}
        number = 1 + max([*self._older(), newest.number if newest else 0])
        manifest = content_of(server, number=number, extra=extra, entries=entries, layouts=self._layouts)
        if newest is not None and self._keep > 1:
            write_json(self.folder / f"manifest-{newest.number:06}.json", newest.content)
        write_json(self.folder / MANIFEST, manifest)
        self._tidy({entry["file"] for entry in entries.values()}, before=newest.files if newest else set())

    def _prepare_folder(self) -> Manifest | None:
        """The newest manifest, of a folder that a save may be written to."""
        if self._saved and not self.folder.is_dir():  # what did not change since would be missing in a new one
            raise StorageError(f"{self.folder}: it was deleted or moved while the run was at work in its folder")
        make_folder(self.folder)
        newest = self._newest()
        if newest is None and Manifest.is_foreign(self.folder / MANIFEST):
            raise StorageError(
                f"{self.folder / MANIFEST}: not a manifest of weights; choose another folder, or move it"
            )
        return newest

    @staticmethod
    def _chosen(server: ParamServer, visited: Collection[str], keys: Collection[str]) -> list[str]:
        """The states that rank 0 has chosen to write; all ranks call it."""
        wanted = set(keys)
        own = torch.tensor([key in wanted for key in visited], dtype=torch.uint8)
        return [key for key, is_chosen in zip(visited, broadcast(server.world, own).tolist(), strict=True) if is_chosen]

    def remove(self) -> None:
        """Delete all saves, and the folder if nothing else is in it; files of others stay, and so does a link."""
        if self.folder.is_symlink() or not self.folder.is_dir():
            return
        manifests = [*self._older().values(), self.folder / MANIFEST]
        ours = [path for path in manifests if path.exists() and not Manifest.is_foreign(path)]
        _delete(self.folder, [*self._unused(set(), set()), *ours])
        remove_leftovers(self.folder)
        remove_if_empty(self.folder)
        self._saved, self._retired = {}, {}

    def load(
        self,
        server: ParamServer,
        *,
        save: int | None = None,
        needs: Iterable[str] = (),
        weights_only: bool = False,
    ) -> dict[str, Any]:
        """Replace the server's states by saved ones; returns `extra`.

        A server that has states drops them after all files were read once to see that they are whole; only a file that
        changes in between leaves the server with a part of the new states.

        Args:
            save: the number of the save; the newest by default.
            needs: states that the save must have; without it, they would start from their seeds.
            weights_only: leave what is stored for the optimizer, which may then be another one.

        Raises:
            StorageError: there is no such save, or a file is missing, damaged, or of another pool or optimizer, or a
                state is missing that is needed; the server is as it was. The message names another save that is whole.
        """
        needs = list(needs)
        with together(server.world, Pass.LOAD, {"save": save, "needs": needs, "weights_only": weights_only}):
            path, manifest, present = self._checked(server, save, needs, weights_only=weights_only)
        saved, is_used = {}, bool(server.visited)
        with together(server.world, Pass.LOAD, {"states": sorted(present)}):
            try:
                _load_scale(server, manifest)
                server.clear()
                for key, entry in present.items():
                    state = self._read_state(server, key, entry, weights_only=weights_only)
                    saved[key] = (state.version, entry)
                    server.put(key, state)
            except StorageError as error:
                if not is_used:
                    server.clear()
                raise StorageError(f"{error}{self._another_whole_save(path)}") from None
        self._saved = saved
        self._retired = {key: entry for key, entry in manifest.entries.items() if key not in present}
        self._layouts = dict(manifest.space.get("layouts", {}))
        return manifest.extra

    def _checked(
        self, server: ParamServer, save: int | None, needs: Sequence[str], *, weights_only: bool
    ) -> tuple[Path, Manifest, dict[str, dict[str, Any]]]:
        """What `load` loads: the manifest's place, the manifest, and the entries of states that the pool has."""
        path = self._find(save)
        try:
            manifest = Manifest.read(path)
        except StorageError as error:
            raise StorageError(f"{error}{self._another_whole_save(path)}") from None
        manifest.check_belongs(server, weights_only=weights_only)
        missing = [key for key in needs if key not in manifest.entries]
        if missing:
            raise StorageError(f"{path}: has no weights of '{missing[0]}'; {ADVICE}{self._another_whole_save(path)}")
        server.drain()
        present = {key: entry for key, entry in manifest.entries.items() if server.whole_pool.has_state(key)}
        if server.visited:
            try:
                for key, entry in present.items():
                    self._read_state(server, key, entry, weights_only=weights_only)
            except StorageError as error:
                raise StorageError(f"{error}{self._another_whole_save(path)}") from None
        return path, manifest, present

    def load_weights(self, server: ParamServer, keys: Iterable[str]) -> tuple[str, ...]:
        """Copy weights and buffers of these states into a server; returns the keys of those that were never saved.

        Moments and step counts begin anew: only the search space must be that of the save. Missing states are created.

        Raises:
            StorageError: as in `load`; the server may then have a part of the states.
        """
        manifest = Manifest.read(self.folder / MANIFEST)
        manifest.check_space(server)
        missing = []
        for key in keys:
            if key not in manifest.entries:
                missing.append(key)
                continue
            path, data = self._read(manifest.entries[key])
            server.prepare([key])
            with server.writing(key) as state, _parsing(path, key):
                state.load_weights(parse(data))
        return tuple(missing)

    def _older(self) -> dict[int, Path]:
        """Manifests beside the newest, by number; the latest first."""
        paths = self.folder.glob("manifest-*")
        found = {int(match[1]): path for path in paths if (match := _OLDER.fullmatch(path.name))}
        return dict(sorted(found.items(), reverse=True))

    def _newest(self) -> Manifest | None:
        """None where there is none, or none that can be read."""
        try:
            return Manifest.read(self.folder / MANIFEST)
        except StorageError:
            return None

    def _find(self, save: int | None) -> Path:
        newest, older = self._newest() if save is not None else None, self._older()
        if save is None or (newest is not None and newest.number == save):
            return self.folder / MANIFEST
        if save not in older:
            numbers = ", ".join(map(str, self.saves)) or "none"
            raise StorageError(f"{self.folder}: has no save {save}; there are: {numbers}")
        return older[save]

    def _another_whole_save(self, damaged: Path) -> str:
        """The end of a message about a save that cannot be used; empty where no other save can."""
        for path in (self.folder / MANIFEST, *self._older().values()):
            if path == damaged:
                continue
            try:
                manifest = Manifest.read(path)
                for entry in manifest.entries.values():
                    self._read(entry)
            except StorageError:
                continue
            copy = f", or copy {path.name} over {MANIFEST}" if path.name != MANIFEST else ""
            return f"; save {manifest.number} is there: load it with save={manifest.number}{copy}"
        return ""

    def _tidy(self, wanted: set[str], *, before: set[str]) -> None:
        """Delete what no save needs any more, and what killed processes left. See [Note: saves]."""
        older = list(self._older().values())
        staying, dropped = older[: self._keep - 1], older[self._keep - 1 :]
        for path in dropped:
            with contextlib.suppress(StorageError):  # a damaged one: its files are known by their names
                before = before | Manifest.read(path).files
        _delete(self.folder, dropped)
        try:
            for path in staying:
                wanted = wanted | Manifest.read(path).files
        except StorageError:
            return  # the files that it needs are not known; its time to be deleted comes
        remove_leftovers(self.folder)
        _delete(self.folder, self._unused(wanted, before))

    def _unused(self, wanted: Collection[str], before: Collection[str]) -> list[Path]:
        """Files of states beside the wanted ones: of earlier saves, or with their checksum in the name."""
        return [
            path
            for path in self.folder.glob("*.safetensors")
            if (match := _STATE_FILE.fullmatch(path.name))
            and path.name not in wanted
            and (path.name in before or _is_of(path, match[1]))
        ]

    def _is_saved(self, server: ParamServer, key: str) -> bool:
        """Whether the file of a state is there, and the state as it was then."""
        version, entry = self._saved.get(key, (None, {}))
        return version == _version(server, key) and (self.folder / entry["file"]).exists()

    def _write_state(self, key: str, state: LayerState) -> None:
        """Write the file of a state, and remember the manifest's entry."""
        data = serialize({name: tensor.contiguous() for name, tensor in state.tensors().items()})
        digest = hashlib.sha256(data).hexdigest()
        name = f"{short_name(key)}-{digest[:12]}.safetensors"
        write_atomically(self.folder / name, data)  # even where one of this name is: it may be damaged
        self._saved[key] = (state.version, {"file": name, "sha256": digest, "bytes": len(data)})

    def _read(self, entry: Mapping[str, Any]) -> tuple[Path, bytes]:
        path = self.folder / Path(str(entry.get("file", ""))).name  # the name alone: never outside this folder
        data = read_bytes(path)
        if hashlib.sha256(data).hexdigest() != entry.get("sha256"):
            detail = f"{len(data)} bytes, expected {entry.get('bytes')}"
            raise StorageError(f"{path}: damaged ({detail}, checksum differs); {ADVICE}")
        return path, data

    def _read_state(self, server: ParamServer, key: str, entry: Mapping[str, Any], *, weights_only: bool) -> LayerState:
        path, data = self._read(entry)
        state = LayerState.zeros(server.whole_layout(key))
        with _parsing(path, key):
            (state.load_weights if weights_only else state.load_tensors)(parse(data))
        return state


def _version(server: ParamServer, key: str) -> int:
    with server.storage.reading(key, Part.BUFFERS) as glimpse:
        return glimpse.version


def _parsing(path: Path, key: str) -> contextlib.AbstractContextManager[None]:
    return parsing(path, f"the weights of the layer '{key}'", advice=ADVICE)


def _load_scale(server: ParamServer, manifest: Manifest) -> None:
    if manifest.loss_scale is None:
        return
    try:
        server.gradients.scale_losses(manifest.loss_scale)
    except (KeyError, TypeError, ValueError) as error:
        raise StorageError(f"{manifest.path}: its loss scale cannot be used ({error}); {ADVICE}") from None


def _is_of(path: Path, digest: str) -> bool:
    """Whether the checksum of a file begins like this, as no file of others does."""
    with contextlib.suppress(OSError):
        if path.is_file():  # never a pipe
            with open(path, "rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest().startswith(digest)
    return False


def _delete(folder: Path, paths: Collection[Path]) -> None:
    for path in paths:
        with named_failures(path):
            path.unlink(missing_ok=True)
    if paths:
        sync_folder(folder)
