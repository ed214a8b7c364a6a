from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as numpies

from ropewalk.errors import ExchangeInvalid
from ropewalk.exchange.wire.bits import pack_bits, packed_size, unpack_bits
from ropewalk.exchange.wire.values import AsBfloat16, AsFloats, Levels, value_codec

SEED = (5, 2)
SINGLE = np.dtype(np.float32)


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 32), st.lists(st.integers(0, (1 << 32) - 1), max_size=40))
def test_numbers_of_any_width_are_packed_without_gaps(width: int, numbers: list[int]) -> None:
    kept = [number & ((1 << width) - 1) for number in numbers]
    packed = pack_bits(np.array(numbers, np.uint32), width)
    assert packed.size == packed_size(len(numbers), width)
    assert unpack_bits(packed, len(numbers), width).tolist() == kept


@settings(deadline=None, max_examples=50)
@given(numpies.arrays(np.float32, st.integers(1, 50), elements=st.floats(width=32)))
def test_16_bits_are_rounded_as_torch_does(values: np.ndarray) -> None:
    for codec, dtype in ((AsBfloat16(), torch.bfloat16), (AsFloats("float16"), torch.float16)):
        data = codec.encode(values, SEED)
        assert data.size == codec.size_bytes(values.size) == 2 * values.size
        heard = codec.decode(data, values.size, SINGLE)
        np.testing.assert_array_equal(heard, torch.from_numpy(values).to(dtype).float().numpy())


def test_16_bits_of_what_lies_in_the_middle_are_even() -> None:
    values = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0x7F7FFFFF], np.uint32).view(np.float32)
    heard = AsBfloat16().heard(values, SEED).view(np.uint32)
    assert heard.tolist() == [0x3F800000, 0x3F820000, 0x3F810000, 0x7F800000]


@pytest.mark.parametrize("codec", [Levels(1), Levels(7), Levels(15, group=3), Levels(4, group=0, norm="l2")])
def test_levels_are_right_on_average_and_at_most_one_step_away(codec: Levels) -> None:
    values = np.random.default_rng(0).standard_normal(20).astype(np.float32)
    heard = np.array([codec.heard(values, (step,)) for step in range(3000)])
    group = codec.group or 20
    norms = [np.abs(part).max() if codec.norm == "max" else np.linalg.norm(part) for part in _groups(values, group)]
    step = np.repeat(norms, group)[:20] / codec.levels
    assert (np.abs(heard - values) <= step * 1.00001).all()
    # Five standard errors of a mean of numbers that lie within one step.
    assert (np.abs(heard.mean(0) - values) < 5 * 0.5 * step / np.sqrt(len(heard))).all()


def _groups(values: np.ndarray, group: int) -> list[np.ndarray]:
    return [values[start : start + group] for start in range(0, values.size, group)]


@pytest.mark.parametrize("norm", ["max", "l2"])
def test_without_chance_levels_are_the_nearest(norm: Any) -> None:
    values = np.random.default_rng(0).standard_normal(600).astype(np.float32)
    codec = Levels(3, group=0, norm=norm, stochastic=False)
    assert codec.encode(values, (1,)).tobytes() == codec.encode(values, (2,)).tobytes()
    step = (np.abs(values).max() if norm == "max" else np.linalg.norm(values)) / 3
    assert (np.abs(codec.heard(values, ()) - values) <= 0.50001 * step).all()


def test_levels_depend_on_the_seed_and_on_nothing_else() -> None:
    values = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    codec = Levels(3)
    assert codec.encode(values, (1, 2)).tobytes() == codec.encode(values, (1, 2)).tobytes()
    assert codec.encode(values, (1, 2)).tobytes() != codec.encode(values, (2, 1)).tobytes()


@pytest.mark.parametrize(("levels", "bits"), [(1, 2), (2, 3), (3, 3), (7, 4), (127, 8), (128, 9), (32767, 16)])
def test_a_value_takes_a_sign_and_as_many_bits_as_its_levels_need(levels: int, bits: int) -> None:
    codec = Levels(levels, group=8)
    assert codec.width == bits
    assert codec.size_bytes(20) == 3 * 4 + (20 * bits + 7) // 8
    values = np.linspace(-1, 1, 20, dtype=np.float32)
    assert codec.encode(values, SEED).size == codec.size_bytes(20)


@pytest.mark.parametrize("norm", ["max", "l2"])
def test_what_is_not_finite_spoils_its_group_only(norm: Any) -> None:
    values = np.array([1, np.nan, 2, 0, 0, 0, np.inf, 1, 1, -3, 3, 3], np.float32)
    heard = Levels(2, group=3, norm=norm).heard(values, SEED)
    assert np.isnan(heard[:3]).all() and not heard[3:6].any()
    assert not np.isfinite(heard[6]) and np.isfinite(heard[9:]).all()


def test_the_largest_value_of_a_group_is_heard_exactly() -> None:
    values = np.array([0.1, -0.8, 0.3], np.float32)
    for step in range(20):
        assert Levels(4).heard(values, (step,))[1] == values[1]


def test_a_level_above_the_highest_is_refused() -> None:
    with pytest.raises(ValueError, match="level 3 of 2"):
        Levels(2).decode(np.array([0, 0, 128, 63, 0b110], np.uint8), 1, SINGLE)


def test_same_is_the_dtype_of_the_values() -> None:
    assert value_codec("same", "float64") == AsFloats("float64")
    assert value_codec("same", np.dtype(np.float16)) == AsFloats("float16")
    assert value_codec("levels(9)") == Levels(9)
    assert value_codec(Levels(2)) == Levels(2)


@pytest.mark.parametrize("wrong", ["float8", "levels", "levels()", "int32"])
def test_a_codec_that_there_is_not_is_refused_with_those_that_there_are(wrong: str) -> None:
    with pytest.raises(ExchangeInvalid, match=r"same, float64, float32, float16, bfloat16 or levels\(7\)"):
        value_codec(wrong)


@pytest.mark.parametrize(
    ("levels", "group", "norm"), [(0, 9, "max"), (1 << 15, 9, "max"), (7, 1 << 16, "max"), (7, 9, "l1")]
)
def test_levels_that_cannot_be_are_refused(levels: int, group: int, norm: Any) -> None:
    with pytest.raises(ExchangeInvalid, match="not"):
        Levels(levels, group, norm)
