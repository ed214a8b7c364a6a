"""The kernel features that Ropewalk uses, each with a test of it, and with the consequence where it is refused.

Linux alone has these features, and not everywhere: a seccomp filter of a container, a sandbox with a kernel of its own
(gVisor) and an old kernel refuse some of them. An agent tests them before it starts any process, and `ropewalk doctor`
shows them, so a refusal is reported by its name, and not as a process that never comes up.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import errno
import fcntl
import os
import resource
import signal
import socket
import struct
from collections.abc import Callable

import msgspec

from ropewalk.process_start import has_ended, stat_fields
from ropewalk.transport.barriers import join_barriers

_PR_SET_PDEATHSIG, _PR_GET_PDEATHSIG = 1, 2
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 36, 37
FLOCK = struct.Struct("@hhqqi0q")
"""`struct flock` on 64-bit Linux: type, whence, start, length, and the pid, which has to be 0 here."""
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
_KEEP_SIZE, _PUNCH_HOLE = 1, 2
"""Flags of `fallocate`."""
_MOST_DESCRIPTORS = 65536
"""The limit of open descriptors that is asked for: enough for thousands of processes on a host, and few enough for
programs that close each number up to their limit."""
LONGEST_WAIT_S = 3600.0
"""Seconds of the longest wait; a longer one is several: `poll` and epoll take at most 24 days, and none an infinity."""
_libc = ctypes.CDLL(None, use_errno=True)


# System calls


def memory_file(name: str, *, sealable: bool = False) -> int:
    """Return the descriptor of a new file in memory, which has no name in any file system; the caller owns it.

    Args:
        name: name for people who look at this process.
        sealable: whether `seal` may be called on it.

    Raises:
        OSError: no memory or descriptor is left, or the kernel refuses such files.
    """
    try:
        return os.memfd_create(name, os.MFD_CLOEXEC | (os.MFD_ALLOW_SEALING if sealable else 0))
    except OSError as error:
        raise OSError(error.errno, f"memfd_create: {error.strerror}") from None


def seal(fd: int) -> None:
    """Prevent all processes from changing a memory file, or its size, from now on.

    Raises:
        OSError: the file was not made sealable, or is mapped for writing.
    """
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)


def punch_hole(fd: int, num_bytes: int) -> None:
    """Give the first bytes of a file back to its file system; they read as zeros, and its size stays.

    Raises:
        OSError: the file system has no holes, or the file is not open for writing.
    """
    length = ctypes.c_int64(num_bytes)
    if _libc.fallocate(fd, _KEEP_SIZE | _PUNCH_HOLE, ctypes.c_int64(0), length):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def raise_descriptor_limit() -> None:
    """Raise this process's limit of open descriptors as far as it may, up to `_MOST_DESCRIPTORS`.

    Most systems have a limit of 1,024 that every process may raise, for the sake of programs that call `select`. An
    agent has about ten descriptors for each process of its host.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _MOST_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(ValueError, OSError):  # a sandbox refuses it
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def what_to_raise(error: OSError) -> str:
    """Return what to do if no descriptors were left, to be appended to the message of an error; empty for others."""
    if error.errno != errno.EMFILE:
        return ""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return f". The limit of this host is {soft:,}: raise it (ulimit -Hn, or LimitNOFILE= in a systemd unit)"


def num_runnable() -> int | None:
    """Return how many threads of this host run or are ready to run at this moment; None if the kernel does not say."""
    try:
        with open("/proc/loadavg", "rb", buffering=0) as file:
            return int(file.read(100).split()[3].partition(b"/")[0])
    except (OSError, ValueError, IndexError):
        return None


def open_process(pid: int) -> int | None:
    """Return a descriptor that becomes readable when a process has ended; None if the kernel has none.

    The caller owns it.

    Raises:
        ProcessLookupError: there is no such process.
        OSError: no descriptor is left.
    """
    try:
        return os.pidfd_open(pid)
    except OSError as error:
        if error.errno in (errno.ESRCH, errno.EMFILE, errno.ENFILE, errno.ENOMEM):
            raise
        return None


