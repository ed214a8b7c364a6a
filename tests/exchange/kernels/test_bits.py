"""Both ways to pack bits write the same bytes, and read what anybody wrote without harm."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ropewalk.exchange import kernels
from ropewalk.exchange.kernels import numpy_bits

HAS_NUMBA = importlib.util.find_spec("numba") is not None
BACKENDS = [numpy_bits, *([kernels.bit_kernels(1 << 30)] if HAS_NUMBA else [])]
#: Around a chunk of the numpy kernels.
COUNTS = (1, 2, 7, 8, 9, 31, 33, 1000, 16_383, 16_384, 16_385, 33_000)


@pytest.mark.parametrize("width", [1, 2, 5, 7, 9, 15, 17, 24, 25, 31])
def test_numbers_of_a_width_are_packed_the_same(width: int) -> None:
    for count in COUNTS:
        numbers = np.random.default_rng(count).integers(0, 1 << 32, count, np.uint32)
        right = np.packbits(
            (numbers[:, None] >> np.arange(width, dtype=np.uint32) & 1).astype(np.uint8), bitorder="little"
        )
        for backend in BACKENDS:
            assert backend.pack_bits(numbers, width).tobytes() == right.tobytes()
            more = np.append(right, np.uint8(255))
            assert (backend.unpack_bits(more, count, width) == numbers & ((1 << width) - 1)).all()


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(0, 40), min_size=1, max_size=50))
def test_unary_numbers_are_packed_the_same(numbers: list[int]) -> None:
    given_numbers = np.array(numbers, np.int32)
    bits = "".join("0" * number + "1" for number in numbers)
    for backend in BACKENDS:
        packed = backend.pack_unary(given_numbers, len(bits))
        assert "".join(f"{byte:08b}"[::-1] for byte in packed.tolist()).rstrip("0") == bits
        assert backend.unpack_unary(packed, len(numbers)).tolist() == numbers


@settings(deadline=None, max_examples=100)
@given(st.binary(max_size=40), st.integers(0, 60))
def test_more_or_fewer_unary_numbers_than_expected_are_noticed(data: bytes, count: int) -> None:
    num_ones = sum(byte.bit_count() for byte in data)
    for backend in BACKENDS:
        found: Any = backend.unpack_unary(np.frombuffer(data, np.uint8), count)
        assert (found.size == count) == (num_ones == count)
