"""The kernels compiled by numba: the speed of memory, and the same bits as the numpy kernels.

    chunk of 256 Ki components: its results fit a buffer that stays in the cache
      └─ block of 1 Ki components, in the nearest cache
           1. difference into new_error        vectorised, bound by memory
           2. how many go                      vectorised
           3. where some go: which ones        the only pass with a branch

Compiled at the first use, in about a second, and kept on disk beside this file (or where numba keeps its caches).
Without fast-math: NaN has to stay NaN, and results must not depend on who compiled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

import numba  # pyright: ignore[reportMissingTypeStubs]
import numpy as np

from ropewalk.exchange.kernels.selection import Floats, Indices, Rule, Selection

_P = ParamSpec("_P")
_R = TypeVar("_R")

CHUNK = 1 << 18
BLOCK = 1 << 10


def _compiled(function: Callable[_P, _R]) -> Callable[_P, _R]:
    compiler = cast(Any, numba)
    try:
        return compiler.njit(function, cache=True, nogil=True)
    except RuntimeError:
        # There is no folder that its cache could be written to.
        return compiler.njit(function, nogil=True)


def gd_sec_select(
    gradient: Floats, memory: Floats | None, error: Floats | None, rule: Rule, new_error: Floats
) -> Selection:
    """As `kernels.gd_sec_select`, of arrays."""
    absent = new_error[:0]
    base, factors, factor = _parameters(rule, absent)
    return _in_chunks(
        lambda start, end, indices, values: _select_differences(
            gradient,
            absent if memory is None else memory,
            absent if error is None else error,
            base,
            factors,
            factor,
            new_error,
            start,
            end,
            indices,
            values,
        ),
        new_error,
    )


def select(vector: Floats, rule: Rule) -> Selection:
    """As `kernels.select_above`, of arrays and a rule."""
    base, factors, factor = _parameters(rule, vector[:0])
    return _in_chunks(
        lambda start, end, indices, values: _select(vector, base, factors, factor, start, end, indices, values), vector
    )


def scatter_add(out: Floats, indices: Indices, values: Floats, scale: float) -> None:
    """As `kernels.scatter_add`, of arrays."""
    _scatter_add(out, indices, values, out.dtype.type(scale))


def _parameters(rule: Rule, absent: Floats) -> tuple[Floats, Floats, Any]:
    """What is not there is an empty array, so that one compiled function serves all rules."""
    base, factor = rule
    base = absent if base is None else base
    if isinstance(factor, np.ndarray):
        return base, factor, absent.dtype.type(1)
    return base, absent, absent.dtype.type(factor)


def _in_chunks(select_between: Callable[[int, int, Indices, Floats], int], vector: Floats) -> Selection:
    found_indices = np.empty(min(CHUNK, vector.size), np.int32)
    found_values = np.empty(min(CHUNK, vector.size), vector.dtype)
    indices: list[Indices] = [found_indices[:0]]
    values: list[Floats] = [found_values[:0]]
    for start in range(0, vector.size, CHUNK):
        num_found = select_between(start, min(start + CHUNK, vector.size), found_indices, found_values)
        if num_found:
            indices.append(found_indices[:num_found].copy())
            values.append(found_values[:num_found].copy())
    return Selection(np.concatenate(indices), np.concatenate(values))


@_compiled
def _select_differences(
    gradient: Floats,
    memory: Floats,
    error: Floats,
    base: Floats,
    factors: Floats,
    factor: Any,
    new_error: Floats,
    start: int,
    end: int,
    indices: Indices,
    values: Floats,
) -> int:
    num_found = 0
    for begin in range(start, end, BLOCK):
        until = min(begin + BLOCK, end)
        if memory.size and error.size:
            for i in range(begin, until):
                new_error[i] = gradient[i] - memory[i] + error[i]
        else:
            for i in range(begin, until):
                new_error[i] = gradient[i]
            if memory.size:
                for i in range(begin, until):
                    new_error[i] -= memory[i]
            if error.size:
                for i in range(begin, until):
                    new_error[i] += error[i]
        before = num_found
        num_found = _select_block(new_error, base, factors, factor, begin, until, indices, values, before)
        for at in range(before, num_found):
            new_error[indices[at]] = 0
    return num_found


@_compiled
def _select(
    vector: Floats,
    base: Floats,
    factors: Floats,
    factor: Any,
    start: int,
    end: int,
    indices: Indices,
    values: Floats,
) -> int:
    num_found = 0
    for begin in range(start, end, BLOCK):
        until = min(begin + BLOCK, end)
        num_found = _select_block(vector, base, factors, factor, begin, until, indices, values, num_found)
    return num_found


@_compiled
def _select_block(
    vector: Floats,
    base: Floats,
    factors: Floats,
    factor: Any,
    begin: int,
    until: int,
    indices: Indices,
    values: Floats,
    num_found: int,
) -> int:
    for i in range(begin, until):
        limit = factor
        if base.size:
            limit = abs(base[i]) * (factors[i] if factors.size else factor)
        if not abs(vector[i]) <= limit:
            indices[num_found] = i
            values[num_found] = vector[i]
            num_found += 1
    return num_found


@_compiled
def _scatter_add(out: Floats, indices: Indices, values: Floats, scale: Any) -> None:
    for at in range(indices.size):
        out[indices[at]] += values[at] * scale
