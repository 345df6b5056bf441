"""The ranks of a command: what they must have alike, and what they cannot do."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from l2l_nas.arguments import shown
from l2l_nas.eps.identity import fingerprint
from l2l_nas.eps.server import ParamServer
from l2l_nas.errors import SettingError
from l2l_nas.runs.fields import changed, content, entries, value_of
from l2l_nas.runs.mesh import idle_ranks
from l2l_nas.runs.origin import describe_data, versions
from l2l_nas.runs.settings import RetrainConf, SearchConf
from l2l_nas.runs.terminal import warn
from l2l_nas.training.consensus import Consensus
from l2l_nas.training.lead import Lead, Solo
from l2l_nas.training.problem import Problem

COMMANDS = ("train", "search", "evaluate", "generate", "export")  # that ranks can do together


@dataclass(frozen=True)
class RunRanks:
    """The ranks of a command.

    Args:
        consensus: between them.
        lead: who does the work of a run.
        be_patient: has ranks wait so many seconds for one that makes no progress.
    """

    consensus: Consensus = field(default_factory=Consensus)
    lead: Lead = field(default_factory=Solo)
    be_patient: Callable[[float], None] = lambda seconds: None

    def agreed(self, conf: Any) -> Consensus:
        """The ranks, after their settings and versions were compared. Raises SettingError: two differ."""
        compare(self.consensus, {**entries(content(conf)), **versions()})
        return self.consensus


# settings that several ranks cannot have, and why
_REFUSED: Mapping[str, tuple[tuple[Any, ...], str]] = {
    "relay.storage": (("ram", "file"), "each of several ranks keeps its part of the states in memory or in files"),
    "search.workers": ((1,), "several ranks do each trial together"),
    "executor.name": (("inline",), "several ranks do each trial together"),
    "strategy.name": (("default", "random_search"), "its phases do not run on several ranks"),
}


def refuse_on_ranks(conf: SearchConf | RetrainConf, size: int) -> None:
    """Refuse settings that so many ranks cannot have. Raises SettingError."""
    if size == 1:
        return
    for name, (possible, why) in _REFUSED.items():
        value = value_of(conf, name, possible[0])
        if value not in possible:
            raise SettingError(
                f"{name.removesuffix('.name')}={value}: {why}; leave it out, or start it without torchrun"
            )


def compare(consensus: Consensus, content: Mapping[str, Any]) -> None:
    """Refuse ranks that differ in something, by name. Raises SettingError: it names the first difference."""
    if consensus.size == 1:
        return
    all_ranks = consensus.every(dict(content))
    for rank, other in enumerate(all_ranks):
        for name in dict.fromkeys([*all_ranks[0], *other]):
            ours, theirs = all_ranks[0].get(name), other.get(name)
            if ours != theirs:
                raise SettingError(
                    f"{name} is {shown(theirs)} on rank {rank}, and {shown(ours)} on rank 0; start all ranks alike"
                )


def compare_problems(consensus: Consensus, problem: Problem) -> None:
    """Refuse ranks with other data, or another pool. Raises SettingError."""
    if consensus.size == 1:
        return
    data = entries(describe_data(problem.data), "data ")
    compare(consensus, {"the search space's fingerprint": fingerprint(problem.pool), **data})


def compare_files(consensus: Consensus, *files: Path) -> None:
    """Refuse ranks of which one has another content in a file that all read, or none. Raises SettingError."""
    if consensus.size == 1:
        return
    digests = {}
    for path in files:
        with suppress(OSError):  # who reads it says what is wrong
            digests[f"the SHA-256 of {path}"] = hashlib.sha256(path.read_bytes()).hexdigest()
    compare(consensus, digests)


def with_chunks(conf: Any, ranks: int) -> Any:
    """Settings with the number of chunks decided: that of the ranks, unless it was said, or the run has one."""
    if ranks == 1 or conf.parallel.chunks is not None:
        return conf
    return changed(conf, {"parallel.chunks": ranks // conf.parallel.tensor})


def greet_ranks(console: Console, server: ParamServer, conf: SearchConf | RetrainConf, *, samples: int) -> None:
    """One line that says that ranks share each step.

    Args:
        samples: of the training part.
    """
    ranks = server.world.size
    if ranks == 1:
        return
    chunks, tensor, size = conf.parallel.chunks, conf.parallel.tensor, ranks // conf.parallel.tensor
    layers = f"tensor parallel, {tensor} to each layer" if tensor > 1 else ""
    samples_by = f"data parallel, parallel.chunks={chunks}" if size > 1 else ""
    how = "; ".join(filter(None, (layers, samples_by)))
    console.print(f"{ranks} ranks share each step and all weights ({how})", soft_wrap=True)
    batch_size, micro_batch = min(conf.train.batch_size, samples), conf.train.micro_batch
    if idle := idle_ranks(size, batch_size=batch_size, micro_batch=micro_batch):
        warn(console, idle)
