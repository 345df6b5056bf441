"""Segments in other processes: what is sent there, what is done there, and what comes back.

Both sides are processes of one search, so that its recipe may be pickled: problems of a notebook's own classes and
lambdas work. Weights travel as safetensors; nothing that is read from a folder is ever unpickled.
"""

from __future__ import annotations

import inspect
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any

import cloudpickle
from safetensors.torch import load as parse
from safetensors.torch import save as serialize

from l2l_nas.cost.closed_form import path_states
from l2l_nas.eps.server import ParamServer
from l2l_nas.eps.state import LayerState
from l2l_nas.errors import L2LError, NonFiniteError, SettingError, WorkerError, described
from l2l_nas.nas.evaluation.evaluator import Evaluator
from l2l_nas.nas.evaluation.segment import ScoredOn, Segment, SegmentResult
from l2l_nas.training.score import Score

Message = dict[str, Any]


@dataclass(frozen=True)
class Workplace:
    """What a process needs for segments.

    Args:
        evaluator: trains and scores them.
        server: the weights of this process.
        identity: of pool and data, to be compared with those of the search.
    """

    evaluator: Evaluator
    server: ParamServer
    identity: Message


_KEPT: list[bytes] = []  # the recipe that this process was started with
_NAMED: dict[str, bytes] = {}  # the last recipe that came with a name
LACKS = "this process lacks the recipe"
_BUILT: list[tuple[bytes, Workplace]] = []  # of the last recipe
_WATCHED: list[int] = []  # processes that this one ends with
DRIVER = "L2L_NAS_DRIVER"  # of the environment that a search's process hands on: its number
_WATCH_S = 0.5  # how often a worker asks whether its search is alive
_AT_WORK = threading.Lock()  # a process has one relay, one set of random numbers: its threads take turns


def pickled(recipe: object) -> bytes:
    """A recipe to send: its `build()` makes a `Workplace` in the process that it is called in.

    Raises:
        SettingError: names what in it cannot be pickled.
    """
    try:
        return cloudpickle.dumps(recipe)
    except Exception as error:
        raise SettingError(
            f"{unpicklable(recipe)} cannot be sent to workers ({described(error)}); make it where it is used, in a "
            "function that workers call, or use executor=inline"
        ) from error


def unpicklable(whole: object) -> str:
    """Where in an object the innermost thing is that cannot be pickled: "problem.data.train.file"."""
    name = ""
    for _ in range(20):
        for part, value in _parts(whole):
            if not _is_picklable(value):
                name, whole = f"{name}.{part}", value
                break
        else:
            break
    return name.removeprefix(".conf.objects.").removeprefix(".") or type(whole).__name__


def _is_picklable(value: object) -> bool:
    try:
        cloudpickle.dumps(value)
    except Exception:
        return False
    return True


def _parts(whole: object) -> list[tuple[str, object]]:
    """What an object is made of, by name."""
    if isinstance(whole, Mapping):
        return [(str(key), value) for key, value in whole.items()]
    if isinstance(whole, list | tuple):
        return [(str(index), value) for index, value in enumerate(whole)]
    if isinstance(whole, partial):
        return [("func", whole.func), ("args", whole.args), ("keywords", whole.keywords)]
    if inspect.isfunction(whole):
        found = inspect.getclosurevars(whole)
        return [*found.nonlocals.items(), *found.globals.items(), ("__defaults__", whole.__defaults__)]
    if is_dataclass(whole):
        return [(one.name, getattr(whole, one.name, None)) for one in fields(whole)]
    return list(getattr(whole, "__dict__", {}).items())


def ends_with(driver: int) -> None:
    """Have this process end when the search's own does, where that started it, itself or by others.

    Workers of a cluster that somebody else started serve others, too: they stay. A worker may get its first call when
    the search's process has been killed already, and nothing but `DRIVER` tells then who started it.

    Args:
        driver: the number of the search's process.
    """
    is_below = _descends_from(driver)
    is_ours = is_below or os.environ.get(DRIVER) == str(driver)
    if driver in (*_WATCHED, os.getpid()) or not is_ours:
        return
    _WATCHED.append(driver)

    def watch() -> None:
        while _descends_from(driver) if is_below else _is_alive(driver):
            time.sleep(_WATCH_S)
        os._exit(1)

    threading.Thread(target=watch, name="l2l_nas watch", daemon=True).start()


def _descends_from(driver: int) -> bool:
    """Whether a process started this one, or one that did; a process whose parent has ended is another one's child."""
    process = os.getppid()
    while process not in (driver, 0, 1):
        try:
            process = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:  # it has just ended; or a system without /proc, where only a parent is known
            return False
    return process == driver


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)  # which sends nothing
    except OSError:
        return False
    return True


def for_driver(recipe: bytes | None, driver: tuple[str, int], function: Callable[..., Any], *args: Any) -> Any:
    """Call a function with the recipe, in a process that ends with the search's own; see `ends_with`.

    Args:
        driver: machine and number of the search's process.
    """
    host, process = driver
    if host == socket.gethostname():
        ends_with(process)
    return function(recipe, *args)


def keep_recipe(recipe: bytes) -> None:
    """Have this process use a pickled recipe where it is given none."""
    _KEPT[:] = [recipe]


def with_named(name: str, recipe: bytes | None, function: Callable[..., Any], *args: Any) -> Any:
    """Call a function with the recipe of a name, which is kept for later calls.

    Args:
        recipe: None where this process may have it already.

    Returns:
        What the function returns; `LACKS` without a call where this process has no recipe of that name.
    """
    kept = _NAMED.get(name)
    if kept is None:
        if recipe is None:
            return LACKS
        _NAMED.clear()
        _NAMED[name] = kept = recipe
    return function(kept, *args)


