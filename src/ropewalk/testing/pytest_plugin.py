"""Fixtures of pytest for programs that use Ropewalk: a pool, a store of runs, and a check that nothing is left.

One line in the `conftest.py` of your tests makes them known; without it, nothing is loaded:

    pytest_plugins = ["ropewalk.testing.pytest_plugin"]

A test then takes what it needs as an argument:

    def test_all_seeds_converge(ropewalk_pool):
        assert all(error < 0.1 for error in ropewalk_pool.map(train, range(4)))

All pools, programs, queues and locks of a run of the tests share one session, so that a pool begins in 8 ms instead of
150. With `pytest --ropewalk-threads`, `ropewalk_pool` has threads of this process, where a debugger can stop.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from multiprocessing.pool import ThreadPool
from pathlib import Path

import psutil
import pytest

from ropewalk.pool.pool import Pool
from ropewalk.processes.session import Session

NUM_WORKERS = 2
"""The number of workers of `ropewalk_pool`: enough for tasks to overlap, and no more than small CI machines have."""
GRACE_S = 5.0
"""Timeout in seconds for processes and threads that are ending when a test ends."""
_OF_HOSTS = ("depot",)
"""How the ids begin of processes that a host keeps for its queues and locks, until the session ends."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option `--ropewalk-threads`."""
    group = parser.getgroup("ropewalk")
    group.addoption("--ropewalk-threads", action="store_true", help="let ropewalk_pool have threads, for a debugger")


@pytest.fixture(scope="session")
def ropewalk_session() -> Iterator[Session]:
    """One session of processes on this machine, which all tests share; the setting `engine` is ignored."""
    with Session(engine="local") as session:
        yield session


@pytest.fixture
def ropewalk_pool(request: pytest.FixtureRequest) -> Iterator[Pool | ThreadPool]:
    """A pool of two workers, which ends with the test; of threads with `--ropewalk-threads`."""
    if request.config.getoption("--ropewalk-threads"):
        with ThreadPool(NUM_WORKERS) as threads:
            yield threads
            return
    with Pool(NUM_WORKERS, session=request.getfixturevalue("ropewalk_session")) as pool:
        yield pool


@pytest.fixture
def ropewalk_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store of runs for this test alone, so that runs of tests are not among your own. Returns its path."""
    path = tmp_path / "runs.db"
    monkeypatch.setenv("ROPEWALK_STORE", str(path))
    return path


@pytest.fixture
def ropewalk_leak_check(ropewalk_session: Session) -> Iterator[None]:
    """Fail the test if a process or a thread that began in it is left when it ends.

    Use it in single tests, `@pytest.mark.usefixtures("ropewalk_leak_check")`, or in all tests of a folder by a fixture
    of its `conftest.py` that has `autouse=True` and takes this one.
    """
    before = _running(ropewalk_session)
    yield
    deadline = time.monotonic() + GRACE_S
    while left := _running(ropewalk_session) - before:
        if time.monotonic() > deadline:
            names = ", ".join(sorted(each.partition("#")[0] for each in left))
            pytest.fail(
                f"when this test ended, what it had begun was still there: {names}. End pools and "
                "programs by `with`, or call terminate() or stop(), and join threads"
            )
        time.sleep(0.02)


def _running(session: Session) -> set[str]:
    """Name what runs: processes of the session, other children of this process, and threads that keep it alive."""
    ours = {f"process {id}" for id in session.processes.ids() if not id.startswith(_OF_HOSTS)}
    agents = set(session.agent_pids())
    children = {f"child process {each.pid}" for each in psutil.Process().children() if each.pid not in agents}
    threads = {f"thread {each.name}" for each in threading.enumerate() if not each.daemon}
    return ours | children | threads


__all__ = ["ropewalk_leak_check", "ropewalk_pool", "ropewalk_session", "ropewalk_store"]
