"""Ctrl-C at each step of a piece of code, one after another: what a storm of signals finds in days, in a second.

Python looks for signals where a function begins, after a call and where a loop turns back. A trace function
counts these places in our code (and in the library's `threading`) and sends the signal at one of them.
"""

from __future__ import annotations

import dis
import functools
import gc
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

import ropewalk
from ropewalk.transport.link import Link

_OURS = (str(Path(ropewalk.__file__).parent), threading.__file__)
_LOOKS = {number for name, number in dis.opmap.items() if name.startswith(("CALL", "JUMP_BACKWARD"))}


def interrupts_at_each_step(act: Callable[[], object]) -> Iterator[str]:
    """Run something again and again, each time with an interrupt one step later, until it gets through.

    Yields:
        Where the interrupt struck, after it did.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    gc.collect()
    gc.disable()  # or it might strike in a `__del__` of what an earlier test left, from which no exception comes
    try:
        _interrupted(act, 0)  # from Python 3.12 on, only code that was traced before is traced step by step
        step = 1
        while where := _interrupted(act, step):
            yield where
            step += 1
            if sys.version_info >= (3, 13):  # it forgets with an exception what was traced
                _interrupted(act, 0)
    finally:
        gc.enable()
        signal.signal(signal.SIGINT, before)


def interrupt_after_receiving(link: Link, patch: pytest.MonkeyPatch) -> None:
    """Interrupt the main thread once, when it has received a message of a link, in whichever way it waits for it."""
    left = [signal.SIGINT]

    def interrupted(receive: Callable[..., Any]) -> Callable[..., Any]:
        def interrupted_receive(*args: Any, **options: Any) -> Any:
            received = receive(*args, **options)
            if received is not None and left and threading.current_thread() is threading.main_thread():
                signal.raise_signal(left.pop())
            return received

        return interrupted_receive

    for name in ("receive", "receive_alone"):
        patch.setattr(link, name, interrupted(getattr(link, name)))


def _interrupted(act: Callable[[], object], step: int) -> str:
    """Where the interrupt struck; empty if it did not come."""
    struck = ""
    num_steps = 0
    last: dict[FrameType, int] = {}

    def entered(frame: FrameType, _event: str, _arg: Any) -> Any:
        if not frame.f_code.co_filename.startswith(_OURS):
            return None
        frame.f_trace_opcodes = True
        return at_opcode

    def at_opcode(frame: FrameType, event: str, _arg: Any) -> Any:
        nonlocal struck, num_steps
        if event == "opcode" and not struck:
            before, last[frame] = last.get(frame), frame.f_lasti
            if before is None or _may_strike(frame.f_code, before, frame.f_lasti):  # (its first: the function begins)
                num_steps += 1
                if num_steps == step:
                    struck = f"{frame.f_code.co_qualname}, line {frame.f_lineno}"
                    signal.raise_signal(signal.SIGINT)
        return at_opcode

    outer = sys.gettrace()
    with warnings.catch_warnings():
        # Between `open` and its `with`, Python closes the file itself, and would say so.
        warnings.filterwarnings("ignore", "unclosed file", ResourceWarning)
        sys.settrace(entered)
        try:
            act()
        except KeyboardInterrupt:
            assert struck
        finally:
            sys.settrace(outer)
    return struck


@functools.cache
def _may_strike(code: CodeType, before: int, here: int) -> bool:
    """Whether an interrupt after one instruction looks like one before the next: the same handler catches both."""
    return code.co_code[before] in _LOOKS and _handler(code, before) == _handler(code, here)


def _handler(code: CodeType, at: int) -> int | None:
    entries: list[Any] = dis.Bytecode(code).exception_entries  # pyright: ignore[reportAttributeAccessIssue]
    return next((entry.target for entry in entries if entry.start <= at < entry.end), None)
