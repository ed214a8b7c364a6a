"""Pickles of arrays: the same bytes as pickle's own, made once, and only for arrays that these bytes describe."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from ropewalk.transport import array_pickles
from ropewalk.transport.array_pickles import dumps_arrays, learn, loads_arrays


@pytest.fixture(autouse=True)
def nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(array_pickles, "_kept", {})
    monkeypatch.setattr(array_pickles, "_known", {})


def made_by_pickle(value: Any) -> tuple[bytes, list[bytes]]:
    buffers: list[pickle.PickleBuffer] = []
    pickled = pickle.dumps(value, 5, buffer_callback=buffers.append)
    return pickled, [bytes(buffer.raw()) for buffer in buffers]


def both(value: Any) -> tuple[bytes, list[bytearray]]:
    packed = dumps_arrays(value)
    assert packed
    return packed[0], [bytearray(view) for view in packed[1]]


@pytest.mark.parametrize("kind", ["?", "b", "B", "h", "H", "i", "I", "l", "L", "q", "Q", "e", "f", "d"])
def test_a_pickle_is_that_of_pickle_and_gives_the_array_again(kind: str) -> None:
    for value in (np.arange(6).astype(kind), np.arange(6).astype(kind).reshape(2, 3)):
        for form in (value, (value,), (value, value.copy())):
            made = both(form)
            pickled, buffers = both(form)  # from those that are kept
            assert made == (pickled, buffers)
            assert (pickled, [bytes(buffer) for buffer in buffers]) == made_by_pickle(form)
            slow = pickle.loads(pickled, buffers=buffers)
            learn(pickled, buffers, slow)
            fast = loads_arrays(pickled, buffers)
            assert fast is not None and type(fast) is type(form)
            for ours, theirs in zip(np.atleast_1d(fast), np.atleast_1d(slow), strict=True):
                np.testing.assert_array_equal(ours, theirs)
            first = fast[0] if isinstance(fast, tuple) else fast
            assert (first.dtype, first.shape, first.flags.writeable) == (value.dtype, value.shape, True)


def test_other_shapes_dtypes_and_numbers_of_arrays_have_pickles_of_their_own() -> None:
    values = [np.zeros(6), np.zeros((2, 3)), np.zeros(6, "f"), (np.zeros(6),), (np.zeros(6), np.zeros(6))]
    read_only = np.zeros(6)
    read_only.flags.writeable = False
    pickles = [both(value)[0] for value in (*values, read_only)]
    assert len(set(pickles)) == len(pickles)


class Special(np.ndarray[Any, Any]):
    pass


twice = np.zeros(4)


@pytest.mark.parametrize(
    "value",
    [
        np.zeros((4, 4))[:, 1],
        np.zeros((4, 4), order="F"),
        np.zeros(()),
        np.zeros(0),
        np.array(["text"]),
        np.array([object()]),
        np.array(["2026-01-01"], "M8[D]"),
        np.zeros(3, "c16"),
        np.zeros(3, ">f8"),
        np.zeros(3, [("field", "f8")]),
        np.zeros(3, np.dtype("f8", metadata={"unit": "s"})),
        np.zeros(3).view(Special),
        (twice, twice),
        (np.zeros(3), 1),
        tuple(np.zeros(1) for _ in range(5)),
        (),
        [np.zeros(3)],
        b"bytes",
    ],
)
def test_what_its_pickle_may_describe_otherwise_is_left_to_pickle(value: Any) -> None:
    assert dumps_arrays(value) is None


def test_a_pickle_that_only_looks_like_that_of_an_array_is_never_known() -> None:
    array = np.zeros(3)
    pickled = pickle.dumps((array, "and more"), 5, buffer_callback=lambda _buffer: None)
    buffers = [bytearray(24)]
    learn(pickled, buffers, array)  # the value is an array, and pickling it again gives other bytes
    assert loads_arrays(pickled, buffers) is None


def test_an_array_that_may_not_be_written_stays_so() -> None:
    value = np.zeros(3)
    value.flags.writeable = False
    pickled, buffers = both(value)
    arrived = pickle.loads(pickled, buffers=buffers)
    learn(pickled, buffers, arrived)
    assert loads_arrays(pickled, buffers) is None, "the fast path gives arrays that may be written"


def test_few_pickles_are_kept() -> None:
    for size in range(1, 2 * array_pickles._MOST_KEPT):
        dumps_arrays(np.zeros(size, "b"))
    assert len(array_pickles._kept) <= array_pickles._MOST_KEPT
