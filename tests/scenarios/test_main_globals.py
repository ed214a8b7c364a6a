"""Globals of a script that cannot be pickled: their stand-ins, and the import of the script as by spawn."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.scenarios.test_main_code import in_notebook

#: Each has a meaning in another process. There is no `if __name__ == "__main__"`.
OWN = """
import contextvars, io, os, queue, sys, threading
from concurrent.futures import ThreadPoolExecutor
import ropewalk

print("begun")
lock, many = threading.Lock(), threading.RLock()
condition = threading.Condition(lock)
started, stopped = threading.Event(), threading.Event()
started.set()
permits = threading.BoundedSemaphore(3)
permits.acquire()
barrier = threading.Barrier(1)
local = threading.local()
local.mine = 1
variable = contextvars.ContextVar("variable", default=3)
variable.set(4)
waiting, first = queue.Queue(2), queue.PriorityQueue()
waiting.put("the launcher's")
threads = ThreadPoolExecutor(2, "adders")
log = open("log", "w")
log.write("launcher\\n")
log.flush()
lines, data = open("data"), open("data", "rb")
lines.readline()
closed = open("data")
closed.close()

class Account:
    guard = lock
    def __init__(self):
        self.lock = threading.Lock()
        self.total = 0
    def add(self, amount):
        with self.lock, self.guard:
            self.total += amount
        return self.total

account = Account()

def use(number):
    assert Account.guard is lock and condition._lock is lock, "it is one lock"
    with lock, many:
        assert not condition.acquire(blocking=False)
    with condition:
        condition.notify_all()
    assert (started.is_set(), stopped.is_set(), barrier.wait()) == (True, False, 0)
    waiting.put_nowait(number)
    first.put(-number)
    log.write(f"{number}\\n")
    log.flush()
    print(number, file=sys.stdout)
    taken = [permits.acquire(blocking=False) for _ in range(3)]
    for _ in filter(None, taken):
        permits.release()
    return (
        number, account.add(number), waiting.qsize(), taken, hasattr(local, "mine"), variable.get(),
        threads.submit(pow, number, 2).result(), lines.readline().strip(), data.read(3), closed.closed,
    )

with ropewalk.Pool(1) as pool:
    for each in pool.map(use, [1, 2]):
        print(each)
process = ropewalk.Process(target=use, args=(5,))
process.start()
process.join()
print(process.exitcode, waiting.qsize(), open("log").read().split())
"""


def run(folder: Path, source: str, *arguments: str) -> tuple[list[str], str]:
    (folder / "script.py").write_text(source)
    ran = subprocess.run(
        [sys.executable, *(arguments or ["script.py"])], capture_output=True, text=True, cwd=folder, timeout=60
    )
    return ran.stdout.splitlines(), ran.stderr


def test_locks_queues_threads_and_files_of_a_script_have_stand_ins(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("one\ntwo\nthree\n")
    lines, errors = run(tmp_path, OWN)
    assert errors == ""
    assert lines[0] == "begun" and "begun" not in lines[1:]  # it is not imported for that
    rest = [line for line in lines[1:] if line.startswith(("(", "0 "))]
    assert rest == [
        "(1, 1, 1, [True, True, False], False, 3, 1, 'two', b'one', True)",
        "(2, 3, 2, [True, True, False], False, 3, 4, 'three', b'\\ntw', True)",
        "0 1 ['launcher', '1', '2', '5']",
    ]


def test_a_cell_of_a_notebook_may_use_a_lock(tmp_path: Path) -> None:
    lines = in_notebook(
        tmp_path,
        """
        import ropewalk, threading
        lock, seen = threading.Lock(), []
        def locked(number):
            with lock:
                seen.append(number)
                return len(seen)
        """,
        """
        with ropewalk.Pool(1) as pool:
            print(pool.map(locked, [1, 2]), pool.map(locked, [1, 2]), len(seen))
        """,
    )
    assert lines == ["[1, 2] [3, 4] 0"]


#: A connection to a database can only be made again. The rest is sent, as it is when the work begins.
DATABASE = """
import os, sqlite3, sys
from dataclasses import dataclass
import ropewalk

print("imported as", __name__, sys.argv[1:])
scale = 1
cache = {}

@dataclass
class Row:
    value: int

class Database:
    def __init__(self):
        self.connection = sqlite3.connect(":memory:")
        self.connection.execute("create table numbers (number)")
    def put(self, number):
        self.connection.execute("insert into numbers values (?)", (number * scale,))
        return [Row(value) for (value,) in self.connection.execute("select number from numbers")]

database = Database()

def initialize(word):
    cache["word"] = word

def store(number):
    return database.put(number), isinstance(database, Database), cache.get("word"), __name__

def kind(_):
    return type(database), database.put(9)

def other(_):
    return Database is type(database), Row is type(database.put(0)[0])

if __name__ == "__main__":
    scale = 10
    late = (number for number in [1])
    with ropewalk.Pool(1, initialize, ("set",)) as pool:
        for found in (pool.map(other, [0]), pool.map(store, [1, 2]), pool.map(kind, [0]), pool.apply(other, (0,))):
            print(found)
        (row,) = pool.map(store, [3])[0][0][:1]
        print(type(row) is Row)
        try:
            pool.map(lambda number: next(late), [0])
        except ImportError as error:
            print("not there:", error)