def workplace(recipe: bytes | None) -> Workplace:
    """The workplace of a pickled recipe, built once a process."""
    wanted = _KEPT[0] if recipe is None else recipe
    if not _BUILT or _BUILT[0][0] != wanted:
        _BUILT[:] = [(wanted, cloudpickle.loads(wanted).build())]
    return _BUILT[0][1]


def greet(recipe: bytes | None, busy: str = "") -> Message:
    """Build the workplace; returns its identity, or the error.

    Args:
        busy: the name of a process that is training meanwhile: there nothing is built, and nothing returned.
    """
    if busy == process_name():
        return {}
    try:
        with _AT_WORK:
            return {"identity": workplace(recipe).identity}
    except Exception as error:
        return {"failure": error_content(error)}


def run_segment(recipe: bytes | None, message: Message) -> Message:
    """Run a segment in this process.

    Args:
        message: of `segment_content`. Where it becomes empty, the work is dropped: a thread of the search's process
            sees that.

    Returns:
        The result, for `result_of`, and what is beside it; or "failure", where something else than an architecture
        failed.
    """
    losses: list[float] = []
    steps: list[float] = []

    def after_step(loss: float) -> None:
        losses.append(loss)
        if not message:
            raise InterruptedError

    try:
        with _AT_WORK:
            found = workplace(recipe)
            found.evaluator.count_with(steps.append)
            if message["scale"] is not None:
                found.server.gradients.scale_losses(message["scale"])
            segment, start = _segment_of(message, found.server)
            result = _content(found.evaluator.run(segment, after_step=after_step, start=start))
            return {"result": result, "losses": losses, "steps": sum(steps), "worker": process_name()}
    except Exception as error:
        return {"failure": error_content(error)}


def segment_content(segment: Segment, server: ParamServer) -> Message:
    """A segment to send.

    Args:
        server: the shared weights. A network that starts from a copy of them gets its copy.
    """
    content = {**vars(segment), "architecture": segment.architecture.choices, "scored_on": segment.scored_on.value}
    own = content.pop("server")
    start = None
    if own is None and segment.weights == "fork" and not segment.done:
        start = server.fork(path_states(server.pool, segment.architecture))
    return {
        "segment": content,
        "weights": None if own is None else packed(own),
        "start": None if start is None else packed(start),
        "scale": server.gradients.scale_state,
    }


def _segment_of(message: Message, server: ParamServer) -> tuple[Segment, ParamServer | None]:
    content = message["segment"]
    weights, start = (message[name] and unpacked(server, message[name]) for name in ("weights", "start"))
    own = {"architecture": server.pool.architecture(content["architecture"]), "server": weights or None}
    return Segment(**{**content, **own, "scored_on": ScoredOn(content["scored_on"])}), start or None


def _content(result: SegmentResult) -> Message:
    return {
        **vars(result),
        "scores": {part: score.to_json() for part, score in result.scores.items()},
        "server": None if result.server is None else packed(result.server),
        "error": None if result.error is None else error_content(result.error),
    }


def result_of(content: Message, server: ParamServer, worker: int) -> SegmentResult:
    """The result of a segment that `run_segment` gave.

    Args:
        server: of the pool.
        worker: the number of the process.
    """
    read = {
        "scores": {part: Score.from_json(score) for part, score in content["scores"].items()},
        "server": None if content["server"] is None else unpacked(server, content["server"]),
        "error": None if content["error"] is None else error_of(content["error"]),
        "worker": worker,
    }
    return SegmentResult(**{**content, **read})


def packed(server: ParamServer) -> Message:
    """All states of a server, each as safetensors, in the order of `visited`."""
    blocks = [
        serialize({name: tensor.contiguous() for name, tensor in server.state(key).tensors().items()})
        for key in server.visited
    ]
    return {"keys": server.visited, "scale": server.gradients.scale_state, "blocks": blocks}


def unpacked(like: ParamServer, content: Message) -> ParamServer:
    """A server in memory with the states that `packed` gave."""
    server = like.fork(())
    for key, block in zip(content["keys"], content["blocks"], strict=True):
        state = LayerState.zeros(server.rules.of(key).layout)
        state.load_tensors(parse(block))
        server.put(key, state)
    if content["scale"] is not None:
        server.gradients.scale_losses(content["scale"])
    return server


def error_content(error: Exception) -> Message:
    """An error to send; `error_of` makes it one again."""
    if isinstance(error, NonFiniteError):
        return {"kind": type(error).__name__, "what": error.what, "layer": error.layer, "step": error.step}
    if isinstance(error, L2LError):
        return {"kind": "L2LError", "text": str(error)}
    if isinstance(error, ImportError):
        return {
            "kind": "L2LError",
            "text": f"a worker cannot import what it needs ({error}): it must be installed there",
        }
    return {"kind": "", "text": f"{type(error).__name__}: {error}"}


def error_of(content: Message) -> L2LError:
    """The error that `error_content` was given."""
    if content["kind"] in ("NonFiniteError", "MetricError"):
        return NonFiniteError(content["what"], layer=content["layer"], step=content["step"])
    if content["kind"] == "L2LError":
        return L2LError(content["text"])
    return WorkerError(f"a worker process raised {content['text']}; executor=inline shows where")


def process_name() -> str:
    """Of this one, among all machines."""
    return f"{socket.gethostname()}:{os.getpid()}"
