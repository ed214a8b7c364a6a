"""`CallerRows`: which callers ask for actions, and with which random numbers. One row of an array for each environment.

Calls that are merged have their rows joined, so everything that belongs to a call travels in rows:

    row | group | run | step | state of the generator, 6 words

row:  number of the environment within its call; 0 begins the rows of another call.
run:  `run_number` of the caller's run id.
step: number of the call within its run, from 0. A repeated call has the number that it had.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Rows: TypeAlias = NDArray[np.int64]

_FACTS = 4
_WORDS = 6
_MASK = (1 << 64) - 1


class CallerRows(NamedTuple):
    """The rows of one call.

    Attributes:
        group: number of the group of environments.
        run: number of the caller's run id.
        step: number of the call within its run.
        start: first row within the array of all calls.
        stop: row after the last one.
        words: state of the caller's generator, 6 numbers.
    """

    group: int
    run: int
    step: int
    start: int
    stop: int
    words: Sequence[int]

    @property
    def num_envs(self) -> int:
        """The number of environments."""
        return self.stop - self.start

    @property
    def rows(self) -> slice:
        """The rows within the array of all calls."""
        return slice(self.start, self.stop)


class GroupRequest(NamedTuple):
    """Who asks for actions.

    Attributes:
        group: of environments.
        run: number of the run id.
        step: number of the call within its run.
        num_envs: number of environments of the group.
        rng: the caller's generator.
    """

    group: int
    run: int
    step: int
    num_envs: int
    rng: np.random.Generator


def packed(*callers: GroupRequest) -> Rows:
    """Return the rows of several callers, one after the other, int64, shape (rows, 10).

    Raises:
        TypeError: a generator is none of numpy's PCG64.
    """
    sizes = tuple(caller.num_envs for caller in callers)
    facts = [(group & _MASK, run & _MASK, step, *words_of(rng)) for group, run, step, _, rng in callers]
    rows = np.empty((sum(sizes), _FACTS + _WORDS), np.int64)
    rows[:, 0] = _numbers(sizes)
    rows[:, 1:] = np.array(facts, np.uint64).view(np.int64).repeat(sizes, axis=0)
    return rows


@functools.lru_cache(64)
def _numbers(sizes: tuple[int, ...]) -> NDArray[np.int64]:
    """Return the number of each row within its call."""
    return np.concatenate([np.arange(size) for size in sizes])


def unpacked(rows: Rows) -> list[CallerRows]:
    """Return the calls that the rows are of, in their order."""
    if rows[-1, 0] == len(rows) - 1:  # of one call, as a lone caller's are: a quarter of the time
        _, group, run, step, *words = rows[0].tolist()
        return [CallerRows(group, run, step, 0, len(rows), [word & _MASK for word in words])]
    begins: list[int] = np.flatnonzero(rows[:, 0] == 0).tolist()
    ends, firsts = [*begins[1:], len(rows)], rows[begins]
    all_words = firsts.view(np.uint64)[:, _FACTS:].tolist()
    return [
        CallerRows(group, run, step, start, stop, words)
        for start, stop, (group, run, step), words in zip(
            begins, ends, firsts[:, 1:_FACTS].tolist(), all_words, strict=True
        )
    ]


def run_number(run_id: str) -> int:
    """Return a number for a run id, the same in every process."""
    return int.from_bytes(hashlib.blake2b(run_id.encode(), digest_size=8).digest(), "little", signed=True)


def words_of(rng: np.random.Generator) -> list[int]:
    """Return the state of a generator: 6 numbers below 2**64.

    Raises:
        TypeError: the generator is none of numpy's PCG64.
    """
    state = rng.bit_generator.state
    if state["bit_generator"] != "PCG64":
        raise TypeError(
            f"central inference continues the caller's generator, and knows PCG64 only, not {state['bit_generator']}; "
            "make it with ropewalk.rl.seeds.generator or np.random.default_rng"
        )
    number, increment = state["state"]["state"], state["state"]["inc"]
    halves = [number & _MASK, number >> 64, increment & _MASK, increment >> 64]
    return [*halves, state["has_uint32"], state["uinteger"]]


def set_words(rng: np.random.Generator, words: Sequence[int]) -> None:
    """Bring a generator of PCG64 to a state, given as the six numbers of `words_of`."""
    low, high, increment_low, increment_high, has_uint32, uinteger = words
    rng.bit_generator.state = {
        "bit_generator": "PCG64",
        "state": {"state": high << 64 | low, "inc": increment_high << 64 | increment_low},
        "has_uint32": has_uint32,
        "uinteger": uinteger,
    }


__all__ = ["CallerRows", "GroupRequest", "Rows", "packed", "run_number", "set_words", "unpacked", "words_of"]
