"""Runs of two ranks, each a generator that waits by yielding, so that some wait side by side; see `ranks.py`."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.faults import forks
from benchmarks.faults.clusters import free_port
from benchmarks.faults.rank_faults import Fault, Harm
from tests.cli.runs import events

Found = dict[str, Any]
Life = Iterator[Found | None]  # the last one is what was found
SIZE = 2
MOST_S = 60.0  # within which the others end
POOL = ("space.pool=tiny.py:build", "space.args.width=200", "train.micro_batch=16", "relay.threads=1")
TRAIN = (
    *("train", *POOL, "architecture=original", "train.steps=24", "train.validation_steps=4"),
    *("relay.clip=0.5", "relay.update=exact", "schedule=constant", "export=false"),
)
SEARCH = (
    *("search", *POOL, "sampler=random", "search.trials=12", "search.steps_per_trial=8", "search.finalists=0"),
    *("search.trial_weights=scratch", "search.failures=100", "export=false"),
)
_NAMED = r"error: rank {rank} \([^ ]+, pid \d+\) "
_SAID = {
    "stop": r"did not answer for \S+ s, and was .+; rank \d waited .+",
    "raise": r"failed .+: (position \S+ candidate \S+ its layer raised )?ValueError: my layer is broken \(\S+, .*\)",
    "nan_gradient": r"failed .+: gradient of layer '\S+' is not finite.*",
    "nan": "failed .+: .* not finite.*",
    "memory": r"failed .+: out of memory \([^;]*\); take [^;]*",
}
# whoever holds the store is missed by name
_KILLED = ("error: rank 0 .+, which holds the store of the ranks, has ended: .+",
           "error: the connection to another rank broke .+: it was killed, or crashed; .+")  # fmt: skip


@dataclass
class Ranks:
    """Processes that are ranks of one run, in one folder.

    Args:
        place: the folder.
        work: of each, by rank.
        environment: of each beside what a launcher sets, by rank.
    """

    place: Path
    work: Callable[[int], int]
    environment: Callable[[int], dict[str, str]] = lambda rank: {}
    size: int = SIZE

    def __post_init__(self) -> None:
        port = free_port()
        self.processes = [
            forks.start(self.place, lambda rank=rank: self._begin(rank, port), name=f"{rank}")  # type: ignore[misc]
            for rank in range(self.size)
        ]
        self.codes: dict[int, int] = {}
        self.ended_s: dict[int, float] = {}

    def _begin(self, rank: int, port: int) -> int:
        place = {"RANK": rank, "WORLD_SIZE": self.size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        os.environ.update({name: str(value) for name, value in place.items()} | self.environment(rank))
        return self.work(rank)

    def poll(self) -> bool:
        """Look who has ended; whether all have."""
        for rank, process in enumerate(self.processes):
            if rank not in self.codes and (code := process.wait(0)) is not None:
                self.codes[rank], self.ended_s[rank] = code, time.monotonic()
        return len(self.codes) == self.size

    def wait(self, most_s: float, without: Sequence[int] = ()) -> Iterator[None]:
        """Yield until all have ended, or those but some, or no time is left."""
        end = time.monotonic() + most_s
        while not self.poll() and time.monotonic() < end and len({*self.codes, *without}) < self.size:
            yield None

    def end(self) -> None:
        """`kill -9` what is left."""
        for rank, process in enumerate(self.processes):
            if rank not in self.codes:
                process.kill_group()
                self.codes[rank] = process.wait(10) or -signal.SIGKILL

    @property
    def lines(self) -> list[str]:
        """What they said of errors."""
        said = "\n".join(process.errors for process in self.processes)
        return [line for line in said.splitlines() if line.startswith("error: ")]

    def said(self) -> str:
        """All that they said, where something is wrong."""
        texts = [f"rank {n}: {self.codes.get(n)} {process.errors[-1500:]}" for n, process in enumerate(self.processes)]
        return " | ".join(texts)


def command(place: Path, *words: str, faults: Sequence[Fault] = (), is_counted: bool = True) -> Ranks:
    """`torchrun --nproc-per-node 2 -m l2l_nas WORDS`, without the launcher."""

    def work(rank: int) -> int:
        from l2l_nas.__main__ import main

        if is_counted:
            Harm([fault for fault in faults if fault.rank == rank], place / f"mark{rank}").install()
        sys.argv = ["l2l_nas", *words]
        return main()

    return Ranks(place, work)


def marks(place: Path, rank: int) -> list[Found]:
    """What a rank noted."""
    path = place / f"mark{rank}"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def weights(folder: Path) -> dict[str, str]:
    """Digests of the states that a run has saved, moments and steps among them."""
    return {key: entry["sha256"] for key, entry in _manifest(folder)["states"].items()}


def _manifest(folder: Path) -> Found:
    content: Found = json.loads((folder / "manifest.json").read_text())
    return content


def _without_times(content: Any) -> Any:
    if isinstance(content, dict):
        return {name: _without_times(one) for name, one in content.items() if "seconds" not in name}
    return [_without_times(one) for one in content] if isinstance(content, list) else content


def outcome(folder: Path) -> Found:
    """Result and weights of a finished training, without times."""
    result = _without_times(json.loads((folder / "result.json").read_text()))
    return {"result": result, "weights": weights(folder / "weights"), "best": weights(folder / "best")}


def whole(place: Path, words: Sequence[str]) -> Iterator[Found | None]:
    """A run that nothing happens to; the counts of each rank's moments."""
    ranks = command(place, *words, "folder=run")
    yield from ranks.wait(300)
    ranks.end()
    assert set(ranks.codes.values()) == {0}, ranks.said()
    yield {"counts": [marks(place, rank)[-1] for rank in range(SIZE)], "outcome": outcome(place / "run")}