def is_running(pid: int) -> bool:
    """Return whether a process of this user is there and has not ended.

    One that has ended is there, and takes signals, until its parent has waited for it.
    """
    if pid <= 0:  # these name groups of processes
        return False
    try:
        os.kill(pid, 0)
        return not has_ended(stat_fields(pid))
    except (ProcessLookupError, PermissionError, OverflowError):
        return False
    except OSError:  # where /proc is not mounted, a zombie is taken for alive
        return True


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends; only from a process's main thread.

    Raises:
        OSError: the kernel refuses.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends.

    Raises:
        OSError: the kernel refuses.
    """
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def name_thread(name: str) -> None:
    """Set the name of this thread that `ps` and `top` show."""
    _libc.prctl(_PR_SET_NAME, name.encode()[:15], 0, 0, 0)


# Which features this kernel has


class Feature(msgspec.Struct, frozen=True):
    """A feature that a kernel has or refuses."""

    name: str
    since: str
    """The first version of Linux that has the feature."""
    gives: str
    """What Ropewalk uses the feature for."""
    without: str
    """What happens where it is refused; empty if no process can run there."""
    attempt: Callable[[], None]
    """Uses the feature, and leaves nothing behind; raises OSError where it is refused."""


class Refusal(msgspec.Struct, frozen=True):
    """A feature that is not available here."""

    feature: Feature
    why: str

    def __str__(self) -> str:
        return f"{self.feature.name} is refused ({self.why}); it gives {self.feature.gives}"


def refusal(feature: Feature) -> Refusal | None:
    """Test a feature; returns None if this process can use it."""
    try:
        feature.attempt()
    except OSError as error:
        return Refusal(feature, error.strerror or str(error))
    return None


ADVICE = "allow it in the seccomp profile of the container, or use another sandbox or a newer kernel"
"""What users do about a refusal."""


def what_keeps_processes_from_running() -> str:
    """Return why no process can be hosted here, with each refused feature by name; empty if processes can be hosted."""
    needed = [str(refused) for feature in FEATURES if not feature.without and (refused := refusal(feature))]
    return f"{'; '.join(needed)}: {ADVICE} (`ropewalk doctor` tries all that is needed)" if needed else ""


def _make_sealed_file() -> None:
    fd = os.memfd_create("ropewalk-trial", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        seal(fd)
    finally:
        os.close(fd)


def _find_through_proc() -> None:
    ends = os.pipe()
    try:
        found = os.open(f"/proc/{os.getpid()}/fd/{ends[0]}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            if not os.path.samestat(os.fstat(found), os.fstat(ends[0])):
                raise FileNotFoundError(errno.ENOENT, "what is mounted there shows other processes")
        finally:
            os.close(found)
    finally:
        for end in ends:
            os.close(end)


def _pass_descriptor() -> None:
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ends[0], ends[1]:
        ends[0].sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [ends[0].fileno()]))])
        _, fds, _, _ = socket.recv_fds(ends[1], 1, 1)
        for fd in fds:
            os.close(fd)
        if not fds:
            raise OSError(errno.EOPNOTSUPP, "descriptors sent over it do not arrive")


def _become_subreaper() -> None:
    _set_again(_PR_GET_CHILD_SUBREAPER, _PR_SET_CHILD_SUBREAPER)


def _set_death_signal() -> None:
    _set_again(_PR_GET_PDEATHSIG, _PR_SET_PDEATHSIG)


def _set_again(get: int, set: int) -> None:
    """Set a property to the value that it has already."""
    value = ctypes.c_int()
    _prctl(get, ctypes.addressof(value))
    _prctl(set, value.value)


def _watch_process() -> None:
    os.close(os.pidfd_open(os.getpid()))


def _lock_record() -> None:
    fd = memory_file("ropewalk-trial")
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0))
    finally:
        os.close(fd)


def _prctl(option: int, value: int) -> None:
    none = ctypes.c_ulong(0)
    if _libc.prctl(option, ctypes.c_ulong(value), none, none, none):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


RECORD_LOCKS = Feature(
    "F_OFD_SETLK",
    "3.15",
    "locks beside the values that they guard",
    "processes ask another one for the locks of values and arrays, which takes longer",
    _lock_record,
)

FEATURES = (
    Feature("memfd_create", "3.17", "memory for task pages and large values", "", _make_sealed_file),
    Feature("SOCK_SEQPACKET", "2.6", "the channel to the fork server, and pipes", "", _pass_descriptor),
    Feature("PR_SET_CHILD_SUBREAPER", "3.4", "the agent its workers as children", "", _become_subreaper),
    Feature("PR_SET_PDEATHSIG", "2.2", "the end of all processes with their agent", "", _set_death_signal),
    Feature("/proc", "2.2", "other processes a way to shared memory", "", _find_through_proc),
    Feature(
        "pidfd_open",
        "5.3",
        "the end of the launcher at once",
        "an agent checks every second whether its launcher is still there",
        _watch_process,
    ),
    Feature(
        "membarrier",
        "4.16",
        "back what a process was given ahead and has not begun",
        "tasks wait behind a slow one that was given to the same worker, and each `get` of a queue is a message",
        join_barriers,
    ),
    RECORD_LOCKS,
)
"""Features without which nothing runs come first."""


__all__ = [
    "ADVICE",
    "FEATURES",
    "FLOCK",
    "LONGEST_WAIT_S",
    "RECORD_LOCKS",
    "Feature",
    "Refusal",
    "adopt_orphans",
    "die_with_parent",
    "is_running",
    "memory_file",
    "name_thread",
    "open_process",
    "raise_descriptor_limit",
    "refusal",
    "seal",
    "what_keeps_processes_from_running",
    "what_to_raise",
]
