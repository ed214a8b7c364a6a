"""Both ways to pack bits write the same bytes, and read what anybody wrote without harm."""

from __future__ import annotations

import importlib.util

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
@given(st.lists(st.integers(0, 90), min_size=1, max_size=50), st.integers(0, 9))
def test_gaps_are_packed_the_same(gaps: list[int], width: int) -> None:
    indices = np.cumsum(np.array(gaps) + 1).astype(np.int32) - np.int32(1)
    lows = "".join(f"{gap & ((1 << width) - 1):0{width}b}"[::-1] for gap in gaps) if width else ""
    rests = "".join("0" * (gap >> width) + "1" for gap in gaps)
    for backend in BACKENDS:
        packed = backend.pack_gaps(indices, width, len(rests))
        assert [as_bits(half).rstrip("0") for half in packed] == [lows.rstrip("0"), rests]
        assert [half.size for half in packed] == [(len(bits) + 7) // 8 for bits in (lows, rests)]
        read, last = backend.unpack_gaps(*packed, len(gaps), width)
        assert read.dtype == np.int32 and read.tolist() == indices.tolist() and last == indices[-1]


def as_bits(data: np.ndarray) -> str:
    return "".join(f"{byte:08b}"[::-1] for byte in data.tolist())


@settings(deadline=None, max_examples=100)
@given(st.binary(min_size=1, max_size=40), st.integers(1, 60))
def test_more_or_fewer_gaps_than_expected_are_noticed(data: bytes, count: int) -> None:
    num_ones = sum(byte.bit_count() for byte in data)
    for backend in BACKENDS:
        _, last = backend.unpack_gaps(np.zeros(count, np.uint8), np.frombuffer(data, np.uint8), count, 8)
        assert (last >= 0) == (num_ones == count)


def test_gaps_that_add_up_to_more_than_32_bits_are_noticed() -> None:
    for backend in BACKENDS:
        _, last = backend.unpack_gaps(np.full(8, 255, np.uint8), np.array([3], np.uint8), 2, 31)
        assert last == 2 * (1 << 31) - 1
