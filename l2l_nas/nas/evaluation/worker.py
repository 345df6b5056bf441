"""What a worker process does: trains and scores what it is given, on weights that it shares, one task after the other.

It answers each task with "done", "stopped" or "error"; "steps" come in between, and a "rung", which asks whether a
trial goes on. What a task holds, `messages.py` says.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any

from l2l_nas.errors import L2LError, NonFiniteError, failure_of
from l2l_nas.nas.evaluation.evaluator import Evaluator, Outcome, Training
from l2l_nas.nas.evaluation.messages import header_of, pack, unpack
from l2l_nas.relay.relay import Relay

_REPORT_S = 0.05  # steps are reported together, at most so late


class _Stopped(Exception):
    """This task is to be dropped."""


class Inbox:
    """Reads a connection in a thread, so that a stop is known at once, and the end of the other process ends this one.

    Args:
        handle: the connection's file descriptor.
    """

    def __init__(self, handle: int) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # who started this process decides when it ends
        self._connection = Connection(handle)
        self._messages: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._verdicts: queue.SimpleQueue[str | None] = queue.SimpleQueue()  # they overtake the next task
        self._seen = self._taken = 0  # stops; each counted by one thread alone
        threading.Thread(target=self._read, name="l2l_nas inbox", daemon=True).start()

    def _read(self) -> None:
        try:
            while True:
                message = json.loads(self._connection.recv_bytes())
                message["blocks"] = [self._connection.recv_bytes() for _ in range(message.get("blocks", 0))]
                self._seen += message["op"] == "stop"
                if message["op"] == "verdict":
                    self._verdicts.put(message["reason"])
                else:
                    self._messages.put(message)
        except (EOFError, OSError):
            os._exit(1)  # in the middle of whatever it is: nobody will see it

    def next(self) -> dict[str, Any]:
        """Wait for a message."""
        message = self._messages.get()
        self._taken += message["op"] == "stop"
        return message

    def verdict(self) -> str | None:
        """Wait for the answer to a "rung"; see `Job.stop_reason`."""
        return self._verdicts.get()

    @property
    def is_stopped(self) -> bool:
        """Whether all tasks before the last stop that came are to be dropped."""
        return self._seen != self._taken

    def answer(self, message: dict[str, Any], blocks: Sequence[bytes] = ()) -> None:
        """Say something, with blocks of bytes."""
        try:
            self._connection.send_bytes(json.dumps({**message, "blocks": len(blocks)}).encode())
            for block in blocks:
                self._connection.send_bytes(block)
        except OSError:
            os._exit(1)


class Worker:
    """Does tasks.

    Args:
        inbox: where they come from.
        evaluator: does the work.
        relay: the evaluator's, with the shared weights.
    """

    def __init__(self, inbox: Inbox, evaluator: Evaluator, relay: Relay) -> None:
        self._inbox = inbox
        self._evaluator = evaluator
        self._relay = relay
        self._pool = relay.pool
        self._steps: list[tuple[int, float]] = []
        self._reported_at = 0.0

    def serve(self) -> None:
        """Do one task after the other, until the connection ends; then so does this process."""
        while True:
            task = self._inbox.next()
            if task["op"] == "stop":
                continue
            try:
                answer, blocks = self._do(task)
            except _Stopped:
                answer, blocks = {"event": "stopped"}, []
            except Exception as error:
                answer, blocks = describe(error), []
            self._report_steps()
            self._inbox.answer({**answer, "scale": self._relay.server.gradients.scale_state}, blocks)

    def _do(self, task: dict[str, Any]) -> tuple[dict[str, Any], list[bytes]]:
        self._poll()
        if task["scale"] is not None:
            self._relay.server.gradients.scale_losses(task["scale"])
        if task["op"] == "trials":
            outcomes = [{**vars(outcome), "server": None} for outcome in self._evaluate(task)]
            return {"event": "done", "outcomes": outcomes}, []
        assert task["op"] == "alone"
        return self._train_alone(task)

    def _poll(self) -> None:
        if self._inbox.is_stopped:
            raise _Stopped

    def _after_step(self, step: int, loss: float) -> None:
        self._steps.append((step, loss))
        if time.monotonic() - self._reported_at >= _REPORT_S:
            self._report_steps()
        self._poll()

    def _report_steps(self) -> None:
        if self._steps:
            self._inbox.answer({"event": "steps", "done": self._steps})
        self._steps, self._reported_at = [], time.monotonic()

    def _evaluate(self, task: dict[str, Any]) -> list[Outcome]:
        architectures = [self._pool.architecture(choices) for choices, _ in task["jobs"]]
        if len(architectures) > 1:
            return self._evaluator.evaluate_population(architectures)
        ordinal = task["jobs"][0][1]
        return [self._evaluator.evaluate(architectures[0], ordinal, poll=self._poll, stop_reason=self._stop_reason)]

    def _stop_reason(self, rung: str, metrics: Mapping[str, float]) -> str | None:
        self._inbox.answer({"event": "rung", "rung": rung, "metrics": dict(metrics)})
        return self._inbox.verdict()

    def _train_alone(self, task: dict[str, Any]) -> tuple[dict[str, Any], list[bytes]]:
        about = task["training"]
        own = unpack(self._relay.server, task, task["blocks"]) if "keys" in task else None
        training = Training(**{**about, "architecture": self._pool.architecture(about["architecture"]), "server": own})
        try:
            scores, server = self._evaluator.train_alone(training, after_step=self._after_step)
        except Exception as error:
            return {"event": "done", "refused": describe(failure_of(error))}, []
        as_json = {part: score.to_json() for part, score in scores.items()}
        return {"event": "done", "scores": as_json, **header_of(server)}, pack(server)


def describe(error: Exception) -> dict[str, Any]:
    """An error as a message; `messages.error_of` makes it one again."""
    about: dict[str, Any] = {"event": "error", "kind": "", "text": f"{type(error).__name__}: {error}"}
    if isinstance(error, NonFiniteError):
        return {**about, "kind": "NonFiniteError", "what": error.what, "layer": error.layer, "step": error.step}
    if isinstance(error, L2LError):
        return {**about, "kind": "L2LError", "text": str(error)}
    return {**about, "traceback": "".join(traceback.format_exception(error))}
