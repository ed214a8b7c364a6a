"""Values as bytes: what travels, what shares memory, and what errors say."""

from __future__ import annotations

import abc
import collections
import contextlib
import dataclasses
import enum
import functools
import io
import json
import os
import pathlib
import pickle
import subprocess
import sys
import textwrap
import threading
import traceback
import types
import typing
from typing import Any

import cloudpickle
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropewalk.errors import NotPicklable
from ropewalk.transport.picklers import global_names
from ropewalk.transport.serialization import (
    OUT_OF_BAND_BYTES,
    Payload,
    define,
    dumps,
    dumps_code,
    dumps_result,
    loads,
)


def sent(value: Any) -> Any:
    """The value after a journey, its buffers copied as a socket would copy them."""
    payload = dumps(value)
    return loads(payload.pickle, [bytearray(buffer) for buffer in payload.buffers])


def returned(value: Any) -> Any:
    payload = dumps_result(value)
    return loads(payload.pickle, [bytearray(buffer) for buffer in payload.buffers])


@pytest.fixture
def main(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """An empty `__main__`, for code that `define_in` puts there."""
    module = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", module)
    return module


def define_in(main: types.ModuleType, source: str) -> None:
    exec(compile(textwrap.dedent(source), "<cell>", "exec"), main.__dict__)


# What travels

leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(max_size=9000)
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner) | st.frozensets(st.integers())
    ),
    max_leaves=20,
)


@given(values)
def test_data_arrives_as_it_was_sent(value: Any) -> None:
    assert sent(value) == value
    assert returned(value) == value
    assert sent((value,)) == (value,)


def test_a_payload_is_protocol_5_and_knows_its_size() -> None:
    payload = dumps({"a": bytearray(10)})
    assert payload.pickle[:2] == b"\x80\x05"
    assert payload == Payload(payload.pickle, (), frozenset())
    assert payload.size_bytes == len(payload.pickle)
    assert loads(memoryview(payload.pickle)) == {"a": bytearray(10)}


def test_functions_that_cannot_be_imported_travel_by_value() -> None:
    offset = 3

    def outer(x: int) -> int:
        return (lambda y: y + offset)(x)

    class Local:
        def double(self, x: int) -> int:
            return 2 * outer(x)

    @functools.lru_cache(maxsize=5)
    def cached(x: int) -> int:
        return outer(x)

    @functools.singledispatch
    def dispatch(x: object) -> str:
        return "object"

    @dispatch.register
    def _(x: int) -> str:
        return "int"

    @contextlib.contextmanager
    def context() -> typing.Generator[int]:
        yield offset

    assert sent(outer)(1) == 4
    assert sent(functools.partial(outer, 1))() == 4
    assert sent(Local().double)(1) == 8
    assert sent(cached)(1) == 4
    assert sent(cached).cache_parameters()["maxsize"] == 5
    dispatch(1)
    assert sent(dispatch)(1) == "int"
    assert sent(dispatch)("") == "object"
    with sent(context)() as value:
        assert value == 3
    assert sent(json.dumps) is json.dumps


def test_what_pickle_alone_refuses_but_is_plain_still_travels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(io.BytesIO()))
    assert sent(memoryview(b"abc")) == b"abc"
    assert sent({"a": 1}.keys()) == {"a"}
    assert sent(types.MappingProxyType({"a": 1})) == {"a": 1}
    assert sent(sys.stderr) is sys.stderr
    assert sent(os) is os


def test_a_module_registered_by_value_is_sent_by_value() -> None:
    import sample_of_a_module as module  # pyright: ignore[reportMissingImports]  # the fixture below writes it

    assert b"by value" not in dumps(module.function).pickle
    cloudpickle.register_pickle_by_value(module)
    try:
        payload = dumps(module.function)
        assert b"by value" in payload.pickle
        assert loads(payload.pickle)() == "by value"
        assert isinstance(loads(dumps(module.Thing()).pickle), module.Thing)
    finally:
        cloudpickle.unregister_pickle_by_value(module)


@pytest.fixture(autouse=True)
def sample_module(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sample_of_a_module.py").write_text("class Thing: pass\ndef function(): return 'by value'\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "sample_of_a_module", raising=False)


# Buffers


