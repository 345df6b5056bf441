"""Several checkouts, timed in turns.

Each checkout has a process of its own that lives as long as the measurement and does what it is asked, line by line.
Machines drift, so ratios are formed round by round; a control compares a side with itself. Processor time is what
other work on the machine disturbs least.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks import ROOT

# this package is that of the present checkout; what it measures is imported from the folder that the process starts in
_CALL = (
    "import sys; sys.path.insert(0, sys.argv[1]); import benchmarks; del sys.path[0]; "
    "from importlib import import_module; getattr(import_module(sys.argv[2]), sys.argv[3])(*sys.argv[4:])"
)
Seconds = dict[str, list[float]]  # "cpu" and "wall", by round


class Side:
    """A process that imports the library from a checkout, and answers jobs by a function of this package."""

    def __init__(self, answer: Callable[..., Any], checkout: Path, *, threads: int = 1) -> None:
        places = {"PYTHONPATH": str(checkout), "OMP_NUM_THREADS": str(threads), "PYTHONDONTWRITEBYTECODE": "1"}
        self.process = subprocess.Popen(
            command_of(serve, answer.__module__, answer.__name__),
            cwd=checkout,
            env={**os.environ, **places},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, **job: Any) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"a process ended: {job}")
        return json.loads(line)


def command_of(function: Callable[..., Any], *arguments: str) -> list[str]:
    """The command that calls a function of this package, to be started in a checkout whose library it then uses."""
    return [sys.executable, "-c", _CALL, str(ROOT), function.__module__, function.__name__, *arguments]


def check_library() -> None:
    """Refuse to measure another library than that of the folder that this process was started in."""
    import l2l_nas

    assert Path(l2l_nas.__file__).is_relative_to(Path.cwd()), l2l_nas.__file__


def serve(module: str, name: str) -> None:
    """Answer the jobs of a `Side` by a function."""
    check_library()
    answer = getattr(import_module(module), name)
    out, sys.stdout = sys.stdout, sys.stderr  # what is printed meanwhile is no answer
    for line in sys.stdin:
        print(json.dumps(answer(**json.loads(line))), file=out, flush=True)


def timed(work: Callable[[], object]) -> dict[str, float]:
    """Its seconds, of the processor and of the clock."""
    cpu, wall = time.process_time(), time.perf_counter()
    work()
    return {"cpu": time.process_time() - cpu, "wall": time.perf_counter() - wall}


def ratios(found: Mapping[str, Seconds], *, over: str) -> dict[str, dict[str, dict[str, float]]]:
    """Of each to one of them: the median over rounds and its 95 % interval, by clock."""
    from benchmarks.timing import ratio

    return {
        name: {clock: ratio(values, found[over][clock]) for clock, values in own.items()}
        for name, own in found.items()
        if name != over
    }


def shown(value: Mapping[str, float]) -> str:
    return f"{value['median']:.3f} ({value['low']:.3f} to {value['high']:.3f})"