"""


def test_a_script_with_a_guard_is_imported_for_what_can_only_be_made_again(tmp_path: Path) -> None:
    lines, errors = run(tmp_path, DATABASE, "script.py", "an argument")
    assert errors == ""
    imports = [line.partition("] ")[2] or line for line in lines if "imported as" in line]
    assert imports == ["imported as __main__ ['an argument']", "imported as __mp_main__ ['an argument']"]
    *others, last = [line for line in lines if "imported as" not in line]  # a line of a worker may come late
    assert others == [
        "[(True, True)]",
        "[([Row(value=0), Row(value=10)], True, 'set', '__main__'), "
        "([Row(value=0), Row(value=10), Row(value=20)], True, 'set', '__main__')]",
        "[(<class '__main__.Database'>, [Row(value=0), Row(value=10), Row(value=20), Row(value=90)])]",
        "(True, True)",
        "True",
    ]
    assert last.startswith("not there: the global 'late' of ") and "define it at the top level" in last


def test_a_module_that_is_run_with_m_is_imported_with_its_package(tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "beside.py").write_text("import sqlite3\nconnect = lambda: sqlite3.connect(':memory:')\n")
    (package / "program.py").write_text(
        "import ropewalk\nfrom .beside import connect\nconnection = connect()\n"
        "def one(_):\n    return connection.execute('select 1').fetchone()\n"
        "if '__main__' == __name__:\n    with ropewalk.Pool(1) as pool:\n        print(pool.map(one, [0]))\n"
    )
    assert run(tmp_path, "", "-m", "package.program") == (["[(1,)]"], "")


#: What each does wrong, and what is said of that.
WRONG = {
    "no guard": (
        "connection = sqlite3.connect(':memory:')\n",
        "with ropewalk.Pool(1) as pool:\n    pool.map(use, [0])\n",
        "NotPicklable: function use refers to the global 'connection' in __main__, which cannot be sent: .*"
        "under `if __name__ == '__main__':`, so that each process imports it",
    ),
    "a pool outside of the guard": (
        "connection = sqlite3.connect(':memory:')\npool = ropewalk.Pool(1)\n",
        "if __name__ == '__main__':\n    pool.map(use, [0])\n",
        "ImportError: .*script.py was imported in another process, .* was to be started while this process imports",
    ),
    "an error at its top level": (
        "connection = sqlite3.connect(':memory:')\nif __name__ == '__mp_main__':\n    sys.exit('no')\n",
        "if __name__ == '__main__':\n    with ropewalk.Pool(1) as pool:\n        pool.map(use, [0])\n",
        r"ImportError: .*script.py was imported in another process, .* and raised SystemExit\('no'\)",
    ),
    "a lock of multiprocessing": (
        "connection = multiprocessing.Lock()\n",
        "if __name__ == '__main__':\n    with ropewalk.Pool(1) as pool:\n        pool.map(use, [0])\n",
        r"NotPicklable: .*use ropewalk.Lock\(\) instead",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_imported_says_why(name: str, tmp_path: Path) -> None:
    before, after, said = WRONG[name]
    source = f"import multiprocessing, sqlite3, sys, ropewalk\n{before}def use(_):\n    return connection\n{after}"
    _, errors = run(tmp_path, source)
    assert re.search(said, errors), errors


#: multiprocessing imports the script in the processes that it spawns, as a module of another name.
SPAWNED = """
import multiprocessing
import ropewalk

OFFSET, model = 5, None

class Point:
    class Mark:
        pass
    def __init__(self, x):
        self.x = x

def initialize(value):
    global model
    model = value

def moved(point):
    return Point(point.x + OFFSET + model)

def marked(_):
    return Point.Mark()

class Adder(ropewalk.Process):
    def __init__(self, queue):
        super().__init__()
        self.queue = queue
    def run(self):
        self.queue.put(Point(OFFSET))

class Service:
    def add(self, point):
        return Point(point.x + OFFSET)

def spawned(connection):
    global OFFSET
    OFFSET = 6
    with ropewalk.Pool(1, initialize, (10,)) as pool:
        (point,) = pool.map(moved, [Point(1)])
        (mark,) = pool.map(marked, [0])
        print(type(point) is Point, point.x, type(mark) is Point.Mark, pool.map(lambda n: n + OFFSET, [1]))
    with ropewalk.Executor(1, initializer=initialize, initargs=(20,)) as executor:
        print(executor.submit(moved, Point(1)).result().x)
    queue = ropewalk.Queue()
    adder = Adder(queue)
    adder.start()
    print(queue.get().x)
    adder.join()
    program = ropewalk.Program("adding")
    program.add(ropewalk.Service(Service), name="service")
    with program.launch() as running:
        print(running.client("service").add(Point(1)).x)
    connection.send(point)

if __name__ == "__main__":
    near, far = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=spawned, args=(far,))
    process.start()
    far.close()
    print("back:", near.recv().x)
    process.join()
"""


def test_a_process_that_multiprocessing_has_spawned_sends_code_of_the_script(tmp_path: Path) -> None:
    """Pools there failed: other processes looked for functions in the module `__mp_main__`, which they do not have."""
    lines, errors = run(tmp_path, SPAWNED)
    assert errors == ""
    assert lines == ["True 17 True [7]", "27", "6", "7", "back: 17"]
