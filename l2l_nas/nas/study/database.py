"""Studies outside a run's folder: addresses of databases and files, how they are opened, what their errors mean.

    postgresql://user@host/name   mysql://...   sqlite:///file.db   Optuna's relational storage, through SQLAlchemy
    journal:///file.log                                             Optuna's journal file, on one machine or NFS
    grpc://host:port                                                Optuna's gRPC proxy in front of one of the first

Paths are written as SQLAlchemy writes them: three slashes before a relative one, four before an absolute one.
"""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import logging
import os
import sqlite3
import sys
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, quote_plus, urlsplit

import optuna
from optuna.storages import BaseStorage, GrpcStorageProxy, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileSymlinkLock
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, InterfaceError, OperationalError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from l2l_nas.errors import L2LError, SettingError, StorageError, described, one_line, without_passwords
from l2l_nas.files import named_failures
from l2l_nas.nas.study.journal import JournalFile

# driver and module that a plain scheme stands for, and how to get it
_DRIVERS = {
    "postgresql": ("postgresql+psycopg", "psycopg", "pip install 'l2l-nas[distributed]'"),
    "postgres": ("postgresql+psycopg", "psycopg", "pip install 'l2l-nas[distributed]'"),
    "mysql": ("mysql+pymysql", "pymysql", "pip install pymysql"),
}
_CONNECT_SECONDS = 10
_OPEN_TRIES = 5
# what a whole line of a journal raises that nobody of us wrote
_UNREADABLE = (ValueError, TypeError, AttributeError, LookupError, AssertionError, RecursionError)
_RESTORE = "restore it from a copy, or start a new study"
# a server that vanished without a word is noticed after this long, not after TCP's two hours
_DEAD_PEER_SECONDS = 30
# what no waiting heals
_FINAL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR}


@dataclass(frozen=True)
class Address:
    """Where a study is saved.

    Args:
        url: as the driver wants it, password and all.
        kind: "database", "journal" or "grpc".
        shown: for people and files: without the password.
        secret: the password; empty where there is none.
    """

    url: str
    kind: str
    shown: str
    secret: str = ""

    def __repr__(self) -> str:
        return f"Address({self.shown!r})"

    @property
    def place(self) -> Path | None:
        """The file of a journal or of SQLite; None of anything else."""
        if self.kind == "journal":
            return Path(self.url.removeprefix("journal:///"))
        url = make_url(self.url)
        is_file = url.get_backend_name() == "sqlite" and not (url.database or "").startswith("file:")
        return Path(url.database or "") if is_file else None

    def refuse_missing(self) -> None:
        """Opening a file that is not there would make an empty one.

        Raises:
            StorageError: there is no such file any more.
        """
        if self.place is None or os.path.exists(self.place):
            return
        where = "restore it, or say search.storage= again"
        if not self.place.is_absolute():
            where += "; the address counts from the current folder, so you may have begun in another"
        raise StorageError(f"{self.shown}: {self.place.absolute()} is not there; {where}")

    def explain(self, error: BaseException) -> str:
        """The first line of what a driver said, without the password."""
        text = _cause(error)
        for secret in (self.secret, quote(self.secret, safe=""), quote_plus(self.secret)) if self.secret else ():
            text = text.replace(secret, "***")
        return one_line(text)


def parse_address(text: str, *, password: str = "") -> Address:
    """The address of `search.storage`.

    Args:
        password: of the database, if it is not part of the address.

    Raises:
        SettingError: it is none, or its driver is not installed.
    """
    scheme = text.partition("://")[0]
    if scheme == "journal" and "://" in text:
        if not text.removeprefix("journal:///") or not text.startswith("journal:///"):
            raise SettingError(f"search.storage={text}: a journal is named journal:///FILE")
        return Address(text, "journal", text)
    if scheme == "grpc" and "://" in text:
        return _grpc_address(text)
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):
        raise SettingError(
            f"search.storage={without_passwords(text)} is no address; write postgresql://USER@HOST/NAME, mysql://..., "
            "sqlite:///FILE, journal:///FILE or grpc://HOST:PORT"
        ) from None
    family = url.get_backend_name()
    if family not in ("postgresql", "postgres", "mysql", "mariadb", "sqlite"):
        raise SettingError(
            f"search.storage: no storage '{family}'; there are postgresql, mysql, sqlite, journal and grpc"
        )
    driver, module, advice = _DRIVERS.get(url.drivername, (url.drivername, "", ""))
    if module and importlib.util.find_spec(module) is None:
        raise SettingError(f"search.storage={family}://... needs the package {module}: {advice}")
    url = url.set(drivername=driver)
    if family == "sqlite" and url.database in (None, "", ":memory:"):
        raise SettingError("search.storage=sqlite:// needs a file: sqlite:///FILE")
    if {name.lower() for name in url.query} & {"password", "passwd", "pwd"}:
        raise SettingError("search.storage: write the password before the @: postgresql://USER:PASSWORD@HOST/NAME")
    if password and not url.password and family != "sqlite":
        url = url.set(password=password)
    shown = URL.create(url.drivername, url.username, None, url.host, url.port, url.database, url.query)
    return Address(
        url.render_as_string(hide_password=False), "database", without_passwords(str(shown)), url.password or ""
    )


def _grpc_address(text: str) -> Address:
    try:
        port = urlsplit(text).port
    except ValueError:
        port = None
    if not urlsplit(text).hostname or port is None:
        raise SettingError(f"search.storage={text}: a gRPC proxy is named grpc://HOST:PORT")
    if importlib.util.find_spec("grpc") is None or importlib.util.find_spec("google.protobuf") is None:
        raise SettingError("search.storage=grpc://... needs grpcio and protobuf: pip install 'l2l-nas[distributed]'")
    if "@" in urlsplit(text).netloc:
        raise SettingError("search.storage: a gRPC proxy takes no user and no password: grpc://HOST:PORT")
    return Address(text, "grpc", text)


