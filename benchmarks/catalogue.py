"""All measurements by name. Nothing heavy is imported here: the list of them is printed at once."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from importlib import import_module
from typing import Protocol

from l2l_nas.errors import SettingError, did_you_mean


class Script(Protocol):
    """A measurement: a module, or an object."""

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Say what it can be told."""

    def main(self, options: argparse.Namespace) -> int | None:
        """Measure; returns the exit code, None for 0."""


@dataclass(frozen=True)
class Entry:
    """What is known of a measurement without its module.

    Args:
        room: the package that it is in; "" for a comparison of `benchmarks.benches`.
        about: one phrase.
        takes: how long, about, with its defaults on two cores.
    """

    room: str
    about: str
    takes: str

    def load(self, name: str) -> Script:
        """Import it."""
        if self.room:
            script: Script = import_module(f"benchmarks.{self.room}.{name}")  # type: ignore[assignment]
            return script
        from benchmarks.comparison import Comparison

        return Comparison(name, self.about)


_RELAY = {
    "depth": Entry("", "device memory by the number of layers", "2 minutes"),
    "batch": Entry("", "device memory by samples of a step", "1 minute"),
    "throughput": Entry("", "time of a training step, beside the peers", "30 minutes"),
    "switching": Entry("", "another architecture at every step", "3 minutes"),
    "population": Entry("", "many architectures evaluated at once", "3 minutes"),
    "storage": Entry("", "layers in files over layers in memory", "3 minutes"),
    "larger_than_memory": Entry("", "a pool larger than memory, in files", "26 minutes, 33 GB"),
    "small_networks": Entry("relay", "small networks held on a CPU, beside plain PyTorch", "10 minutes"),
    "before_after": Entry("relay", "time of steps and searches over another checkout's", "10 minutes"),
    "scaling": Entry("relay", "steps of several ranks over one process, beside PyTorch's ways", "5 minutes"),
    "bits": Entry("relay", "whether two checkouts compute the same, bit for bit", "3 minutes"),
    "data": Entry("relay", "data that do not lie in memory", "10 minutes"),
    "moments": Entry("relay", "what moments in bf16 change, and save", "10 minutes"),
}
_SEARCH = {
    "nas201": Entry("", "samplers on NAS-Bench-201", "20 minutes"),
    "workers": Entry("", "a search with worker processes beside one without", "6 minutes"),
    "ranking": Entry("", "supernets' rankings beside training each architecture alone", "25 minutes"),
    "search_chain": Entry("", "where a search loses points, stage by stage", "2 hours"),
    "search_quality": Entry("search", "the default search against random search", "hours"),
    "search_memory": Entry("search", "what a memory of other tasks is worth, by real searches", "three hours"),
    "search_front": Entry("search", "the front of two objectives against random search", "hours"),
    "search_peers": Entry("search", "the search beside other packages at equal steps, simulated", "2 hours"),
    "whole_evaluations": Entry("search", "fronts of wide spaces beside a grid of uniform architectures", "5 minutes"),
    "small_spaces": Entry("search", "the optimum of small spaces, seen by 100 whole evaluations", "10 minutes"),
    "shipped_memory": Entry("search", "writes what comes with the program of earlier tasks", "seconds"),
    "images": Entry("search", "makes the .npz files of the searches on images", "seconds"),
}
_MODELS = {
    "published": Entry("models", "a published model's figures, by the relay and by a plain loop", "10 minutes"),
    "pruning": Entry("models", "a published model made smaller, by a search and other ways", "a day"),
    "cut_vocabulary": Entry("models", "a published model with the tokens of some texts alone", "1 minute"),
    "smaller_speed": Entry("models", "how fast smaller networks are, beside what they promise", "5 minutes"),
    "language_training": Entry("models", "GPT-2 and BERT in the relay and in plain PyTorch", "10 minutes"),
}
_MACHINES = {
    "gpu": Entry("machines", "predicts and measures everything on a GPU", "10 minutes"),
    "simulator": Entry("machines", "the simulator against the real executor", "10 minutes"),
    "simulated": Entry("machines", "simulates steps on machines that nobody here has", "seconds"),
    "scale": Entry("machines", "writes docs/scale.md: what is published and predicted", "seconds"),
}
_FAULTS = {
    "kills": Entry("faults", "kill -9 at random moments of every command", "75 minutes"),
    "ranks": Entry("faults", "ranks that fail, and go on", "an hour"),
    "clusters": Entry("faults", "kill -9 of workers, nodes and drivers on Ray, Dask and processes", "hours"),
    "mutations": Entry("faults", "damaged files and hostile input, a command each", "hours"),
    "foreign": Entry("faults", "run folders of others that mean harm", "10 minutes"),
    "readers": Entry("faults", "damaged files read in one process", "5 minutes"),
    "mutate": Entry("faults", "small wrong changes of the package, each tried on its tests", "2 hours"),
}
_PAGES = {
    "figures": Entry("pages", "makes the figures of README and docs of the raw results, and compares", "seconds"),
}
GROUPS: dict[str, dict[str, Entry]] = {
    "the relay": _RELAY,
    "searches": _SEARCH,
    "published models": _MODELS,
    "machines": _MACHINES,
    "faults": _FAULTS,
    "pages": _PAGES,
}
CATALOGUE: dict[str, Entry] = {name: entry for group in GROUPS.values() for name, entry in group.items()}


def find(name: str) -> Entry:
    """A measurement by name.

    Raises:
        SettingError: there is none of that name.
    """
    if name not in CATALOGUE:
        raise SettingError(f"no benchmark '{name}'{did_you_mean(name, CATALOGUE)}")
    return CATALOGUE[name]
