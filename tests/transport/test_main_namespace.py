"""Code of `__main__` in another process: real senders of each kind, a real receiver, bytes between them.

`courier` below stands for pool and worker: the sender's side makes bytes with
`dumps_code` and `dumps`, the receiver's side lives in a process of its own,
and neither sees the other except through a pipe.
"""

from __future__ import annotations

import pathlib
import subprocess
import sys
import textwrap

import msgspec
import pytest

from ropewalk.transport.main_namespace import MainFacts

LIMIT_S = 60.0

COURIER = """
import dataclasses, msgspec, pickle, subprocess, sys
from ropewalk.transport.main_namespace import main_facts
from ropewalk.transport.serialization import define, dumps, dumps_code, loads

class Remote(Exception):
    pass

def plain(payload):
    return payload.pickle, [bytearray(buffer) for buffer in payload.buffers]

class Worker:
    def __init__(self):
        self.process = subprocess.Popen(
            [sys.executable, "-c", "import receiver; receiver.main()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        facts = msgspec.structs.replace(main_facts(), habits=b"")  # what it leaves open at its end is nobody's affair
        pickle.dump((msgspec.msgpack.encode(facts), sys.path), self.process.stdin)

    def __call__(self, function, *args):
        code, arguments = dumps_code(function), dumps(args, what="args")
        definitions = {**code.definitions, **define(arguments.names)}
        return self.send({name: plain(payload) for name, payload in definitions.items()}, code.payload, arguments)

    def send(self, definitions, code, arguments):
        pickle.dump((definitions, plain(code), plain(arguments)), self.process.stdin)
        self.process.stdin.flush()
        ok, answer = pickle.load(self.process.stdout)
        if ok == "lost":
            raise Remote(answer)
        value = loads(*answer)
        if ok == "raised":
            raise value
        return value

    def close(self):
        self.process.stdin.close()
        self.process.stdout.close()
        assert self.process.wait(120) == 0
"""

RECEIVER = """
import os, pickle, sys, traceback

def main():
    from ropewalk.transport.main_namespace import MainFacts, MainNamespace
    from ropewalk.transport.serialization import dumps_result, loads
    stdin, stdout = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    facts, sys.path[:] = pickle.load(stdin)
    import msgspec
    facts = msgspec.msgpack.decode(facts, type=MainFacts)
    namespace = MainNamespace(facts)
    while True:
        try:
            definitions, code, arguments = pickle.load(stdin)
        except EOFError:
            return
        try:
            namespace.install(definitions)
            function, args = loads(*code), loads(*arguments)
            try:
                answer = "value", plain(dumps_result(function(*args)))
            except Exception as error:
                answer = "raised", plain(dumps_result(error))
        except Exception:
            answer = "lost", traceback.format_exc()
        pickle.dump(answer, stdout)
        stdout.flush()

def plain(payload):
    return payload.pickle, [bytearray(buffer) for buffer in payload.buffers]
"""