def test_large_buffers_leave_the_pickle_and_small_ones_stay() -> None:
    large, small = bytearray(OUT_OF_BAND_BYTES), bytearray(OUT_OF_BAND_BYTES - 1)
    payload = dumps([pickle.PickleBuffer(large), pickle.PickleBuffer(small)])
    assert [buffer.nbytes for buffer in payload.buffers] == [OUT_OF_BAND_BYTES]
    assert OUT_OF_BAND_BYTES <= len(payload.pickle) < OUT_OF_BAND_BYTES + 100
    large[0] = 7
    assert payload.buffers[0][0] == 7, "the buffer is the value's own memory, not a copy"
    assert payload.size_bytes == len(payload.pickle) + OUT_OF_BAND_BYTES


def test_arrays_travel_out_of_band_and_arrive_writable() -> None:
    np = pytest.importorskip("numpy")
    array = np.arange(6000, dtype=np.float32).reshape(60, 100)
    payload = dumps({"a": array, "fortran": np.asfortranarray(array), "tiny": array[0, :3], "part": array[:, ::2]})
    assert len(payload.buffers) == 2
    assert all(buffer.format == "B" and buffer.contiguous and buffer.ndim == 1 for buffer in payload.buffers)
    copy = loads(payload.pickle, [bytearray(buffer) for buffer in payload.buffers])
    for name in copy:
        assert copy[name].flags.writeable
    assert np.array_equal(copy["a"], array)
    assert np.array_equal(copy["part"], array[:, ::2])
    assert copy["fortran"].flags.f_contiguous
    constant = loads(payload.pickle, [memoryview(buffer).toreadonly() for buffer in payload.buffers])
    with pytest.raises(ValueError, match="read-only"):
        constant["a"][0] = 1


# Tensors


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch", reason="torch is not installed")


def test_tensors_travel_out_of_band_and_share_what_they_shared(torch: Any) -> None:
    weight = torch.arange(6000.0).reshape(60, 100)
    state = {"a": weight, "tied": weight, "transposed": weight.t(), "row": weight[3], "small": torch.ones(3)}
    payload = dumps(state)
    assert [buffer.nbytes for buffer in payload.buffers] == [24_000]
    assert len(payload.pickle) < 1500
    weight[0, 0] = 5
    copy = loads(payload.pickle, [bytearray(buffer) for buffer in payload.buffers])
    for name in state:
        assert torch.equal(copy[name], state[name]), name
        assert copy[name].stride() == state[name].stride()
    copy["a"][3] = -1
    assert (copy["tied"][3] == -1).all() and (copy["transposed"][:, 3] == -1).all() and (copy["row"] == -1).all()
    assert weight[3, 0] == 300


def test_a_row_does_not_bring_its_matrix(torch: Any) -> None:
    matrix = torch.arange(1_000_000.0).reshape(1000, 1000)
    payload = dumps([matrix[5, :], matrix[:, 5], matrix[0:2000:2, :2]])
    assert payload.size_bytes < 30_000
    row, column, part = sent([matrix[5, :], matrix[:, 5], matrix[0:2000:2, :2]])
    assert torch.equal(row, matrix[5]) and torch.equal(column, matrix[:, 5]) and torch.equal(part, matrix[::2, :2])
    assert column.is_contiguous()


@pytest.mark.parametrize(
    "make",
    [
        "torch.arange(5000, dtype=torch.bfloat16)",
        "torch.ones(5000, dtype=torch.complex64) * 1j",
        "torch.ones(5000, dtype=torch.bool)",
        "torch.tensor(3)",
        "torch.empty(0, 4)",
        "torch.empty(0, 4, dtype=torch.int8)",
        "torch.ones(3, 4, 5, 6).to(memory_format=torch.channels_last)",
        "torch.ones(1).expand(100, 100)",
        "torch.ones(3000, requires_grad=True)",
        "(torch.ones(3000, requires_grad=True) * 2)",
        "torch.eye(50).to_sparse()",
        "torch.quantize_per_tensor(torch.ones(50), 0.1, 0, torch.qint8)",
        "torch.ones(5000, dtype=torch.complex64).conj()",
        "torch.ones(3, device='meta')",
        "torch.nn.Parameter(torch.ones(2000))",
        "torch.nn.Parameter(torch.ones(2000), requires_grad=False)",
    ],
)
def test_tensors_of_every_kind_arrive_as_they_were(make: str, torch: Any) -> None:
    with pytest.warns() if "quantize" in make else contextlib.nullcontext():
        tensor = eval(make)
        for journey in (sent, returned):
            copy = journey(tensor)
            assert type(copy) is type(tensor) and copy.dtype == tensor.dtype and copy.shape == tensor.shape
            assert copy.requires_grad == tensor.requires_grad and copy.layout == tensor.layout
            assert copy.is_conj() == tensor.is_conj()
            if tensor.layout is torch.strided:
                assert copy.stride() == tensor.stride()
            if tensor.device.type != "meta":
                dense = tensor.to_dense() if tensor.is_sparse else tensor
                assert torch.equal(copy.to_dense() if copy.is_sparse else copy, dense)


