from __future__ import annotations

import numpy as np

from ropewalk.population.parameter_cache import ParameterCache

ROOM = 3 * 4 * 10


def vector(value: float, size: int = 10) -> np.ndarray:
    return np.full(size, value, np.float32)


def test_what_was_not_used_for_longest_leaves() -> None:
    cache = ParameterCache()
    for name in (b"a", b"b", b"c"):
        cache.put(name, vector(1), ROOM)
    assert cache.get(b"a") is not None
    cache.put(b"d", vector(2), ROOM)
    assert cache.get(b"b") is None
    assert [cache.get(name) is not None for name in (b"a", b"c", b"d")] == [True] * 3
    assert cache.size_bytes == ROOM


def test_what_alone_is_too_large_is_not_kept_and_drives_nothing_out() -> None:
    cache = ParameterCache()
    cache.put(b"a", vector(1), ROOM)
    cache.put(b"large", vector(1, 31), ROOM)
    assert (len(cache), cache.get(b"large")) == (1, None)


def test_a_smaller_bound_makes_room_at_once() -> None:
    cache = ParameterCache()
    for name in (b"a", b"b", b"c"):
        cache.put(name, vector(1), ROOM)
    cache.put(b"d", vector(1), ROOM // 3)
    assert (len(cache), cache.size_bytes) == (1, ROOM // 3)


def test_the_same_is_counted_once() -> None:
    cache = ParameterCache()
    for _ in range(3):
        cache.put(b"a", vector(1), ROOM)
    assert (len(cache), cache.size_bytes) == (1, 40)