def open_storage(address: Address) -> BaseStorage:
    """Connect.

    Raises:
        StorageError: it cannot be reached, or is damaged.
        SettingError: its driver is missing.
    """
    for attempt in range(_OPEN_TRIES):
        try:
            with _quiet():
                return _connect(address)
        except ImportError as error:
            raise SettingError(f"search.storage={address.shown}: {error}".splitlines()[0]) from None
        except failures() as error:
            # several processes that make the tables of a new database at once: one wins, the others try again
            if attempt == _OPEN_TRIES - 1 or is_outage(error) or isinstance(error, OSError):
                raise StorageError(
                    f"{address.shown}: cannot be opened ({address.explain(error)}); check that it is there and may be "
                    "used, then give the same command again"
                ) from None
            time.sleep(0.2 * (attempt + 1))
        except _UNREADABLE as error:
            if isinstance(error, L2LError):
                raise
            raise StorageError(f"{address.shown}: damaged, not a study ({described(error)}); {_RESTORE}") from error
    raise AssertionError


def _connect(address: Address) -> BaseStorage:
    if address.kind == "journal":
        path = address.place
        assert path is not None
        if not path.parent.is_dir():
            raise FileNotFoundError(errno.ENOENT, f"no such folder (an absolute path takes four slashes): {path}")
        with named_failures(path):
            path.touch()
        return JournalStorage(JournalFile(path, lock=JournalFileSymlinkLock(str(path))))
    if address.kind == "grpc":
        parts = urlsplit(address.url)
        proxy = GrpcStorageProxy(host=parts.hostname or "", port=parts.port or 0)
        proxy.wait_server_ready(timeout=_CONNECT_SECONDS)
        return proxy
    return RDBStorage(address.url, engine_kwargs=_engine_options(make_url(address.url)))


def _engine_options(url: URL) -> dict[str, object]:
    options: dict[str, object] = {"pool_pre_ping": True}
    if url.get_backend_name() == "sqlite":
        options["connect_args"] = {"timeout": 60}
    elif url.get_driver_name().startswith("psycopg"):
        options["connect_args"] = {
            "connect_timeout": _CONNECT_SECONDS,
            "keepalives_idle": _DEAD_PEER_SECONDS,
            "tcp_user_timeout": 1000 * _DEAD_PEER_SECONDS,
        }
    elif url.get_driver_name() == "pymysql":
        options["connect_args"] = {"connect_timeout": _CONNECT_SECONDS, "read_timeout": 2 * _DEAD_PEER_SECONDS}
    return options


def close_storage(storage: BaseStorage) -> None:
    """Let go of connections."""
    with contextlib.suppress(*failures()):
        if isinstance(storage, GrpcStorageProxy):
            storage.close()
        elif isinstance(storage, RDBStorage):
            storage.remove_session()
            storage.engine.dispose()


def newest_name(storage: BaseStorage, name: str) -> str:
    """The study that went on in place of one, as its pool grew; see [Note: growth].

    Raises:
        KeyError: there is no study of this name.
    """
    passed = set()
    while name not in passed:
        passed.add(name)
        name = storage.get_study_user_attrs(storage.get_study_id_from_name(name)).get("continued_in") or name
    return name


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Experimental parts say so once each, alembic tells of every step, and Optuna of a query that an outage hits."""
    logging.getLogger("alembic").setLevel(logging.WARNING)
    logging.getLogger("optuna.storages").setLevel(logging.ERROR)  # `DatabaseStudy` says that the database is away
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        yield


def failures() -> tuple[type[BaseException], ...]:
    """What a storage raises that cannot be used."""
    remote = (sys.modules["grpc"].RpcError,) if "grpc" in sys.modules else ()
    return (SQLAlchemyError, sqlite3.Error, optuna.exceptions.StorageInternalError, OSError, KeyError, *remote)


def is_outage(error: BaseException) -> bool:
    """Whether waiting may help: the server is away or restarts, or somebody else holds a lock."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OperationalError | sqlite3.OperationalError):
            text = str(getattr(seen, "orig", None) or seen)
            return not _is_sqlite(seen) or any(word in text for word in ("locked", "busy"))
        if isinstance(seen, InterfaceError | PoolTimeout):
            return True
        if isinstance(seen, DBAPIError) and seen.connection_invalidated:
            return True
        code = getattr(seen, "code", None)
        if "grpc" in sys.modules and isinstance(seen, sys.modules["grpc"].RpcError) and callable(code):
            # UNKNOWN: the proxy answers so when its own database is away
            return code().name in ("UNAVAILABLE", "UNKNOWN", "DEADLINE_EXCEEDED", "INTERNAL", "CANCELLED")
        if isinstance(seen, OSError):
            return seen.errno not in _FINAL
        seen = seen.__cause__ or seen.__context__
    return False


def _is_sqlite(error: BaseException) -> bool:
    return isinstance(error, sqlite3.Error) or isinstance(getattr(error, "orig", None), sqlite3.Error)


def _cause(error: BaseException) -> str:
    """The innermost thing that a driver said."""
    seen: BaseException = error
    while isinstance(seen, optuna.exceptions.StorageInternalError | KeyError) and seen.__cause__ is not None:
        seen = seen.__cause__
    details = getattr(seen, "details", None)
    text = str(details() if callable(details) else getattr(seen, "orig", None) or seen).strip()
    return text.splitlines()[0] if text else type(seen).__name__
