"""Workers of a group that are watched: their ends are noticed at once, and their silence after a timeout.

    watcher ── stay(name) ──▶ worker       not answered before the worker ends: the call ends with it
            ── ping() ──────▶ worker       answered at once, whatever the worker computes; see `Silence`

The members of an elastic training and the stages of a trainer are watched in this way.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, fields
from numbers import Real
from typing import Any

from ropewalk.argument_kinds import check_number
from ropewalk.calls.client import Client
from ropewalk.calls.markers import concurrent
from ropewalk.program.node_context import current_node


@dataclass(frozen=True, slots=True)
class WatchTimeouts:
    """How long a group of workers waits, in seconds; all that is not 0 or more is refused.

    Attributes:
        start_s: at the beginning, until all workers have started.
        quiet_s: how long a step may take before the workers that others wait for are pinged.
        silent_s: a worker that does not answer a ping within this time counts as dead.
        stalled_s: how long a step may take although all workers answer.
    """

    start_s: float = 120.0
    quiet_s: float = 1.0
    silent_s: float = 10.0
    stalled_s: float = 300.0

    def __post_init__(self) -> None:
        for field in fields(self):
            check_number(field.name, getattr(self, field.name), Real, "a number", least=0, required=True)


def process_name(node: str, replica: int, generation: int) -> str:
    """Return the name of one process of a watched worker."""
    return f"{node}.{replica}#{generation}"


class WatchedWorker:
    """Base class of services that are watched.

    Attributes:
        name: of this process, `node.replica#generation`; a process that takes its place has another one.
    """

    def __init__(self) -> None:
        node = current_node()
        self.name: str = process_name(node.name, node.replica, node.generation)
        self._has_ended = threading.Event()

    @concurrent(4)
    def stay(self, name: str) -> None:
        """Return when the worker of this name has ended, so that the caller hears of its end at once."""
        if name == self.name:
            self._has_ended.wait()

    @concurrent(1)
    def ping(self) -> None:
        """Answer at once, whatever the worker computes: it has a lane of its own, beside calls that are under way."""


def watch_end(client: Client, name: str, ended: Callable[[str], object]) -> None:
    """Call `ended` with the cause when a worker is gone; in whichever thread hears of it.

    Args:
        client: of the worker.
        name: of its process.
        ended: is called once.
    """
    stays: Future[Any] = client.stay.future(name)

    def gone(future: Future[Any]) -> None:
        error = None if future.cancelled() else future.exception()
        ended("its node has ended" if error is None else cause_of(error))

    stays.add_done_callback(gone)


def ping(client: Client, answered: Callable[[], object]) -> None:
    """Ask a worker whether it is there; `answered` is called if it is, in whichever thread hears of it."""

    def heard(future: Future[Any]) -> None:
        if not future.cancelled() and future.exception() is None:
            answered()

    client.ping.future().add_done_callback(heard)


def cause_of(error: BaseException) -> str:
    """Why a call to a worker was lost, in words."""
    return str(getattr(error, "cause", "") or error or type(error).__name__)
