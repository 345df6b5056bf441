"""How a program that torchrun started begins and ends.

def main(world: World) -> None:
    ...

if __name__ == "__main__":
    run_ranked(main)
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from types import FrameType
from typing import NoReturn

from torch.distributed.elastic.multiprocessing.errors import get_error_handler

from l2l_nas.errors import L2LError, RankError, described, is_agreed, one_line
from l2l_nas.parallel.beats import Failure
from l2l_nas.parallel.world import World, WorldConfig, join

DONE, MISTAKE, BAD_INPUT, STOPPED = 0, 1, 2, 130
_STOPPED = "stopped"
_LAST_S = 1.0
_LOOK_S = 0.5  # within which a failure of another rank is known


def run_ranked(main: Callable[[World], int | None], config: WorldConfig | None = None) -> NoReturn:
    """Join the ranks, run a program, leave, and end this process.

    An error ends all ranks. It is printed as one line, by one rank: the one that failed, or one that waited for it; the
    launcher names a rank that is killed. A traceback goes to torchrun's error file; without one, it is printed before
    the line.

    Args:
        main: the program. Its result is the exit code; None is 0. Another one than 0 ends all ranks, and is said to
            have been explained by the program itself.
        config: how ranks wait for each other.
    """
    process = os.getpid()

    def terminated(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # what is left to do takes seconds
        if os.getpid() != process:  # a process that was forked has the handler, too
            os._exit(128 + number)
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, terminated)
    get_error_handler().initialize()
    code = MISTAKE
    try:
        code = _run(main, config)
    finally:
        for child in multiprocessing.active_children():
            child.terminate()  # Python's own end would, and ours leaves it out
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)  # what torch and gloo do at exit may abort: see docs/decisions.md


def _run(main: Callable[[World], int | None], config: WorldConfig | None) -> int:
    world = None
    try:
        world = join(config)
        code = main(world) or DONE
        if code == DONE:
            world.leave()
        else:
            world.watch.failed_here(f"ended with exit code {code}")
            world.abandon()
        return code
    except BaseException as error:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if world is None:
            return _end_alone(error)
        code = _end(error, world)
        world.abandon()
        return code


def _end_alone(error: BaseException) -> int:
    """Report an error of a process that did not join; all ranks have it, or a like one."""
    if isinstance(error, KeyboardInterrupt):
        return STOPPED
    reporter = "1" if isinstance(error, RankError) and error.rank == 0 else "0"
    if os.environ.get("RANK", reporter) == reporter or not isinstance(error, L2LError):
        _print(error, f"error: {one_line(described(error))}")
    if reporter == "0":
        time.sleep(_LAST_S)  # rank 0 may hold the store, where the others are about to read the same
    return BAD_INPUT if isinstance(error, L2LError) else MISTAKE


def _end(error: BaseException, world: World) -> int:
    """Have the other ranks know of an error, report it if this rank is the one to do so; returns the exit code."""
    watch = world.watch
    if isinstance(error, KeyboardInterrupt):
        watch.wait_for_failure(_LOOK_S)  # the launcher may stop this rank before it knows
        failure = watch.failure or watch.report(Failure(_STOPPED, by=world.rank))
    elif isinstance(error, RankError):
        watch.wait_for_failure(watch.patience_s)  # that rank says so itself
        failure = watch.failure or Failure(str(error), by=world.rank)
    elif is_agreed(error) and world.rank > 0:
        watch.wait_for_failure(watch.patience_s)  # rank 0 says what all ranks raise
        failure = watch.failure or Failure(described(error), by=world.rank)
    elif is_agreed(error):
        failure = watch.report(Failure(one_line(described(error)), by=world.rank))
    else:
        failure = world.exchange.tell(error)
    if failure.by == world.rank:
        _print(error, failure.text if failure.text == _STOPPED else f"error: {failure.text}")
    if failure.text == _STOPPED:
        return STOPPED
    return BAD_INPUT if isinstance(error, L2LError | KeyboardInterrupt) else MISTAKE


def _print(error: BaseException, line: str) -> None:
    """Print a line; torchrun, which says at its end which rank failed, gets the traceback."""
    if "TORCHELASTIC_ERROR_FILE" in os.environ:
        # of what a user can mend the line alone is of use
        get_error_handler().record_exception(L2LError(str(error)) if isinstance(error, L2LError) else error)
    elif not isinstance(error, L2LError | KeyboardInterrupt | MemoryError):
        traceback.print_exception(error)
    print(line, file=sys.stderr, flush=True)
