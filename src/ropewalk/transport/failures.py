"""Exceptions that travel back to the caller: their own type, their text, and the remote traceback.

    raised there ──failure_of──▶ Failure ──rebuild_error──▶ raised here, the remote traceback as its cause

The text survives even if the exception itself can be neither pickled nor rebuilt. An exception that crosses several
processes keeps one traceback, whose frames are in the order of the calls (`one_traceback.py`).
"""

from __future__ import annotations

import pickle
import sys
import traceback
from typing import Any, cast

import msgspec

from ropewalk.errors import RemoteError
from ropewalk.escaping import escaped_lines
from ropewalk.transport.one_traceback import note_of_place, one_traceback, origin_of, own_notes, with_known_code
from ropewalk.transport.serialization import dumps_result, loads


class Failure(msgspec.Struct, array_like=True, frozen=True):
    """An exception in transit; its text survives even if the exception itself cannot be rebuilt."""

    type_name: str
    message: str
    traceback: str
    pickle: bytes
    buffers: list[bytes]
    origin: str = ""
    """The process that raised it, if it is another one than the sender."""


FAILURE_DECODER = msgspec.msgpack.Decoder(Failure)


def failure_of(error: BaseException, *ours: str, raised_in: str = "") -> Failure:
    """Prepare an exception for sending.

    Args:
        error: the exception.
        *ours: names of modules whose outer frames are left out of its traceback.
        raised_in: the task that raised it, such as "task 3", for an exception that cannot be pickled; "" to leave that
            out.
    """
    try:
        message = str(error)
    except Exception as problem:  # the user's own __str__
        message = f"<its str() raised {type(problem).__name__}>"
    if isinstance(error, ValueError) and "read-only" in message:
        error.add_note(
            "What a pool's function closes over, and what pool.put was given, is one copy for all processes of the "
            "host and read-only; copy() it to change it."
        )
    bdb = sys.modules.get("bdb")
    if bdb and isinstance(error, bdb.BdbQuit):
        error.add_note(
            "No terminal is connected to this process, so a debugger cannot stop in it. In the script's own process it "
            'can: with multiprocessing.pool.ThreadPool in place of a pool, and program.launch("threads").'
        )
    message, text = _sendable(message), _sendable(one_traceback(error, *ours))
    type_name = f"{type(error).__module__}.{type(error).__qualname__}"
    try:
        payload = dumps_result(error, what="exception")
    except Exception as problem:
        stand_in = _in_words(problem, error, f"{type_name.removeprefix('builtins.')}: {message}", raised_in)
        return Failure(type_name, message, text, stand_in, [], origin_of(error))
    return Failure(
        type_name, message, text, payload.pickle, [bytes(buffer) for buffer in payload.buffers], origin_of(error)
    )


def _sendable(text: str) -> str:
    """Return a text that can be encoded: bytes of a file name that is no UTF-8 are lone surrogates, and are escaped."""
    return text.encode("utf-8", "backslashreplace").decode()


def not_sendable(problem: Exception, value: Any) -> Failure:
    """Return the error for a result that cannot be pickled, as multiprocessing reports it."""
    from multiprocessing import pool  # a slow import that most workers never need

    error = cast(Any, pool).MaybeEncodingError  # the stubs do not have it
    stand_in = error(problem, _with_repr(value))
    text = "".join(traceback.format_exception_only(problem))
    return Failure("multiprocessing.pool.MaybeEncodingError", str(stand_in), text, pickle.dumps(stand_in), [])


def _in_words(problem: Exception, error: BaseException, words: str, raised_in: str) -> bytes:
    """Return the pickle of what stands for an exception that cannot be pickled."""
    from ropewalk.transport.unsent_exception import UnsentException  # a slow import that most workers never need

    where = f"raised in {raised_in}; " if raised_in else ""
    why = f"{where}this exception cannot be pickled, so only its text and its traceback are here: {problem}"
    return pickle.dumps(UnsentException(problem, _with_repr(error), f"{words} ({why})"))


def _with_repr(value: object) -> object:
    """Return the value, or words in its place if its own `__repr__` raises."""
    try:
        repr(value)
    except Exception as broken:
        return f"<{type(value).__qualname__} whose repr raised {broken!r}>"
    return value


def rebuild_error(failure: Failure, where: str) -> BaseException:
    """Rebuild the exception of a task with its own type, and the remote traceback as its cause."""
    try:
        error = loads(failure.pickle, failure.buffers)
        if not isinstance(error, BaseException):
            raise TypeError(f"unpickling gave a {type(error).__name__}")
    except Exception as problem:
        advice = "give its class a __reduce__, or pass all arguments of __init__ on to super().__init__"
        if isinstance(problem, ImportError):
            advice = "its module is missing in this process"
        error = RemoteError(
            f"{failure.type_name}: {failure.message} (this exception cannot be rebuilt here: {problem!r}; {advice})",
            type_name=failure.type_name,
        )
    if where:
        _set(error, "__notes__", [*own_notes(error), note_of_place(where, failure.origin)])
    _set(error, "__cause__", remote_traceback(failure.traceback))
    return error


def remote_traceback(text: str) -> BaseException:
    """Return the cause of an exception that came from another process: its text is printed above the exception.

    Args:
        text: the traceback there. Lines of code that only this process knows are added: of the cells of a notebook.
    """
    # A slow import, for failures only; the stubs do not have the class.
    from multiprocessing.pool import RemoteTraceback  # type: ignore[attr-defined]

    return cast("BaseException", RemoteTraceback(escaped_lines(with_known_code(text))))


_set = BaseException.__setattr__
"""Sets an attribute even on an exception whose class forbids that, such as a frozen dataclass."""
