"""Entering and making Linux namespaces, from a thread that does nothing else.

Network, mount, UTS and IPC namespaces belong to the thread that enters them, and so
does the PID namespace of the processes that it will start. So a thread moves in, does
one thing there, and ends: what it opened (a socket) or started (a process, as a direct
child of ours) stays behind in those namespaces, and the rest of this process has never
left its own. That is `nsenter` without a program in between that would swallow signals
and exit codes.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

Result = TypeVar("Result")

NEW_MOUNTS = 0x00020000
NEW_HOSTNAME = 0x04000000
NEW_IPC = 0x08000000
NEW_PIDS = 0x20000000
NEW_NETWORK = 0x40000000
#: Working folder and root of its own: who shares them with other threads may not change mounts.
_NEW_FOLDERS = 0x00000200

#: In the order in which they are entered; by the names in /proc/PID/ns.
KINDS = ("ipc", "uts", "net", "pid", "mnt")

_PRIVATE = 1 << 18
_RECURSIVE = 1 << 14
_BIND = 1 << 12

_libc = ctypes.CDLL(None, use_errno=True)


def in_thread(act: Callable[[], Result]) -> Result:
    """Call `act` in a thread of its own, wait for it, and hand on what it returns or raises."""
    outcome: list[tuple[Result | None, BaseException | None]] = []

    def run() -> None:
        try:
            _check(_libc.unshare(_NEW_FOLDERS), "unshare of the working folder")
            outcome.append((act(), None))
        except BaseException as error:
            outcome.append((None, error))

    thread = threading.Thread(target=run, name="ropewalk-lab-visit")
    thread.start()
    thread.join()
    ((result, error),) = outcome
    if error is not None:
        raise error
    return result  # pyright: ignore[reportReturnType]


def enter(namespaces: Sequence[int]) -> None:
    """Move this thread into the namespaces that these descriptors stand for."""
    for descriptor in namespaces:
        _check(_libc.setns(descriptor, 0), "setns")


def leave_for_new(kinds: int) -> None:
    """Move this thread into new namespaces; the first process that it starts is the PID namespace's number 1."""
    _check(_libc.unshare(kinds), "unshare of namespaces")


def mount(source: str, target: str, kind: str, options: str = "") -> None:
    """Mount a file system of `kind`, such as "tmpfs"."""
    _mount(source, target, kind, 0, options)


def bind(source: str, target: str) -> None:
    """Let the folder or file `source`, with what is mounted below it, also be seen at `target`."""
    _mount(source, target, "none", _BIND | _RECURSIVE, "")


def keep_mounts_private() -> None:
    """Let no mount of this thread's namespace reach the one that it was copied from."""
    _mount("none", "/", "none", _PRIVATE | _RECURSIVE, "")


def set_hostname(name: str) -> None:
    """Name the machine of this thread's UTS namespace."""
    _check(_libc.sethostname(name.encode(), len(name.encode())), f"sethostname({name!r})")


def descriptor_of(pid: int | None, kind: str) -> int:
    """Open a namespace of a process, or of this thread; it exists at least as long as the descriptor is open."""
    owner = "thread-self" if pid is None else str(pid)
    return os.open(f"/proc/{owner}/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC)


def _mount(source: str, target: str, kind: str, flags: int, options: str) -> None:
    result = _libc.mount(source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), options.encode())
    _check(result, f"mount of {source} ({kind}) on {target}")


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
