"""Values and arrays in shared memory, between real processes of one host, and on their way to another."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ropewalk as rw
from ropewalk.pool.pool import Pool
from ropewalk.sharing import memory
from ropewalk.sharing.connections import Connection, Pipe
from ropewalk.sharing.locks import Lock
from ropewalk.sharing.membership import member_of
from ropewalk.sharing.memory import Array, RawArray, RawValue, Value
from tests.lab import Lab
from tests.patience import wait_until
from tests.scenarios.hosts import cluster_of
from tests.scenarios.sites import SITES
from tests.sharing.listeners import listener_pid


class Point(ctypes.Structure):
    _fields_ = [("x", ctypes.c_double), ("raw", ctypes.c_int)]


TYPES: list[tuple[Any, Any]] = [
    ("i", -5),
    ("u", "x"),
    ("c", b"y"),
    ("b", -5),
    ("B", 5),
    ("h", -5),
    ("H", 5),
    ("I", 5),
    ("l", -5),
    ("L", 5),
    ("q", -(2**40)),
    ("Q", 2**40),
    ("f", 0.5),
    ("d", 0.1),
    (ctypes.c_longdouble, 0.5),
    (ctypes.c_bool, True),
]


def add_ones(value: Any, num: int) -> None:
    for _ in range(num):
        with value.get_lock():
            value.value += 1


def change(raw: Any, array: Any, point: Any, string: Any, matrix: Any) -> tuple[Any, ...]:
    seen = raw.value, array[:], point.x, point.raw, string.value, matrix[1][2]
    raw.value *= 2
    array[:] = [number * 2 for number in array[:]]
    point.x, point.raw = point.x * 2, point.raw * 2
    string.value = b"changed"
    matrix[1][2] = 6
    return seen


def test_all_types_begin_as_they_are_told_or_as_zeros(session: rw.Session) -> None:
    for type_, number in TYPES:
        ours, theirs = Value(type_, number, session=session), multiprocessing.Value(type_, number)
        assert (ours.value, repr(ours)) == (theirs.value, repr(theirs))
        assert RawValue(type_, session=session).value == multiprocessing.RawValue(type_).value
        values = [number, number]
        assert Array(type_, values, session=session)[:] == multiprocessing.Array(type_, values)[:]
        assert RawArray(type_, 3, session=session)[:] == multiprocessing.RawArray(type_, 3)[:]


def test_what_one_process_writes_all_others_read(session: rw.Session, pool: Pool) -> None:
    raw, array = RawValue("d", 1.5, session=session), Array("i", range(100), session=session)
    point = Value(Point, 1.5, 3, session=session)
    string = Array("c", 10, session=session)
    string.value = b"hello"
    matrix = RawArray(ctypes.c_int * 3, 2, session=session)
    matrix[1][2] = 5
    seen = pool.apply(change, (raw, array, point, string, matrix))
    assert seen == (1.5, list(range(100)), 1.5, 3, b"hello", 5)
    assert raw.value == 3.0
    assert array[:] == [number * 2 for number in range(100)]
    assert (point.x, point.raw) == (3.0, 6)
    assert (string.value, string.raw) == (b"changed", b"changed\0\0\0")
    assert matrix[1][2] == 6


def test_the_lock_makes_many_processes_count_right(session: rw.Session, pool: Pool) -> None:
    value = Value("i", 0, session=session)
    pool.starmap(add_ones, [(value, 100)] * 6, chunksize=1)
    assert value.value == 600


def test_large_arrays_are_one_memory_under_numpy(session: rw.Session, pool: Pool) -> None:
    array = RawArray("d", 5_000_000, session=session)
    numbers = np.frombuffer(array)
    numbers[:] = 1
    pool.starmap(add_to_part, [(array, part) for part in range(4)], chunksize=1)
    assert numbers.reshape(4, -1).sum(1).tolist() == [1_250_000 * (part + 1) for part in range(4)]


def add_to_part(array: Any, part: int) -> None:
    np.frombuffer(array).reshape(4, -1)[part] += part


def test_locks_are_what_was_asked_for(session: rw.Session) -> None:
    lock = Lock(session=session)
    assert Value("i", lock=lock, session=session).get_lock() is lock
    raw = Value("i", 5, lock=False, session=session)
    assert not hasattr(raw, "get_lock")
    assert not hasattr(Array("i", 5, lock=False, session=session), "get_lock")
    with pytest.raises(AttributeError, match=r"'notalock'.*ropewalk\.RLock"):
        Value("i", lock="notalock", session=session)
    value = Value("i", 5, session=session)
    with value, value.get_lock():
        assert value.acquire(False)
        value.release()
        assert type(value.get_obj()) is ctypes.c_int
    with pytest.raises(ValueError, match="length"):
        RawArray("i", -1, session=session)
    with pytest.raises(TypeError):
        Value("?", session=session)


def test_a_copy_that_is_pickled_with_any_pickler_is_the_same_memory(session: rw.Session) -> None:
    value = RawValue("i", 1, session=session)
    again = pickle.loads(pickle.dumps([value, value]))
    again[0].value = 7
    assert value.value == again[1].value == 7
    other = memory.copy(value, session=session)
    other.value = 8
    assert value.value == 7


def test_ctypes_objects_that_are_not_shared_are_pickled_as_ever(session: rw.Session) -> None:
    RawValue("i", session=session)
    RawArray("i", 2, session=session)
    number, numbers = ctypes.c_int(5), (ctypes.c_int * 2)(1, 2)
    arrived = pickle.loads(pickle.dumps(number))
    arrived.value = 6
    assert (number.value, arrived.value) == (5, 6)
    with pytest.raises(pickle.PicklingError):  # pickle does not find the type of an array, and never did
        pickle.dumps(numbers)


def test_values_do_not_lie_in_each_other(session: rw.Session) -> None:
    values = [Array("B", size, lock=False, session=session) for size in [0, 1, 63, 64, 65, 4096, 5000] * 30]
    for number, value in enumerate(values):
        ctypes.memset(ctypes.addressof(value), number % 256, len(value))
    for number, value in enumerate(values):
        assert set(value) <= {number % 256}


def test_many_small_values_need_few_descriptors(session: rw.Session) -> None:
    values = [RawValue("i", 0, session=session)]
    before = len(os.listdir("/proc/self/fd"))
    values += [RawValue("i", number, session=session) for number in range(1, 3000)]
    assert [value.value for value in values] == list(range(3000))
    assert len(os.listdir("/proc/self/fd")) < before + 10


def num_objects(session: rw.Session) -> int:
    member = member_of(session)
    return member.ask(member.depot(), "num_objects")


def depot_pid(session: rw.Session) -> int:
    return listener_pid(member_of(session).depot())


def num_files(pid: int) -> int:
    links: list[str] = []
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            links.append(os.readlink(f"/proc/{pid}/fd/{name}"))
    return sum("ropewalk-memory" in link for link in links)


def test_memory_goes_with_its_last_value(session: rw.Session) -> None:
    values = [RawValue("i", session=session), RawValue("i", session=session), RawArray("i", 10_000, session=session)]
    pid, others = depot_pid(session), num_objects(session) - 2
    assert (num_files(pid), num_files(os.getpid())) == (2, 2)
    values.pop()
    values.pop()
    gc.collect()
    wait_until(lambda: num_files(pid) == 1)
    values.pop()
    gc.collect()
    wait_until(lambda: (num_objects(session), num_files(pid), num_files(os.getpid())) == (others, 0, 0))


def hold_value(connection: Connection) -> None:
    value = connection.recv()
    value.value += 1
    connection.send(os.getpid())
    threading.Event().wait(60)


def test_memory_outlives_the_process_that_made_it(session: rw.Session, pool: Pool) -> None:
    value = pool.apply(make_value, (41,))
    assert value.value == 41
    ours, theirs = Pipe(session=session)
    pool.apply_async(hold_value, (theirs,))
    del theirs
    ours.send(value)
    pid = ours.recv()
    del value
    gc.collect()
    assert num_files(depot_pid(session)) == 1, "the other process has it"
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: num_files(depot_pid(session)) == 0)


def make_value(number: int) -> Any:
    return RawValue("i", number)


def count_in_forked_children(value: Any) -> tuple[int, int]:
    before = RawValue("i", 5)
    for _ in range(3):
        pid = os.fork()
        if pid == 0:
            value.value += 1
            member_of().depot()  # it has a link of its own from now on
            own = RawValue("i", 100)
            os._exit(own.value != 100)
        assert os.waitpid(pid, 0)[1] == 0
    return before.value, RawValue("i").value


def test_forked_children_share_what_their_parent_had_and_make_their_own(session: rw.Session, pool: Pool) -> None:
    value = RawValue("i", session=session)
    assert pool.apply(count_in_forked_children, (value,)) == (5, 0)
    assert value.value == 3


def test_structures_of_a_script_are_shared(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent("""
        import ctypes
        import ropewalk as mp

        class Base(ctypes.Structure):
            _fields_ = [("x", ctypes.c_int)]
            def double(self): return 2 * self.x

        class Point(Base):
            _pack_ = 1
            _fields_ = [("y", ctypes.c_double), ("few", ctypes.c_int * 2)]

        def change(point, points):
            point.x, point.y = point.x + 1, point.y + 1
            for each in points:
                each.x = each.double()
            return type(point.get_obj()) is Point, type(points[0]) is Point

        if __name__ == "__main__":
            point, points = mp.Value(Point, 1, 2.5), mp.Array(Point, [(1, 2), (3, 4)], lock=False)
            with mp.Pool(1) as pool:
                assert pool.apply(change, (point, points)) == (True, True)
                assert pool.apply(type, (point.get_obj(),)) is Point
            print(point.x, point.y, [each.x for each in points], ctypes.sizeof(Point))
        """)
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=200)
    assert (done.stdout, done.stderr) == ("2 3.5 [2, 6] 20\n", "")


def test_memory_is_bound_to_its_host(lab: Lab, tmp_path: Path) -> None:
    with cluster_of(lab, tmp_path, 2) as cluster:
        script = cluster.launch(
            SITES
            + """
    from multiprocessing.shared_memory import SharedMemory

    def put_value(items):
        items.put(rw.Value("i", 5))

    def get_value(items):
        value = items.get()
        value.value += 1
        return value.value

    def put_memory(items):
        global made
        made = SharedMemory(create=True, size=10)
        items.put(made)

    def get_memory(items):
        memory = items.get()
        memory.close()
        made.close()
        made.unlink()

    with session(hosts=2) as here:
        sites = Sites(here, 2)
        a, b = sites
        items = Queue(session=here)
        a.do(put_value, items)
        assert a.do(get_value, items) == 6
        a.do(put_value, items)
        say(type(b.begin(items.get).exception(30)).__name__, b.begin(len, "still there").result(120))
        a.do(put_value, items)
        try:
            items.get()
        except rw.WrongHost as error:
            say(error)
        try:
            rw.get_context(session=here).Value("i")
        except rw.WrongHost as error:
            say(error)
        a.do(put_memory, items)
        say(type(b.begin(items.get).exception(30)).__name__)
        a.do(put_memory, items)
        a.do(get_memory, items)
        sites.end()
        [process.join() for process in sites.processes]
        """,
            slots=1,
        )
        code, output, errors = script.end()
        assert code == 0, errors
    at_site, at_launcher, made_there, named = output.splitlines()
    assert at_site == "WrongHost 11"
    assert "agent-" in at_launcher
    assert "was sent to launcher" in at_launcher
    assert "ropewalk.Manager().Value" in at_launcher
    assert "ropewalk.Manager().Value" in made_there
    assert "make it in a process there" in made_there
    assert named == "WrongHost"


def test_a_process_that_multiprocessing_spawns_is_told_that_it_is_not_of_the_run(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            """
            import multiprocessing, ropewalk

            if __name__ == "__main__":
                process = multiprocessing.get_context("spawn").Process(target=print, args=(ropewalk.Value("i", 0),))
                process.start()
                process.join()
                print("ended with", process.exitcode)
            """
        )
    )
    ended = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120)
    assert "ended with 1" in ended.stdout
    assert "multiprocessing has started it; start it with ropewalk.Process" in ended.stderr
