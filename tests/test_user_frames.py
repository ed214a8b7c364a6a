"""Tracebacks show the frames of the user, and sum up those inside Ropewalk and torch."""

from __future__ import annotations

import pickle
import traceback
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import ropewalk
from ropewalk.errors import StageFailed
from ropewalk.program.deferred import Deferred
from ropewalk.quantities import parse_memory
from ropewalk.tracking import open_store
from ropewalk.transport.one_traceback import one_traceback
from ropewalk.user_frames import VARIABLE, shortened, stacks_text, user_frames_only

rw: Any = ropewalk  # without types, as those have it who make such mistakes


class Broken(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise ValueError("my mistake")


class Wide(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)


def caught(call: Callable[[], object]) -> Exception:
    try:
        call()
    except Exception as error:
        return error
    raise AssertionError("it raised nothing")


def without_marks(text: str) -> list[str]:
    """The lines of a traceback without those that mark a part of a line, which Python 3.13 adds to each call."""
    return [line for line in text.splitlines() if line.strip(" ~^") or not line]


def functions_in(error: BaseException) -> list[str]:
    return [frame.name for frame in traceback.extract_tb(error.__traceback__)]


def runs(module: nn.Module) -> Callable[[], Any]:
    """Return a call of a module, with two frames of ours around those of torch."""
    inner = Deferred(module, torch.zeros(1, 2))
    return Deferred(inner.build).build


def mistake_of_ours() -> Deferred[object]:
    broken: Deferred[object] = Deferred(print)
    broken.function = None  # type: ignore[assignment]
    return broken


def alone(error: Exception) -> Exception:
    """Return an exception without the frames of this file."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_globals["__name__"] == __name__:
        trace = trace.tb_next
    return error.with_traceback(trace)


def test_inner_frames_between_those_of_the_user_are_one_line_of_a_text() -> None:
    text = one_traceback(caught(runs(Broken())))
    lines = without_marks(text)
    assert lines[1].endswith("in caught") and lines[3].startswith("  ... ") and "forward" in lines[4]
    assert lines[3].endswith(" frames inside ropewalk and torch") and lines[-1] == "ValueError: my mistake"
    assert "deferred.py" not in text and "module.py" not in text


def test_the_innermost_frame_is_kept_where_the_message_does_not_say_all() -> None:
    text = one_traceback(caught(runs(Wide())))
    assert "in forward\n    return self.linear(x)" in text and "F.linear(" in text, "torch's own line that failed"
    assert text.count("torch/nn") == 1, text
    assert "deferred.py" in one_traceback(caught(mistake_of_ours().build))


def test_a_refused_argument_is_told_without_our_frames() -> None:
    # A wrong optimizer of a trainer was told below forty lines of a traceback, none of them the user's.
    text = one_traceback(caught(lambda: parse_memory("many")))
    assert "quantities.py" not in text and text.splitlines()[-1].startswith("ValueError: memory must be a")
    assert one_traceback(alone(caught(lambda: parse_memory("many")))) == text.splitlines()[-1] + "\n"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: rw.Pool(1, gpus=1), "Pool has no argument gpus; write resources=ropewalk.Resources(gpus=...)"),
        (lambda: rw.Pool("4"), "processes is '4', of type str; give a whole number"),
        (lambda: rw.Executor(max_worker=1), "Executor has no argument max_worker; did you mean 'max_workers'?"),
        (lambda: rw.Search(print, {}), "missing 1 required keyword-only argument: 'metric'"),
        (lambda: rw.Search(print, {}, n_trials=3), "Search has no argument n_trials; write trials="),
        (lambda: rw.track(store="/proc/nowhere"), "the store /proc/nowhere cannot be made or opened: [Errno 2]"),
        (lambda: open_store("mysql://host/name"), "a store is a SQLite file or a PostgreSQL database"),
        (lambda: rw.track(stor="x"), "track has no argument stor; did you mean 'store'?"),
    ],
)
def test_a_wrong_argument_is_told_in_the_line_of_the_user(call: Callable[[], object], message: str) -> None:
    error = caught(call)
    assert functions_in(error) == ["caught", "<lambda>"] and error.__cause__ is None
    assert message in str(error)


def test_a_mistake_of_ours_alone_keeps_all_its_frames() -> None:
    text = one_traceback(alone(caught(Deferred(mistake_of_ours().build).build)))
    assert text.count("deferred.py") == 2 and "..." not in text


def test_a_run_of_inner_frames_before_the_first_of_the_user_is_left_out() -> None:
    error = caught(runs(Broken()))
    assert error.__traceback__ is not None
    text = one_traceback(error.with_traceback(error.__traceback__.tb_next))  # as if a loop of ours had called it
    assert text.splitlines()[1].endswith("in forward")


OUR_FRAME = '  File "/elsewhere/site-packages/ropewalk/pool/worker.py", line 270 in _run_burst\n'


def test_the_stacks_of_a_process_show_the_frames_of_the_user() -> None:
    kept = (
        "printed before\n"
        "Current thread 0x00007fd7a084bb80 (most recent call first):\n"
        f'  File "{__file__}", line 6 in work\n'
        '  File "/home/me/ropewalk/pool.py", line 5 in work\n'
    )
    lines = kept.splitlines(keepends=True)
    start_of_thread = '  File "/usr/lib/python3.11/threading.py", line 1045 in _bootstrap_inner\n'
    empty = "Thread 0x00007fd7a084bb70 (most recent call first):\n"
    stacks = "".join([lines[0], empty, OUR_FRAME, start_of_thread, "\n", *lines[1:], OUR_FRAME])
    rest = '  File "<frozen runpy>", line 88 in _run_code\n\nExtension modules: msgspec._core (total: 1)\n'
    assert stacks_text(stacks + rest) == kept + "\n"


def test_an_endless_recursion_is_not_shown_to_its_end() -> None:
    frame = '  File "/home/me/tree.py", line 7 in depth\n'
    heading = "Current thread 0x00007fd7a084bb80 (most recent call first):\n"
    shown = stacks_text(heading + frame * 100 + "  ...\n")
    assert shown == heading + frame * 3 + "  [Previous line repeated 97 more times]\n  ...\n"
    assert stacks_text(heading + frame * 3 + "same\n" * 9) == heading + frame * 3 + "same\n" * 9


def test_a_stack_keeps_our_frame_where_the_crash_may_be_ours() -> None:
    heading = "Current thread 0x00007fd7a084bb80 (most recent call first):\n"
    assert stacks_text(heading + OUR_FRAME + OUR_FRAME) == heading + OUR_FRAME


def test_a_traceback_that_a_worker_prints_is_kept_whole() -> None:
    text = "Traceback (most recent call last):\n" + OUR_FRAME.replace(" in ", ", in ")
    assert stacks_text(text) == text


@pytest.mark.parametrize("set_to", ["", "0"])
def test_a_public_function_raises_without_the_frames_below_it(monkeypatch: pytest.MonkeyPatch, set_to: str) -> None:
    monkeypatch.setenv(VARIABLE, set_to)
    assert functions_in(caught(user_frames_only(runs(Broken())))) == ["caught", "forward"]


def test_the_frames_of_what_led_to_an_exception_are_shortened_too() -> None:
    def step() -> None:
        try:
            runs(Broken())()
        except ValueError as error:
            raise StageFailed("stage 0 raised") from error

    public = user_frames_only(step)
    error = caught(public)
    assert functions_in(error) == ["caught", "step"]
    assert error.__cause__ is not None and functions_in(error.__cause__) == ["step", "forward"]
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error)


def test_frames_that_only_raised_what_tells_all_are_left_out() -> None:
    def give_up() -> None:
        raise StageFailed("stage 0 raised")

    ours = types.FunctionType(give_up.__code__, {"__name__": "ropewalk.elsewhere", "StageFailed": StageFailed})
    lines = without_marks(one_traceback(caught(ours)))
    assert lines[1].endswith("in caught") and lines[3] == "ropewalk.errors.StageFailed: stage 0 raised"


def test_the_exceptions_of_a_group_are_shortened() -> None:
    group = ExceptionGroup("two", [caught(runs(Broken())), caught(runs(Broken()))])
    shortened(group)
    assert [functions_in(one) for one in group.exceptions] == [["caught", "forward"]] * 2


def test_exceptions_that_led_to_each_other_end() -> None:
    first, second = caught(runs(Broken())), caught(runs(Broken()))
    first.__context__, second.__context__ = second, first
    assert functions_in(shortened(first)) == functions_in(second) == ["caught", "forward"]


def test_the_variable_shows_every_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "1")
    error = caught(user_frames_only(runs(Broken())))
    assert "build" in functions_in(error) and "_call_impl" in functions_in(error)
    text = one_traceback(error)
    assert text.count("deferred.py") == 2 and "..." not in text


def test_a_public_function_keeps_its_name_and_its_result() -> None:
    assert user_frames_only(parse_memory)("2KiB") == 2048
    assert user_frames_only(parse_memory).__name__ == "parse_memory"
