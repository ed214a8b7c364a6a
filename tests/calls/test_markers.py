"""What a class says about its methods, and what its methods still are on an ordinary object."""

from __future__ import annotations

import abc
import asyncio
import functools
import inspect
import pickle
import queue
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from ropewalk.calls.markers import MethodFacts, batched, brief, concurrent, idempotent, method, methods_of


class Store:
    limit = 10

    def __init__(self) -> None:
        self.values: list[int] = []

    @method
    def push(self, value: int, *, times: int = 1) -> int:
        if value < 0:
            raise ValueError("below 0")
        self.values += [value] * times
        return len(self.values)

    @method
    def each(self) -> Iterator[int]:
        yield from self.values

    @concurrent(3)
    def plain(self) -> str:
        return "plain"

    @method
    @classmethod
    def made(cls) -> str:
        return cls.__name__

    @idempotent
    @staticmethod
    def twice(value: int) -> int:
        return 2 * value

    @property
    def size(self) -> int:
        return len(self.values)

    class Nested:
        pass

    def run(self) -> None: ...
    def state_dict(self) -> dict[str, Any]: ...
    def _private(self) -> None: ...
    async def later(self) -> None: ...


def test_the_public_methods_of_a_class_can_be_called_and_nothing_else() -> None:
    assert sorted(methods_of(Store)) == ["each", "made", "plain", "push", "state_dict", "twice"]


def test_methods_are_inherited_and_an_override_speaks_for_itself() -> None:
    class Child(Store):
        def plain(self) -> str:
            return "child"

        def __call__(self) -> None: ...

    table = methods_of(Child)
    assert table["plain"] == MethodFacts("plain")
    assert table["twice"].idempotent
    assert table["__call__"] == MethodFacts("__call__")


def test_classes_of_the_library_can_be_served_too() -> None:
    assert {"put", "get", "qsize"} <= set(methods_of(queue.Queue))
    assert {"get", "update"} <= set(methods_of(dict)) and "__call__" not in methods_of(dict)


def test_what_other_decorators_made_is_a_method_and_a_cached_property_is_none() -> None:
    class Decorated:
        @functools.lru_cache  # noqa: B019
        def cached(self) -> None: ...

        @functools.cached_property
        def once(self) -> int:
            return 1

        half = functools.partialmethod(pow, 2)
        loss = print  # a value that can be called, such as a module of torch, is no method

    assert sorted(methods_of(Decorated)) == ["cached", "half"]


def test_a_generator_streams() -> None:
    facts = methods_of(Store)
    assert facts["each"].streams and not facts["push"].streams


@pytest.mark.parametrize("turned", [False, True])
def test_marks_stack_in_any_order(turned: bool) -> None:
    def act(self: Any, value: Any) -> None: ...

    marks: list[Any] = [method, batched(32, 0.5), concurrent(4), idempotent, brief]
    for mark in reversed(marks) if turned else marks:
        act = mark(act)
    kind = type("Policy", (), {"act": act})
    assert methods_of(kind)["act"] == MethodFacts("act", False, 4, 32, 0.5, True, brief=True)


def test_a_mark_is_seen_above_and_below_staticmethod() -> None:
    class Marked:
        @staticmethod
        @concurrent(2)
        def below() -> None: ...

        @concurrent(2)
        @staticmethod
        def above() -> None: ...

    assert [facts.concurrency for facts in methods_of(Marked).values()] == [2, 2]


def test_a_marked_method_of_an_ordinary_object_is_an_ordinary_method() -> None:
    store = Store()
    assert store.push(1) == 1 and Store.push(store, 2) == 2
    assert store.push.__name__ == "push"
    assert str(inspect.signature(store.push)) == "(value: 'int', *, times: 'int' = 1) -> 'int'"
    assert list(store.each()) == [1, 2]
    of_the_class: Any = Store.made
    assert of_the_class() == store.made() == "Store"
    assert store.push == store.push and store.push != Store().push


def test_the_ways_of_calling_work_on_an_ordinary_object_at_once() -> None:
    store = Store()
    assert store.push.future(1, times=2).result(timeout=0) == 2

    async def push() -> int:
        return await store.push.aio(5)

    assert asyncio.run(push()) == 3
    store.push.send(7)
    assert store.values == [1, 1, 5, 7]
    assert isinstance(store.push.future(-1).exception(timeout=0), ValueError)
    with pytest.raises(ValueError, match="below 0"):
        store.push.send(-1)


def test_an_abstract_method_stays_abstract() -> None:
    class Base(abc.ABC):
        @method
        @abc.abstractmethod
        def act(self) -> None: ...

    with pytest.raises(TypeError, match="abstract"):
        Base()  # type: ignore[abstract]


def test_a_bound_method_is_pickled_with_its_object() -> None:
    store = Store()
    store.push(4)
    assert list(pickle.loads(pickle.dumps(store.each))()) == [4]


def test_a_class_of_main_with_marks_travels() -> None:
    program = """
from ropewalk.calls.markers import method, methods_of
import ropewalk
class Store:
    @method
    def push(self, value): return value + 1
def task(value): return Store().push.future(value).result(), len(methods_of(Store))
if __name__ == "__main__":
    with ropewalk.Pool(1) as pool: print(pool.map(task, [1]))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=200, check=False)
    assert done.stdout.strip() == "[(2, 1)]", done.stderr


@pytest.mark.parametrize(
    ("mark", "said"),
    [
        (lambda: batched(print, 1), r"@batched\(max_size=32"),  # type: ignore[arg-type]
        (lambda: batched(0, 0.1), "max_size must be a number of calls, 1 or more, not 0"),
        (lambda: batched(1, -1.0), "max_wait_s must be"),
        (lambda: concurrent(print), r"@concurrent\(4\)"),  # type: ignore[arg-type]
        (lambda: concurrent(0), "n must be a number of calls, 1 or more, not 0"),
        (lambda: concurrent(2)(3), "only a method or function can be marked, not 3"),
        (lambda: batched(2, 0.1)(Store.each), "each is a generator"),
        (lambda: method(Store.later), "Store.later is an async function"),
    ],
)
def test_a_mark_that_cannot_be_is_refused(mark: Any, said: str) -> None:
    with pytest.raises((TypeError, ValueError), match=said):
        mark()
