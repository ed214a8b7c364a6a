"""Code of `__main__`: scripts, -m, -c, the REPL and cells of a notebook, with functions, classes and globals."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import textwrap
import time
from pathlib import Path

from tests.patience import PATIENCE_S

#: What is defined in `__main__`; there is no `if __name__ == "__main__"` around what uses it.
DEFINITIONS = """
import ropewalk, functools, os

SCALE = 10
state = None

class Point:
    made = 0
    def __init__(self, x):
        self.x = x
    def __eq__(self, other):
        return type(other) is Point and other.x == self.x
    def moved(self, by):
        return Point(self.x + by)

class Special(Point):
    def moved(self, by):
        return Special(super().moved(by).x * SCALE)

class MyError(Exception):
    def __init__(self, code):
        super().__init__(code)
        self.code = code

def scaled(x):
    return helper(x) * SCALE

def helper(x):
    return x + 1

def fail(x):
    raise MyError(x)

def initialize(value):
    global state
    state = {"value": value, "calls": 0}

def count(_):
    state["calls"] += 1
    return state["value"], state["calls"]

def adder(n):
    def add(x):
        return x + n
    return add
"""

USES = """
with ropewalk.Pool(2, initialize, (5,)) as pool:
    print(pool.map(scaled, range(3)))
    print(pool.map(lambda x: helper(x) + SCALE, range(3)))
    print(pool.map(adder(100), range(3)))
    points = pool.map(Point(1).moved, range(3))
    print([type(point) is Point and isinstance(point, Point) for point in points], points[2] == Point(3))
    special = pool.apply(Special.moved, (Special(1), 1))
    print(type(special) is Special, special.x)
    print(pool.map(functools.partial(Point.moved, Point(7)), [1])[0].x)
    try:
        pool.apply(fail, (3,))
    except MyError as error:
        print("caught", error.code, "in fail" in str(error.__cause__))
    try:
        pool.map(fail, [4])
    except MyError as error:
        print("caught", error.code)
    print(sorted({value for value, _ in pool.map(count, range(10), chunksize=1)}))
    seen = [calls for _, calls in pool.map(count, range(10), chunksize=1)]
    print(sum(seen) > 10 * 1, max(seen) >= 6)
    print(next(pool.imap(scaled, [1])), list(pool.imap_unordered(helper, [1])), pool.starmap(max, [(1, 2)]))
    print(pool.apply(lambda: (__name__, "initialize" in globals())))
