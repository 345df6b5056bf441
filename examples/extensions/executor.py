"""An executor that starts a process for each piece of work, by a command of yours, such as `srun` or `ssh HOST`."""

import pickle
import shlex
import subprocess
import sys
from concurrent.futures import BrokenExecutor, Executor, Future, ThreadPoolExecutor

import cloudpickle

WORK = """
import os, pickle, sys
answers, sys.stdout = os.fdopen(os.dup(1), "wb"), sys.stderr
function, args = pickle.load(sys.stdin.buffer)
answers.write(pickle.dumps(function(*args)))
"""


class Command(Executor):
    """Runs `COMMAND python -c ...` for each call; the search repeats a call that ends without an answer."""

    def __init__(self, workers: int, command: str = "") -> None:
        self.words = [*shlex.split(command), sys.executable, "-c", WORK]
        self.threads = ThreadPoolExecutor(workers)

    def submit(self, fn, /, *args) -> Future:
        return self.threads.submit(self.call, cloudpickle.dumps((fn, args)))

    def call(self, work: bytes) -> object:
        done = subprocess.run(self.words, input=work, stdout=subprocess.PIPE, check=False)
        if done.returncode:
            raise BrokenExecutor(f"exit code {done.returncode}")
        return pickle.loads(done.stdout)