def test_a_module_with_tied_weights_costs_its_weights_once(torch: Any) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(100, 100, bias=False), torch.nn.Linear(100, 100, bias=False))
    model[1].weight = model[0].weight
    for value in (model, model.state_dict()):
        payload = dumps(value)
        assert sum(buffer.nbytes for buffer in payload.buffers) == 40_000
    copy = sent(model)
    assert copy[1].weight is copy[0].weight
    copy = sent(model.state_dict())
    assert copy["0.weight"].data_ptr() == copy["1.weight"].data_ptr()


def test_a_constant_tensor_lies_in_its_read_only_buffer(torch: Any, recwarn: pytest.WarningsRecorder) -> None:
    tensor = torch.arange(5000.0)
    payload = dumps(tensor)
    memory = bytearray(payload.buffers[0])
    copy = loads(payload.pickle, [memoryview(memory).toreadonly()])
    assert torch.equal(copy, tensor)
    memory[0:4] = b"\0\0\x80\x3f"
    assert copy[0] == 1.0, "no copy was made"
    assert not recwarn.list
    del tensor, payload, memory
    assert copy[1] == 1.0, "the tensor keeps its memory alive"


def test_an_attribute_on_a_tensor_is_kept(torch: Any) -> None:
    tensor = torch.ones(5000)
    tensor.note = "kept"
    assert sent(tensor).note == "kept"


def test_a_tensor_on_a_device_is_an_error_that_says_what_to_do() -> None:
    class Device:
        type = "cuda"

        def __str__(self) -> str:
            return "cuda:1"

    tensor_type = type("Tensor", (), {"__module__": "torch", "device": Device()})
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "torch", types.ModuleType("torch"))
        with pytest.raises(NotPicklable, match=r"args\[0\]\['w'\].*cuda:1.*\.cpu\(\)") as caught:
            dumps(({"w": tensor_type()},), what="args")
    assert caught.value.path == "args[0]['w']"


