"""Memory that the processes of a host make once: real workers, one of which dies while it makes it."""

from __future__ import annotations

import contextlib
import gc
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

import ropewalk as rw
from ropewalk.pool.pool import Pool
from ropewalk.processes.host_memory import made_once
from ropewalk.sharing.synchronize import Barrier

SIZE = 100_000


def fill(view: memoryview) -> None:
    assert len(view) == SIZE
    assert not any(view)
    view[:] = bytes([7]) * SIZE


def noting(folder: Path, ends: Callable[[], object] | None = None) -> Callable[[memoryview], object]:
    """A fill that leaves a file for each time it is called; the first call ends as told."""

    def noting_fill(view: memoryview) -> None:
        (folder / f"{len(list(folder.iterdir()))}").touch(exist_ok=False)
        if ends and not (folder / "1").exists():
            ends()
        fill(view)

    return noting_fill


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def refuse() -> None:
    raise ArithmeticError("no noise today")


def not_called(_view: memoryview) -> None:
    raise AssertionError("it is made already")


def files_mapped() -> set[str]:
    """The inodes of memory that was made for the host, and is mapped here."""
    return set(re.findall(r"(\d+) +/memfd:ropewalk-made", Path("/proc/self/maps").read_text()))


def ask(folder: Path, ends: Callable[[], object] | None, barrier: Barrier | None = None) -> tuple[int, set[str]]:
    if barrier:
        barrier.wait(120)
    view = made_once(f"test/{folder}", SIZE, noting(folder, ends))
    assert view.readonly
    assert bytes(view) == bytes([7]) * SIZE
    return os.getpid(), files_mapped()


def num_sockets() -> int:
    return sum("socket:" in os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd"))


def ask_and_drop(folder: Path) -> tuple[set[str], set[str]]:
    """What is mapped with the memory, and what without."""
    num_before = num_sockets()
    with made_once(f"test/{folder}", SIZE, noting(folder)) as view:
        assert view[0] == 7
        mapped = files_mapped()
        gc.collect()
        assert num_sockets() == num_before + 1, "the agent does not know that it is used"
    del view
    gc.collect()
    assert num_sockets() == num_before
    return mapped, files_mapped()


def ask_in_a_child(folder: Path, other: Path) -> int:
    """What a forked child of a worker can do: it uses its parent's memory, and asks for more."""
    view = made_once(f"test/{folder}", SIZE, not_called)
    pid = os.fork()
    if not pid:
        code = 1
        with contextlib.suppress(BaseException):
            ask(other, None)
            code = 0 if view[0] == 7 and made_once(f"test/{folder}", SIZE, not_called)[0] == 7 else 2
        os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_processes_of_a_host_make_memory_once_also_when_the_maker_dies(tmp_path: Path) -> None:
    calm, deadly, faulty, other = (tmp_path / name for name in ("calm", "deadly", "faulty", "other"))
    for folder in (calm, deadly, faulty, other, other / "child"):
        folder.mkdir()
    with rw.Session() as session, Pool(3, session=session, preload=[__name__]) as pool:
        barrier = Barrier(3, session=session)
        found = pool.starmap(ask, [(calm, None, barrier)] * 3, chunksize=1)
        assert len({pid for pid, _ in found}) == 3
        assert len(list(calm.iterdir())) == 1, "it was made more than once"
        assert len({tuple(files) for _, files in found}) == 1, "the processes do not share it"

        found = pool.starmap(ask, [(deadly, die)] * 6, chunksize=1)
        assert len(list(deadly.iterdir())) == 2, "one died, and one made it for all"

        with pytest.raises(ArithmeticError, match="no noise today"):
            pool.apply(ask, (faulty, refuse))
        pool.apply(ask, (faulty, refuse))
        assert len(list(faulty.iterdir())) == 2

        mapped, left = pool.apply(ask_and_drop, (other,))
        assert mapped
        assert not left, "memory that nobody uses is mapped"
        assert pool.apply(ask_and_drop, (other,))[0] == mapped, "it was not kept for its next user"
        assert pool.apply(ask_in_a_child, (other, other / "child")) == 0


def test_in_a_process_of_its_own_it_is_memory_of_the_process(tmp_path: Path) -> None:
    view = made_once("test/alone", SIZE, noting(tmp_path))
    again = made_once("test/alone", SIZE, noting(tmp_path))
    again = again[10:]
    assert view.readonly
    assert bytes(again[:5]) == bytes([7]) * 5
    assert len(list(tmp_path.iterdir())) == 1
    del view, again
    made_once("test/alone", SIZE, noting(tmp_path))
    assert len(list(tmp_path.iterdir())) == 2, "it was kept without a user"
    with pytest.raises(ValueError, match="at least 1, not 0"):
        made_once("test/alone", 0, fill)
