"""Ctrl-C put off for a moment, and never lost."""

from __future__ import annotations

import gc
import signal
import sys
import threading
import weakref
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest

from ropewalk.pool.pool import Pool
from ropewalk.processes import interrupts
from ropewalk.processes.interrupts import interrupts_allowed, interrupts_deferred


@pytest.fixture(autouse=True)
def _interruptible() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupted_block(steps: list[str]) -> None:
    with interrupts_deferred:
        signal.raise_signal(signal.SIGINT)
        steps.append("whole")
        with interrupts_deferred:
            signal.raise_signal(signal.SIGINT)
        steps.append("still whole")
    steps.append("after")


def test_an_interrupt_comes_at_the_end_of_the_outermost_block() -> None:
    steps: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        interrupted_block(steps)
    assert steps == ["whole", "still whole"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with interrupts_deferred:
        pass  # it came once and is not remembered


def test_an_error_in_the_block_comes_with_the_interrupt() -> None:
    def fail() -> None:
        with interrupts_deferred:
            signal.raise_signal(signal.SIGINT)
            raise LookupError

    with pytest.raises(KeyboardInterrupt) as caught:
        fail()
    assert isinstance(caught.value.__context__, LookupError)


@pytest.mark.parametrize("order", [(signal.SIGINT, signal.SIGUSR1), (signal.SIGUSR1, signal.SIGINT)])
def test_an_interrupt_comes_behind_the_handlers_of_other_signals(order: tuple[signal.Signals, ...]) -> None:
    # It raises: what the others have to do is done before.
    told: list[str] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        told.append("SIGINT")
        raise KeyboardInterrupt

    def come() -> None:
        with interrupts_deferred:
            for number in order:
                signal.raise_signal(number)
            assert told == []

    signal.signal(signal.SIGINT, interrupt)
    before = signal.signal(signal.SIGUSR1, lambda *_: told.append("SIGUSR1"))
    try:
        with pytest.raises(KeyboardInterrupt):
            come()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert told == ["SIGUSR1", "SIGINT"]


@pytest.mark.parametrize("handler", [signal.SIG_IGN, signal.SIG_DFL])
def test_a_handler_that_is_not_pythons_is_left_alone(handler: signal.Handlers) -> None:
    signal.signal(signal.SIGINT, handler)
    with interrupts_deferred:
        assert signal.getsignal(signal.SIGINT) is handler
    assert signal.getsignal(signal.SIGINT) is handler


class InterruptingSignal:
    """The module `_signal`, with a Ctrl-C at the moment at which the handler of SIGINT is there again."""

    def __getattr__(self, name: str) -> Any:
        return getattr(signal, name)

    def signal(self, number: int, handler: Any) -> None:
        signal.signal(number, handler)
        if number == signal.SIGINT and handler is signal.default_int_handler:
            signal.raise_signal(signal.SIGINT)


def test_an_interrupt_as_soon_as_it_can_come_leaves_no_other_signal_deferred(monkeypatch: pytest.MonkeyPatch) -> None:
    # Restored first, SIGINT would raise out of the block before the others are restored, which would be noted for ever.
    def handler(number: int, frame: FrameType | None) -> None: ...

    before = signal.signal(signal.SIGTERM, handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            with interrupts_deferred:
                monkeypatch.setattr(interrupts, "_signal", InterruptingSignal())
        assert signal.getsignal(signal.SIGTERM) is handler
    finally:
        signal.signal(signal.SIGTERM, before)


def test_other_threads_pass_through() -> None:
    seen: list[object] = []

    def look() -> None:
        with interrupts_deferred:
            seen.append(signal.getsignal(signal.SIGINT))

    with interrupts_deferred:
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
        inside = signal.getsignal(signal.SIGINT)
    assert seen == [inside]
    look()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_what_was_interrupted_is_not_kept() -> None:
    # The frame of an interrupt that came during a wait was kept until the next one, and with it a lock of a depot.
    class Held:
        pass

    def wait(held: Held) -> None:
        with interrupts_deferred:
            signal.raise_signal(signal.SIGINT)
            with interrupts_allowed:
                raise AssertionError(f"no interrupt came for {held}")

    held = Held()
    gone = weakref.ref(held)
    with pytest.raises(KeyboardInterrupt):
        wait(held)
    del held
    gc.collect()
    assert gone() is None


def interrupt_that_does_not_come() -> None:
    try:
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt:
        pytest.fail("the interrupt came in the middle")


def test_the_handler_of_another_signal_may_defer_interrupts_at_any_point() -> None:
    # One that came while a deferral began or ended left no handler for SIGINT: `signal.signal` got None, and raised.
    methods: Any = [
        getattr(interrupts._Deferral, name) for name in ("__enter__", "__exit__", "_begin", "_stand_for", "_end")
    ]
    codes = {method.__code__ for method in methods}
    before = signal.getsignal(signal.SIGINT)
    number, last = 0, 0

    def come_at(event_number: int) -> int:
        """Have a handler run before one opcode of the deferral; returns how many opcodes there were."""
        num_events = 0

        def trace(frame: FrameType, event: str, _: object) -> object:
            nonlocal num_events
            if frame.f_code not in codes:
                return None
            frame.f_trace_opcodes = True
            if event == "opcode":
                num_events += 1
                if num_events == event_number:
                    with interrupts.interrupts_deferred:
                        pass
            return trace

        outer = sys.gettrace()
        sys.settrace(trace)  # pyright: ignore[reportArgumentType]
        try:
            with pytest.raises(KeyboardInterrupt), interrupts.interrupts_deferred:
                interrupt_that_does_not_come()
        finally:
            sys.settrace(outer)
        return num_events

    while number <= last:
        number += 1
        last = come_at(number)
        assert signal.getsignal(signal.SIGINT) is before
        assert interrupts.interrupts_deferred._depth == 0
    assert last > 20
    # An exception that the deferral had caught stayed, as the context of all later ones in this thread.
    assert sys.exc_info() == (None, None, None)


def test_a_call_waits_in_the_kernel_unless_a_handler_of_the_program_could_make_calls() -> None:
    def ends(_number: int, _frame: object) -> None:
        raise SystemExit

    assert interrupts.may_block()
    before = signal.signal(signal.SIGTERM, ends)
    try:
        assert not interrupts.may_block()
        interrupts.raising_handlers.append(ends)
        assert interrupts.may_block()
        other = signal.signal(signal.SIGHUP, lambda *_: None)
        assert not interrupts.may_block()
        signal.signal(signal.SIGHUP, other)
    finally:
        signal.signal(signal.SIGTERM, before)
        interrupts.raising_handlers.clear()


def handlers_and_way() -> tuple[list[str], bool]:
    names = ("SIGUSR1", "SIGHUP", "SIGTERM", "SIGCHLD")
    return [name for name in names if callable(signal.getsignal(getattr(signal, name)))], interrupts.may_block()


@pytest.mark.usefixtures("shared_session")
def test_a_hosted_process_has_no_handlers_of_its_agent_and_calls_the_fast_way() -> None:
    # It had those of SIGUSR1 and SIGHUP: each call took the way of processes whose handlers may call, twice the time.
    with Pool(1) as pool:
        assert pool.apply(handlers_and_way) == ([], True)