def failure(place: Path, words: Sequence[str], fault: Fault, *, wanted: Found | None) -> Life:
    """One rank fails. Yields what was found last.

    Args:
        place: a folder with the pool.
        words: of a training.
        wanted: what the run ends with that is never stopped; None: it is not resumed.
    """
    ranks = command(place, *words, "folder=run", faults=[fault])
    found: Found = {"fault": fault.as_content(), "wrong": []}
    begun = time.monotonic()
    others = [rank for rank in range(SIZE) if rank != fault.rank]
    while not (fired := marks(place, fault.rank)) and not ranks.poll() and time.monotonic() < begun + 120:
        yield None
    if not fired or "fault" not in fired[0]:
        ranks.end()
        found["wrong"].append(f"nothing happened: {ranks.said()}")
        yield found
        return
    mark = fired[0]
    yield from ranks.wait(MOST_S + 5, without=[fault.rank])
    if fault.kind != "stop":
        yield from ranks.wait(5)
    ended = {rank: round(ranks.ended_s[rank] - mark["at_s"], 2) for rank in ranks.ended_s}
    codes = dict(ranks.codes)
    ranks.end()
    found |= {"ended_s": ended, "codes": codes, "lines": ranks.lines}
    if any(rank not in ended or ended[rank] > MOST_S for rank in others):
        found["wrong"].append(f"others have not ended: {ranks.said()}")
    if any(codes.get(rank) in (0, None) for rank in others):
        found["wrong"].append("exit code 0")
    found["wrong"] += _wrong_line(fault, ranks)
    found["wrong"] += [left for left in [forks.left_of([one.number for one in ranks.processes])] if left]
    if wanted is not None and not found["wrong"]:
        yield from _resumed(place, words, wanted, found)
    yield found


def _wrong_line(fault: Fault, ranks: Ranks) -> list[str]:
    if len(ranks.lines) != 1:
        return [f"{len(ranks.lines)} lines: {ranks.said()}"]
    said = _KILLED[fault.rank > 0] if fault.kind == "kill" else _NAMED.format(rank=fault.rank) + _SAID[fault.kind]
    return [] if re.fullmatch(said, ranks.lines[0]) else [f"another line: {ranks.lines[0]}"]