"""

EXPECTED = [
    "[10, 20, 30]",
    "[11, 12, 13]",
    "[100, 101, 102]",
    "[True, True, True] True",
    "True 20",
    "8",
    "caught 3 True",
    "caught 4",
    "[5]",
    "True True",
    "20 [2] [2]",
    "('__main__', True)",
]


def run(*arguments: str, folder: Path, stdin: str = "", **environment: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        cwd=folder,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout.splitlines()


def test_a_script_that_is_run_by_its_path(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(DEFINITIONS + USES)
    assert run(str(script), folder=tmp_path) == EXPECTED
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    assert run("../script.py", folder=elsewhere) == EXPECTED


def test_a_module_that_is_run_with_m(tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "beside.py").write_text("def triple(x):\n    return 3 * x\n")
    relative = "\ndef relative(x):\n    from .beside import triple\n    return triple(x)\n"
    check = "    print(pool.map(relative, [1, 2]), pool.map(triple, [3]))\n"
    (package / "tool.py").write_text("from .beside import triple\n" + DEFINITIONS + relative + USES + check)
    assert run("-m", "package.tool", folder=tmp_path) == [*EXPECTED, "[3, 6] [9]"]


def test_code_that_is_given_with_c_or_on_stdin(tmp_path: Path) -> None:
    assert run("-c", DEFINITIONS + USES, folder=tmp_path) == EXPECTED
    assert run("-", folder=tmp_path, stdin=DEFINITIONS + USES) == EXPECTED


def test_a_worker_has_the_switches_of_the_interpreter_and_a_debugger_may_run_the_script(tmp_path: Path) -> None:
    # Assertions of imported modules ran in workers of `python -O`, and under pdb no pool could be made.
    (tmp_path / "beside.py").write_text("def checks():\n    assert False\n")
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, ropewalk, beside\n"
        "def look():\n"
        "    return sys.flags.optimize, sys.flags.dev_mode, beside.checks()\n"
        "with ropewalk.Pool(1) as pool:\n"
        "    print(pool.apply(look))\n"
    )
    given = ["-O", "-X", "dev", "-m", "pdb", "-c", "continue", "-c", "quit", str(script)]
    assert run(*given, folder=tmp_path)[0] == "(1, True, None)"


def test_what_a_script_does_at_its_top_level_is_done_once(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent("""
            import os, sys, ropewalk
            print("top level", sys.argv[1:], __file__)
            FOLDER = os.path.dirname(__file__)

            def look(_):
                return sys.argv[1:], os.path.basename(__file__), FOLDER, __name__

            pool = ropewalk.Pool(2)
            for found in pool.map(look, range(2), chunksize=1):
                print(found == (["--flag", "x"], "script.py", FOLDER, "__main__"))
            pool.close()
            pool.join()
        """)
    )
    lines = run(str(script), "--flag", "x", folder=tmp_path)
    assert lines == [f"top level ['--flag', 'x'] {script}", "True", "True"]


def test_modules_beside_the_script_are_found(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("class Beside(Exception):\n    pass\ndef fail(x):\n    raise Beside(x)\n")
    script = tmp_path / "script.py"
    script.write_text(
        "import ropewalk, beside\n"
        "with ropewalk.Pool(1) as pool:\n"
        "    try:\n"
        "        pool.map(beside.fail, [1])\n"
        "    except beside.Beside as error:\n"
        "        print('caught', error)\n"
    )
    assert run(str(script), folder=Path("/")) == ["caught 1"]


def test_the_guard_of_multiprocessing_changes_nothing(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    guarded = textwrap.indent("print(__name__)\n" + USES.lstrip("\n"), "    ")
    script.write_text(f"{DEFINITIONS}\nif __name__ == '__main__':\n{guarded}")
    assert run(str(script), folder=tmp_path) == ["__main__", *EXPECTED]


# --- the REPL and notebooks ---


def typed(cells: list[str]) -> list[str]:
    """Type these into an interactive interpreter at a terminal; returns what the workers' results were printed as."""
    leader, follower = pty.openpty()
    python = subprocess.Popen(
        [sys.executable, "-i", "-q"],
        stdin=follower,
        stdout=follower,
        stderr=follower,
        env={**os.environ, "PYTHON_BASIC_REPL": "1", "PYTHON_COLORS": "0", "TERM": "dumb", "PYTHONSTARTUP": ""},
        start_new_session=True,
    )
    os.close(follower)
    shown = b""
    try:
        for number, cell in enumerate([*cells, "exit()"]):
            os.write(leader, f"{cell}\nprint('end' + 'ed {number}')\n".encode() if cell != "exit()" else b"exit()\n")
            deadline = time.monotonic() + 120
            while f"ended {number}".encode() not in shown and python.poll() is None and time.monotonic() < deadline:
                if select.select([leader], [], [], 0.05)[0]:
                    try:
                        shown += os.read(leader, 65536)
                    except OSError:  # the other side is closed
                        break
        python.wait(120)
    finally:
        python.kill()
        python.wait()
        os.close(leader)
    assert python.returncode == 0, shown.decode()
    return [line for line in shown.decode().splitlines() if line.startswith("result ")]


def test_functions_that_are_typed_into_the_repl_and_typed_again() -> None:
    results = typed(
        [
            "import ropewalk",
            "def f(x):\n    return x + 1\n",
            "class C:\n    def __init__(self, x): self.x = x\n",
            "pool = ropewalk.Pool(2)",
            "print('result', pool.map(f, range(3)))",
            "print('result', [isinstance(c, C) for c in pool.map(C, range(2))])",
            "def f(x):\n    return x * 100\n",
            "print('result', pool.map(f, range(3)))",
            "k = 7",
            "print('result', pool.map(lambda x: f(x) + k, range(3)))",
            "k = 8",
            "print('result', pool.map(lambda x: f(x) + k, range(3)))",
            "pool.terminate()",
        ]
    )
    assert results == [
        "result [1, 2, 3]",
        "result [True, True]",
        "result [0, 100, 200]",
        "result [7, 107, 207]",
        "result [8, 108, 208]",
    ]


def test_an_interactive_interpreter_that_reads_from_a_pipe(tmp_path: Path) -> None:
    lines = DEFINITIONS.replace("\n\n", "\n").replace("\nclass", "\n\nclass").replace("\ndef", "\n\ndef")
    uses = textwrap.dedent("""

        pool = ropewalk.Pool(2)
        print(pool.map(scaled, range(3)))
        print(pool.map(Point(1).moved, [1])[0] == Point(2))
        pool.close()
        pool.join()
    """)
    done = subprocess.run(
        [sys.executable, "-i", "-q"], input=lines + uses, capture_output=True, text=True, timeout=200, cwd=tmp_path
    )
    assert done.returncode == 0 and done.stdout.splitlines() == ["[10, 20, 30]", "True"], done.stdout + done.stderr


NOTEBOOK = """
import __main__, sys, types

def cell(source, number):
    # As ipykernel does: a file name that does not exist, the namespace of __main__.
    exec(compile(source, f"<ipython-input-{number}>", "exec"), __main__.__dict__)

for number, source in enumerate(CELLS):
    cell(source, number)
"""


