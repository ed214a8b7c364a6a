"""Calls made as another user of this machine, for attacks that need a second one. Only root can become others."""

from __future__ import annotations

import importlib
import os
import pickle
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

#: Two users whom nobody has an account for.
ADA, MALLORY = 54_321, 54_322

needs_root = pytest.mark.skipif(os.getuid() != 0, reason="needs root to become another user")

ResultT = TypeVar("ResultT")


def as_user(uid: int, call: Callable[[], ResultT], *, umask: int = 0o022) -> ResultT:
    """What `call` returns or raises in a copy of this process that belongs to another user."""
    for module in ("grp", "pwd", "encodings.ascii"):  # another user may not be able to read what is imported late
        importlib.import_module(module)
    read, write = os.pipe()
    sys.stdout.flush()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
        pid = os.fork()
    if not pid:
        try:
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
            os.umask(umask)
            os.environ["HOME"] = "/nonexistent"
            try:
                answer = True, call()
            except Exception as error:
                answer = False, error
            os.write(write, pickle.dumps(answer))
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(write)
    with open(read, "rb") as pipe:
        data = pipe.read()
    os.waitpid(pid, 0)
    assert data, "it died, or gave what cannot be pickled"
    is_result, value = pickle.loads(data)
    if not is_result:
        raise value
    return value


@pytest.fixture
def everybodys() -> Iterator[Path]:
    """A folder like /tmp: all users may write, and the way to it is open."""
    # Not below `tmp_path`: its parent is closed to others, by each run of pytest that begins.
    with tempfile.TemporaryDirectory(prefix="rw-shared-", dir=os.environ["PYTEST_DEBUG_TEMPROOT"]) as folder:
        os.chmod(folder, 0o1777)
        yield Path(folder)