def test_importing_is_cheap_and_brings_no_library() -> None:
    code = (
        "import sys; import ropewalk.transport.serialization; "
        "print([name for name in ('numpy', 'torch', 'ssl') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200)
    assert done.stdout == "[]\n", done.stdout + done.stderr


# Errors


class Holder:
    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


class Slots:
    __slots__ = ("first", "second")


class Careful:
    """Leaves its lock out; its trouble is elsewhere."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.file = io.TextIOWrapper(io.BytesIO())

    def __getstate__(self) -> dict[str, Any]:
        return {"file": self.file}


@dataclasses.dataclass(frozen=True, slots=True)
class Record:
    name: str
    lock: Any


class Pair(typing.NamedTuple):
    left: Any
    right: Any


def slotted() -> Slots:
    value = Slots()
    value.first, value.second = 1, threading.Lock()
    return value


def closure() -> Any:
    lock = threading.Lock()
    return lambda: lock


LOCK = threading.Lock()


@pytest.mark.parametrize(
    ("make", "path"),
    [
        (lambda: (1, Holder(model=Holder(lock=threading.Lock()))), "args[1].model.lock"),
        (lambda: ({"a": [0, {1: threading.Lock()}]},), "args[0]['a'][1][1]"),
        (lambda: ({Record("a", threading.Lock()).lock: 1},), "args[0].<key "),
        (lambda: (slotted(),), "args[0].second"),
        (lambda: (Record("a", threading.Lock()),), "args[0].lock"),
        (lambda: (Pair(1, threading.Lock()),), "args[0].right"),
        (lambda: (Careful(),), "args[0].file"),
        (closure, "args.<closure>['lock']"),
        (lambda: functools.partial(print, 1, threading.Lock()), "args.args[1]"),
        (lambda: functools.partial(dict, file=threading.Lock()), "args.keywords['file']"),
        (lambda: functools.partial(closure()), "args.func.<closure>['lock']"),
        (lambda: (ValueError("a", threading.Lock()),), "args[0].args[1]"),
        (lambda: (collections.deque([1, threading.Lock()]),), "args[0][1]"),
        (lambda: (collections.OrderedDict(a=threading.Lock()),), "args[0]['a']"),
        (lambda: (Holder(lock=threading.Lock()).__repr__,), "args[0]."),
        (lambda: lambda: LOCK, "args.<globals>['LOCK']"),
        (lambda: (x for x in ()), "args"),
    ],
)
def test_the_error_names_the_innermost_part_that_cannot_be_sent(make: Any, path: str) -> None:
    with pytest.raises(NotPicklable, match=r"cannot be sent to another process: .*cannot pickle") as caught:
        dumps(make(), what="args")
    assert caught.value.path.startswith(path)
    assert str(caught.value).startswith(path)
    assert isinstance(caught.value.__cause__, TypeError)


def test_looking_for_the_culprit_ends_in_large_and_in_circular_values() -> None:
    circle: dict[str, Any] = {}
    circle["self"] = [circle, threading.Lock()]
    with pytest.raises(NotPicklable) as caught:
        dumps(circle, what="args")
    assert caught.value.path == "args['self'][1]"
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(NotPicklable, match="nested more deeply than pickle can follow"):
        dumps(deep)
    with pytest.raises(NotPicklable) as caught:
        dumps([*range(200_000), threading.Lock()], what="args")
    assert caught.value.path == "args[200000]"


class Refuses:
    def __init__(self, error: Exception) -> None:
        self.error = error

    def __reduce__(self) -> Any:
        raise self.error


@pytest.mark.parametrize("error", [RuntimeError("no"), ValueError("no"), KeyError("no"), AttributeError("no")])
def test_what_the_users_own_reduce_raises_arrives_unchanged(error: Exception) -> None:
    for journey in (dumps, dumps_result):
        with pytest.raises(type(error)) as caught:
            journey([Refuses(error)])
        assert caught.value is error
    with pytest.raises(type(error)) as caught:
        dumps([Refuses(error), lambda: 0])
    assert caught.value is error


def test_a_reduce_that_raises_is_called_once() -> None:
    calls: list[int] = []

    class Counts:
        def __reduce__(self) -> Any:
            calls.append(1)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        dumps_result(Counts())
    assert len(calls) == 1
    value = ImportableCounts(calls)
    with pytest.raises(RuntimeError):
        dumps(value)
    assert len(calls) == 2


class ImportableCounts:
    def __init__(self, calls: list[int]) -> None:
        self.calls = calls

    def __reduce__(self) -> Any:
        self.calls.append(1)
        raise RuntimeError


def test_what_cannot_be_sent_is_told_with_what_to_send_instead() -> None:
    # "make it in the process that uses it" was the advice for the coroutine of a task that is an `async def`, too.
    async def answer() -> int:
        return 42

    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    coroutine = answer()
    for value, advice in (
        (coroutine, r"cannot pickle 'coroutine' object; run it .*asyncio\.run"),
        ((number for number in range(3)), "send a list of its items"),
        (deep, "it is nested more deeply than pickle can follow; send it in a flat form"),
    ):
        with pytest.raises(NotPicklable, match=advice):
            dumps_result([value])
    coroutine.close()


def test_results_refuse_code_that_has_no_name() -> None:
    class Local:
        pass

    for value in (lambda: 0, Local, Local(), [closure]):
        if value == [closure]:
            assert returned(value) == value
            continue
        with pytest.raises(NotPicklable, match=r"result\[0\] cannot be sent to another process") as caught:
            dumps_result([value])
        assert caught.value.path == "result[0]"


# Code of `__main__`


class RefusesItself:
    def __getstate__(self) -> Any:
        raise TypeError("not like this")


def test_the_cause_has_frames_of_users_code_and_none_of_ours() -> None:
    # Eight frames of pickling stood above the one line that a user needs.
    with pytest.raises(NotPicklable) as caught:
        dumps([threading.Lock()], what="args")
    assert caught.value.__cause__ and caught.value.__cause__.__traceback__ is None
    with pytest.raises(NotPicklable) as caught:
        dumps([RefusesItself()], what="args")
    assert caught.value.__cause__
    assert "in __getstate__" in "".join(traceback.format_exception(caught.value.__cause__))


def test_names_are_those_the_pickle_refers_to(main: types.ModuleType) -> None:
    define_in(
        main,
        """
        import functools
        class A:
            class B: pass
            def method(self): return unused
        class Sentinel:
            def __reduce__(self): return "NOTHING"
        NOTHING = Sentinel()
        unused = 1
        def f(): return A
        @functools.lru_cache
        def cached(): pass
        def make(): return lambda: (f, unused)
        """,
    )
    d = main.__dict__
    assert dumps(d["A"]()).names == {"A"}
    assert dumps(d["A"].B).names == {"A"}
    assert dumps(d["A"].method).names == {"A"}
    assert dumps([d["f"]]).names == {"f"}
    assert dumps(d["NOTHING"]).names == {"NOTHING"}
    assert dumps([d["cached"]]).names == {"cached"}
    assert dumps(d["make"]()).names == {"f", "unused"}
    assert dumps((1, "a")).names == frozenset()
    assert dumps_result(d["A"]()).names == {"A"}
    assert set(define({"f"})) == {"f", "A", "unused"}
    assert define({"not there"}) == {}
    for value in (d["A"], d["A"].B, d["f"], d["NOTHING"], d["cached"]):
        assert sent(value) is value
        assert returned(value) is value


def test_names_of_nested_code_and_of_class_bodies_are_found() -> None:
    def function() -> None:
        class Body:
            attribute = in_class_body  # noqa: F821 # pyright: ignore[reportUndefinedVariable]

            def method(self) -> None:
                global stored
                stored = [in_comprehension for _ in range(3)]  # noqa: F821 # pyright: ignore[reportUndefinedVariable]

    names = global_names(function.__code__)
    assert {"in_class_body", "in_comprehension", "stored"} <= names
    assert not names & {"__name__", "__builtins__"}


def test_definitions_are_the_same_bytes_each_time(main: types.ModuleType) -> None:
    define_in(
        main,
        """
        import abc, dataclasses, enum, functools, typing
        T = typing.TypeVar("T")
        class Base(abc.ABC, typing.Generic[T]):
            @abc.abstractmethod
            def go(self): ...
        class Color(enum.Enum):
            RED = 1
        @dataclasses.dataclass(slots=True)
        class Point:
            x: int = 0
        class Impl(Base[int]):
            names = {"b", "a", "c"}
            @property
            def prop(self): return Color.RED
            @functools.cached_property
            def cached(self): return Point(1)
            def go(self): return super().__repr__(), f(self)
        Identifier = typing.NewType("Identifier", int)
        def f(x: "Identifier", *, y=(1, 2)): return Impl, Identifier, T, {i for i in (1, 2)}
        """,
    )
    first = define({"f"})
    for _ in range(3):
        exec("f", main.__dict__)
        assert define({"f"}) == first
    assert set(first) >= {"f", "Impl", "Base", "T", "Color", "Point", "Identifier"}


def test_a_global_that_cannot_be_sent_is_named_with_who_refers_to_it(main: types.ModuleType) -> None:
    define_in(
        main,
        """
        import threading, types
        numbers = (number for number in range(3))
        config = types.SimpleNamespace(frame=threading.Thread())
        def evaluate(x): return numbers
        def outer(x): return evaluate(x)
        class Model:
            def run(self): return config
        class Pool:
            def __reduce__(self): raise NotImplementedError("pool objects cannot be passed between processes")
        pool = Pool()
        def nested(): return pool
        """,
    )
    d = main.__dict__
    with pytest.raises(NotPicklable) as caught:
        dumps_code(d["evaluate"])
    assert str(caught.value) == (
        "function evaluate refers to the global 'numbers' in __main__, which cannot be sent: "
        "TypeError: cannot pickle 'generator' object; "
        "pass what it needs as an argument, or keep None in it here and set it in the pool's initializer"
    )
    assert caught.value.path == "evaluate.<globals>['numbers']"
    with pytest.raises(NotPicklable, match="function evaluate refers to the global 'numbers'") as caught:
        dumps_code(d["outer"])
    assert caught.value.path == "outer.<globals>['evaluate'].<globals>['numbers']"
    with pytest.raises(NotPicklable, match=r"class Model refers to the global 'config'.*a thread runs in") as caught:
        define(["Model"])
    assert caught.value.path == "Model.<globals>['config'].frame"
    with pytest.raises(NotPicklable, match=r"'pool' in __main__.*NotImplementedError: pool objects") as caught:
        dumps_code(d["nested"])
    assert isinstance(caught.value.__cause__, NotImplementedError)


def test_kept_code_is_made_anew_when_anything_it_reaches_has_changed(main: types.ModuleType) -> None:
    define_in(
        main,
        """
        import json
        K = 1
        TABLE = [1]
        def helper(x): return x + K
        def constant(x): return json.dumps(helper(x)), len("a")
        def mutable(x): return TABLE
        def with_default(x, y=[]): return y
        """,
    )
    d = main.__dict__

    def kept(name: str) -> bool:
        return dumps_code(d[name]) is dumps_code(d[name])

    assert kept("constant")
    assert not kept("mutable")
    assert not kept("with_default")
    changes = [
        "K = 2",
        "def helper(x): return x - K",
        "helper.__defaults__ = (4,)",
        "helper.__code__ = (lambda x: x * K).__code__",
        "def len(x): return 7",
        "import pickle as json",
        "K = [1]",
    ]
    for change in changes:
        before = dumps_code(d["constant"])
        define_in(main, change)
        after = dumps_code(d["constant"])
        assert after is not before, change
        assert after.definitions != before.definitions, change
    assert not kept("constant")
    d["TABLE"].append(2)
    assert loads(dumps_code(d["mutable"]).definitions["TABLE"].pickle) == [1, 2]


def test_kept_code_notices_a_submodule_imported_since(
    main: types.ModuleType, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "some_package").mkdir()
    (tmp_path / "some_package" / "__init__.py").touch()
    (tmp_path / "some_package" / "part.py").touch()
    monkeypatch.delitem(sys.modules, "some_package", raising=False)
    monkeypatch.delitem(sys.modules, "some_package.part", raising=False)
    define_in(main, "import some_package\ndef f(): return some_package.part")
    before = dumps_code(main.__dict__["f"])
    define_in(main, "import some_package.part")
    assert dumps_code(main.__dict__["f"]).definitions["f"] != before.definitions["f"]


def test_kept_code_does_not_keep_its_function_alive(main: types.ModuleType) -> None:
    import gc
    import weakref

    define_in(main, "def f(): return f")
    reference = weakref.ref(main.__dict__["f"])
    dumps_code(main.__dict__["f"])
    del main.__dict__["f"]
    gc.collect()
    assert reference() is None


def test_an_importable_function_needs_no_definitions() -> None:
    code = dumps_code(json.dumps)
    assert code.definitions == {} and loads(code.payload.pickle) is json.dumps


def test_a_constant_carries_the_classes_it_is_made_of(main: types.ModuleType) -> None:
    define_in(main, "class A:\n def f(self): return B\nclass B: pass\nvalue = [A()]")
    assert set(dumps_code(main.__dict__["value"], what="constant").definitions) == {"A", "B"}


def test_enums_and_abstract_classes_made_locally_keep_their_identity() -> None:
    class Color(enum.Enum):
        RED = 1

    class Base(abc.ABC):
        @abc.abstractmethod
        def go(self) -> int: ...

    class Impl(Base):
        def go(self) -> int:
            return 3

    color, impl = sent((Color.RED, Impl()))
    assert color is Color.RED and type(impl) is Impl and impl.go() == 3
    # They have been sent, so a result may refer to them.
    color, impl = returned((Color.RED, Impl()))
    assert color is Color.RED and type(impl) is Impl
