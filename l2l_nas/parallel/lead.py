"""Rank 0 leads: it alone runs a program, and has the others do what takes all ranks.

[Note: who leads] Rank 0 alone has a run's folder, its study, terminal and callbacks, and decides all that depends on
time, files, signals or the user. To train, to score, to read or write weights takes all ranks: rank 0 names an action
and its arguments, and every other rank does what it knows by this name, on its own objects. A function among the
arguments is called by rank 0 alone, and the others get what it returns or raises. Until it does, they do what rank 0
names meanwhile, such as a save between two steps. Param-servers that came of an action are known by their numbers, and
dropped everywhere when rank 0 drops its own. Messages are pickled: all ranks are processes of one program.
"""

from __future__ import annotations

import io
import pickle
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any, TypeVar

from l2l_nas.eps.agreement import Pass, all_gather_bytes, broadcast_bytes, end, wait_for_all
from l2l_nas.eps.server import ParamServer
from l2l_nas.errors import (
    L2LError,
    RankError,
    Stopped,
    StorageError,
    TrialError,
    agreed,
    described,
    failure_of,
    is_agreed,
    one_line,
)
from l2l_nas.parallel.world import World

Result = TypeVar("Result")

_DO, _ANSWER, _RAISE, _OVER, _FAILED = "do", "answer", "raise", "over", "failed"
_NOTE_S = 2.0


class _Function:
    """In the place of a function of rank 0's, among the arguments of an action."""


class _Ranked:
    """What rank 0 and those that follow have alike: a `Lead` of `training/lead.py`."""

    def __init__(self, world: World) -> None:
        self._world, self._exchange = world, world.exchange
        self._numbers: MutableMapping[ParamServer, int] = weakref.WeakKeyDictionary()
        self._count = 0

    def note(self, what: str) -> None:
        """Have the other ranks know what this one does, which they take for progress."""
        self._exchange.note(what)

    def done(self) -> None:
        """See `Lead`."""
        wait_for_all(self._exchange)

    def failure(
        self, error: Exception, settle: Callable[[], None], *, may_differ: bool = False
    ) -> tuple[L2LError, bool]:
        """See `Lead`. Ranks that another one has made fail have a `RankError`."""
        own = ""
        if not (isinstance(error, RankError) and error.goes_on):
            own = one_line(str(failure_of(error)))
            self._exchange.tell(error)
        settle()
        self._world.rejoin()
        texts = [data.decode() for data in all_gather_bytes(self._exchange, own.encode())]
        return TrialError(next(filter(None, texts))), len(set(texts)) == 1 and not may_differ

    def _number(self, result: object) -> list[tuple[int, ParamServer]]:
        """Number the param-servers that came of an action; all ranks find the same ones."""
        several = result if isinstance(result, tuple) else (result, getattr(result, "server", None))
        found = []
        for one in several:
            if isinstance(one, ParamServer) and one not in self._numbers:
                self._numbers[one] = self._count
                found.append((self._count, one))
                self._count += 1
        return found

    def _end(self, error: BaseException | None) -> None:
        """End an action on all ranks, if this one did not fail by itself.

        Raises:
            BaseException: the error, where another rank may wait in the middle of the action.
            StorageError: what another rank failed with at its end.
        """
        if error is not None and not is_agreed(error):
            raise error
        problem = end(self._exchange, Pass.LEAD, "" if error is None else described(error) or type(error).__name__)
        if error is None and problem:
            raise agreed(StorageError(problem))


