"""Exceptions on their way home: their own type, their words and the remote traceback arrive, whatever they are."""

from __future__ import annotations

import bdb
import dataclasses
import linecache
import pickle
import threading
import traceback
from collections.abc import Callable
from multiprocessing.pool import MaybeEncodingError  # type: ignore[attr-defined]
from typing import Any, NoReturn

import msgspec
import numpy as np
import pytest

import ropewalk as rw
from ropewalk.errors import RemoteError, ServiceLost, StartFailed
from ropewalk.escaping import escaped
from ropewalk.last_line import last_line
from ropewalk.quantities import parse_memory, shown_size
from ropewalk.transport.failures import FAILURE_DECODER, Failure, failure_of, not_sendable, rebuild_error


class TwoArguments(Exception):
    """Its constructor wants more than `args` holds."""

    def __init__(self, code: int, *, where: str) -> None:
        super().__init__(f"code {code} at {where}")
        self.code = code


class NotRebuildable(TwoArguments):
    """Pickles, and cannot be rebuilt."""

    def __reduce__(self) -> tuple[Any, ...]:
        return NotRebuildable, self.args


class Wrapped(Exception):
    """Puts words around its argument, which would stand there twice after a second `__init__`."""

    def __init__(self, host: str) -> None:
        super().__init__(f"no answer from {host}")


class Slotted(Exception):
    """Keeps an attribute where pickle does not look."""

    __slots__ = ("host",)

    def __init__(self, host: str) -> None:
        super().__init__(host)
        self.host = host


class Unreachable(OSError):
    def __init__(self, host: str) -> None:
        super().__init__(113, f"no route to {host}", "eth0")
        self.host = host


class Unavailable(ImportError):
    def __init__(self, module: str, why: str) -> None:
        super().__init__(why, name=module)


class Stopped(StopIteration):
    def __init__(self, code: int, where: str) -> None:
        super().__init__(f"{code} at {where}")


@dataclasses.dataclass(frozen=True)
class Fields(Exception):
    """Lets nobody set an attribute, and has no `args` where it is made with keywords."""

    code: int


class HoldsALock(Exception):
    """Cannot be pickled."""

    def __init__(self) -> None:
        super().__init__("locked")
        self.lock = threading.Lock()


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")

    __repr__ = __str__


@dataclasses.dataclass(frozen=True)
class Frozen(Exception):
    """Lets nobody set an attribute, not even `__notes__`."""

    code: int

    def __reduce__(self) -> Any:
        return Frozen, (self.code,)


class NotAnError(Exception):
    """Becomes something else on its way."""

    def __reduce__(self) -> Any:
        return int, (3,)


def raised(error: BaseException) -> BaseException:
    try:
        _raise(error)
    except BaseException as caught:
        return caught


def _raise(error: BaseException) -> NoReturn:
    raise error


def caught(call: Callable[[], None]) -> BaseException:
    try:
        call()
    except Exception as error:
        return error
    raise AssertionError("it raised nothing")


def travel(error: BaseException, where: str = "node store") -> Any:
    """There and back, as bytes on the way."""
    failure = FAILURE_DECODER.decode(msgspec.msgpack.encode(failure_of(raised(error))))
    return rebuild_error(failure, where)


@pytest.mark.parametrize(
    "error", [ValueError("broken"), KeyError("x"), Frozen(7), OSError(2, "missing", "file"), SystemExit(3)], ids=repr
)
def test_an_exception_arrives_as_its_own_type_with_the_remote_traceback_as_cause(error: BaseException) -> None:
    arrived = travel(error)
    assert type(arrived) is type(error) and arrived.args == error.args
    assert "in _raise\n    raise error\n" in str(arrived.__cause__)
    assert arrived.__notes__ == ["It was raised in node store; the remote traceback is above."]
    assert "in _raise" in "".join(traceback.format_exception(arrived))


def test_an_exception_that_crosses_several_processes_keeps_one_traceback_in_the_order_of_the_calls() -> None:
    # Each process on the way added a block of its own and repeated all others: 88 lines for one TypeError.
    def push() -> None:
        raise travel(TypeError("no such sum"), "store")

    def act() -> None:
        push()

    text = failure_of(caught(act)).traceback
    frames = [line.rpartition("in ")[2] for line in text.splitlines() if line.startswith("  ") and line[2] != " "]
    assert frames == ["caught", "act", "push", "store:", "raised", "_raise"], text
    assert text.startswith("Traceback (most recent call last):\n") and text.endswith("\nTypeError: no such sum\n")
    assert text.count("Traceback") == text.count("TypeError: ") == 1
    again = rebuild_error(failure_of(caught(act)), "node actor")
    assert again.__notes__ == ["It was raised in store, and came by way of node actor; the remote traceback is above."]
    third = rebuild_error(failure_of(again), "node learner")
    assert third.__notes__ == [
        "It was raised in store, and came by way of node learner; the remote traceback is above."
    ]
    assert "  in node learner:\n" in failure_of(third).traceback


