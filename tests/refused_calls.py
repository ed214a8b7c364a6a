"""System calls that fail, as in a container with a strict seccomp profile or in a sandbox such as gVisor."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Callable, Iterable

_IS_ARM = platform.machine() == "aarch64"
_PRCTL, _SOCKETPAIR, _FCNTL = (167, 199, 25) if _IS_ARM else (157, 53, 72)
#: By the names of `kernel.FEATURES`: the number of the call, and, if it does more than this, an argument with its mask.
_CALLS: dict[str, list[tuple[int, tuple[int, int, int] | None]]] = {
    "memfd_create": [(279 if _IS_ARM else 319, None)],
    "pidfd_open": [(434, None)],
    "membarrier": [(283 if _IS_ARM else 324, None)],
    "PR_SET_CHILD_SUBREAPER": [(_PRCTL, (0, 0xFFFFFFFF, 36))],
    "PR_SET_PDEATHSIG": [(_PRCTL, (0, 0xFFFFFFFF, 1))],
    "SOCK_SEQPACKET": [(_SOCKETPAIR, (1, 0xF, 5))],
    "F_OFD_SETLK": [(_FCNTL, (1, 0xFFFFFFFF, command)) for command in (36, 37, 38)],
}
NAMES = tuple(_CALLS)

_LOAD, _AND, _IF_EQUAL, _RETURN = 0x20, 0x54, 0x15, 0x06
_ALLOW, _FAIL = 0x7FFF0000, 0x00050000
_ARGUMENTS_AT = 16
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _FILTER = 38, 22, 2


def refusing(names: Iterable[str], error: int = errno.EPERM) -> Callable[[], None]:
    """What a new process calls so that these fail in it and in all that it starts (`preexec_fn`)."""
    program = _filter([call for name in names for call in _CALLS[name]], error)
    buffer = ctypes.create_string_buffer(program, len(program))
    # struct sock_fprog: how many instructions, and where they are.
    facts = ctypes.create_string_buffer(struct.pack("@HP", len(program) // 8, ctypes.addressof(buffer)))
    libc = ctypes.CDLL(None, use_errno=True)
    kept = buffer

    def refuse() -> None:
        assert kept is buffer
        none = ctypes.c_ulong(0)
        for option, *values in (
            (_PR_SET_NO_NEW_PRIVS, 1, 0),
            (_PR_SET_SECCOMP, _FILTER, ctypes.addressof(facts)),
        ):
            if libc.prctl(option, *map(ctypes.c_ulong, values), none, none):
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    return refuse


def _filter(calls: list[tuple[int, tuple[int, int, int] | None]], error: int) -> bytes:
    steps: list[tuple[int, int, int, int]] = []
    for number, argument in calls:
        matches = [] if argument is None else [
            (_LOAD, 0, 0, _ARGUMENTS_AT + 8 * argument[0]),
            (_AND, 0, 0, argument[1]),
            (_IF_EQUAL, 0, 1, argument[2]),
        ]  # fmt: skip
        steps += [(_LOAD, 0, 0, 0), (_IF_EQUAL, 0, len(matches) + 1, number), *matches, (_RETURN, 0, 0, _FAIL | error)]
    return b"".join(struct.pack("HBBI", *step) for step in [*steps, (_RETURN, 0, 0, _ALLOW)])
