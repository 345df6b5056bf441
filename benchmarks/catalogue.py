"""All measurements by name. Nothing heavy is imported here: the list of them is printed at once."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from l2l_nas.errors import SettingError, did_you_mean

# by package: what each measures, and about how long it takes with its defaults on two cores
ROOMS: dict[str, dict[str, tuple[str, str]]] = {
    "relay": {
        "depth": ("device memory by the number of layers", "2 minutes"),
        "throughput": ("time of a training step, beside the peers", "30 minutes"),
        "larger_than_memory": ("a pool larger than memory, in files", "20 minutes, 30 GB"),
        "small_networks": ("small networks held on a CPU, beside plain PyTorch", "10 minutes"),
        "scaling": ("steps of several ranks over one process, beside PyTorch's ways", "5 minutes"),
        "bits": ("whether two checkouts compute the same, bit for bit", "3 minutes"),
        "before_after": ("time of training steps over another checkout's", "10 minutes"),
    },
    "search": {
        "search_quality": ("the default search against random search", "hours"),
        "search_peers": ("the search beside other packages at equal steps, simulated", "2 hours"),
        "nas201": ("samplers on NAS-Bench-201", "30 minutes"),
        "images": ("makes the .npz files of the searches on images", "seconds"),
    },
    "models": {
        "published": ("a published model's figures, by the relay and by a plain loop", "10 minutes"),
        "pruning": ("a published model made smaller, by a search and other ways", "a day"),
        "own_layers": ("published models by layers of this package and of transformers", "7 minutes"),
        "cut_vocabulary": ("a published model with the tokens of some texts alone", "1 minute"),
        "language_training": ("GPT-2 and BERT in the relay and in plain PyTorch", "10 minutes"),
    },
    "machines": {
        "gpu": ("what a GPU does with the relay, steps beside predictions", "10 minutes"),
        "simulator": ("the simulator against the real executor", "10 minutes"),
    },
    "faults": {
        "kills": ("kill -9 at random moments of every command", "75 minutes"),
        "ranks": ("ranks that fail, start anew and go on", "an hour"),
        "clusters": ("kill -9 of workers, nodes and drivers on Ray, Dask and processes", "hours"),
        "mutations": ("damaged files of runs and hostile input, a command each", "hours"),
        "foreign": ("run folders of others that mean harm", "10 minutes"),
        "readers": ("damaged files read in one process", "5 minutes"),
        "mutate": ("small wrong changes of the package, each tried on its tests", "hours"),
    },
    "pages": {"figures": ("makes the figures of README and docs of the raw results, and compares", "seconds")},
}
NAMES = {name: room for room, group in ROOMS.items() for name in group}


def find(name: str) -> Any:
    """The module of a measurement, with `add_options(parser)` and `main(options)`, which returns the exit code."""
    if name not in NAMES:
        raise SettingError(f"no benchmark '{name}'{did_you_mean(name, NAMES)}")
    return import_module(f"benchmarks.{NAMES[name]}.{name}")
