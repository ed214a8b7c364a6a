"""A real PostgreSQL server, reached by a socket that only this user can open, and a fresh schema for each test."""

from __future__ import annotations

import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.lab.plugin import require_file, require_packages
from tests.left_behind import MARK

_ACCOUNT = "postgres"
"""Debian's package makes this user; the server refuses to run as root."""
_START_S = 60.0
_OPTIONS = ("fsync=off", "synchronous_commit=off", "full_page_writes=off", "shared_buffers=16MB", "listen_addresses=")


class PostgresqlServer:
    """A server; ended by `close`."""

    def __init__(self, programs: Path) -> None:
        """Make its data and start it.

        Args:
            programs: the folder of `initdb` and `postgres`.
        """
        self._numbers = itertools.count(1)
        account = pwd.getpwnam(_ACCOUNT) if os.getuid() == 0 else pwd.getpwuid(os.getuid())
        # Not below `tmp_path`, whose parents are closed to other users.
        self.folder = Path(tempfile.mkdtemp(prefix="rw-pg-", dir=os.environ["PYTEST_DEBUG_TEMPROOT"]))
        os.chown(self.folder, account.pw_uid, account.pw_gid)
        another = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
        self._as_account = {} if os.getuid() else another
        self._environment = {"PATH": os.environ["PATH"], "LC_ALL": "C", "HOME": str(self.folder)}
        assert MARK not in self._environment, "the server outlives a test"
        data = str(self.folder / "data")
        made = [programs / "initdb", "-D", data, "-U", _ACCOUNT, "--auth=trust", "--encoding=UTF8", "--no-sync"]
        self._call(made, "initdb.log").wait(_START_S)
        options = [word for option in _OPTIONS for word in ("-c", option)]
        self._process = self._call([programs / "postgres", "-D", data, "-k", str(self.folder), *options], "server.log")
        self._wait()

    def _call(self, command: Sequence[Path | str], log: str) -> subprocess.Popen[bytes]:
        with (self.folder / log).open("wb") as output:
            return subprocess.Popen(
                list(map(str, command)),
                cwd=self.folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                **self._as_account,  # type: ignore[arg-type]
            )

    def _wait(self) -> None:
        import psycopg

        due = time.monotonic() + _START_S
        while True:
            try:
                psycopg.connect(self._address()).close()
                return
            except psycopg.OperationalError as error:
                if self._process.poll() is not None or time.monotonic() > due:
                    log = "".join((self.folder / name).read_text() for name in ("initdb.log", "server.log"))
                    self.close()
                    raise AssertionError(f"PostgreSQL did not start: {error}\n{log}") from error
                time.sleep(0.05)

    def _address(self) -> str:
        return f"host={self.folder} user={_ACCOUNT} dbname=postgres"

    def new_schema(self) -> str:
        """Return the URL of a schema that has nothing yet."""
        import psycopg
        from psycopg.sql import SQL, Identifier

        name = f"test_{next(self._numbers)}"
        with psycopg.connect(self._address(), autocommit=True) as connection:
            connection.execute(SQL("CREATE SCHEMA {}").format(Identifier(name)))
        return f"postgresql://{_ACCOUNT}@/postgres?host={self.folder}&options=-csearch_path%3D{name}"

    def end_connections(self) -> None:
        """End all connections, as a restart of the server would."""
        import psycopg

        with psycopg.connect(self._address(), autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
            )

    def close(self) -> None:
        """End it at once."""
        self._process.send_signal(signal.SIGQUIT)
        self._process.wait()
        shutil.rmtree(self.folder)


@pytest.fixture(scope="module")
def postgresql() -> Iterator[PostgresqlServer]:
    """A server for the tests of a module."""
    require_packages("psycopg")
    programs = require_file("/usr/lib/postgresql", "*/bin/initdb").parent
    server = PostgresqlServer(programs)
    yield server
    server.close()
