"""Very many small calls: memory stays flat at both ends, and so does the number of descriptors."""

from __future__ import annotations

import os
from collections import deque
from pathlib import Path
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


def grown_bytes(tmp_path: Path, warm_up: int, count: int) -> tuple[int, int]:
    """By how much this process and the serving one have grown over `count` calls."""
    with far(tmp_path) as (process, _end, client):
        both = [psutil.Process(), psutil.Process(process.process.pid)]
        calls(client, warm_up)
        before = [one.memory_info().rss for one in both]
        num_fds = len(os.listdir("/proc/self/fd"))
        calls(client, count)
        assert len(os.listdir("/proc/self/fd")) <= num_fds
        ours, theirs = (one.memory_info().rss - was for one, was in zip(both, before, strict=True))
        return ours, theirs


def test_twenty_thousand_calls_leave_nothing_in_memory(tmp_path: Path) -> None:
    # 100 bytes kept for each call would be 2 MB.
    assert max(grown_bytes(tmp_path, 10_000, 20_000)) < 1_500_000


@pytest.mark.soak
def test_a_million_calls_leave_nothing_in_memory(tmp_path: Path) -> None:
    # The heap of a process that has run other tests settles only after some hundred thousand.
    assert max(grown_bytes(tmp_path, 300_000, 700_000)) < 4_000_000