def test_an_exception_of_ours_shows_the_frames_of_the_user_and_none_of_those_that_raised_it() -> None:
    def use() -> None:
        rw.Program("p").declare("store").push(1)  # pyright: ignore[reportAttributeAccessIssue]

    text = failure_of(caught(use)).traceback
    assert 'in use\n    rw.Program("p")' in text and "handle.py" not in text
    assert last_line(text).startswith("ropewalk.errors.HandleNotConnected: `store.push` was used")

    def parse() -> None:
        parse_memory("many")

    assert "quantities.py" not in failure_of(caught(parse)).traceback, "what is raised on purpose says all"

    def misuse() -> None:
        shown_size("many")  # pyright: ignore[reportArgumentType]

    assert "quantities.py" in failure_of(caught(misuse)).traceback, "an error of Python's says less without its frames"


def test_what_led_to_an_exception_elsewhere_stands_before_it() -> None:
    def fail() -> None:
        try:
            raise travel(KeyError("inner"), "store")
        except KeyError as error:
            raise ValueError("outer") from error

    text = failure_of(travel(caught(fail), "relay")).traceback
    first, second = text.split("The above exception was the direct cause of the following exception:")
    assert "  in store:\n" in first and first.count("KeyError: 'inner'") == 1
    assert second.endswith('in fail\n    raise ValueError("outer") from error\nValueError: outer\n')


def test_facts_of_our_own_exceptions_arrive() -> None:
    arrived = travel(ServiceLost("gone", service="store", replica=2, cause="killed", started=True))
    assert (arrived.service, arrived.replica, arrived.cause, arrived.started) == ("store", 2, "killed", True)


def test_notes_are_kept_and_without_a_place_none_is_added() -> None:
    error = ValueError("broken")
    error.add_note("the user's own")
    assert travel(error, "").__notes__ == ["the user's own"]


def test_an_exception_arrives_as_it_was_whatever_its_class_does_in_init() -> None:
    # Pickle called `__init__` again, with the message for an argument: the caller got a RemoteError, which no `except`
    # of theirs named, or the words twice.
    arrived = travel(TwoArguments(3, where="there"))
    assert (type(arrived), str(arrived), arrived.code) == (TwoArguments, "code 3 at there", 3)
    assert str(travel(Wrapped("n7"))) == "no answer from n7"
    group = travel(ExceptionGroup("two", [Wrapped("n7"), TwoArguments(3, where="there")]))
    assert [str(each) for each in group.exceptions] == ["no answer from n7", "code 3 at there"]
    assert travel(Slotted("n7")).host == "n7"
    assert travel(Stopped(3, "there")).value == "3 at there"
    assert travel(Fields(code=3)).code == 3
    arrived = travel(Unreachable("n7"))
    assert (str(arrived), arrived.errno, arrived.filename) == ("[Errno 113] no route to n7: 'eth0'", 113, "eth0")
    assert arrived.host == "n7"
    assert (travel(Unavailable("jax", "no jax")).name, str(travel(Unavailable("jax", "no jax")))) == ("jax", "no jax")


def test_what_cannot_be_rebuilt_arrives_in_words() -> None:
    arrived = travel(NotRebuildable(3, where="there"))
    assert type(arrived) is RemoteError and arrived.type_name == f"{__name__}.NotRebuildable"
    assert "NotRebuildable: code 3 at there (this exception cannot be rebuilt here" in str(arrived)
    assert "in _raise" in str(arrived.__cause__)


def test_an_exception_of_a_module_that_is_not_here_says_so() -> None:
    gone = pickle.dumps(ValueError("no")).replace(b"builtins", b"elsewher")
    arrived = rebuild_error(Failure("elsewher.ValueError", "no", "the traceback", gone, []), "")
    assert type(arrived) is RemoteError and str(arrived).endswith("; its module is missing in this process)")


def test_a_debugger_that_has_no_terminal_says_where_it_can_stop() -> None:
    (note,) = travel(bdb.BdbQuit(), "").__notes__
    assert "No terminal is connected to this process" in note


def test_what_becomes_something_else_on_its_way_arrives_in_words() -> None:
    assert "unpickling gave a int" in str(travel(NotAnError("odd")))


