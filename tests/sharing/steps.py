"""Code that is killed, or interrupted by a handler of a signal, at each of its steps."""

from __future__ import annotations

import dis
import itertools
import os
import signal
import sys
import threading
from collections.abc import Callable, Collection
from types import FrameType, ModuleType
from typing import Any

import ropewalk as rw
from ropewalk.sharing import lock_rings, permit_ring, queue_memory, queue_ring, resting_calls, shared_record
from ropewalk.transport import process_mutex

STEPS_OF = {
    module.__file__
    for module in (
        *(lock_rings, permit_ring, queue_memory, queue_ring, resting_calls, shared_record),
        process_mutex,
    )
}
"""The modules at whose lines processes are killed; all others change nothing that is shared."""


forks_here = False
"""Whether such a check forks this process: a worker would not have the mistake that `tests/mutants` has planted."""


def in_small_process(check: Callable[..., None], *args: object) -> None:
    """Make a check that forks at every step, in a worker of the session that the module of the test shares.

    The process of the tests has imported everything that any of them needs: a fork of it takes 40 ms of CPU time. One
    of the worker, which has imported the module of the test, takes 5.
    """
    if forks_here:
        check(*args)
        return
    with rw.Pool(1) as pool:
        pool.apply(check, args)


def killed_at_step(call: Callable[[], object], step: int) -> bool:
    """Make a call in a forked child that is killed at a line of code; returns whether it came so far."""
    pid = os.fork()
    if pid == 0:
        left = step

        def trace(frame: FrameType, _event: str, _arg: object) -> Any:
            nonlocal left
            if frame.f_code.co_filename not in STEPS_OF:
                return None
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return trace

        sys.settrace(trace)
        call()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL


def is_usable_after_its_owner_died(mutex: int, call: Callable[[], object]) -> bool:
    """Let a process die with a mutex, make a call that takes it, and return whether another thread can take it then."""
    pid = os.fork()
    if pid == 0:
        process_mutex.lock(mutex)
        os._exit(0)
    os.waitpid(pid, 0)
    call()
    return _as_others_find(mutex) == 0


def _as_others_find(mutex: int) -> int:
    found = list[int]()

    def look() -> None:
        found.append(process_mutex.trylock(mutex))
        process_mutex.unlock(mutex)

    thread = threading.Thread(target=look)  # this one could take it again
    thread.start()
    thread.join()
    return found[0]


def interrupted_at(
    modules: Collection[ModuleType], step: int, call: Callable[[], object], handler: Callable[[], object]
) -> bool:
    """Make a call, and at one of the moments at which Python handles signals another one; returns whether it was made.

    These are after calls, at the beginning of functions and at the end of each turn of a loop.
    """
    left = step
    files = {module.__file__ for module in modules}
    last: dict[FrameType, int] = {}

    def may_handle_signals(frame: FrameType) -> bool:
        """Whether Python does so before the next instruction."""
        if frame not in last:  # the first instruction that is seen of a function follows on RESUME
            return True
        name = dis.opname[frame.f_code.co_code[last[frame]]]
        is_turn = name.startswith("POP_JUMP_BACKWARD") and frame.f_lasti < last[frame]  # of a loop, in Python 3.11
        return is_turn or name.startswith(("CALL", "JUMP_BACKWARD", "RESUME"))

    def trace(frame: FrameType, event: str, _arg: object) -> Any:
        nonlocal left
        if frame.f_code.co_filename not in files:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            if may_handle_signals(frame):
                left -= 1
                if left == 0:
                    handler()
            last[frame] = frame.f_lasti
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
        last.clear()
    return left <= 0


def steps_that_leave_it_locked(
    modules: Collection[ModuleType], begun: Callable[[], tuple[Callable[[], object], int]]
) -> list[int]:
    """Interrupt a call, by an exception, at each of the moments at which Python handles signals.

    Args:
        modules: where it is interrupted.
        begun: makes a call that is interrupted once, and the address of the mutex that it takes.

    Returns:
        The moments, counted from 1, after which the mutex was still locked.
    """

    def interrupt() -> None:
        raise KeyboardInterrupt

    problems = dict[int, int]()
    for step in itertools.count(1):
        call, mutex = begun()
        try:
            if not interrupted_at(modules, step, call, interrupt):
                break
        except KeyboardInterrupt:
            pass
        problems[step] = _as_others_find(mutex)
    assert problems, "it was never interrupted"
    return [step for step, problem in problems.items() if problem]
