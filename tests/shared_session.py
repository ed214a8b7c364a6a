"""One session for all tests of a module, instead of one for each: a pool then begins in 8 ms instead of 150.

A module whose tests need no cold start says so:

    pytestmark = pytest.mark.usefixtures("shared_session")

or "shared_depot", if they make queues, locks and such. Its pools, executors, processes and programs find that session
by themselves. A test that closes or breaks it takes nothing from the others: the next one gets a new session. A test
that does need a cold start, because it changes settings or the environment, or counts sessions, is marked `cold`.

What a test leaves behind is found as without this. The session, its agent and its depot are there before the test, so
only fork servers may come, and nothing may stay in the depot.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import inspect
import time
from collections.abc import Iterator

import msgspec
import psutil
import pytest

import ropewalk as rw
from ropewalk.control import lone_processes
from ropewalk.control.launchers import find_launchers
from ropewalk.processes.messages import IF_THERE
from ropewalk.processes.owner import Owner, ProcessSpec
from ropewalk.sharing.membership import member_of
from tests.left_behind import GRACE_S, Snapshot


def warm_session(module: str, *, only: bool = False) -> rw.Session:
    """A session whose fork servers have the module of the tests: each process would take 200 ms to import it.

    A program that preloads what the module imports itself, such as torch, is served by the same: another server would
    take 2 s of CPU time to import it again.

    Args:
        module: what they have imported.
        only: also where a program says what its processes share.
    """
    session = rw.Session()
    session.__enter__()
    start = session.processes.start
    imported = {each.__name__ for each in vars(importlib.import_module(module)).values() if inspect.ismodule(each)}

    def start_warm(spec: ProcessSpec, owner: Owner) -> str:
        if (
            only or imported.issuperset(name.removesuffix(IF_THERE) for name in spec.preload)
        ) and owner is not session._services:
            spec = msgspec.structs.replace(spec, preload=(module,))
        return start(spec, owner)

    session.processes.start = start_warm
    return session


class Kept:
    """The session that stays open between tests, if the module wants one."""

    def __init__(self) -> None:
        self.module = ""
        """The module that wants one, if any."""
        self.only = False
        """Whether all processes are forked with that module, whatever programs preload."""
        self.with_depot = False
        self.session: rw.Session | None = None
        self.of_folder: rw.Session | None = None
        """The session that stays open for the modules of a folder, which start their processes in it by name."""
        self._agents: set[int] = set()
        self._services: set[str] = set()
        self._held: object = None
        """A depot ends when nobody holds anything in it."""
        self._depot = ""

    def prepare(self, *, cold: bool) -> None:
        """Before a test: have it open and warm, or closed."""
        if cold:
            self.close()
        if self.module and not cold and self.session is None:
            self.session = warm_session(self.module, only=self.only)
            with rw.Pool(1, session=self.session) as pool:
                pool.apply(abs, (-1,))
                if self.with_depot:
                    self._make_depot(self.session, pool)
            self._agents = set(self.session.agent_pids())
            self._services = set(self.session._services._services)

    def _make_depot(self, session: rw.Session, pool: rw.Pool) -> None:
        with pytest.MonkeyPatch.context() as patched:  # what shows it has a socket, which is to be there before a test
            patched.setattr(lone_processes, "_ANNOUNCED_AFTER_S", 0.0)
            self._held = queue = rw.Queue(session=session)
            queue.put(pool.apply_async(abs, (-1,)).get())
            queue.get()
            self._depot = member_of(session).depot()
        deadline = time.monotonic() + GRACE_S
        while not any(each.kind == "processes" for each in find_launchers([session.folder.parent])):
            assert time.monotonic() < deadline, "the depot is not shown"
            time.sleep(0.001)

    def close_unless_whole(self) -> None:
        """After a test: end what it has broken."""
        if not self._is_whole():
            self.close()

    def _is_whole(self) -> bool:
        session = self.session
        return (
            session is not None
            and not session.closed
            and not session.has_failed
            and set(session.agent_pids()) == self._agents
            and set(session._services._services) == self._services
        )

    def own_processes(self) -> set[int]:
        """The agent and its fork servers, which begin with what is preloaded for the first time."""
        found: set[int] = set()
        agents = self._agents if self.session else set[int]()
        for agent in agents.union(self.of_folder.agent_pids() if self.of_folder else ()):
            with contextlib.suppress(psutil.Error):
                found |= {child.pid for child in psutil.Process(agent).children() if child.name() == "rw-forkserver"}
        return found

    def wait_until_depot_is_empty(self) -> None:
        """Objects go with their last handle, a moment later.

        Raises:
            AssertionError: the test has left some.
        """
        if self._held is None:
            return
        member = member_of(self.session)
        deadline = time.monotonic() + GRACE_S
        with contextlib.suppress(rw.PeerLost):  # killed by the test just now
            while (num_left := member.ask(self._depot, "num_objects") - 1) and time.monotonic() < deadline:
                gc.collect()
                time.sleep(0.01)
            if num_left:
                self.close()
            assert not num_left, f"the test left {num_left} objects in the depot"

    def close(self) -> None:
        """End the session."""
        session, self.session, self._held = self.session, None, None
        if session:
            session.close()


#: The one of this process.
kept = Kept()


def one_session(preloaded: str, *, with_depot: bool = False) -> Iterator[None]:
    """The body of a fixture `shared_session` whose processes are all forks of one that has imported this module."""
    before = Snapshot.take()
    kept.module, kept.only, kept.with_depot = preloaded, True, with_depot
    yield
    kept.module, kept.only, kept.with_depot = "", False, False
    kept.close()
    assert not before.what_stays()