def test_what_cannot_be_pickled_is_reported_as_multiprocessing_does_with_its_traceback() -> None:
    arrived = travel(HoldsALock())
    assert isinstance(arrived, MaybeEncodingError) and "in _raise" in str(arrived.__cause__)
    # It said "Error sending result", with the reason in quotes, of an exception that was no result.
    assert str(arrived).startswith(f"{__name__}.HoldsALock: locked (this exception cannot be pickled, so only ")
    assert "here: exception.lock cannot be sent" in str(arrived)
    assert failure_of(HoldsALock()).type_name == f"{__name__}.HoldsALock", "what a program says that its node raised"


def test_what_cannot_be_pickled_names_its_task_and_survives_another_journey() -> None:
    arrived = rebuild_error(failure_of(raised(HoldsALock()), raised_in="task 41"), "")
    assert "(raised in task 41; this exception cannot be pickled" in str(arrived)
    assert str(pickle.loads(pickle.dumps(arrived))) == str(arrived)


def test_words_that_cannot_be_had_do_not_matter() -> None:
    failure = failure_of(raised(Unprintable()))
    assert failure.message == "<its str() raised RuntimeError>"
    assert type(rebuild_error(failure, "")) is Unprintable


def test_a_value_whose_repr_raises_can_be_refused() -> None:
    failure = not_sendable(TypeError("cannot pickle"), Unprintable())
    assert failure.type_name == "multiprocessing.pool.MaybeEncodingError"
    assert "<Unprintable whose repr raised" in failure.message and "TypeError: cannot pickle" in failure.traceback


def test_outer_frames_of_ours_are_left_out_and_inner_ones_kept() -> None:
    error = raised(ValueError("broken"))
    assert "in raised" in failure_of(error).traceback
    left = failure_of(raised(StartFailed("in words")), __name__).traceback
    assert left.splitlines()[:1] == ["ropewalk.errors.StartFailed: in words"], "all frames are of this module"
    assert "in raised" in failure_of(error, __name__).traceback, "nothing else would tell where it was"


def test_buffers_of_an_exception_travel_with_it() -> None:
    failure = failure_of(ValueError("large", np.arange(1_000_000)))
    assert sum(map(len, failure.buffers)) == 8_000_000
    assert np.array_equal(travel(ValueError("large", np.arange(1_000_000))).args[1], np.arange(1_000_000))


def test_damaged_bytes_do_not_hide_the_failure() -> None:
    failure = Failure("builtins.ValueError", "broken", "the traceback", b"\x80\x04damaged", [])
    arrived = rebuild_error(failure, "node store")
    assert type(arrived) is RemoteError and "builtins.ValueError: broken" in str(arrived)
    assert "the traceback" in str(arrived.__cause__)


def test_what_a_remote_process_writes_as_its_traceback_does_not_act_where_it_is_printed() -> None:  # S19
    hostile = "\x1b[2J\x9b2J\x85\u2028\u202e\ud800"
    found = msgspec.structs.replace(failure_of(ValueError("x")), traceback=f"Traceback\n{hostile}\n", message=hostile)
    error = rebuild_error(found, "actor")
    assert str(error.__cause__).strip() == f"Traceback\n{escaped(hostile)}"
    unknown = rebuild_error(msgspec.structs.replace(found, pickle=b"x"), "actor")
    assert isinstance(unknown, RemoteError) and escaped(hostile) in str(unknown)
    assert escaped(str(unknown)) == str(unknown)


def test_a_line_of_a_notebook_is_shown_where_it_was_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process that ran it has no file to read the line from."""
    cell = "def divide(x):\n    return 1 / x\n"
    namespace: dict[str, Any] = {}
    exec(compile(cell, "/tmp/ipykernel_1/2.py", "exec"), namespace)
    with pytest.raises(ZeroDivisionError) as raised_there:
        namespace["divide"](0)
    failure = failure_of(raised_there.value)
    frame = '  File "/tmp/ipykernel_1/2.py", line 2, in divide\n'
    assert f"{frame}ZeroDivisionError" in failure.traceback
    assert f"{frame}ZeroDivisionError" in str(rebuild_error(failure, "pool-1.0 on vm").__cause__)
    monkeypatch.setitem(linecache.cache, "/tmp/ipykernel_1/2.py", (len(cell), None, cell.splitlines(True), ""))
    arrived = str(rebuild_error(failure, "pool-1.0 on vm").__cause__)
    assert f"{frame}    return 1 / x\nZeroDivisionError" in arrived
    assert arrived.count("    raised") == failure.traceback.count("    raised"), "lines that are there are not repeated"


def test_an_exception_with_bytes_of_a_file_name_that_is_no_utf_8_travels() -> None:
    # A worker that raised it died, three times, and the task was said to be the reason.
    error = travel(ValueError("no \udce4 here"))
    assert isinstance(error, ValueError) and error.args == ("no \udce4 here",)
    failure = failure_of(ValueError("no \udce4 here"))
    assert failure.message == "no \\udce4 here" and "no \\udce4 here" in failure.traceback
