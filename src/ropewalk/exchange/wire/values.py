"""Codecs of values: as they are, in 16 bits, or quantized to a few levels.

Where a codec is not exact, the sender can compute what the receiver will decode (`ValueCodec.heard`), so that error
feedback can keep the rest.

`Levels` is QSGD's quantizer: D. Alistarh et al., QSGD: Communication-Efficient SGD via Gradient Quantization and
Encoding, NeurIPS 2017 (arXiv 1610.02132), section 3.1. The norm is that of a group of values, by default the largest
magnitude, which leaves less variance than the Euclidean norm of the paper; levels have a fixed number of bits instead
of Elias codes, because few of them are zero where a threshold has chosen the values.
"""

from __future__ import annotations

import abc
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ropewalk.errors import ExchangeInvalid
from ropewalk.exchange.kernels.selection import Floats
from ropewalk.exchange.wire.bits import Bytes, pack_bits, packed_size, unpack_bits
from ropewalk.near_names import check_choice


class ValueCodec(abc.ABC):
    """An encoding of float32, float64 or float16 values as bytes."""

    @abc.abstractmethod
    def size_bytes(self, count: int) -> int:
        """Return the exact number of bytes that `count` values take."""

    @abc.abstractmethod
    def encode(self, values: Floats, seed: Sequence[int]) -> Bytes:
        """Encode values.

        Args:
            values: one-dimensional.
            seed: integers, not negative, that seed random rounding; such as step and rank.
        """

    @abc.abstractmethod
    def decode(self, data: Bytes, count: int, dtype: np.dtype[np.floating]) -> Floats:
        """Decode `count` values from exactly `size_bytes(count)` bytes; ValueError if they are not of this codec."""

    def heard(self, values: Floats, seed: Sequence[int]) -> Floats:
        """Return the values that the receiver will decode."""
        return self.decode(self.encode(values, seed), values.size, values.dtype)


@dataclass(frozen=True, slots=True)
class AsFloats(ValueCodec):
    """Values as floats of 8, 4 or 2 bytes; rounded to nearest if they had more."""

    dtype: Literal["float64", "float32", "float16"] = "float32"

    def size_bytes(self, count: int) -> int:
        return count * np.dtype(self.dtype).itemsize

    def encode(self, values: Floats, seed: Sequence[int]) -> Bytes:
        with np.errstate(all="ignore"):
            wide = np.ascontiguousarray(values, np.dtype(self.dtype).newbyteorder("<"))
        return wide.view(np.uint8)

    def decode(self, data: Bytes, count: int, dtype: np.dtype[np.floating]) -> Floats:
        read = np.frombuffer(data, np.dtype(self.dtype).newbyteorder("<"), count)
        with np.errstate(all="ignore"):
            return read.astype(dtype)  # A copy, because messages are not aligned.


@dataclass(frozen=True, slots=True)
class AsBfloat16(ValueCodec):
    """The upper half of float32, rounded to nearest, ties to even, as torch does."""

    def size_bytes(self, count: int) -> int:
        return 2 * count

    def encode(self, values: Floats, seed: Sequence[int]) -> Bytes:
        with np.errstate(all="ignore"):
            words = np.ascontiguousarray(values, np.float32).view(np.uint32)
        rounded = words + np.uint32(0x7FFF) + (words >> 16 & 1) >> 16
        is_nan = (words & 0x7FFFFFFF) > 0x7F800000
        return np.where(is_nan, np.uint32(0x7FC0), rounded).astype("<u2").view(np.uint8)

    def decode(self, data: Bytes, count: int, dtype: np.dtype[np.floating]) -> Floats:
        words = np.frombuffer(data, "<u2", count).astype(np.uint32) << 16
        return words.view(np.float32).astype(dtype, copy=False)


