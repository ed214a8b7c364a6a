"""Handles: found and replaced wherever arguments may hold them, and a teacher when used too early."""

from __future__ import annotations

import collections
import copy
import dataclasses
import functools
import pickle
from typing import Any, NamedTuple

import pytest

from ropewalk.errors import HandleNotConnected
from ropewalk.program.deferred import Deferred
from ropewalk.program.handle import Handle, handles_in, replace_handles
from ropewalk.program.nodes.service import Service
from ropewalk.program.program import Program


class Store:
    def push(self, value: int) -> None: ...


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    store: Any
    rate: float = 0.5


@dataclasses.dataclass
class Open:
    inner: Any
    late: Any = dataclasses.field(init=False, repr=False)  # and it is never set


@pytest.fixture
def handle() -> Handle[Store]:
    return Program("test").add(Service(Store), name="store")


CONTAINERS: dict[str, Any] = {
    "": lambda h: h,
    "[0]": lambda h: [h],
    "[1]": lambda h: (0, h),
    "['key']": lambda h: {"key": h},
    ".right": lambda h: Pair(1, h),
    ".<element>": lambda h: {h, 3},
    ".store": lambda h: Frozen(h),
    ".inner": lambda h: Open(h),
    ".args[0]": lambda h: functools.partial(print, h),
    ".kwargs['x']": lambda h: functools.partial(dict, x=h),
    "[0].store['a'][2]": lambda h: [Frozen({"a": (1, 2, h)})],
    "[0][0]": lambda h: collections.deque([collections.OrderedDict({0: h})]),
}


@pytest.mark.parametrize("path", CONTAINERS)
def test_a_handle_is_found_and_replaced_in_every_container(path: str, handle: Handle[Store]) -> None:
    value = CONTAINERS[path](handle)
    assert list(handles_in(value)) == [(path, handle)]
    replaced = replace_handles(value, lambda h: f"client of {h.name}", lambda d: d.build())
    assert not list(handles_in(replaced)) and type(replaced) is (str if not path else type(value))
    assert "client of store" in repr(replaced) and list(handles_in(value)), "the original stays as it was"


def test_a_deferred_value_is_built_from_clients(handle: Handle[Store]) -> None:
    value = {"x": Deferred(dict, client=[handle], inner=Deferred(list, "ab"))}
    assert list(handles_in(value)) == [("['x'].kwargs['client'][0]", handle)]
    replaced = replace_handles(value, lambda h: h.name, lambda deferred: deferred.build())
    assert replaced == {"x": {"client": ["store"], "inner": ["a", "b"]}}


def test_what_holds_no_handle_stays_the_same_object(handle: Handle[Store]) -> None:
    plain, shared = [1, {"a": (2,)}], [handle]
    replaced = replace_handles([plain, shared, shared], lambda h: h.name, lambda d: d.build())
    assert replaced[0] is plain
    assert replaced[1] == ["store"] and replaced[1] is replaced[2], "what is shared stays shared"


def test_containers_that_hold_themselves_are_walked_once(handle: Handle[Store]) -> None:
    loop: list[Any] = [handle]
    loop.append({"again": loop})
    assert list(handles_in(loop)) == [("[0]", handle)]
    replaced = replace_handles(loop, lambda h: h.name, lambda d: d.build())
    assert replaced[0] == "store" and replaced[1]["again"] is replaced


def test_addresses_are_handles_too(handle: Handle[Store]) -> None:
    assert [handle.address, handle.all.address, handle[2].address, handle.all.any.address] == ["any", "all", 2, "any"]
    assert handle.all == handle.all != handle and len({handle, handle.any, handle.all}) == 2
    assert repr(handle.all) == "Handle('store', 'all')"
    for wrong in (-1, "first", True):
        with pytest.raises(TypeError, match="index of a replica"):
            handle[wrong]  # type: ignore[index]


def test_a_handle_travels_by_its_name_and_knows_its_methods(handle: Handle[Store]) -> None:
    for twin in (pickle.loads(pickle.dumps(handle.all)), copy.deepcopy(handle.all)):
        assert twin == handle.all and list(twin.methods or ()) == ["push"]


def test_a_handle_says_what_becomes_of_calls_that_are_lost_wherever_it_goes(handle: Handle[Store]) -> None:
    retrying = handle.client(on_lost="retry")
    assert retrying != handle and len({retrying, handle}) == 2
    for same in (retrying.all.any, retrying[1].any, pickle.loads(pickle.dumps(retrying)), copy.deepcopy(retrying)):
        assert same == retrying and same.on_lost == "retry"
    assert handle.on_lost == retrying.client().on_lost == "raise"
    assert repr(retrying) == "Handle('store', on_lost='retry')"
    with pytest.raises(ValueError, match="'raise', 'retry', not 'repeat'"):
        handle.client(on_lost="repeat")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "use", [lambda h: h.push(1), lambda h: h.push.future(1), lambda h: h(1), lambda h: list(h), lambda h: len(h)]
)
def test_a_handle_used_as_a_client_teaches(handle: Any, use: Any) -> None:
    with pytest.raises(HandleNotConnected) as caught:
        use(handle)
    said = str(caught.value)
    assert caught.value.handle == "store" and isinstance(caught.value, AttributeError)
    assert "program.add(rw.Worker(f, store))" in said and "running.client('store')" in said


def test_the_lesson_corrects_a_misspelt_method_too(handle: Any) -> None:
    with pytest.raises(HandleNotConnected, match="no method 'pusch'; did you mean 'push'"):
        handle.pusch(1)


def test_a_handle_answers_the_questions_of_other_libraries(handle: Any) -> None:
    assert not hasattr(handle, "push") and not hasattr(handle, "__array__") and not hasattr(handle, "_repr_html_")
    assert handle, "it is true"
