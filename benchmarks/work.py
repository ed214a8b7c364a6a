"""The functions that the benchmarks send to workers.

They stand in a module of their own because every contender imports them by
name, and because numpy and torch stay out of it: a worker that only does no-ops
should not pay for importing them.
"""

from __future__ import annotations

import os
import time
from typing import Any


def noop(value: Any) -> Any:
    return value


def square_slowly(number: int) -> int:
    time.sleep(0.010)
    return number * number


def sleep(duration_s: float) -> float:
    """Sleeps, and says how long that really was."""
    start = time.perf_counter()
    time.sleep(duration_s)
    return time.perf_counter() - start


def pid_after_a_moment(_: int) -> int:
    time.sleep(0.010)
    return os.getpid()


def peek(constant: Any, index: int) -> float:
    """A value out of a large constant, from a place that depends on `index`; a few pages are read, as in a look-up."""
    if isinstance(constant, dict):
        constant = constant[sorted(constant)[index % len(constant)]].view(-1)
    return float(constant[(index * 997_003) % len(constant)])


def read_and_hold(constant: Any, _: int) -> float:
    """Reads every page of the constant, then keeps it a while, so that all workers hold it at once."""
    total = (
        sum(float(part.sum()) for part in constant.values()) if isinstance(constant, dict) else float(constant.sum())
    )
    time.sleep(0.5)
    return total


def evaluate(parameters: Any, seed: int) -> tuple[int, float]:
    """One evaluation of an evolution strategy whose simulation takes 20 ms."""
    time.sleep(0.020)
    return seed, float(parameters[seed])


def check_in(register: str, expected: int, _: int) -> tuple[int, float]:
    """Ends when `expected` workers are in this function at once.

    Returns the worker's pid and the moment it came, on the clock that all processes of a machine share.
    """
    arrival = time.monotonic()
    with open(register, "ab", buffering=0) as file:
        file.write(b".")
    while os.stat(register).st_size < expected:
        if time.monotonic() > arrival + 20:
            raise TimeoutError(f"{os.stat(register).st_size} of {expected} workers came within 20 s")
        time.sleep(0.025)
    return os.getpid(), arrival
