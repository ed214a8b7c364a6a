"""The kernels compiled by numba: near the speed of memory, and the same bits as the numpy kernels.

    chunk of 256 Ki components: the selection fits a buffer that stays in the cache
      └─ block of 4 Ki components, in the first-level cache
           1. differences    vectorised; the only pass that waits for memory
           2. marks          one byte per component, whether it is sent; vectorised
           3. collect        checks 8 marks at a time, and single ones only where one is set

Blocks are slices because an index that numba cannot prove to be positive costs the vectorised loop (measured: 3 x).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ropewalk.compiling import compiled
from ropewalk.exchange.kernels.selection import Floats, Indices, Rule, Selection

CHUNK = 1 << 18
BLOCK = 1 << 12
_Marks = NDArray[np.bool_]
"""Marks of a block, and the same memory as words of 8 marks."""
_Words = NDArray[np.uint64]


def gd_sec_select(
    gradient: Floats, memory: Floats | None, error: Floats | None, rule: Rule, new_error: Floats
) -> Selection:
    """Implement `kernels.gd_sec_select` for arrays."""
    absent = new_error[:0]
    memory = absent if memory is None else memory
    error = absent if error is None else error
    base, factors, factor = _parameters(rule, absent)

    def select_between(start: int, end: int, *found: Any) -> int:
        return _select_differences(gradient, memory, error, base, factors, factor, new_error, start, end, *found)

    return _in_chunks(select_between, new_error)


def select(vector: Floats, rule: Rule) -> Selection:
    """Implement `kernels.select_above` for arrays and a rule."""
    base, factors, factor = _parameters(rule, vector[:0])

    def select_between(start: int, end: int, *found: Any) -> int:
        return _select(vector, base, factors, factor, start, end, *found)

    return _in_chunks(select_between, vector)


def scatter_add(out: Floats, indices: Indices, values: Floats, scale: float) -> None:
    """Implement `kernels.scatter_add` for arrays."""
    _scatter_add(out, indices, values, out.dtype.type(scale))


# A factor beyond float32 is infinite, as in the numpy kernels.
@np.errstate(over="ignore")
def _parameters(rule: Rule, absent: Floats) -> tuple[Floats, Floats, Any]:
    """Replace absent parts of a rule by empty arrays, so that one compiled function serves all rules."""
    base, factor = rule
    base = absent if base is None else base
    if isinstance(factor, np.ndarray):
        return base, factor, absent.dtype.type(1)
    return base, absent, absent.dtype.type(factor)


def _in_chunks(select_between: Callable[..., int], vector: Floats) -> Selection:
    marks = np.zeros(BLOCK, np.bool_)
    # One more than can be selected: `_collect` writes each candidate before it counts it.
    capacity = min(CHUNK, vector.size) + 1
    found_indices = np.empty(capacity, np.int32)
    found_values = np.empty(capacity, vector.dtype)
    indices: list[Indices] = [found_indices[:0]]
    values: list[Floats] = [found_values[:0]]
    for start in range(0, vector.size, CHUNK):
        end = min(start + CHUNK, vector.size)
        num_found = select_between(start, end, marks, marks.view(np.uint64), found_indices, found_values)
        if num_found:
            indices.append(found_indices[:num_found].copy())
            values.append(found_values[:num_found].copy())
    return Selection(np.concatenate(indices), np.concatenate(values))


@compiled
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
    marks: _Marks,
    words: _Words,
    indices: Indices,
    values: Floats,
) -> int:
    num_found = 0
    for begin in range(start, end, BLOCK):
        until = min(begin + BLOCK, end)
        block = new_error[begin:until]
        _differences(gradient[begin:until], memory[begin:until], error[begin:until], block)
        _mark(block, base[begin:until], factors[begin:until], factor, marks)
        before = num_found
        num_found = _collect(block, marks, words, begin, indices, values, before)
        for at in range(before, num_found):
            block[indices[at] - begin] = 0
    return num_found


@compiled
def _select(
    vector: Floats,
    base: Floats,
    factors: Floats,
    factor: Any,
    start: int,
    end: int,
    marks: _Marks,
    words: _Words,
    indices: Indices,
    values: Floats,
) -> int:
    num_found = 0
    for begin in range(start, end, BLOCK):
        until = min(begin + BLOCK, end)
        block = vector[begin:until]
        _mark(block, base[begin:until], factors[begin:until], factor, marks)
        num_found = _collect(block, marks, words, begin, indices, values, num_found)
    return num_found


@compiled
def _differences(gradient: Floats, memory: Floats, error: Floats, out: Floats) -> None:
    if memory.size and error.size:
        for i in range(out.size):
            out[i] = gradient[i] - memory[i] + error[i]
    elif memory.size:
        for i in range(out.size):
            out[i] = gradient[i] - memory[i]
    elif error.size:
        for i in range(out.size):
            out[i] = gradient[i] + error[i]
    else:
        for i in range(out.size):
            out[i] = gradient[i]


@compiled
def _mark(block: Floats, base: Floats, factors: Floats, factor: Any, marks: _Marks) -> None:
    if factors.size:
        for i in range(block.size):
            marks[i] = not abs(block[i]) <= abs(base[i]) * factors[i]
    elif base.size:
        for i in range(block.size):
            marks[i] = not abs(block[i]) <= abs(base[i]) * factor
    else:
        for i in range(block.size):
            marks[i] = not abs(block[i]) <= factor


@compiled
def _collect(
    block: Floats, marks: _Marks, words: _Words, begin: int, indices: Indices, values: Floats, num_found: int
) -> int:
    for word in range((block.size + 7) // 8):
        if words[word]:
            # Written whether it is sent or not, and overwritten by the next: a branch here is mispredicted too often.
            for i in range(8 * word, min(8 * word + 8, block.size)):
                indices[num_found] = begin + i
                values[num_found] = block[i]
                num_found += marks[i]
    return num_found


@compiled
def _scatter_add(out: Floats, indices: Indices, values: Floats, scale: Any) -> None:
    for at in range(indices.size):
        out[indices[at]] += values[at] * scale