def _resumed(place: Path, words: Sequence[str], wanted: Found, found: Found) -> Iterator[None]:
    is_saved = (place / "run/weights/manifest.json").exists()
    if not is_saved:
        shutil.rmtree(place / "run", ignore_errors=True)
    how = ["resume=run"] if is_saved else ["folder=run"]
    ranks = command(place, *words, *how, is_counted=False)
    yield from ranks.wait(300)
    ranks.end()
    found["resumed"] = "from its last save" if is_saved else "from the start: nothing was saved"
    if set(ranks.codes.values()) != {0}:
        found["wrong"].append(f"resume: {ranks.said()}")
    elif (got := outcome(place / "run")) != wanted:
        differing = [name for name in wanted if got[name] != wanted[name]]
        found["wrong"].append(f"resumed to other bits: {differing}")


def trials(place: Path, faults: Sequence[Fault], *, wanted: Sequence[Found] | None) -> Life:
    """A search some of whose trials fail on one rank; `wanted` are its trials when none does."""
    ranks = command(place, *SEARCH, "folder=run", faults=faults)
    yield from ranks.wait(300)
    ranks.end()
    found: Found = {"faults": [one.as_content() for one in faults], "wrong": []}
    if set(ranks.codes.values()) != {0}:
        found["wrong"].append(f"ended: {ranks.said()}")
        yield found
        return
    logged = [{name: one[name] for name in ("number", "architecture", "values", "state") if name in one}
              for one in events(place / "run")]  # fmt: skip
    found["trials"] = logged
    noted = [marks(place, rank) for rank in range(SIZE)]
    found["forwards"] = [[one["forwards"] for one in rank if "forwards" in one] for rank in noted]
    found["happened"] = [one for rank in noted for one in rank if "fault" in one]
    failed = {one["trial"] for one in found["happened"]}
    # from the fault to the last rank that has joined anew
    ends = {one["trial"]: one["at_s"] for rank in noted for one in rank if "rejoined_s" in one}
    found["cost_s"] = [round(ends[one["trial"]] - one["at_s"], 3) for one in found["happened"] if one["trial"] in ends]
    if len(found["cost_s"]) != len(failed):
        found["wrong"].append(f"{len(failed)} trials failed, and ranks joined {len(found['cost_s'])} times anew")
    if wanted is not None:
        lost = [n for n, one in enumerate(wanted) if n not in failed and (n >= len(logged) or logged[n] != one)]
        if lost or len(logged) != len(wanted):
            found["wrong"].append(f"other trials were lost or changed: {lost}")
    yield found


def shared(place: Path, update: str, fault: Fault) -> Life:
    """A search on shared weights whose trial fails on one rank: it goes on, or ends with one line and is resumed."""
    words = (*SEARCH, "search.trial_weights=shared", "search.warmup_steps=20", f"relay.update={update}", "folder=run")
    ranks = command(place, *words, faults=[fault])
    yield from ranks.wait(300)
    ranks.end()
    found: Found = {"fault": fault.as_content(), "update": update, "wrong": [], "lines": ranks.lines}
    found["went_on"] = set(ranks.codes.values()) == {0}
    if not found["went_on"]:
        named = re.match(_NAMED.format(rank=fault.rank) + "failed in step .*go on with: ", "".join(ranks.lines))
        found["wrong"] += [] if named and len(ranks.lines) == 1 else [f"lines: {ranks.said()}"]
        ranks = command(place, *words, "resume=run", is_counted=False)
        yield from ranks.wait(300)
        ranks.end()
    failed = int(found["went_on"])
    trials = json.loads((place / "run/result.json").read_text())["trials"]
    if set(ranks.codes.values()) != {0} or (trials["complete"], trials["failed"]) != (12 - failed, failed):
        found["wrong"].append(f"ended: {trials} {ranks.said()}")
    yield found


def clean_end(place: Path) -> Life:
    """A short training: every rank returns 0 and says nothing of errors."""
    few = [word.replace("train.steps=24", "train.steps=2") for word in TRAIN]
    ranks = command(place, *few, "folder=run", is_counted=False)
    yield from ranks.wait(120)
    ranks.end()
    codes = [ranks.codes[rank] for rank in range(SIZE)]
    said = [process.errors for process in ranks.processes if process.errors]
    yield {"codes": codes, "wrong": [ranks.said()] if codes != [0] * SIZE or said else []}


