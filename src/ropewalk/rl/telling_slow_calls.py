"""Tells a learner, from the process of an actor or an evaluator, which calls of environments have not returned.

The thread that steps them is what hangs, so another one looks. An environment that keeps the interpreter from running,
in C, stops that one too: then the learner knows only whose block it waits for.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator, Mapping
from typing import TYPE_CHECKING

import ropewalk as rw
from ropewalk.rl.slow_calls import CallWatch
from ropewalk.rl.standstill import watched

if TYPE_CHECKING:
    from ropewalk.rl.learner_node import LearnerNode


@contextlib.contextmanager
def slow_calls_told(learner: LearnerNode, caller: str, calls: Callable[[], Mapping[int, str]]) -> Generator[None]:
    """Look once a second while the block runs.

    Args:
        learner: whom to tell.
        caller: what messages call this process, such as "actor 2".
        calls: returns, by group or another key, the call that is under way; see `CallWatch.look`.
    """
    watch = CallWatch(caller)

    def look() -> None:
        for slow in watch.look(time.monotonic(), calls()):
            with contextlib.suppress(rw.CallError):  # the learner is lost; the next look tells the next one
                learner.report_slow_call.send(slow)  # type: ignore[attr-defined]

    with watched(look):
        yield


__all__ = ["slow_calls_told"]