#: One program, run in every way that Python starts programs. A blank line ends a block in the REPL, so none is inside.
EVERYWHERE = '''
import dataclasses, enum, functools, typing, xml
import xml.dom
from courier import Worker

worker = Worker()
FACTOR = 3
model = None

def scale(x):
    return x * FACTOR

def nested(x):
    inner = lambda y: scale(y) + 1
    class Local:
        factor = FACTOR
    return inner(x), Local.factor

def factorial(n):
    return n * factorial(n - 1) if n else 1

def later():
    return defined_later() + len("abc")

def defined_later():
    return 39

@functools.lru_cache(maxsize=7)
def fib(n):
    return n if n < 2 else fib(n - 1) + fib(n - 2)

def logged(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return "logged", function(*args, **kwargs)
    return wrapper

@logged
def decorated(x, *, y=2):
    """Says what it does."""
    return x + y

class Mistake(Exception):
    def __init__(self, code):
        super().__init__(code)
        self.code = code

def fail(code):
    raise Mistake(code)

class Color(enum.Enum):
    RED = 1
    BLUE = 2

class Base:
    registry = {}
    def __init_subclass__(cls, *, tag):
        Base.registry[tag] = cls
    def name(self):
        return "base"

class Derived(Base, tag="derived"):
    color = Color.BLUE
    @functools.cached_property
    def cached(self):
        return super().name() + str(FACTOR)
    @staticmethod
    def static():
        return "static"
    def method(self):
        return self.cached

@dataclasses.dataclass
class Point:
    x: int = 0
    y: "Color" = Color.RED

ORIGIN = Point(7)
Base.origin = ORIGIN

class Pair(typing.NamedTuple):
    left: Point
    right: int

class Sentinel:
    def __reduce__(self):
        return "NOTHING"

NOTHING = Sentinel()

def same(x):
    return x is NOTHING, type(x) is Sentinel

def initialize():
    global model
    model = ["trained"]

def use():
    return model

def probe(point, color):
    return Pair(Point(point.x + ORIGIN.x), color is Color.BLUE), Derived.registry["derived"] is Derived

def facts():
    import __main__, sys
    return __name__, __main__.__dict__ is globals(), sys.argv[1:]

def dom():
    return xml.dom.Node.ELEMENT_NODE

def counter():
    count = 0
    def step():
        nonlocal count
        count += 1
        return count
    return step

def make(): return Derived()

assert worker(scale, 2) == 6
assert worker(nested, 2) == (7, 3)
assert worker(factorial, 5) == 120
assert worker(later) == 42
assert worker(fib, 10) == 55
assert worker(decorated, 1) == ("logged", 3)
assert worker(lambda: decorated.__doc__) == "Says what it does."
assert worker(lambda x: scale(x) + 1, 5) == 16
assert worker(functools.partial(scale, 4)) == 12
assert worker(Derived().method) == "base3"
assert worker(Derived.static) == "static"
assert type(worker(make)) is Derived
assert worker(lambda: fib.cache_parameters()["maxsize"]) == 7
pair, registered = worker(probe, Point(1), Color.BLUE)
assert type(pair) is Pair and type(pair.left) is Point and pair.left == Point(8) and pair.right is True
assert registered
assert worker(same, NOTHING) == (True, True)
assert worker(lambda x: x, NOTHING) is NOTHING
assert worker(lambda x: x, Color.RED) is Color.RED
assert worker(facts)[:2] == ("__main__", True)
assert worker(dom) == 1
assert worker(counter()) == 1
try:
    worker(fail, 12)
except Mistake as error:
    assert error.code == 12 and type(error) is Mistake
else:
    raise AssertionError("no Mistake")

assert worker(use) is None
worker(initialize)
assert worker(use) == ["trained"]
FACTOR = 5
assert worker(scale, 2) == 10 and worker(use) == ["trained"]

def scale(x):
    return x * FACTOR * 100

assert worker(scale, 2) == 1000
assert worker(nested, 2) == (1001, 5)

class Point(Point):
    def __eq__(self, other):
        return "new"

assert worker(probe, ORIGIN, 1)[0][0].__eq__(0) == "new"
worker.close()
print("ALL GOOD")
'''


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    (tmp_path / "courier.py").write_text(COURIER)
    (tmp_path / "receiver.py").write_text(RECEIVER)
    return tmp_path


def python(folder: pathlib.Path, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-W", "error", *arguments],
        cwd=folder,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert "Traceback" not in done.stderr, done.stderr
    assert done.returncode == 0, done.stderr
    return done


def run_script(folder: pathlib.Path, source: str, *arguments: str) -> str:
    """Run `source` as a script that ends by printing "ALL GOOD"."""
    (folder / "script.py").write_text(textwrap.dedent(source) + '\nprint("ALL GOOD")\n')
    output = python(folder, "script.py", *arguments).stdout
    assert output.endswith("ALL GOOD\n")
    return output


def as_script(folder: pathlib.Path) -> str:
    (folder / "script.py").write_text(EVERYWHERE)
    return python(folder, "script.py").stdout


def as_module(folder: pathlib.Path) -> str:
    (folder / "package").mkdir()
    (folder / "package" / "__init__.py").touch()
    (folder / "package" / "program.py").write_text(EVERYWHERE)
    return python(folder, "-m", "package.program").stdout


def as_argument(folder: pathlib.Path) -> str:
    return python(folder, "-c", EVERYWHERE).stdout


def as_repl(folder: pathlib.Path) -> str:
    return python(folder, "-i", "-q", stdin=EVERYWHERE).stdout


def as_notebook(folder: pathlib.Path) -> str:
    cells = [cell for cell in EVERYWHERE.split("\n\n") if cell.strip()]
    (folder / "kernel.py").write_text(
        textwrap.dedent(f"""
            import sys, types
            user_module = sys.modules["__main__"] = types.ModuleType("__main__")  # as IPython does it
            for number, cell in enumerate({cells!r}):
                exec(compile(cell, f"<cell {{number}}>", "exec"), user_module.__dict__)
        """)
    )
    return python(folder, "kernel.py").stdout


@pytest.mark.parametrize("run", [as_script, as_module, as_argument, as_repl, as_notebook])
def test_code_of_main_works_elsewhere_however_python_was_started(run, folder: pathlib.Path) -> None:
    assert run(folder).splitlines()[-1].endswith("ALL GOOD")


def test_a_module_run_with_m_keeps_its_relative_imports_and_facts(folder: pathlib.Path) -> None:
    package = folder / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "sibling.py").write_text("VALUE = 11")
    (package / "program.py").write_text(
        textwrap.dedent('''
            """The documentation."""
            import sys
            from courier import Worker

            def relative():
                from .sibling import VALUE
                return VALUE, __package__, __spec__.name, __file__, __doc__, sys.argv[1:]

            worker = Worker()
            expected = 11, "package", "package.program", __file__, "The documentation.", ["--flag"]
            assert worker(relative) == expected, worker(relative)
            worker.close()
            print("ALL GOOD")
        ''')
    )
    assert python(folder, "-m", "package.program", "--flag").stdout == "ALL GOOD\n"


