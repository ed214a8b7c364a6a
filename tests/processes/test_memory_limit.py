"""Who uses more memory than it may is found, with all that it started, and told apart from who only shares it."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ropewalk.processes.memory_limit import explaining, overuse

MIB = 1 << 20
#: Allocates, says so, starts what its argument says (allocating as well), and waits for the end of its standard input.
ALLOCATE = f"kept = bytearray(100 * {MIB}); kept[::4096] = b'x' * len(kept[::4096])"
WAIT = "print('ready', flush=True); sys.stdin.read()"


@contextmanager
def running(code: str) -> Generator[int]:
    """A process in a session of its own; its id."""
    process = subprocess.Popen(
        [sys.executable, "-c", f"import os, subprocess, sys\n{code}\n{WAIT}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdin and process.stdout
    try:
        assert process.stdout.readline() == "ready\n"
        yield process.pid
    finally:
        process.stdin.close()
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()


def test_a_process_within_its_limit_is_left_alone_and_one_beyond_it_is_told_with_both_numbers() -> None:
    with running(ALLOCATE) as pid, running("") as small:
        assert overuse({pid: 400 * MIB, small: 100 * MIB}) == {}
        found = overuse({pid: 64 * MIB, small: 100 * MIB})
    assert list(found) == [pid]
    assert found[pid].startswith("it used 1") and "MiB, its memory limit is 64 MiB (requires(memory=...))" in found[pid]


@pytest.mark.parametrize("own_session", [False, True])
def test_what_a_process_starts_counts_with_it_also_in_a_session_of_its_own(own_session: bool) -> None:
    child = f"import sys; {ALLOCATE}; {WAIT}"
    code = f"""
inner = [subprocess.Popen([sys.executable, '-c', {child!r}], stdout=subprocess.PIPE, start_new_session={own_session})
         for _ in range(2)]
for process in inner: process.stdout.readline()
"""
    with running(code) as pid:
        assert list(overuse({pid: 180 * MIB})) == [pid], "each of the two uses only 100 MiB"


def test_memory_that_forked_children_share_counts_once() -> None:
    code = f"""
{ALLOCATE}
for _ in range(4):
    if os.fork() == 0:
        import signal
        signal.pause()
"""
    with running(code) as pid:
        assert overuse({pid: 250 * MIB}) == {}, "five times 100 MiB by resident memory"
        assert list(overuse({pid: 90 * MIB})) == [pid]


def test_processes_that_are_gone_or_unknown_use_nothing(tmp_path: Path) -> None:
    (tmp_path / "12").mkdir()
    (tmp_path / "13").mkdir()
    (tmp_path / "13" / "stat").write_text("13 (broken")
    assert overuse({12: 1, 13: 1, 14: 1}, tmp_path) == {} and overuse({}, Path("/none")) == {}


def test_a_name_with_brackets_and_a_circle_of_parents_confuse_nobody(tmp_path: Path) -> None:
    rest = " ".join(["0"] * 17)
    for pid, parent, session in ((12, 1, 12), (13, 14, 13), (14, 13, 14), (15, 12, 15)):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "stat").write_text(f"{pid} (a) b (c)) S {parent} {pid} {session} {rest} 262144 0")
    (tmp_path / "15" / "smaps_rollup").write_text("0-1 ---p\nRss: 1 kB\nPss: 2097152 kB\n")
    page = os.sysconf("SC_PAGE_SIZE")
    used = (262144 * page + 2 * 2**30) / 2**30
    limit = 0.000977
    assert overuse({12: 1}, tmp_path) == {
        12: f"it used {used:.1f} GiB, its memory limit is {limit} KiB (requires(memory=...))"
    }


def test_an_allocation_beyond_the_limit_fails_and_says_why() -> None:
    code = f"""
from ropewalk.processes.memory_limit import explaining, limit_this_process
limit_this_process(200 * {MIB})
kept = bytearray(50 * {MIB})
try:
    explaining(lambda: bytearray(200 * {MIB}))()
except MemoryError as error:
    print(error.__notes__)
import mmap
flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
mmap.mmap(-1, 400 * {MIB}, flags=flags, prot=mmap.PROT_READ)  # address space is not memory
limit_this_process(10**15)
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said == "['the memory limit of this process is 200 MiB (requires(memory=...))']\n"


@pytest.mark.skipif(
    resource.getrlimit(resource.RLIMIT_DATA)[0] != resource.RLIM_INFINITY, reason="the tests themselves are limited"
)
def test_without_a_limit_there_is_nothing_to_explain() -> None:
    assert explaining(dict) is dict
