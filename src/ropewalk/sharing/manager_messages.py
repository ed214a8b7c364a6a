"""The messages between a manager and the process that started it.

starter ──▶ manager    BeginManager (with the registry and the initializer), Retired, StopManager
manager ──▶ starter    ManagerReady, or NotReady
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from ropewalk.errors import NotPicklable
from ropewalk.processes.code_parts import parts_of, value_of
from ropewalk.processes.messages import Retired
from ropewalk.transport.failures import Failure
from ropewalk.transport.frames import Part
from ropewalk.transport.link import Codec, Received
from ropewalk.transport.main_namespace import MainFacts, MainNamespace, main_facts
from ropewalk.transport.serialization import dumps_code

Contents = tuple[Mapping[str, tuple[Any, ...]], Callable[..., object] | None, Sequence[Any]]
"""The registered types, as `BaseManager` keeps them, the initializer and its arguments."""
_PATH = re.compile(r"\[([012])\](?:\['(.*?)'\](?:\[0\])?)?(.*)")


class BeginManager(msgspec.Struct, tag=0, array_like=True, frozen=True):
    """Start as a manager. The parts are those of `Contents`, as `code_parts` has them."""

    main: bytes
    """Facts of the starter's `__main__`."""
    name: str
    run_id: str
    authkey: bytes


class StopManager(msgspec.Struct, tag=1, array_like=True, frozen=True):
    """End the manager."""


class ManagerReady(msgspec.Struct, tag=2, array_like=True, frozen=True):
    """The manager can be called, at this address."""

    pid: int
    address: str


class NotReady(msgspec.Struct, tag=3, array_like=True, frozen=True):
    """The manager cannot start: the types could not be unpickled there, or the initializer raised."""

    failure: Failure
    by_initializer: bool


MANAGER = Codec(BeginManager | StopManager | Retired | ManagerReady | NotReady)


def pack(contents: Contents, name: str, run_id: str, authkey: bytes) -> tuple[BeginManager, list[Part]]:
    """Pack the first message to a manager.

    Raises:
        NotPicklable: a callable, or an object that it refers to, cannot be sent.
    """
    try:
        code = dumps_code(contents, what=name)
    except NotPicklable as error:
        raise _in_words_of_the_user(error, name) from error.__cause__
    begin = BeginManager(main=msgspec.msgpack.encode(main_facts()), name=name, run_id=run_id, authkey=authkey)
    return begin, [bytes(part) for part in parts_of(code.payload, code.definitions)]


def unpack(received: Received) -> Contents:
    """Unpack the message in the manager, and add the definitions that it refers to to `__main__`.

    Raises:
        Exception: raised by unpickling.
    """
    begin: BeginManager = received.message
    namespace = MainNamespace(msgspec.msgpack.decode(begin.main, type=MainFacts))
    return value_of(received.parts, namespace.install, writable=True)


def _in_words_of_the_user(error: NotPicklable, name: str) -> NotPicklable:
    """Replace `manager-1 (Shelf)[2][1]` in the error by the user's term `initargs[1]`."""
    found = _PATH.fullmatch(error.path.removeprefix(name))
    if found is None:
        return error
    part, typeid, rest = found.groups()
    path = f"the type {typeid!r}{rest}" if part == "0" else f"{'initializer' if part == '1' else 'initargs'}{rest}"
    return NotPicklable(f"{name}: {error}".replace(error.path, path), path=path)


__all__ = ["MANAGER", "BeginManager", "Contents", "ManagerReady", "NotReady", "StopManager", "pack", "unpack"]