def test_the_users_script_does_not_run_again(folder: pathlib.Path) -> None:
    output = run_script(
        folder,
        """
        from courier import Worker
        print("running")
        def f(): return 1
        worker = Worker()  # no guard on __name__
        assert worker(f) == 1
        worker.close()
        """,
    )
    assert output.count("running") == 1


def test_a_definition_sent_again_does_not_undo_what_the_worker_did(folder: pathlib.Path) -> None:
    run_script(
        folder,
        """
        from courier import Worker
        cache = {}
        def remember(key):
            cache[key] = True
            return sorted(cache)
        worker = Worker()
        assert worker(remember, "a") == ["a"]
        assert worker(remember, "b") == ["a", "b"]
        cache["home"] = True  # a change at home does take effect
        assert worker(remember, "c") == ["c", "home"]
        worker.close()
        """,
    )


def test_an_instance_follows_its_redefined_class_though_its_own_bytes_are_the_same(folder: pathlib.Path) -> None:
    # The pickle of `config` is "an instance of __main__.Config" before and after the cell runs again.
    run_script(
        folder,
        """
        from courier import Worker
        def cell(version):
            exec(f"class Config:\\n def version(self): return {version}\\nconfig = Config()\\n"
                 f"def helper(): return {version}\\ntable = {{'helper': helper}}", globals())
        def ask(): return config.version(), type(config) is Config, table["helper"]()
        worker = Worker()
        cell(1)
        assert worker(ask) == (1, True, 1)
        cell(2)
        assert worker(ask) == (2, True, 2), worker(ask)
        worker.close()
        """,
    )


def test_definitions_may_need_one_another_in_circles(folder: pathlib.Path) -> None:
    run_script(
        folder,
        """
        from courier import Worker
        REGISTRY = {}
        class A:
            def __init_subclass__(cls): REGISTRY[cls.__name__] = cls
        class B(A): pass
        class C(B): pass
        A.child, B.children, A.table = B, [C], REGISTRY
        def f(): return g
        def g(): return f
        f.other, g.other = g, f
        a = A()
        a.peer = B()
        def check():
            assert A.child is B and B.children == [C] and issubclass(C, A)
            assert REGISTRY == {"B": B, "C": C}, REGISTRY
            assert f.other is g and g.other is f and f() is g and type(a) is A and type(a.peer) is B
            return True
        worker = Worker()
        assert worker(check)
        for name in ("A", "B", "C", "f", "REGISTRY", "a"):  # whichever comes first
            other = Worker()
            from courier import define, dumps, dumps_code, plain
            code = dumps_code(check)
            order = sorted(code.definitions, key=lambda item: item != name)
            assert other.send({key: plain(code.definitions[key]) for key in order}, code.payload, dumps(()))
            other.close()
        worker.close()
        """,
    )


