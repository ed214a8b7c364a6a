"""Constants: copied when made, complete when they arrive, and only passed to tasks."""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from ropewalk.pool.constants import Constant, ConstantRef, arrive, arrived, collecting, depart, fail
from ropewalk.processes.code_parts import parts_of
from ropewalk.transport.blobs import SHARED_MIN_BYTES, name_of, open_parts
from ropewalk.transport.frames import Part
from ropewalk.transport.serialization import Payload, dumps


class Namespace:
    """Keeps what a worker would define in its `__main__`."""

    def __init__(self) -> None:
        self.installed: dict[str, Any] = {}

    def install(self, definitions: dict[str, Any]) -> None:
        for name, (pickled, buffers) in definitions.items():
            self.installed[name] = pickle.loads(pickled, buffers=buffers)


def large(fill: bytes, size: int = 10_000) -> pickle.PickleBuffer:
    return pickle.PickleBuffer(bytearray(fill * size))


def make(payload: Payload | None, **definitions: Payload) -> Constant:
    parts = parts_of(payload, definitions)
    return Constant(name_of(parts), parts)


def sent(constant: Constant) -> Sequence[Part]:
    """Its parts as they arrive, from the memory file if they are in one; it is closed then, as by its pool."""
    if constant.blob is None:
        return constant.parts
    parts = open_parts(os.dup(constant.fd), constant.blob.lengths, writable=False)
    constant.close()
    return parts


def test_a_value_arrives_with_its_buffers_after_the_definitions_it_needs() -> None:
    namespace = Namespace()
    payload = dumps(("value", large(b"a"), large(b"b")))
    assert len(payload.buffers) == 2
    constant = make(payload, helper=dumps([1, large(b"c")]), other=dumps("plain"))
    arrive("id", sent(constant), namespace)
    word, first, second = arrived("id")
    assert (word, bytes(first), bytes(second)) == ("value", b"a" * 10_000, b"b" * 10_000)
    assert bytes(namespace.installed["helper"][1]) == b"c" * 10_000 and namespace.installed["other"] == "plain"
    depart(["id", "never here"])
    with pytest.raises(KeyError):
        arrived("id")


def test_definitions_alone_are_a_constant_without_a_value() -> None:
    namespace = Namespace()
    arrive("id", make(None, helper=dumps(7)).parts, namespace)
    assert namespace.installed == {"helper": 7} and arrived("id") is None
    depart(["id"])


def test_a_constant_is_a_copy_that_later_changes_do_not_reach() -> None:
    data = bytearray(b"a" * 10_000)
    constant = make(dumps(pickle.PickleBuffer(data)))
    data[:] = b"z" * 10_000
    arrive("id", sent(constant), Namespace())
    assert bytes(arrived("id")) == b"a" * 10_000
    depart(["id"])


def test_a_large_constant_lies_in_a_memory_file_that_is_closed_once() -> None:
    data = bytearray(os.urandom(SHARED_MIN_BYTES))
    constant = make(dumps(pickle.PickleBuffer(data)))
    assert constant.blob and constant.fd >= 0 and constant.parts == []
    expected, data[:] = bytes(data), bytes(len(data))
    parts = open_parts(os.dup(constant.fd), constant.blob.lengths, writable=False)
    arrive("id", parts, Namespace())
    assert bytes(arrived("id")) == expected
    with pytest.raises(TypeError):
        memoryview(arrived("id"))[0] = 1  # one copy for all: nobody may write
    depart(["id"])
    fd = constant.fd
    constant.close()
    constant.close()
    with pytest.raises(OSError):
        os.fstat(fd)


def test_a_small_constant_is_forgotten_when_it_is_closed() -> None:
    constant = make(dumps("small"))
    assert constant.blob is None and constant.fd == -1 and constant.size_bytes == sum(map(len, constant.parts))
    constant.close()
    assert constant.parts == []


def test_a_reference_is_pickled_only_on_the_way_to_a_task_and_is_noted() -> None:
    constant = make(dumps("the value"))
    pool = object()
    reference = ConstantRef(constant, pool, lambda: None)
    assert repr(reference) == f"<ropewalk constant of {constant.size_bytes} bytes>"
    with pytest.raises(TypeError, match="outside a pool pickle the value itself"):
        pickle.dumps(reference)
    with collecting(pool) as found:
        pickled = pickle.dumps([reference, reference])
    assert found == {constant.id: constant}
    arrive(constant.id, constant.parts, Namespace())
    assert pickle.loads(pickled) == ["the value", "the value"]
    depart([constant.id])
    with pytest.raises(TypeError):
        pickle.dumps(reference)


def test_collecting_is_of_one_thread_and_ends_with_an_error() -> None:
    pool = object()
    reference = ConstantRef(make(dumps(1)), pool, lambda: None)
    failures: list[BaseException] = []

    def elsewhere() -> None:
        try:
            pickle.dumps(reference)
        except TypeError as error:
            failures.append(error)

    with collecting(pool) as found:
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
    assert len(failures) == 1 and found == {}
    with pytest.raises(ZeroDivisionError), collecting(pool):
        raise ZeroDivisionError
    with pytest.raises(TypeError):
        pickle.dumps(reference)


def test_a_value_that_cannot_be_unpickled_says_so_and_is_not_there() -> None:
    constant = make(Payload(b"no pickle", (), frozenset()))
    with pytest.raises(pickle.UnpicklingError):
        arrive("broken", constant.parts, Namespace())
    with pytest.raises(KeyError):
        arrived("broken")


def test_what_needs_a_constant_that_could_not_be_unpacked_fails_with_that_error() -> None:
    fail("broken", ModuleNotFoundError("No module named 'train'"))
    with pytest.raises(ModuleNotFoundError, match="train"):
        arrived("broken")
    depart(["broken"])
    with pytest.raises(KeyError):
        arrived("broken")