@dataclass(frozen=True, slots=True)
class Levels(ValueCodec):
    """A sign and one of `levels` + 1 levels from 0 to the norm of the group; unbiased by stochastic rounding.

    Attributes:
        levels: at least 1; with 2^b - 1 levels, a value takes b + 1 bits.
        group: number of values that share a norm (4 bytes); 0 for all.
        norm: "max", or "l2" as in the paper.
        stochastic: False rounds to the nearest level: this is biased, but never off by more than half a level, which
            error feedback needs where levels are few.
    """

    levels: int = 7
    group: int = 512
    norm: Literal["max", "l2"] = "max"
    stochastic: bool = True

    def __post_init__(self) -> None:
        if not 1 <= self.levels < 1 << 15:
            raise ExchangeInvalid(f"values have 1 to {(1 << 15) - 1} levels, not {self.levels}")
        if not 0 <= self.group < 1 << 16:
            raise ExchangeInvalid(f"a norm is shared by 1 to {(1 << 16) - 1} values, or all (0), not by {self.group}")
        check_choice("norm", self.norm, ("max", "l2"), ExchangeInvalid)

    @property
    def width(self) -> int:
        """Number of bits of a value."""
        return 1 + self.levels.bit_length()

    def size_bytes(self, count: int) -> int:
        return 4 * self._num_groups(count) + packed_size(count, self.width)

    def encode(self, values: Floats, seed: Sequence[int]) -> Bytes:
        with np.errstate(all="ignore"):
            values = np.asarray(values, np.float32)
        starts = np.arange(self._num_groups(values.size)) * (self.group or values.size)
        with np.errstate(all="ignore"):
            if self.norm == "max":
                norms = np.maximum.reduceat(np.abs(values), starts)
            else:
                norms = np.sqrt(np.add.reduceat(np.square(values, dtype=np.float64), starts)).astype(np.float32)
            scales = np.where(norms > 0, np.float32(self.levels) / norms, np.float32(0))
            levels = np.abs(values) * self._spread(scales, values.size)
            levels += np.random.default_rng(list(seed)).random(values.size, np.float32) if self.stochastic else 0.5
        # A norm that is not finite marks the whole group as such. Rounding may exceed the highest level.
        levels = np.nan_to_num(levels, nan=0, posinf=0).clip(0, self.levels).astype(np.uint32)
        codes = levels << 1 | np.signbit(values)
        return np.concatenate([norms.astype("<f4").view(np.uint8), pack_bits(codes, self.width)])

    def decode(self, data: Bytes, count: int, dtype: np.dtype[np.floating]) -> Floats:
        num_groups = self._num_groups(count)
        norms = np.frombuffer(data, "<f4", num_groups)
        codes = unpack_bits(data[4 * num_groups :], count, self.width)
        levels = codes >> 1
        if levels.size and levels.max() > self.levels:
            raise ValueError(f"a value has level {levels.max()} of {self.levels}")
        signed = np.where(codes & 1, -levels.astype(np.float32), levels.astype(np.float32))
        with np.errstate(all="ignore"):
            steps = norms / np.float32(self.levels)
            return (signed * self._spread(steps, count)).astype(dtype, copy=False)

    def _num_groups(self, count: int) -> int:
        return -(-count // (self.group or max(count, 1)))

    def _spread(self, by_group: Floats, count: int) -> Floats:
        return np.repeat(by_group, self.group or max(count, 1))[:count]


def value_codec(codec: str | ValueCodec, dtype: np.dtype[np.floating] | str = "float32") -> ValueCodec:
    """Return the codec of this name: "same", "float64", "float32", "float16", "bfloat16" or "levels(7)".

    Args:
        codec: a name, or a codec, which is returned.
        dtype: dtype of the values, for "same".

    Raises:
        ExchangeInvalid: there is no codec of this name.
    """
    if isinstance(codec, ValueCodec):
        return codec
    name = np.dtype(dtype).name if codec == "same" else codec
    if name in ("float64", "float32", "float16"):
        return AsFloats(name)
    if name == "bfloat16":
        return AsBfloat16()
    if match := re.fullmatch(r"levels\((\d+)\)", name):
        return Levels(int(match[1]))
    raise ExchangeInvalid(f"values travel as same, float64, float32, float16, bfloat16 or levels(7), not as {codec!r}")
