"""Lets the workers of one process perform their actions in turn."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Protocol

from ropewalk.pipeline.actions import Action
from ropewalk.pipeline.plans import PlanWorker


class Able(Protocol):
    """A worker that says whether it can perform an action now."""

    def can_perform(self, action: Action) -> bool: ...


def take_turns(
    queues: Mapping[PlanWorker, deque[Action]],
    workers: Mapping[PlanWorker, Able],
    perform: Callable[[PlanWorker, Action], object],
) -> None:
    """Perform one action of each worker in turn, until no worker can perform its next one.

    Args:
        queues: the actions of each worker, in order; performed actions are removed.
        workers: say whether they can perform an action.
        perform: performs an action of a worker.
    """
    progressed = True
    while progressed:
        progressed = False
        for worker, queue in queues.items():
            if queue and workers[worker].can_perform(queue[0]):
                perform(worker, queue.popleft())
                progressed = True
