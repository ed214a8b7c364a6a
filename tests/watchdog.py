"""The pytest plugin that ends a test which hangs, without a handler of SIGALRM.

pytest-timeout's own way is such a handler. But a program that has one is another program: where a handler may raise at
any moment, the main thread does not serve the loop while it waits (`interrupts.may_serve`). So with it the tests never
ran what users run. Here a thread watches the time, and ends a test with an interrupt, for which there is a handler in
every Python program.

    thread: time is up ──▶ notes the stacks of all threads ──SIGINT──▶ main thread: KeyboardInterrupt
                                                                          │ caught around setup, call and teardown
                                                                          ▼
                                                    the test fails with the stacks, and the next one runs

A test that swallows the interrupt, or has another handler, gets it again every AGAIN_S. One that does not end even so,
because it is stuck in C, takes the whole process with it, after the stacks are on stderr: `make test` always ends.

`--with-handler` has every test run with a handler of SIGALRM, as programs do that set time limits in that way.
"""

from __future__ import annotations

import faulthandler
import math
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Generator, Iterator
from typing import Any

import pytest

SILENT_S = 300.0
"""Second line of defence: this time after that of its last test a process prints where it stands, from C."""
_RENEWED_S = 30.0
"""How often that is put off: pytest does so for each test, which takes the start and the end of a thread."""

AGAIN_S = 10.0
LAST_S = 90.0
"""A process whose test does not end is ended this time after its own."""

_END = 70


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--with-handler", action="store_true", help="run every test with a handler of SIGALRM")


class Watchdog:
    """Interrupts the main thread when the time of a test is up.

    Its thread wakes when the time of a test is up, and not when that of another one begins: a test that takes
    milliseconds would wake it eight times.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._due = math.inf
        self._strikes = 0
        self._wakes_at = -math.inf
        self._limit_s = 0.0
        self._in_phase = False
        self._stacks = ""
        self._thread: threading.Thread | None = None
        self._dump_at = -math.inf
        self.stderr = 2

    def begin(self, limit_s: float) -> None:
        """A test begins."""
        if self._thread is None or not self._thread.is_alive():  # none lives on in a forked child
            self._thread = threading.Thread(target=self._watch, name="pytest-watchdog", daemon=True)
            self._thread.start()
        now = time.monotonic()
        if now + limit_s + SILENT_S > self._dump_at:
            left_s = limit_s + SILENT_S + _RENEWED_S
            faulthandler.dump_traceback_later(left_s, file=self.stderr)
            self._dump_at = now + left_s
        with self._changed:
            self._stacks = ""
            self._limit_s, self._due, self._strikes = limit_s, now + limit_s, 0
            self._be_awake_in_time()

    def end(self) -> None:
        """The test is over."""
        with self._changed:
            self._due = math.inf

    def phase(self, inside: bool) -> None:
        """Interrupts are caught from now on, or not any more."""
        with self._changed:
            self._in_phase = inside
            self._be_awake_in_time()

    def words(self) -> str:
        """What to say of a test whose time was up; nothing of others."""
        with self._changed:
            return f"Timeout (>{self._limit_s:g}s) in the test; all stacks:\n{self._stacks}" if self._stacks else ""

    def _strikes_at(self) -> float:
        return self._due + self._strikes * AGAIN_S if self._in_phase else math.inf

    def _be_awake_in_time(self) -> None:
        if self._strikes_at() < self._wakes_at:
            self._changed.notify()

    def _watch(self) -> None:
        with self._changed:
            while True:
                self._wakes_at = self._strikes_at()
                if self._wakes_at > time.monotonic():
                    left_s = self._wakes_at - time.monotonic()
                    self._changed.wait(left_s if left_s < math.inf else None)
                    continue
                self._stacks = self._stacks or _stacks()
                if self._strikes * AGAIN_S >= LAST_S:
                    os.write(self.stderr, self._stacks.encode())
                    os._exit(_END)
                self._strikes += 1
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


def _stacks() -> str:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return "\n".join(
        f"--- {names.get(ident, 'a thread')} ({ident})\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in sys._current_frames().items()
        if ident != threading.get_ident()
    )


_watchdog = Watchdog()


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--with-handler"):
        config.pluginmanager.register(AlarmHandlers())
    _watchdog.stderr = os.dup(2)  # later, it is that of the test
    # A shell that starts something in the background, as `nohup make test &`, has it ignore the interrupt.
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_unconfigure() -> None:
    faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(tryfirst=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> bool:
    _watchdog.begin(settings.timeout)
    return True


def pytest_enter_pdb() -> None:
    _watchdog.end()  # people take their time


@pytest.hookimpl(tryfirst=True)
def pytest_timeout_cancel_timer(item: pytest.Item) -> bool:
    _watchdog.end()
    return True


def _guarded() -> Generator[None, Any, Any]:
    try:
        _watchdog.phase(True)
        try:
            result = yield
        finally:
            _watchdog.phase(False)
    except KeyboardInterrupt as interrupt:
        if words := _watchdog.words():
            raise pytest.fail.Exception(words, pytrace=True) from interrupt
        raise
    if words := _watchdog.words():  # it swallowed the interrupt, or expected one
        pytest.fail(words, pytrace=False)
    return result


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, Any, Any]:
    return (yield from _guarded())


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    return (yield from _guarded())


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, Any, Any]:
    return (yield from _guarded())


@pytest.fixture
def alarm_handler() -> Iterator[None]:
    """A handler of SIGALRM, as programs have that set time limits in that way."""
    before = signal.signal(signal.SIGALRM, lambda _number, _frame: None)
    yield
    signal.signal(signal.SIGALRM, before)


class AlarmHandlers:
    """With `--with-handler`: every test has it. A fixture that others need not enter takes 0.15 ms of each of them."""

    @pytest.fixture(autouse=True)
    def _with_handler(self, alarm_handler: None) -> None:
        pass
