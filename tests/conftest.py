"""After every test nothing is left: no process, thread, descriptor or temporary file. And which tests run where.

The whole run gets a temporary folder of its own (TMPDIR and XDG_RUNTIME_DIR) and
a mark in the environment that every process it starts inherits. So what is left can
be told from what other programs, or a second run of these tests, do on this machine.
"""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.left_behind import MARK, Scan, Snapshot, began_at, handler_left
from tests.shared_session import kept

pytest_plugins = [
    "tests.watchdog",
    "tests.log_handlers",
    "tests.workers",
    "tests.shared_collection",
    "tests.record",
    "tests.other_users",
    "tests.lab.plugin",
    "tests.lab.kubernetes",
    "tests.lab.ssh",
    "tests.lab.slurm",
    "tests.lab.docker",
    "tests.lab.postgresql",
    "tests.lab.small_disk",
    "tests.lab.browser",
]

#: Where the fixtures are that make machines and clusters: tests that use one of them are of the lab.
LAB = "tests.lab."
SOAK_TIMEOUT_S = 3600
"""What takes minutes on an idle host takes many of them on a busy one: only what hangs is ended."""

_scan = Scan()

# Other programs on the machine make an example take long, and say nothing about it.
settings.register_profile("ropewalk", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ropewalk")

# Threads of OpenMP and OpenBLAS wait for each other in a loop, for milliseconds. Where more of them run than there are
# cores, as here, that can be more than half of all CPU time. Now they sleep, in all processes of the tests; how many
# there are, and what they compute, is as it is for users. Both read this when they are loaded, which the first
# conftest.py of a subfolder does.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")


# --- the surroundings of the run --------------------------------------------------------------------------------------


@pytest.hookimpl(tryfirst=True)  # before pytest makes the folder for `tmp_path`
def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # `make test &` in a script; processes of tests inherit it
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # `tmp_path` stays in the usual place, where it is kept for a while.
    root = os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
    # Short, because socket paths end at 107 bytes; and not inside that of the process that started this worker.
    if hasattr(config, "workerinput"):
        config.option.basetemp = tempfile.mkdtemp(prefix="rwb-", dir=root)
    folder = tempfile.mkdtemp(prefix="rwt-", dir=root)
    if part := config.getoption("--slice"):
        config.pluginmanager.register(Slice(part))
    # Nothing that is collected can be thrown away: to look through it again and again is a fifth of the collection.
    gc.disable()
    os.environ[MARK] = os.environ["TMPDIR"] = os.environ["XDG_RUNTIME_DIR"] = folder
    tempfile.tempdir = None  # it had been read already


def pytest_unconfigure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):
        shutil.rmtree(config.option.basetemp, ignore_errors=True)
    tempfile.tempdir = None
    for variable in ("TMPDIR", "XDG_RUNTIME_DIR"):
        del os.environ[variable]
    shutil.rmtree(os.environ.pop(MARK), ignore_errors=True)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slice", metavar="I/N", help="of the chosen tests, only the I-th of N parts (0 to N-1)")


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    asked_for = str(config.getoption("markexpr"))
    for item in items:
        if _is_of_the_lab(item):
            item.add_marker("lab")
        if item.get_closest_marker("soak"):
            item.add_marker(pytest.mark.timeout(SOAK_TIMEOUT_S), append=False)
        for name, when in (("soak", "runs for minutes"), ("timing", "measures time, alone on the machine")):
            if item.get_closest_marker(name) and name not in asked_for:
                item.add_marker(pytest.mark.skip(reason=f"{when}; `make {name}` runs it"))


def pytest_collection_finish() -> None:
    """Thousands of tests and all that they import stay: what is looked through for garbage need not contain them."""
    gc.freeze()  # without a look at it before, which takes 0.4 s and finds little
    gc.enable()


_MANY_OBJECTS = 50_000
"""A look through this number for garbage takes 5 ms of CPU time, which is what most tests take as a whole."""


_last_path: Path | None = None


@pytest.hookimpl(tryfirst=True)  # before the fixtures of the module
def pytest_runtest_setup(item: pytest.Item) -> None:
    """What the tests of earlier files have imported stays as well.

    In a worker that has run half of the tests a collection took 0.4 s, and hundreds of tests ask for one.
    """
    global _last_path
    if item.path != _last_path:
        _last_path = item.path
        if len(gc.get_objects()) > _MANY_OBJECTS:
            gc.collect()
            gc.freeze()


