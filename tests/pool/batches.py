"""Batches of results, as a worker sends them."""

from __future__ import annotations

import pickle
import threading
import time
from typing import Any

from ropewalk.pool.messages import ENCODE
from ropewalk.pool.result_batch import ResultBatch
from ropewalk.processes.page import ERROR, PICKLED
from ropewalk.transport.failures import Failure


class CountsLoads:
    """Tells how often, and in which threads, it was unpickled."""

    threads: list[threading.Thread] = []  # noqa: RUF012

    def __setstate__(self, state: object) -> None:
        CountsLoads.threads.append(threading.current_thread())
        time.sleep(0.01)  # so that another thread that asks as well would be seen

    def __getstate__(self) -> object:
        return {"some": "state"}


class InterruptedOnce:
    """Is unpickled as "here", but the first time Ctrl-C comes."""

    interrupts = 1

    def __reduce__(self) -> tuple[Any, ...]:
        return _arrive, ()


def _arrive() -> str:
    if InterruptedOnce.interrupts:
        InterruptedOnce.interrupts -= 1
        raise KeyboardInterrupt
    return "here"


def failure_of(error: Exception, text: str = "Traceback: there\n") -> Failure:
    return Failure(f"{type(error).__module__}.{type(error).__qualname__}", str(error), text, pickle.dumps(error), [])


def batch_of(*values: Any, where: str = "worker 1 on host a") -> ResultBatch:
    """A batch as a worker sends it: plain values, pickles and failures."""
    filed: list[Any] = []
    nested: dict[int, int] = {}
    for at, value in enumerate(values):
        if isinstance(value, Exception | Failure):
            filed.append(ENCODE(value if isinstance(value, Failure) else failure_of(value)))
            nested[at] = ERROR
        elif type(value) in (int, float, bool, type(None)):
            filed.append(value)
        else:
            filed.append(pickle.dumps(value, 5))
            nested[at] = PICKLED
    return ResultBatch(filed, nested, (), where)
