"""Managers: types of the user, their registration, how they begin and end, and what is raised on the way."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from multiprocessing import ProcessError
from typing import Any

import pytest

import ropewalk as rw
from ropewalk.compat.process import Process
from ropewalk.errors import InitializerFailed, NotPicklable, PeerLost
from ropewalk.managers import BaseManager, Manager, RemoteError, SyncManager
from ropewalk.pool.pool import Pool
from ropewalk.sharing.manager_owner import ManagerProcess
from tests.interrupting import interrupt_after_receiving, interrupts_at_each_step
from tests.patience import PATIENCE_S, wait_until
from tests.sharing import managed_types as types

pytestmark = pytest.mark.usefixtures("shared_depot")


@pytest.fixture
def manager() -> Iterator[Any]:
    with types.SimulatorManager() as manager:
        yield manager


def test_objects_of_the_users_class_live_in_the_manager_and_keep_their_state(manager: Any) -> None:
    simulator = manager.Simulator()
    assert [simulator.step(2), simulator.step(3)] == [2, 5]
    assert simulator.pid() == manager._process.pid != os.getpid()


def test_all_public_methods_are_exposed_unless_some_are_named(manager: Any) -> None:
    names = ("step", "fail", "_hidden")
    assert [hasattr(manager.Simulator(), name) for name in names] == [True, True, False]
    assert [hasattr(manager.Half(), name) for name in names] == [True, False, True]
    assert manager.Half()._hidden() == "hidden"


def test_what_is_not_exposed_is_a_remote_error_as_in_multiprocessing(manager: Any) -> None:
    with pytest.raises(RemoteError, match="'_hidden'"):
        manager.Simulator()._callmethod("_hidden")


def test_exceptions_keep_their_type_and_show_where_they_were_raised(manager: Any) -> None:
    with pytest.raises(types.SimulatorBroken) as raised:
        manager.Simulator().fail("gear", 3)
    assert raised.value.args == ("gear", 3)
    assert "raise SimulatorBroken(*facts)" in str(raised.value.__cause__)


def test_what_cannot_come_back_is_a_remote_error(manager: Any) -> None:
    with pytest.raises(RemoteError, match=r"(?s)Unserializable message.*lock"):
        manager.Simulator().lock()
    with pytest.raises(RemoteError, match="Unrebuildable"):
        manager.Tree().raise_unrebuildable()


def test_a_wrong_call_raises_the_type_error_of_the_method(manager: Any) -> None:
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        manager.Simulator().step()
    with pytest.raises(TypeError, match="unexpected keyword argument 'speed'"):
        manager.Simulator(speed=3)


def test_methods_named_in_method_to_typeid_return_proxies(manager: Any) -> None:
    tree = manager.Tree("oak")
    leaf = tree.branch("left").branch("upper")
    del tree
    assert leaf.path() == "oak/left/upper"


def test_a_derived_manager_has_the_types_of_its_base_and_the_base_not_its_own() -> None:
    assert not hasattr(types.SimulatorManager, "Counter")
    assert "Counter" not in types.SimulatorManager._registry
    with types.CounterManager() as manager:
        counter: Any = manager.Counter()  # type: ignore[attr-defined]
        assert type(counter) is types.CounterProxy
        assert [counter.step(), counter.step(4)] == [1, 5]
        assert manager.Tree().path() == "root"  # type: ignore[attr-defined]


def test_a_type_that_a_manager_does_not_know_is_named_with_those_that_it_knows(manager: Any) -> None:
    with pytest.raises(RemoteError, match="no type 'Robot'; it knows: Branch, Half, Simulator, Tree"):
        manager._create("Robot")


def test_the_initializer_runs_in_the_manager_first() -> None:
    manager: Any = types.SettingsManager()
    manager.start(types.remember, ("speed", 12))
    with manager:
        assert int(str(manager.setting("speed"))) == 12


def test_an_initializer_that_raises_fails_the_start() -> None:
    with pytest.raises(InitializerFailed, match="no licence") as raised:
        types.SettingsManager().start(types.refuse)
    assert isinstance(raised.value.__cause__, OSError)


def test_a_manager_is_started_once_and_asked_for_nothing_before_and_after() -> None:
    manager: Any = types.SimulatorManager()
    with pytest.raises(AssertionError, match="server not yet started"):
        manager.Simulator()
    with pytest.raises(TypeError, match="initializer must be a callable"):
        manager.start(3)
    with pytest.raises(AttributeError):
        manager.shutdown()
    manager.start()
    with pytest.raises(ProcessError, match="Already started"):
        manager.start()
    manager.shutdown()
    manager.shutdown()
    assert manager._process.exitcode == 0
    with pytest.raises(ProcessError, match="shut down"), manager:
        pass
    with pytest.raises(AssertionError, match="shut down"):
        manager.Simulator()


def test_an_address_for_strangers_is_refused_with_what_to_do_instead() -> None:
    with pytest.raises(ValueError, match="reached from within its run only"):
        BaseManager(address=("", 50000)).start()
    # Errors of a connection would be swallowed by loops that try again until the manager is there.
    for address in (("localhost", 50000), "localhost:50000", "/tmp/manager.sock", None):
        with pytest.raises(ValueError, match=r"reached from within its run only.*manager\.address"):
            BaseManager(address=address).connect()


def test_a_server_for_strangers_is_refused_when_it_is_asked_for_and_not_in_a_thread() -> None:
    for address in (("", 50000), "/tmp/manager.sock", None):
        with pytest.raises(ValueError, match=r"would serve strangers.*reached from within its run only"):
            BaseManager(address=address).get_server()
    server = BaseManager(address=("localhost", 0)).get_server()  # by programs that look for a free port
    with pytest.raises(ProcessError, match="would serve strangers"):
        server.serve_forever()


def test_what_a_manager_prints_has_no_name_in_front_as_that_of_a_process(capfd: pytest.CaptureFixture[str]) -> None:
    with types.SimulatorManager() as manager:
        manager.Simulator().say("you called Foo.f()")  # type: ignore[attr-defined]
        printed: list[str] = []
        wait_until(lambda: printed.append(capfd.readouterr().out) or "".join(printed).endswith("\n"))
    assert "".join(printed) == "you called Foo.f()\n"


def test_a_type_that_cannot_be_sent_fails_the_start_and_says_which() -> None:
    held = multiprocessing.Lock()

    class Local(BaseManager):
        pass

    Local.register("Held", lambda: held)
    with pytest.raises(NotPicklable, match=r"the type 'Held'\.<closure>.*use ropewalk\.Lock\(\)"):
        Local().start()
    with pytest.raises(NotPicklable, match=r"initargs\[1\].*Lock"):
        BaseManager().start(print, (1, held))


def test_lambdas_and_local_classes_are_welcome() -> None:
    class Local(BaseManager):
        pass

    class Box:
        def __init__(self, content: object) -> None:
            self.content = content

        def get(self) -> object:
            return self.content

    Local.register("Box", Box)
    Local.register("Pair", lambda one, two: [one, two])
    with Local() as manager:
        anything: Any = manager
        assert anything.Box({"a": 1}).get() == {"a": 1}
        assert anything.Pair(1, 2)._getvalue() == [1, 2]


def test_who_connects_needs_the_authkey(manager: Any) -> None:
    key = bytes(manager._authkey)
    with Pool(1) as pool:
        assert pool.apply(types.connect_and_step, (manager.address, key)) == 5
        with pytest.raises(multiprocessing.AuthenticationError, match="digest sent was rejected"):
            pool.apply(types.connect_and_step, (manager.address, b"wrong"))


def test_a_manager_can_be_sent_to_those_who_are_to_use_it(manager: Any) -> None:
    with Pool(1) as pool:
        assert pool.apply(types.make_and_step, (manager,)) == 7


def test_a_manager_ends_when_nobody_has_it_any_more() -> None:
    other: Any = types.SimulatorManager()
    other.start()
    process = other._process
    simulator = other.Simulator()  # its proxy needs the manager
    del other
    assert simulator.step(1) == 1
    del simulator
    process.join(120)
    assert process.exitcode == 0


def test_a_queue_keeps_its_manager() -> None:
    items = Manager().Queue()
    gc.collect()
    items.put("x")
    assert items.get(timeout=PATIENCE_S) == "x"


@pytest.mark.cold  # leaves threads of the session, which idle for a while
def test_a_manager_that_is_killed_ends_calls_with_its_name_and_the_cause() -> None:
    manager: Any = types.SimulatorManager()
    manager.start()
    simulator = manager.Simulator(60.0)
    begun = simulator.step.future(1)
    os.kill(manager._process.pid, signal.SIGKILL)
    for call in (begun.result, lambda: simulator.step(1), simulator.step.future(1).result, manager.Simulator):
        with pytest.raises(PeerLost, match=r"manager-\d+ \(SimulatorManager\).*SIGKILL"):
            call()
    with pytest.raises(EOFError):
        simulator.step(1)
    with pytest.raises(ConnectionResetError):
        simulator.step(1)
    assert manager._process.exitcode == -signal.SIGKILL


@pytest.mark.cold  # leaves threads of the session, which idle for a while
def test_calls_that_run_at_the_shutdown_end() -> None:
    other: Any = types.SimulatorManager()
    other.start()
    begun = other.Simulator(3600.0).step.future(1)
    other.shutdown()
    with pytest.raises(PeerLost, match="was shut down"):
        begun.result()


def test_a_manager_ends_with_the_process_that_started_it() -> None:
    with Manager() as manager:
        pids: Any = manager.list()  # type: ignore[attr-defined]
        starter = Process(target=types.start_and_wait, args=(pids,))
        starter.start()
        wait_until(lambda: len(pids) == 1)
        (starters_pid, managers_pid) = pids[0]
        os.kill(starters_pid, signal.SIGKILL)
        starter.join()
        wait_until(lambda: not os.path.exists(f"/proc/{managers_pid}"))


def test_classes_of_main_go_along_also_to_processes_that_never_heard_of_them() -> None:
    script = """
        import ropewalk as rw
        from ropewalk.managers import BaseManager, Manager

        class Point:
            def __init__(self, x):
                self.x = x
            def norm(self):
                return abs(self.x)

        class Line:
            def __init__(self):
                self.points = []
            def add(self, point):
                self.points.append(point)
                return sum(point.norm() for point in self.points)
            def last(self):
                return self.points[-1]

        class Lines(BaseManager):
            pass

        Lines.register("Line", Line)
        with Lines() as lines, Manager() as manager, rw.Pool(1) as pool:
            line = lines.Line()
            print(line.add(Point(-3)), line.add(Point(4)), type(line.last()) is Point)
            shelf = manager.dict()
            shelf["point"] = Point(-5)
            print(shelf["point"].norm(), pool.apply(lambda shelf: shelf["point"].x, (shelf,)))
    """
    run = subprocess.run(  # our own interpreter
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=False, timeout=200
    )
    assert (run.stdout, run.stderr) == ("3 7 True\n5 -5\n", "")


def test_manager_is_a_sync_manager_that_is_started() -> None:
    with Manager() as manager:
        assert isinstance(manager, SyncManager)
        shelf: Any = manager.dict(a=1)  # type: ignore[attr-defined]
        assert shelf["a"] == 1
        assert "{'a': 1}" in manager._debug_info() and manager._number_of_objects() == 1


def test_managers_of_one_session_share_it() -> None:
    with rw.Session() as session, Manager(session=session) as one, Manager(session=session) as two:
        assert one.address != two.address
        shelf: Any = one.list()  # type: ignore[attr-defined]
        two.list([shelf])  # type: ignore[attr-defined]
        assert session.hosts()


@pytest.mark.parametrize("where", ["on the loop", "in a thread that holds a lock of the loop"])
def test_what_collects_a_manager_does_not_wait_for_its_end(monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    # All that used the session stood still for four seconds: only the loop hears that the process has ended.
    waited: list[int] = []

    def join(process: ManagerProcess, timeout_s: float | None = None) -> None:
        waited.append(threading.get_ident())
        real_join(process, timeout_s)

    real_join = ManagerProcess.join
    monkeypatch.setattr(ManagerProcess, "join", join)
    manager: Any = rw.Manager()
    pid = manager._process.pid
    loop = manager._process.session.loop
    manager.of_itself = manager
    collected, lock, threads = threading.Event(), threading.Lock(), list[int]()

    def collect() -> None:
        threads.append(threading.get_ident())
        gc.collect()
        collected.set()

    def wait_for_lock() -> None:
        with lock:
            pass

    gc.disable()
    try:
        del manager
        if where == "on the loop":
            loop.call_soon(collect)
            assert collected.wait(PATIENCE_S)
        else:
            with lock:
                loop.call_soon(wait_for_lock)
                collect()
    finally:
        gc.enable()
    wait_until(lambda: not os.path.exists(f"/proc/{pid}"))
    assert waited and not {*waited} & {*threads}


def test_an_interrupt_in_the_middle_of_an_answer_loses_no_object(monkeypatch: pytest.MonkeyPatch) -> None:
    # It tore the link, which the manager took for the end of this process: it dropped what only this process held, and
    # the next call, as that of the next cell of a notebook, raised PeerLost.
    with SyncManager() as manager:
        scores, lock = manager.dict(best=1), manager.Lock()
        lock.acquire()
        assert scores.get("best") == 1
        route: Any = scores._way()._where.route
        with monkeypatch.context() as patch:
            interrupt_after_receiving(route.connection.link, patch)
            with pytest.raises(KeyboardInterrupt):
                scores.get("best")
        assert scores.get("best") == 1
        assert not lock.acquire(False), "it was released, as that of a process that is gone"
        lock.release()


@pytest.mark.parametrize("size", [1, 30_000, 300_000])  # in one piece, more than the reader has room for, read in place
def test_an_interrupt_at_any_step_of_a_call_leaves_the_link_to_a_manager_whole(size: int) -> None:
    with SyncManager() as manager:
        scores, lock = manager.dict(best=bytes(size)), manager.Lock()
        lock.acquire()
        assert len(scores.get("best")) == size
        route: Any = scores._way()._where.route
        num_steps = 0
        for step in interrupts_at_each_step(lambda: scores.get("best")):
            num_steps += 1
            assert len(scores.get("best")) == size, step
            assert scores._way()._where.route is route and not route.connection.closed, step
            assert not route.connection._pending, step
        assert num_steps > 50
        assert not lock.acquire(False), "it was released, as that of a process that is gone"
        lock.release()