class Leader(_Ranked):
    """Rank 0. The other ranks are `Follower`s until `leading` is over.

    Args:
        world: of all ranks.
    """

    def __init__(self, world: World) -> None:
        super().__init__(world)
        assert world.rank == 0
        self.is_asked_to_stop = False
        self._dropped: list[int] = []
        self._is_apart = threading.Event()  # while rank 0 does what the others do not
        self._is_broken = False

    @contextmanager
    def leading(self) -> Iterator[Leader]:
        """While rank 0 runs its program. What ends it with an error is raised on all ranks."""
        is_over = threading.Event()

        def tell() -> None:
            while not is_over.wait(_NOTE_S):
                if self._is_apart.is_set():
                    self.note(self._world.watch.noted)

        thread = threading.Thread(target=tell, name="l2l_nas leads", daemon=True)
        thread.start()
        self._is_apart.set()
        try:
            yield self
            self._broadcast(_OVER)
        except BaseException as error:
            if not self._is_broken and not isinstance(error, RankError):
                self._broadcast(_FAILED, _to_send(agreed(error)))
            raise
        finally:
            is_over.set()
            thread.join()

    def do(self, name: str, args: Sequence[Any], here: Callable[..., Result]) -> Result:
        """See `Lead`."""
        is_function = [isinstance(one, FunctionType | MethodType | BuiltinFunctionType | partial) for one in args]
        self._broadcast(
            _DO, name, [_Function() if is_one else one for one, is_one in zip(args, is_function, strict=True)]
        )
        own = [partial(self._answer, one) if is_one else one for one, is_one in zip(args, is_function, strict=True)]
        self._is_apart.clear()
        try:
            try:
                result = here(*own)
            except BaseException as error:
                self._end(error)
                raise
            self._end(None)
        except BaseException as error:
            self._is_broken |= not is_agreed(error)
            raise
        finally:
            self._is_apart.set()
        for number, server in self._number(result):
            weakref.finalize(server, self._dropped.append, number)
        return result

    def _answer(self, function: Callable[..., Any], *args: Any, **more: Any) -> Any:
        """Call a function of rank 0's, and have the others know what came of it."""
        self._is_apart.set()
        try:
            value = function(*args, **more)
        except BaseException as error:
            if not self._is_broken:
                self._broadcast(_RAISE, _to_send(agreed(error)))
            raise
        self._broadcast(_ANSWER, value)
        self._is_apart.clear()
        return value

    def _broadcast(self, *content: Any) -> None:
        dropped, self._dropped[:] = list(self._dropped), []
        buffer = io.BytesIO()
        pickler = _Pickler(buffer)
        pickler.numbers = self._numbers
        pickler.dump((dropped, content))
        _, asks = broadcast_bytes(self._exchange, buffer.getvalue())
        self.is_asked_to_stop |= asks


class Follower(_Ranked):
    """Another rank than 0.

    Args:
        world: of all ranks.

    Attributes:
        actions: by the names that rank 0 gives them; to be filled.
        asks: whether this rank was asked to stop, so that rank 0 stops.
    """

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.actions: dict[str, Callable[..., Any]] = {}
        self.asks: Callable[[], bool] = lambda: False
        self._servers: dict[int, ParamServer] = {}

    @property
    def is_asked_to_stop(self) -> bool:
        """Rank 0 decides it."""
        return False

    def do(self, name: str, args: Sequence[Any], here: Callable[..., Result]) -> Result:
        """Nothing but what it does, as part of an action."""
        return here(*args)

    def follow(self) -> None:
        """Do what rank 0 does, until its program is over.

        Raises:
            BaseException: what ended it.
        """
        while True:
            kind, *content = self._receive()
            if kind == _OVER:
                return
            if kind == _FAILED:
                raise content[0]
            self._act(*content)

    def _act(self, name: str, args: Sequence[Any]) -> None:
        failure: BaseException | None = None
        result = None
        try:
            result = self.actions[name](*(self._answer if isinstance(one, _Function) else one for one in args))
        except BaseException as error:
            failure = error
        try:
            self._end(failure)
        except StorageError as error:
            if not is_agreed(error):
                raise
            return  # rank 0 has it, too
        if failure is None:
            self._servers.update(self._number(result))

    def _answer(self, *args: Any, **more: Any) -> Any:
        """What a function of rank 0's gives; meanwhile this rank does what it names."""
        while True:
            kind, *content = self._receive()
            if kind == _ANSWER:
                return content[0]
            if kind in (_RAISE, _FAILED):
                raise content[0]
            self._act(*content)

    def _receive(self) -> Sequence[Any]:
        data, _ = broadcast_bytes(self._exchange, b"", asks=self.asks())
        unpickler = _Unpickler(io.BytesIO(data))
        unpickler.servers = self._servers
        dropped, content = unpickler.load()
        for number in dropped:
            self._servers.pop(number, None)
        return content  # type: ignore[no-any-return]


class _Pickler(pickle.Pickler):
    numbers: Mapping[ParamServer, int]

    def persistent_id(self, obj: object) -> int | None:
        return self.numbers[obj] if isinstance(obj, ParamServer) else None


class _Unpickler(pickle.Unpickler):
    servers: Mapping[int, ParamServer]

    def persistent_load(self, pid: int) -> ParamServer:
        return self.servers[pid]


def _to_send(error: BaseException) -> BaseException:
    """An error as other ranks raise it: as it is, or, where it cannot be sent, as one that rank 0 explains."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        is_sent = False
    else:
        is_sent = isinstance(error, L2LError | Stopped | KeyboardInterrupt)
    return error if is_sent else agreed(RankError(described(error), rank=0))
