"""What CPython's left-out tests are about, said without private attributes, on the same pools."""

from __future__ import annotations

import collections
import functools
import importlib
import os
import pathlib
import subprocess
import sys
import time
from typing import Any

import pytest

POOL: Any = importlib.import_module(os.environ.get("CONFORMANCE_POOL", "ropewalk"))


def check_in(register: pathlib.Path, expected: int, _: int) -> int:
    """Ends when `expected` workers are in this function at once."""
    with register.open("ab", buffering=0) as file:
        file.write(b".")
    deadline = time.monotonic() + 10
    while register.stat().st_size < expected:
        assert time.monotonic() < deadline, f"{register.stat().st_size} of {expected} workers came"
        time.sleep(0.01)
    return os.getpid()


@pytest.mark.parametrize("processes", [0, -1])
def test_a_pool_of_no_workers_is_refused(processes: int) -> None:
    """_TestPool.test_make_pool, the first half."""
    with pytest.raises(ValueError, match="process"):
        POOL.Pool(processes)


def test_a_pool_has_as_many_workers_as_asked_for(tmp_path: pathlib.Path) -> None:
    """_TestPool.test_make_pool, the second half."""
    pool = POOL.Pool(3)
    try:
        pids = pool.map(functools.partial(check_in, tmp_path / "register", 3), range(3), chunksize=1)
        assert len(set(pids)) == 3
    finally:
        pool.close()
        pool.join()


def test_a_worker_is_replaced_after_maxtasksperchild() -> None:
    """_TestPoolWorkerLifetime.test_pool_worker_lifetime."""
    pool = POOL.Pool(3, maxtasksperchild=10)
    try:
        answers = [pool.apply_async(os.getpid) for _ in range(100)]
        tasks = collections.Counter(answer.get(timeout=30) for answer in answers)
    finally:
        pool.close()
        pool.join()
    assert sum(tasks.values()) == 100
    assert max(tasks.values()) <= 10


def test_dropping_a_running_pool_warns() -> None:
    """_TestPool.test_resource_warning; in its own process, because not every pool ends when it is dropped."""
    script = f"import {POOL.__name__} as m, gc; pool = m.Pool(1); assert pool.apply(int) == 0; del pool; gc.collect()"
    done = subprocess.run([sys.executable, "-W", "default", "-c", script], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    assert "ResourceWarning: unclosed" in done.stderr