def test_hooks_for_subclasses_of_main_do_not_run_again_and_those_of_libraries_run_once(folder: pathlib.Path) -> None:
    (folder / "library.py").write_text(
        "made = []\nclass Plugin:\n    def __init_subclass__(cls): made.append(cls.__name__)\n"
    )
    run_script(
        folder,
        """
        import library
        from courier import Worker
        registry = []
        class Base:
            def __init_subclass__(cls, *, tag): registry.append(tag)
        class Derived(Base, tag="derived"): pass
        class Mine(library.Plugin): attribute = 1
        registry.clear()  # what the hook did at home is data; this is the data now
        def check(): return registry, Derived.__mro__[1] is Base, library.made, Mine.attribute
        worker = Worker()
        assert worker(check) == ([], True, ["Mine"], 1), worker(check)
        Mine.attribute = 2  # the class is changed in place, not made again
        assert worker(check) == ([], True, ["Mine"], 2), worker(check)
        worker.close()
        """,
    )


def test_types_that_annotations_name_in_words_are_there_to_be_resolved(folder: pathlib.Path) -> None:
    run_script(
        folder,
        """
        from __future__ import annotations
        import dataclasses, threading, typing
        from courier import Worker
        lock = threading.Lock()  # not a type: not taken along
        class Leaf: pass
        class Tree:
            leaves: list[Leaf]
        @dataclasses.dataclass
        class Wood:
            trees: list[Tree]
        def hints(x: typing.Optional[Wood] = None) -> lock:
            return typing.get_type_hints(Wood)["trees"], typing.get_type_hints(Tree)["leaves"]
        worker = Worker()
        assert worker(hints) == (list[Tree], list[Leaf])
        worker.close()
        """,
    )


def test_a_worker_can_send_on_what_it_received(folder: pathlib.Path) -> None:
    run_script(
        folder,
        """
        import courier
        FACTOR = 2
        class Point:
            def __init__(self, x): self.x = x
        def scale(point): return Point(point.x * FACTOR)
        def outer(point):
            class Local: pass
            inner = courier.Worker()
            try:
                assert type(inner(lambda: Local())) is Local
                result = inner(scale, point)
                assert type(result) is Point
                return result
            finally:
                inner.close()
        worker = courier.Worker()
        result = worker(outer, Point(4))
        assert type(result) is Point and result.x == 8
        worker.close()
        """,
    )


def test_a_local_class_comes_home_as_itself(folder: pathlib.Path) -> None:
    run_script(
        folder,
        """
        from courier import Worker
        def make():
            class Local(Exception): pass
            return Local
        Local = make()
        del make
        def run(worker, local):
            assert type(worker(lambda: local())) is local
            try:
                worker(lambda: (_ for _ in ()).throw(local("x")))
            except local as error:
                assert error.args == ("x",)
        worker = Worker()
        run(worker, Local)
        def foreign():
            import cloudpickle
            return cloudpickle.loads(cloudpickle.dumps(type("Foreign", (), {})))()
        try:
            worker(foreign)
        except Exception as error:
            assert "Foreign" in str(error), error
        worker.close()
        """,
    )


def test_a_definition_that_cannot_be_loaded_names_itself_and_is_tried_again(folder: pathlib.Path) -> None:
    run_script(
        folder,
        """
        from courier import Remote, Worker
        import pathlib
        class Stubborn:
            def __reduce__(self): return load, ()
        def load():
            if not pathlib.Path("allowed").exists():
                raise OSError("not yet")
            return "loaded"
        stubborn = Stubborn()
        def ask(): return stubborn
        worker = Worker()
        try:
            worker(ask)
        except Remote as error:
            assert "not yet" in str(error) and "while defining 'stubborn' in the worker's __main__" in str(error)
        else:
            raise AssertionError
        pathlib.Path("allowed").touch()
        assert worker(ask) == "loaded"
        worker.close()
        """,
    )


def test_large_globals_arrive_in_their_buffers(folder: pathlib.Path) -> None:
    pytest.importorskip("numpy")
    run_script(
        folder,
        """
        import numpy as np
        from courier import Worker, dumps_code
        WEIGHTS = np.arange(100_000.0)
        def total(x): return WEIGHTS.sum() + x
        code = dumps_code(total)
        assert code.definitions["WEIGHTS"].buffers[0].nbytes == 800_000
        assert len(code.definitions["WEIGHTS"].pickle) < 500
        worker = Worker()
        assert worker(total, 1) == WEIGHTS.sum() + 1
        WEIGHTS[0] = 5
        assert worker(total, 1) == WEIGHTS.sum() + 1  # the change is in the buffer alone
        worker.close()
        """,
    )


def test_facts_are_plain_data() -> None:
    facts = MainFacts(file="a.py", argv=("a", "b"), habits=b"x")
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(facts), type=MainFacts) == facts
