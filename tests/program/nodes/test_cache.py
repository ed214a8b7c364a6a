"""A cache: one upstream call per time and arguments, shared by those who ask together; failures are not kept."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from ropewalk.calls.frozen import Frozen
from ropewalk.calls.markers import batched, methods_of
from ropewalk.errors import DeadlineExceeded
from ropewalk.program.nodes.cache import Cache, CachedClient
from ropewalk.program.nodes.service import Service
from ropewalk.program.program import Program
from tests.program.nodes.stand_in import StandIn


class Store:
    """Counts what reaches it."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.before: Callable[[], None] = lambda: None

    def get(self, *args: Any, **kwargs: Any) -> Any:
        self.calls.append(args)
        self.before()
        return len(self.calls)

    @batched(8, 0.1)
    def act(self, x: int) -> int:
        return x

    def each(self) -> Iterator[int]:
        self.calls.append("each")
        yield from (1, 2)

    def __call__(self, x: int) -> str:
        self.calls.append(x)
        return f"called with {x}"

    def state_dict(self) -> dict[str, Any]: ...  # type: ignore[empty-body]
    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class AsCalled:
    """What callers get of an object: values in place of what is `Frozen`."""

    def __init__(self, obj: Any) -> None:
        self.obj = obj

    def __call__(self, *args: Any) -> Any:
        return value_of(self.obj(*args))

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: value_of(getattr(self.obj, name)(*args, **kwargs))


def value_of(answer: Any) -> Any:
    return answer.value if isinstance(answer, Frozen) else answer


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def cached(store: Store, clock: Clock) -> Any:
    return AsCalled(CachedClient(store, methods_of(Store), 10.0, max_entries=3, clock=clock))


def test_equal_arguments_are_answered_from_memory_until_they_expire(cached: Any, store: Store, clock: Clock) -> None:
    assert [cached.get(1), cached.get(1), cached.get(2), cached.get(1, x=0), cached.get(1)] == [1, 1, 2, 3, 1]
    clock.now = 9.9
    assert cached.get(1) == 1
    clock.now = 10.0
    assert cached.get(1) == 4 and len(store.calls) == 4


def test_all_get_the_same_frozen_answer_so_it_is_packed_once(store: Store) -> None:
    cached: Any = CachedClient(store, methods_of(Store), 10.0)
    assert isinstance(cached.get(1), Frozen) and cached.get(1) is cached.get(1)


def test_names_in_any_order_are_equal_arguments(cached: Any) -> None:
    assert cached.get(a=1, b=2) == cached.get(b=2, a=1)


def test_arrays_are_told_apart_by_what_is_in_them(cached: Any) -> None:
    numpy = pytest.importorskip("numpy")
    assert cached.get(numpy.zeros(5000)) == cached.get(numpy.zeros(5000)) == 1
    assert cached.get(numpy.ones(5000)) == 2


def test_callers_at_one_time_share_one_call(cached: Any, store: Store) -> None:
    arrived, go = threading.Event(), threading.Event()
    store.before = lambda: (arrived.set(), go.wait(120))  # type: ignore[assignment,func-returns-value]
    with ThreadPoolExecutor(8) as threads:
        first = threads.submit(cached.get, 1)
        assert arrived.wait(120)
        others = [threads.submit(cached.get, 1) for _ in range(7)]
        go.set()
        assert {future.result(120) for future in (first, *others)} == {1}
    assert len(store.calls) == 1


def test_a_failure_is_told_to_all_who_shared_it_and_not_kept(cached: Any, store: Store) -> None:
    arrived, go = threading.Event(), threading.Event()

    def fail() -> None:
        arrived.set()
        assert go.wait(120)
        raise ValueError("upstream")

    store.before = fail
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(cached.get, 1)
        assert arrived.wait(120)
        claimed = threading.Event()
        claim = cached.obj._claim
        cached.obj._claim = lambda key: (claim(key), claimed.set())[0]  # tells when the second caller has joined
        second = threads.submit(cached.get, 1)
        assert claimed.wait(120)
        go.set()
        assert [str(future.exception(30)) for future in (first, second)] == ["upstream", "upstream"]
    store.before = lambda: None
    assert cached.get(1) == 2


def test_who_shared_a_call_does_not_share_its_deadline(cached: Any, store: Store) -> None:
    arrived, go = threading.Event(), threading.Event()

    def too_late() -> None:
        store.before = lambda: None
        arrived.set()
        assert go.wait(120)
        raise DeadlineExceeded("the first caller had no time")

    store.before = too_late
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(cached.get, 1)
        assert arrived.wait(120)
        second = threads.submit(cached.get, 1)
        go.set()
        assert isinstance(first.exception(30), DeadlineExceeded) and second.result(120) == 2


def test_the_newest_answers_are_kept(cached: Any) -> None:
    for number in range(5):
        cached.get(number)
    assert len(cached.obj._answers) <= 4
    assert cached.get(4) == 5 and cached.get(0) == 6


def test_an_old_answer_is_not_given_while_another_call_is_under_way(cached: Any, store: Store, clock: Clock) -> None:
    arrived, go = threading.Event(), threading.Event()

    def slow() -> None:
        store.before = lambda: None
        arrived.set()
        assert go.wait(120)

    store.before = slow
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(cached.get, "slow")
        assert arrived.wait(120)
        assert cached.get(1) == cached.get(1) == 2
        clock.now = 20.0
        assert cached.get(1) == 3
        go.set()
        assert first.result(120) == 3  # the count when it was answered


def test_generators_and_methods_that_are_not_named_reach_the_service(store: Store) -> None:
    cached: Any = CachedClient(store, methods_of(Store), 10.0, only=frozenset({"get", "each"}))
    assert list(cached.each()) == list(cached.each()) == [1, 2]
    assert cached(5) == cached(5) == "called with 5"
    assert store.calls == ["each", "each", 5, 5]


def test_a_call_of_the_object_itself_is_cached(cached: Any, store: Store) -> None:
    assert cached(5) == cached(5) == "called with 5" and store.calls == [5]


def test_arguments_without_a_pickle_reach_the_service(cached: Any) -> None:
    lock = threading.Lock()
    assert [cached.get(lock), cached.get(lock)] == [1, 2]


def test_a_cache_node_serves_what_its_target_does_but_not_its_state() -> None:
    program = Program("p")
    handle = program.add(Service(Store), name="store")
    cache = Cache(handle, 5.0)
    methods = cache.methods() or {}
    assert set(methods) == {"get", "act", "each", "__call__"}
    assert methods["each"].streams and methods["act"].batch_size == 0 and methods["get"].concurrency > 1
    assert set(Cache(program.add(cache), 1.0).methods() or {}) == set(methods), "caches of caches"

    store = Store()
    context: Any = StandIn({"store": store})
    context.stop.set()
    cache.run(context)
    assert [context.served.get(1).value, context.served.get(1).value] == [1, 1]
    assert not hasattr(context.served, "state_dict")


def test_a_cache_of_a_declared_node_learns_its_methods_when_it_is_added() -> None:
    program = Program("p")
    cache = program.add(Cache(program.declare("store"), 1.0), name="cache")
    assert cache.methods is None
    program.add(Service(Store), name="store")
    assert "get" in (cache.methods or {})
