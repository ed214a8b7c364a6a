"""How published weights travel, and how old versions are."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

from ropewalk.rl.environments.spec import Array
from ropewalk.rl.variables import Variables, numbered, version_lag, version_lags

ARRAYS: dict[str, Array] = {
    "torso.0.weight": np.arange(12, dtype=np.float32).reshape(3, 4).T,
    "torso.0.bias": np.array([True, False]),
    "none": np.zeros((0, 3), np.float32),
    "num_updates": np.array(7),
}


def same(found: Variables, arrays: dict[str, Array]) -> None:
    assert (found.version, found.progress, list(found.arrays)) == (3, 0.5, list(arrays))
    for name, array in arrays.items():
        assert type(found.arrays[name]) is np.ndarray and found.arrays[name].dtype == array.dtype
        np.testing.assert_array_equal(found.arrays[name], array, strict=True)


def sent(variables: Variables) -> tuple[Variables, list[memoryview]]:
    """What arrives of them, and the memory that travels beside the pickle."""
    buffers: list[memoryview] = []
    pickled = pickle.dumps(variables, 5, buffer_callback=lambda buffer: buffers.append(buffer.raw()))
    return pickle.loads(pickled, buffers=[bytearray(buffer) for buffer in buffers]), buffers


def test_small_weights_travel_as_one_piece_of_memory() -> None:
    found, buffers = sent(Variables(3, 0.5, ARRAYS))
    same(found, ARRAYS)
    assert len(buffers) == 1
    for array in found.arrays.values():
        assert array.flags.writeable and array.flags.aligned


def test_large_weights_are_not_copied_to_be_sent() -> None:
    arrays: dict[str, Array] = {"a": np.arange(40_000.0), "b": np.arange(3.0)}
    found, buffers = sent(Variables(3, 0.5, arrays))
    same(found, arrays)
    assert len(buffers) == 2
    assert all(map(np.shares_memory, map(np.frombuffer, buffers), arrays.values()))


@pytest.mark.parametrize(
    "arrays", [{}, {"a": np.zeros(0)}, {"a": np.array([None, "b"])}], ids=["none", "empty", "objects"]
)
def test_what_is_no_piece_of_memory_travels_as_well(arrays: dict[str, Array]) -> None:
    same(sent(Variables(3, 0.5, arrays))[0], arrays)


def test_weights_can_be_copied_and_pickled_by_older_protocols() -> None:
    same(copy.deepcopy(Variables(3, 0.5, ARRAYS)), ARRAYS)
    same(pickle.loads(pickle.dumps(Variables(3, 0.5, ARRAYS), 4)), ARRAYS)


def test_a_lag_is_counted_in_updates_whichever_life_they_are_of() -> None:
    newest = numbered(2, 10)
    versions = [numbered(2, 10), numbered(2, 7), numbered(1, 4), numbered(1, 500), 0]
    assert [version_lag(newest, version) for version in versions] == [0, 3, 6, 0, 10]
    assert version_lags(newest, np.array(versions)).tolist() == [0, 3, 6, 0, 10]
