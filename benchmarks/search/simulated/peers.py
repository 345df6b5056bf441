"""The packages that stand beside the race, in a process of their own environment: see `peer_process.py`."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.search.simulated.landscape import Landscape
from benchmarks.search.simulated.peer_process import SEARCHES
from benchmarks.search.simulated.search import Method
from l2l_nas.errors import L2LError, SettingError

_SCRIPT = Path(__file__).with_name("peer_process.py")
_REQUIREMENTS = "benchmarks/search/simulated/requirements.txt"
HOW = f"make an environment for them, as {_REQUIREMENTS} tells; then add --peers-python PEERS/bin/python"
PEERS = tuple(SEARCHES)


class PeerError(L2LError):
    """A package failed, or its process ended."""


class PeerProcess:
    """A process that plays searches of other packages, one after the other; `seconds` are its processor time."""

    def __init__(self, python: Path) -> None:
        self.seconds, pipe = 0.0, subprocess.PIPE
        try:
            self._process = subprocess.Popen(
                [str(python), str(_SCRIPT)], stdin=pipe, stdout=pipe, stderr=pipe, text=True
            )
            self.versions: Mapping[str, str] = self._read()["versions"]
        except (OSError, PeerError) as error:
            raise SettingError(f"--peers-python {python}: {error}; {HOW}") from None

    def method(self, name: str, landscape: Landscape, seed: int) -> Method:
        """A search of a package; it is told of positions with a choice alone."""
        space = {position: list(candidates) for position, candidates in landscape.space.items()}
        chosen = {position: candidates for position, candidates in space.items() if len(candidates) > 1}
        reply = self._told({"play": name, "space": chosen, "seed": seed})
        while "ask" in reply:
            asked = dict(zip(chosen, reply["ask"], strict=True))
            genotype = tuple(asked.get(position, candidates[0]) for position, candidates in space.items())
            score = yield genotype, reply["share"]
            reply = self._told({"score": score})

    def close(self) -> None:
        self._process.communicate()

    def _told(self, line: Mapping[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(line) + "\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            assert self._process.stderr is not None
            last = self._process.stderr.read().strip().splitlines()[-1:]
            raise PeerError(f"the packages' process ended: {''.join(last) or 'it says nothing'}")
        reply: dict[str, Any] = json.loads(line)
        self.seconds = float(reply.get("seconds", 0.0))
        if "error" in reply:
            raise PeerError(reply["error"])
        return reply
