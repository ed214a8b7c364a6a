"""Lets other processes of this host compute, while a profile is measured, what stages will compute beside each other.

Cores share caches, memory and their clock's budget, so that two stages on one machine are slower than one alone: on two
cores by 10 to 20 %. A profile of a process that is alone predicts steps that are too short by that much.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager

from ropewalk.compat.context import Context
from ropewalk.compat.process import Process
from ropewalk.errors import ProfileInvalid
from ropewalk.processes.session import Session
from ropewalk.sharing.connections import Connection


@contextmanager
def computing_beside(num: int, compute: Callable[[], object]) -> Generator[None]:
    """Compute the same in other processes, over and over, until the block ends.

    Args:
        num: the number of processes.
        compute: what each of them computes; it is pickled, as the target of a `Process` is.

    Raises:
        ProfileInvalid: one of them ended before the block did.
    """
    with ExitStack() as stack:
        context = Context(session=stack.enter_context(Session(engine="local")))
        processes: list[Process] = []
        for number in range(num):  # one after the other, since starting is work of another kind
            ready, its_end = context.Pipe(duplex=False)
            with ready:
                with its_end:
                    process = context.Process(
                        target=_compute_for_ever, args=(compute, its_end), name=f"beside-{number}", daemon=True
                    )
                    process.start()
                processes.append(process)
                stack.callback(_end, process)
                try:
                    ready.recv_bytes()
                except EOFError:
                    process.join()
                    raise _ended(process) from None
        yield
        for process in processes:
            _end(process)
            if process.exitcode != -signal.SIGTERM:
                raise _ended(process)


def _end(process: Process) -> None:
    process.terminate()
    process.join()


def _ended(process: Process) -> ProfileInvalid:
    return ProfileInvalid(f"a process that should compute beside the measured one ended: {process.failure}")


def _compute_for_ever(compute: Callable[[], object], ready: Connection) -> None:
    logging.disable(logging.WARNING)  # what it computes is of no use
    compute()
    ready.send_bytes(b"")
    while True:
        compute()