def in_notebook(tmp_path: Path, *cells: str) -> list[str]:
    kernel = tmp_path / "kernel.py"
    kernel.write_text(f"CELLS = {[textwrap.dedent(cell) for cell in cells]!r}\n{NOTEBOOK}")
    return run(str(kernel), folder=tmp_path)


def test_a_cell_that_is_run_again_takes_effect_on_the_next_map(tmp_path: Path) -> None:
    assert in_notebook(
        tmp_path,
        "import ropewalk; pool = ropewalk.Pool(2)",
        """
        class Model:
            def predict(self, x): return x + 1
        def outer(x): return inner(x)
        def inner(x): return ("old", x)
        model = Model()
        """,
        "print(pool.map(outer, [1]), pool.map(model.predict, [1]))",
        "def inner(x): return ('new', x)",
        "print(pool.map(outer, [1]))",
        """
        Old = Model
        class Model:
            def predict(self, x): return x + 1000
        """,
        "print(pool.map(Model().predict, [1]), pool.map(model.predict, [1]))",
        "print(isinstance(pool.apply(Model), Model), isinstance(pool.apply(Model), Old))",
        "pool.terminate(); pool.join()",
    ) == ["[('old', 1)] [2]", "[('new', 1)]", "[1001] [2]", "True False"]


def test_a_global_that_an_initializer_set_outlives_maps_and_changes_at_home_take_effect(tmp_path: Path) -> None:
    assert in_notebook(
        tmp_path,
        """
        import ropewalk
        setting, cache = "first", None
        def initialize():
            global cache
            cache = {"made": True}
        def look(_):
            cache["seen"] = cache.get("seen", 0) + 1
            return setting, cache["made"]
        pool = ropewalk.Pool(1, initialize)
        """,
        "print(pool.map(look, range(2)))",
        "setting = 'second'",
        "print(pool.map(look, range(2)), pool.apply(lambda: cache['seen']))",
        "print(cache)",
        "pool.terminate(); pool.join()",
    ) == ["[('first', True), ('first', True)]", "[('second', True), ('second', True)] 4", "None"]


def test_a_class_of_a_cell_is_caught_and_compared_after_the_trip(tmp_path: Path) -> None:
    assert in_notebook(
        tmp_path,
        """
        import ropewalk, enum, dataclasses
        class Colour(enum.Enum):
            RED = 1
        @dataclasses.dataclass(frozen=True)
        class Item:
            colour: Colour
            number: int = 0
        class Trouble(ValueError): pass
        def make(number):
            if number == 3:
                raise Trouble(number)
            return Item(Colour.RED, number)
        pool = ropewalk.Pool(2)
        """,
        "items = pool.map(make, range(3)); print(items == [Item(Colour.RED, n) for n in range(3)])",
        "print(items[0].colour is Colour.RED, {items[1]: 'key'}[Item(Colour.RED, 1)])",
        """
        try:
            pool.map(make, [3])
        except Trouble as error:
            print("caught", type(error) is Trouble, error.args)
        """,
        "print(pool.map(make, [Item(Colour.RED, 5).number])[0])",
        "pool.terminate(); pool.join()",
    ) == ["True", "True key", "caught True (3,)", "Item(colour=<Colour.RED: 1>, number=5)"]


def test_a_constant_that_is_a_global_reaches_functions_that_use_it(tmp_path: Path) -> None:
    assert in_notebook(
        tmp_path,
        "import ropewalk; pool = ropewalk.Pool(2); weights = pool.put([1, 2, 3])",
        "def use(x): return weights[x]",
        "print(pool.map(use, range(3), chunksize=1), pool.map(use, range(3), chunksize=1))",
        "weights = pool.put([4, 5, 6])",
        "print(pool.map(use, range(3), chunksize=1))",
        "class Holder:\n    def get(self, x): return weights[x]",
        "print(pool.starmap(Holder.get, [(Holder(), x) for x in range(3)], chunksize=1))",
        "pool.terminate(); pool.join()",
    ) == ["[1, 2, 3] [1, 2, 3]", "[4, 5, 6]", "[4, 5, 6]"]


def test_a_global_that_cannot_be_sent_is_named_with_the_way_out(tmp_path: Path) -> None:
    lines = in_notebook(
        tmp_path,
        """
        import ropewalk
        numbers = (number for number in range(3))
        def counted(x):
            return next(numbers)
        """,
        """
        with ropewalk.Pool(1) as pool:
            try:
                pool.map(counted, [1])
            except ropewalk.errors.NotPicklable as error:
                print(error.path, "|", error)
            print(pool.map(abs, [-1]))
        """,
    )
    assert lines[0].startswith("counted.<globals>['numbers'] | ") and "initializer" in lines[0]
    assert lines[1:] == ["[1]"]
