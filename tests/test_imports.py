"""Importing ropewalk starts nothing, opens nothing, loads nothing heavy, and is quick."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

HEAVY = [
    *("numpy", "torch", "rich", "click", "ssl", "cryptography", "asyncio", "gymnasium", "tomllib"),
    *("sqlalchemy", "alembic", "psycopg", "optuna", "scipy"),
]

PROBE = """
import json, os, sys, threading, time

def descriptors():
    return sorted(os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")
                  if os.path.exists(f"/proc/self/fd/{fd}")) if os.path.isdir("/proc/self/fd") else []

modules, opened, environ = set(sys.modules), descriptors(), dict(os.environ)
started = time.perf_counter()
import ropewalk
took_s = time.perf_counter() - started
print(json.dumps({
    "took_s": took_s,
    "modules": sorted(set(sys.modules) - modules),
    "threads": [thread.name for thread in threading.enumerate()],
    "num_native_threads": len(os.listdir("/proc/self/task")) if os.path.isdir("/proc/self/task") else 1,
    "opened": [target for target in descriptors() if target not in opened],
    "environ": dict(os.environ) != environ,
    "handlers": len(__import__("logging").getLogger("ropewalk").handlers),
}))
"""


def probe() -> dict[str, Any]:
    result = subprocess.run([sys.executable, "-c", PROBE], check=True, capture_output=True, text=True)
    assert result.stderr == ""
    return json.loads(result.stdout)


@pytest.fixture(scope="module")
def imported() -> dict[str, Any]:
    return probe()


@pytest.mark.parametrize("module", HEAVY)
def test_heavy_modules_wait_until_they_are_needed(imported: dict[str, Any], module: str) -> None:
    assert module not in imported["modules"]


def test_importing_starts_and_opens_nothing(imported: dict[str, Any]) -> None:
    assert imported["threads"] == ["MainThread"]
    assert imported["num_native_threads"] == 1
    assert imported["opened"] == []
    assert not imported["environ"]
    assert imported["handlers"] == 0


@pytest.mark.timing
def test_importing_takes_no_longer_than_importing_what_the_standard_library_has_for_it() -> None:
    """The quickest of several: the promise is about our code, not about what else this machine is doing."""
    names = "asyncio, concurrent.futures, multiprocessing.managers, multiprocessing.pool"
    code = f"import time; began = time.perf_counter(); import {names}; print(time.perf_counter() - began)"
    alike_s = min(float(subprocess.check_output([sys.executable, "-c", code])) for _ in range(5))
    assert min(probe()["took_s"] for _ in range(5)) < alike_s  # a tenth of a second, on an idle core


def test_every_public_name_is_there_and_listed() -> None:
    code = "import ropewalk; print([n for n in getattr(ropewalk, '__all__', []) if not hasattr(ropewalk, n)])"
    result = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert result.stdout.strip() == "[]"


def test_importing_works_without_a_home_or_a_temporary_folder() -> None:
    environ = {name: value for name, value in os.environ.items() if name not in ("HOME", "TMPDIR", "XDG_RUNTIME_DIR")}
    subprocess.run([sys.executable, "-c", "import ropewalk, ropewalk.settings"], check=True, env=environ)
