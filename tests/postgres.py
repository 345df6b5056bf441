"""A PostgreSQL server of our own, for tests: in a folder, on a free port, as a user who is not root."""

from __future__ import annotations

import glob
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path

import pytest

from tests.debian import install


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def binaries() -> Path | None:
    """Where initdb and pg_ctl are; Debian keeps them out of the PATH."""
    found = shutil.which("initdb")
    places = [Path(found).resolve().parent] if found else []
    places += [Path(path) for path in sorted(glob.glob("/usr/lib/postgresql/*/bin"), reverse=True)]
    return next(
        (place for place in places if all((place / name).exists() for name in ("initdb", "pg_ctl", "psql"))), None
    )


class Postgres:
    """A server with one database, `studies`, and its user `searcher`, whose password is `PASSWORD`."""

    PASSWORD = "s3cret"

    def __init__(self) -> None:
        self._bin = binaries()
        if self._bin is None:
            install("postgresql")
            self._bin = binaries()
        if self._bin is None:
            pytest.skip("apt-get installed no PostgreSQL server")
        self.port = free_port()
        self.folder = folder = Path(tempfile.mkdtemp(prefix="l2l_nas_postgres_"))  # pytest's are closed to other users
        self._data = folder / "data"
        self._log = folder / "server.log"
        self._user = "postgres" if os.geteuid() == 0 else pwd.getpwuid(os.geteuid()).pw_name
        (folder / "password").write_text(self.PASSWORD)
        if os.geteuid() == 0:
            shutil.chown(folder, self._user)
            shutil.chown(folder / "password", self._user)
        self._command(
            "initdb", "-D", self._data, "-U", "searcher", f"--pwfile={folder / 'password'}", "-A", "scram-sha-256",
            "--no-sync", "-E", "UTF8", "--locale=C",
        )  # fmt: skip
        with open(self._data / "postgresql.conf", "a") as config:
            config.write(
                f"port = {self.port}\nlisten_addresses = '127.0.0.1'\nunix_socket_directories = ''\n"
                "fsync = off\nshared_buffers = 16MB\nmax_connections = 50\n"
            )
        self._command("pg_ctl", "-D", self._data, "-l", self._log, "-w", "-t", "60", "start")
        self.sql("CREATE DATABASE studies", database="postgres")

    @property
    def address(self) -> str:
        """Without the password, which the environment gives as PGPASSWORD."""
        return f"postgresql+psycopg://searcher@127.0.0.1:{self.port}/studies"

    def remove(self) -> None:
        """Stop it and leave nothing."""
        self._command("pg_ctl", "-D", self._data, "-w", "-m", "immediate", "stop")
        shutil.rmtree(self.folder)

    def sql(self, text: str, *, database: str = "studies") -> str:
        """What psql prints."""
        done = self._command(
            "psql", "-h", "127.0.0.1", "-p", self.port, "-U", "searcher", "-d", database, "-At", "-c", text
        )
        return done.strip()

    def _command(self, name: str, *words: object) -> str:
        assert self._bin is not None
        line = [str(self._bin / name), *map(str, words)]
        is_root = os.geteuid() == 0
        done = subprocess.run(
            line,
            cwd="/",
            env={**os.environ, "PGPASSWORD": self.PASSWORD, "LC_ALL": "C"},
            user=self._user if is_root else None,
            group=pwd.getpwnam(self._user).pw_gid if is_root else None,
            extra_groups=[] if is_root else None,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if name == "psql" else subprocess.DEVNULL,  # a server would keep the pipe open
            stderr=subprocess.STDOUT if name == "psql" else None,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, (line, done.stdout)
        return done.stdout or ""