def _is_of_the_lab(item: pytest.Item) -> bool:
    definitions: dict[str, Any] = getattr(item, "_fixtureinfo").name2fixturedefs  # noqa: B009
    return any(found[-1].func.__module__.startswith(LAB) for found in definitions.values() if found)


SHARED = {"shared_session", "shared_depot", "printed_in_soak"}
"""Fixtures that cost as much for one test of a file as for all of them."""


class Slice:
    """A part of the tests that were chosen; all parts together are all of them.

    Parts have as many tests of each folder as each other, but those of a file that share what is expensive are in one:
    otherwise each part would begin nearly all sessions, and run all pages for a few of their blocks.
    """

    def __init__(self, part: str) -> None:
        self.index, self.num = map(int, part.split("/"))

    @pytest.hookimpl(trylast=True)  # after `-m` has chosen
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        units: dict[str, list[str]] = {}
        for item in sorted(items, key=lambda item: item.nodeid):
            shares = SHARED.intersection(getattr(item, "fixturenames", ()))
            units.setdefault(item.nodeid.partition("::")[0] if shares else item.nodeid, []).append(item.nodeid)
        parts: list[list[str]] = [[] for _ in range(self.num)]
        sizes = [Counter[str]() for _ in parts]
        for unit in sorted(units.values(), key=len, reverse=True):
            folder = unit[0].partition("::")[0].rpartition("/")[0]  # its tests take as long as each other, more or less
            chosen = min(range(self.num), key=lambda part: (sizes[part][folder], len(parts[part])))
            parts[chosen] += unit
            sizes[chosen][folder] += len(unit)
        ours = set(parts[self.index])
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in ours])
        items[:] = [item for item in items if item.nodeid in ours]


# --- nothing is left --------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _nothing_is_left(request: pytest.FixtureRequest) -> Iterator[None]:  # pyright: ignore[reportUnusedFunction]
    kept.prepare(cold=request.node.get_closest_marker("cold") is not None)
    before, handler = Snapshot.take(_scan), signal.getsignal(signal.SIGINT)
    yield
    kept.close_unless_whole()
    _end_sessions()
    left = before.what_stays(_scan, kept.own_processes)
    if left:
        _end(left.processes)
        kept.close()
        pytest.fail(f"the test left behind:\n{left.describe()}", pytrace=False)
    if words := handler_left(signal.SIGINT, handler):
        pytest.fail(f"the test left behind: {words}", pytrace=False)
    if not SHARED.isdisjoint(request.node.fixturenames):
        kept.wait_until_depot_is_empty()


@pytest.fixture(scope="module")
def shared_session(request: pytest.FixtureRequest) -> Iterator[None]:
    """Keep one session open for the pools of this module; see `tests/shared_session.py`."""
    before = Snapshot.take()
    kept.module = request.module.__name__
    yield
    kept.module = ""
    kept.close()
    left = before.what_stays()
    if left:
        _end(left.processes)
        pytest.fail(f"the session of the module left behind:\n{left.describe()}", pytrace=False)


@pytest.fixture(scope="module")
def shared_depot(shared_session: None) -> Iterator[None]:
    """A shared session that has a depot, which is where shared objects are."""
    kept.with_depot = True
    yield
    kept.with_depot = False


def _end_sessions() -> None:
    """A session outlives its last pool for a moment, for the next one; here nobody waits for it."""
    sessions = sys.modules.get("ropewalk.processes.open_sessions")
    for session in sessions.all_sessions() if sessions else []:
        if session not in (kept.session, kept.of_folder):
            session.close()
    tracker = sys.modules.get("multiprocessing.resource_tracker")
    # The standard library's own helper process, which it ends with the interpreter.
    if tracker is not None and tracker._resource_tracker._fd is not None:
        gc.collect()  # semaphores in circles; the tracker would unlink them itself, and they fail to later
        tracker._resource_tracker._stop()


def _end(processes: set[tuple[int, int]]) -> None:
    """End what a failed test left, so that the next one does not suffer from it."""
    for pid, started in processes:
        with contextlib.suppress(OSError):
            if began_at(pid) == started:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
