"""Very many small calls: memory stays flat at both ends, and so does the number of descriptors."""

from __future__ import annotations

import os
from collections import deque
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import psutil
import pytest

from ropewalk.calls import call_context
from tests.calls.ends import far


def calls(client: Any, count: int) -> None:
    """Every way of calling, `count` calls in all."""
    waiting: deque[Any] = deque()
    for number in range(count // 10):
        assert client.echo(number) == number
        for _ in range(6):
            if len(waiting) >= 64:
                waiting.popleft().result()
            waiting.append(client.echo.future(number))
        with call_context.deadline(60):
            waiting.append(client.echo.future("in time"))
        client.empty.send()
        client.echo.future(number).cancel()
    assert all(future.result() is not None for future in waiting)


def bytes_per_call(tmp_path: Path, warm_up: int, count: int) -> float:
    """The bytes that each call leaves behind, here or in the serving process: the median of seven parts.

    What is lost with each call is lost in every part. A heap that grows once, because the other end was late and calls
    waited for it, is not.
    """
    with far(tmp_path) as (process, _end, client):
        both = [psutil.Process(), psutil.Process(process.process.pid)]
        calls(client, warm_up)
        num_fds = len(os.listdir("/proc/self/fd"))
        sizes = [[one.memory_info().rss for one in both]]
        for _ in range(7):
            calls(client, count // 7)
            sizes.append([one.memory_info().rss for one in both])
        assert len(os.listdir("/proc/self/fd")) <= num_fds
        ends = zip(*sizes, strict=True)
        return max(median(after - before for before, after in pairwise(end)) for end in ends) / (count // 7)


def test_twenty_thousand_calls_leave_nothing_in_memory(tmp_path: Path) -> None:
    assert bytes_per_call(tmp_path, 10_000, 21_000) < 75


@pytest.mark.soak
def test_a_million_calls_leave_nothing_in_memory(tmp_path: Path) -> None:
    # The heap of a process that has run other tests settles only after some hundred thousand.
    assert bytes_per_call(tmp_path, 300_000, 700_000) < 6
