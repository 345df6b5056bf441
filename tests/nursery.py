"""A process that has imported everything and forks others that are to be killed: dozens of kills in a few seconds.

`multiprocessing`'s fork server would do, but there is one for all tests, and who starts it first decides its imports.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


class Nursery:
    """Runs functions of importable modules in processes of their own.

    Args:
        modules: imported once.
    """

    def __init__(self, *modules: str) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", "tests.nursery", *modules]
        self._process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def start(self, function: Callable[..., None], *arguments: Any) -> int:
        """The process id of `function(*arguments)`; the arguments are JSON."""
        return self._ask("start", f"{function.__module__}:{function.__name__}", *arguments)

    def wait(self, pid: int) -> int:
        """Its exit code; minus the signal's number if it was killed."""
        return self._ask("wait", pid)

    def kill(self, pid: int) -> int:
        """Kill it, and wait."""
        os.kill(pid, signal.SIGKILL)
        return self.wait(pid)

    def run(self, function: Callable[..., None], *arguments: Any) -> None:
        """Start and wait; it must not fail."""
        assert self.wait(self.start(function, *arguments)) == 0

    def close(self) -> None:
        self._process.communicate()

    def _ask(self, *question: Any) -> int:
        pipe_in, pipe_out = self._process.stdin, self._process.stdout
        assert pipe_in is not None
        assert pipe_out is not None
        print(json.dumps(question), file=pipe_in, flush=True)
        return int(pipe_out.readline())


def _fork(name: str, arguments: list[Any]) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        module, _, function = name.partition(":")
        getattr(importlib.import_module(module), function)(*arguments)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def main(modules: list[str]) -> None:
    for module in modules:
        importlib.import_module(module)
    for line in sys.stdin:
        question, subject, *rest = json.loads(line)
        answer = _fork(subject, rest) if question == "start" else os.waitstatus_to_exitcode(os.waitpid(subject, 0)[1])
        print(answer, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
