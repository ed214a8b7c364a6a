"""What a host of another kind than ours does to a run: few descriptors, a folder that was removed."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from ropewalk.transport import kernel

_POOL = """
    import resource, sys
    import ropewalk as rw

    resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
    with rw.Pool(12) as pool:
        print(sum(pool.map(abs, range(100))), resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


def _run(code: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", textwrap.dedent(code)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)


def test_a_host_holds_more_processes_than_its_usual_limit_of_descriptors_allows() -> None:
    ended = _run(_POOL.format(soft=64, hard=2000))
    assert ended.stdout.split() == ["4950", "2000"], ended.stderr


def test_the_limit_of_descriptors_is_named_where_it_cannot_be_raised() -> None:
    ended = _run(_POOL.format(soft=40, hard=40))
    assert "Too many open files. The limit of this host is 40: raise it (ulimit -Hn" in ended.stderr, ended.stderr


def test_only_a_lack_of_descriptors_is_explained_by_their_limit() -> None:
    assert kernel.what_to_raise(OSError(12, "Cannot allocate memory")) == ""


@pytest.mark.skipif(sys.version_info[:2] == (3, 13), reason="Python 3.13 cannot import socket in such a folder")
def test_a_pool_works_in_a_folder_that_was_removed(tmp_path: Path) -> None:
    code = """
        import os
        import ropewalk as rw

        os.rmdir(os.getcwd())
        with rw.Pool(2) as pool:
            print(pool.map(abs, [-1, 2]))
    """
    ended = _run(code, tmp_path)
    assert ended.stdout == "[1, 2]\n", ended.stderr
