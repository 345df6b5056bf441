"""The manifest of a save: which files it consists of, with their checksums, and what run they belong to."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from l2l_nas.eps.identity import difference, space_of
from l2l_nas.eps.optimizers.registry import moments_of
from l2l_nas.eps.server import ParamServer
from l2l_nas.errors import StorageError, described
from l2l_nas.files import read_json

FORMAT = "l2l_nas weights 1"
ADVICE = "restore it from a copy, or start a new run"


@dataclass(frozen=True)
class Manifest:
    """The content of a manifest. Saves of versions that did not number them count as the first."""

    path: Path
    content: Mapping[str, Any]
    number: int
    space: Mapping[str, Any]
    optimizer: str
    seed: int
    extra: dict[str, Any]
    loss_scale: dict[str, Any] | None
    entries: dict[str, dict[str, Any]]
    moments: str = "fp32"

    @property
    def files(self) -> set[str]:
        return {entry["file"] for entry in self.entries.values()}

    @classmethod
    def read(cls, path: Path) -> Manifest:
        """Raises StorageError: the file is missing, damaged or foreign."""
        content = read_json(path)
        try:
            if content["format"] != FORMAT:
                raise StorageError(f"{path}: format {content['format']!r}, this version reads {FORMAT!r}")
            if content["sha256"] != digest_of(content):
                raise StorageError(f"{path}: damaged (checksum differs); {ADVICE}")
            return cls(
                path=path,
                content=content,
                number=int(content.get("save", 1)),
                space=dict(content["space"]),
                optimizer=content["optimizer"],
                seed=int(content["seed"]),
                extra=dict(content["extra"]),
                loss_scale=content.get("loss_scale"),
                entries={str(key): _entry(entry) for key, entry in content["states"].items()},
                moments=str(content.get("moments", "fp32")),
            )
        except StorageError:
            raise
        except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
            raise StorageError(f"{path}: not a manifest of weights ({described(error)})") from None

    @staticmethod
    def is_foreign(path: Path) -> bool:
        """Whether a file is there and is whole, but no manifest; one that cannot be read may be a damaged manifest."""
        try:
            content = read_json(path)
        except StorageError:
            return False
        return not isinstance(content, dict) or not str(content.get("format", "")).startswith("l2l_nas weights")

    def check_belongs(self, server: ParamServer, *, weights_only: bool = False) -> None:
        """Raises StorageError: these weights are of another run, or what is stored beside them of another optimizer."""
        self.check_space(server)
        name, moments, saved = server.optimizer.name, moments_of(server.optimizer), f"{self.path}: saved with"
        if not weights_only and self.optimizer != name:
            other = f"optimizer {self.optimizer}, this run uses {name}"
            raise StorageError(f"{saved} {other}; set optimizer={self.optimizer}")
        if not weights_only and self.moments != moments:
            other = f"moments in {self.moments}, this run keeps {moments}"
            raise StorageError(f"{saved} {other}; set optimizer.moments={self.moments}")
        if self.seed != server.seed:
            raise StorageError(f"{saved} seed={self.seed}, this run has seed={server.seed}; set seed={self.seed}")

    def check_space(self, server: ParamServer) -> None:
        """Raises StorageError: these weights are of another search space."""
        reason = difference(self.space, space_of(server.whole_pool))
        if reason:
            what = reason.replace("another space", "another search space")
            raise StorageError(f"{self.path}: these weights belong to {what}; use the space they were saved with")


def _entry(content: Mapping[str, Any]) -> dict[str, Any]:
    """The entry of a state, which must name a file and its checksum."""
    name, checksum = content["file"], content["sha256"]
    if not isinstance(name, str) or not isinstance(checksum, str):
        raise TypeError(f"no file is called {name!r}, with checksum {checksum!r}")
    return dict(content)


def content_of(
    server: ParamServer,
    *,
    number: int,
    extra: Mapping[str, Any],
    entries: Mapping[str, Mapping[str, Any]],
    layouts: Mapping[str, str],
) -> dict[str, Any]:
    """The content that `Manifest.read` reads back; `layouts` are of candidates that there were before."""
    scale = server.gradients.scale_state
    space = space_of(server.whole_pool)
    moments = moments_of(server.optimizer)
    content: dict[str, Any] = {
        "format": FORMAT,
        "save": number,
        "space": {**space, "layouts": {**layouts, **space["layouts"]}},
        "optimizer": server.optimizer.name,
        **({} if moments == "fp32" else {"moments": moments}),  # as in saves of versions without other moments
        "seed": server.seed,
        "extra": dict(extra),
        **({} if scale is None else {"loss_scale": scale}),
        "states": entries,
    }
    return {**content, "sha256": digest_of(content)}


def digest_of(manifest: Mapping[str, Any]) -> str:
    """The checksum of a manifest, over its content once read back, without the checksum itself."""
    content = json.loads(json.dumps({name: value for name, value in manifest.items() if name != "sha256"}))
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
