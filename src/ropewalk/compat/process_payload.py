"""The messages that carry a `Process` object to the process that runs it.

    owner: PackedProcess                       process
            ◀───────────── Up ─────────────
            ───── BeginProcess, parts ─────▶ unpack, run
            ◀─────────── Loaded ───────────

The object is pickled before `start` returns, so later changes by the caller have no effect. Large arrays are in a
memory file (memfd), which the process maps if it is on the same host.
"""

from __future__ import annotations

import multiprocessing
import os
import re
from collections.abc import Sequence
from multiprocessing import util
from multiprocessing.process import AuthenticationString, BaseProcess  # type: ignore[attr-defined]  # not in the stubs
from typing import Any, cast

import msgspec

from ropewalk.errors import NotPicklable
from ropewalk.processes.code_parts import parts_of, value_of
from ropewalk.transport.blobs import SHARED_MIN_BYTES, open_parts, pack, parts_of_file, total_bytes
from ropewalk.transport.frames import Part
from ropewalk.transport.link import Codec, Link, Received
from ropewalk.transport.main_namespace import MainFacts, MainNamespace, main_facts
from ropewalk.transport.pickle_rollback import PickleAttempt
from ropewalk.transport.serialization import dumps_code

_ARGUMENT = re.compile(r"\._(args|kwargs|target)\b")
"""Private attributes of a process, whose underscore is removed in messages."""


class Up(msgspec.Struct, tag=0, array_like=True, frozen=True):
    """process ──▶ owner: ready. Without it, file descriptors could arrive before the connecting side accepts them."""


_util: Any = util  # `multiprocessing` itself passes private variables of this module on to its processes


class BeginProcess(msgspec.Struct, tag=1, array_like=True, frozen=True):
    """owner ──▶ process: the object to run, whose parts are those of `code_parts`."""

    main: bytes
    """Facts of the owner's `__main__`."""
    name: str
    authkey: bytes
    shared: tuple[int, ...]
    """Sizes of the parts in bytes, if they are in a memory file."""
    log_level: int | None = None
    """Level of the logger of `multiprocessing`, if the owner uses it."""
    logs_to_stderr: bool = False


class Loaded(msgspec.Struct, tag=2, array_like=True, frozen=True):
    """process ──▶ owner: the process object is unpickled, and the shared objects in it have arrived."""


PROCESS = Codec(BeginProcess | Up | Loaded)


class PackedProcess:
    """A pickled process object, kept until it is sent or no longer needed.

    Args:
        process: the process object; it is copied before the constructor returns.

    Raises:
        NotPicklable: a part of it cannot be sent.
    """

    def __init__(self, process: BaseProcess) -> None:
        config: dict[str, Any] = cast(Any, process)._config
        authkey = config.pop("authkey")  # cannot be pickled; it is sent separately
        try:
            with PickleAttempt() as trial:
                code = dumps_code(process, what=process.name)
        except NotPicklable as error:
            raise _in_words_of_the_user(error, process.name) from error.__cause__
        finally:
            config["authkey"] = authkey
        self._under_way = trial.noted
        parts = parts_of(code.payload, code.definitions)
        self._fd = _memory_file(parts)
        self._parts = [bytes(part) for part in parts] if self._fd is None else []
        self._lengths = tuple(memoryview(part).nbytes for part in parts)
        self._begin = BeginProcess(
            main=msgspec.msgpack.encode(main_facts()),
            name=process.name,
            authkey=bytes(authkey),
            shared=(),
            log_level=_util._logger.getEffectiveLevel() if _util._logger else None,
            logs_to_stderr=_util._log_to_stderr,
        )

    def send(self, link: Link) -> None:
        """Send the object, and release its memory.

        Raises:
            LinkClosed: the process is gone.
        """
        try:
            if self._fd is None:
                link.send(self._begin, self._parts)
            elif link.stream.carries_fds:
                link.send(msgspec.structs.replace(self._begin, shared=self._lengths), fds=[self._fd])
            else:
                link.send(self._begin, parts_of_file(self._fd, self._lengths))
        finally:
            self.close()

    def loaded(self) -> None:
        """Note that the process has unpickled the object."""
        self._under_way = []

    def give_up(self) -> None:
        """Note that the process has ended; unless `loaded`, its shared objects never arrive. May be called twice.

        Without this call, their depots would wait for them, and the reader of a pipe for a writer that never existed.
        """
        under_way, self._under_way = self._under_way, []
        for take_back in under_way:
            take_back()
        self.close()

    def close(self) -> None:
        """Release the memory; may be called twice."""
        self._parts = []
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def unpack(received: Received) -> BaseProcess:
    """Unpickle the process object in the process that will run it, and add the names it needs to `__main__`.

    Raises:
        Exception: any exception that unpickling raises.
    """
    begin: BeginProcess = received.message
    shared = open_parts(received.fds.take(), begin.shared, writable=True) if begin.shared else []
    authkey = cast(bytes, AuthenticationString(begin.authkey))
    # Set before anything is unpickled: proxies of managers read the key here, and log lines the name.
    current = multiprocessing.current_process()
    current.name, current.authkey = begin.name, authkey
    if begin.log_level is not None:
        util.get_logger().setLevel(begin.log_level)
    if begin.logs_to_stderr:
        util.log_to_stderr()
    namespace = MainNamespace(msgspec.msgpack.decode(begin.main, type=MainFacts))
    process = value_of(shared or received.parts, namespace.install, writable=True)
    process._config["authkey"] = authkey
    return process


def _memory_file(parts: Sequence[Part]) -> int | None:
    """Create a memory file with the parts; None if they are small, or there is no memory for it."""
    if total_bytes(parts) < SHARED_MIN_BYTES:
        return None
    try:
        return pack(parts, "ropewalk-process")
    except OSError:
        return None


def _in_words_of_the_user(error: NotPicklable, name: str) -> NotPicklable:
    """Return the error with `args[0]` instead of `Process-1._args[0]` as its path."""
    path = _ARGUMENT.sub(r".\1", error.path).removeprefix(f"{name}.")
    return NotPicklable(f"{name}: {error}".replace(error.path, path), path=path)