def counted(place: Path, name: str, count: int, seed: int) -> Life:
    """A program of `rank_programs.py`; what each rank found."""
    from benchmarks.faults import rank_programs

    def work(rank: int) -> int:
        rank_programs.run(name, place, count, seed)
        return 0

    ranks = Ranks(place, work)
    yield from ranks.wait(3600)
    ranks.end()
    codes = [ranks.codes[rank] for rank in range(SIZE)]
    files = [place / f"{name}{rank}.json" for rank in range(SIZE)]
    found: Found = {"wrong": [ranks.said()] if codes != [0] * SIZE else []}
    found["ranks"] = [json.loads(path.read_text()) for path in files if path.exists()]
    yield found


_OTHERS = "; start all ranks alike"
REFUSALS: dict[str, tuple[str, tuple[str, ...]]] = {
    # what rank 1 has otherwise: how it is said, and words of both ranks
    "settings": ("seed is 5 on rank 1, and 0 on rank 0" + _OTHERS, ()),
    "pool": (r"the search space's fingerprint is \S+ on rank 1, and \S+ on rank 0" + _OTHERS, ()),
    "data": ("data samples.training is 120 on rank 1, and 96 on rank 0" + _OTHERS, ()),
    "version": (r"rank 1 \([^ ]+\) has l2l_nas 0.0.1, and rank 0 \S+: install the same everywhere", ()),
    "no data": (r"rank 1 .*gone\.npz", ()),
    "chunks": ("parallel.chunks: 1 chunks cannot be divided among 2 ranks; take 2 or", ("parallel.chunks=1",)),
    # no launcher tells rank 1 what rank 0 has found, so each says it
    "port": (r"port \d+ of this machine is in use; choose another", ()),
}


def refused(place: Path, name: str) -> Life:
    """A command that all ranks refuse: one line, exit code 2, soon."""
    said, words = REFUSALS[name]
    pool = place / "tiny.py"
    text = "import os\n" + pool.read_text()
    if name == "data":
        text = text.replace("*data(samples)", "*data(samples + 40 * (os.environ['RANK'] == '1'))")
    elif name == "pool":
        text = text.replace("depth=4):\n    kinds", "depth=4):\n    width += int(os.environ['RANK'])\n    kinds", 1)
    elif name == "no data":
        text = text.replace(
            "return Problem", "open(('tiny.py', 'gone.npz')[int(os.environ['RANK'])]).close()\n    return Problem"
        )
    pool.write_text(text)
    other = socket.socket()
    if name == "port":
        other.bind(("", 0))
        other.listen()
    port = other.getsockname()[1] if name == "port" else None

    def work(rank: int) -> int:
        from l2l_nas.__main__ import main

        if port is not None:
            os.environ["MASTER_PORT"] = str(port)
        if name == "version" and rank:
            from l2l_nas.parallel import meeting

            meeting.VERSIONS["l2l_nas"] = "0.0.1"
        sys.argv = ["l2l_nas", *TRAIN, "folder=run", *words, *(["seed=5"] if name == "settings" and rank else [])]
        return main()

    begun = time.monotonic()
    ranks = Ranks(place, work)
    yield from ranks.wait(60)
    seconds = [round(ranks.ended_s.get(rank, time.monotonic()) - begun, 2) for rank in range(SIZE)]
    ranks.end()
    other.close()
    found: Found = {"refusal": name, "seconds": seconds, "lines": ranks.lines, "wrong": []}
    if (
        [ranks.codes[rank] for rank in range(SIZE)] != [2] * SIZE
        or max(seconds) > 10
        or len(ranks.lines) != 1 + (name == "port")
    ):
        found["wrong"].append(ranks.said())
    elif not re.search(said, ranks.lines[0]):
        found["wrong"].append(f"another line: {ranks.lines[0]}")
    elif (place / "run").exists():
        found["wrong"].append("a folder was written")
    yield found
