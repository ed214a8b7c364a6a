"""The coordinator: a small service that hears of joins, votes, leaves and deaths, and tells members what follows.

    worker ── vote, join, leave ──▶ queue ──▶ run: Membership decides ──▶ worker.hear(view | commit)
    worker's process ends ──▶ its answer to `stay` will never come ──▶ queue

Everything is decided in one thread, in the order of the queue, so members hear of things in one order.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from typing import Any

from ropewalk.calls.client import Client
from ropewalk.errors import MemberLost
from ropewalk.exchange.elastic.membership import (
    Commit,
    EpochPhase,
    Expel,
    Finish,
    Form,
    Instruction,
    Membership,
    StepSpan,
)
from ropewalk.exchange.elastic.silence import Silence
from ropewalk.exchange.groups.watched_worker import WatchTimeouts, ping, watch_end
from ropewalk.program import node_context
from ropewalk.transport.failures import Failure, rebuild_error

_LOOK_S = 0.1
#: Those who wait for a training that is over are told so for so long.
_LAST_WORDS_S = 1.0


class ExchangeTimeouts(WatchTimeouts):
    """How long an elastic training waits, in seconds; after `start_s` it begins with the workers that have come."""


Event = Callable[[], list[Instruction]]


class Coordinator:
    """The only one who decides who is a member.

    Args:
        workers: their service.
        founders: how many begin together.
        timeouts: how long it waits.
    """

    def __init__(self, workers: Client, founders: int, timeouts: ExchangeTimeouts) -> None:
        self._workers = workers
        self._timeouts = timeouts
        self._membership = Membership(founders)
        self._silence = Silence(timeouts.quiet_s, timeouts.silent_s)
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._clients: dict[str, Client] = {}
        self._unfinished: set[str] = set()
        """Workers that were taken for dead, and whose processes may live."""
        self._wills: dict[str, Any] = {}
        """By name, what those who left had kept back, until a step is committed that has it."""
        self._wills_lock = threading.Lock()
        self._failure: tuple[str, Failure] | None = None
        self._finish: Finish | None = None

    # Called by workers; each only files an event

    def hello(self, name: str, replica: int) -> None:
        """A worker has started, and prepares."""
        self._events.put(lambda: self._watch(name, replica))

    def join(self, name: str) -> None:
        """A worker is ready to take part."""
        self._events.put(lambda: self._membership.joins(name))

    def leave(self, name: str) -> None:
        """A worker wants to leave after the step that is being done."""
        self._events.put(lambda: self._membership.leaves(name))

    def vote(self, name: str, epoch: int, step: int, loss: float, samples: float) -> None:
        """A worker holds all gradients of a step; `loss` is the sum over its samples."""
        self._events.put(lambda: self._membership.voted(name, epoch, step, loss, samples))

    def left(self, name: str, will: Any, includes: Sequence[str] = ()) -> None:
        """A worker has done its last step.

        Args:
            name: which.
            will: what it had kept back, or None.
            includes: whose wills it had taken over before.
        """
        self._events.put(lambda: self._has_left(name, will, includes))

    def take_wills(self) -> dict[str, Any]:
        """By name, what those who left had kept back: for rank 0, and for the next one if it dies with that."""
        with self._wills_lock:
            return dict(self._wills)

    def finished(self, name: str) -> None:
        """The code of a worker has come to its end."""
        self._events.put(lambda: self._membership.finished(name))

    def failed(self, name: str, failure: Failure) -> None:
        """The code of a worker has raised: the training fails with it."""
        self._events.put(lambda: self._fail(name, failure))

    def history(self) -> list[StepSpan]:
        """Which steps were done by whom, so far."""
        return list(self._membership.history)

    # Its own thread

    def run(self) -> None:
        """Decide until the training is over.

        Raises:
            MemberLost: all who had the weights are gone.
            Exception: what the code of a worker raised.
        """
        node_context.on_stop(lambda: self._events.put(lambda: [Finish("the program is stopping")]))
        began = time.monotonic()
        while self._finish is None:
            said: list[Instruction] = []
            with contextlib.suppress(queue.Empty):
                said = self._events.get(timeout=_LOOK_S)()
            self._keep_wills()
            for instruction in said:
                self._do(instruction)
            self._look(began)
        self._conclude(self._finish)

    def _keep_wills(self) -> None:
        """Forget those that count no more; before anybody hears of what was decided."""
        with self._wills_lock:
            self._wills = {name: self._wills[name] for name in self._membership.wills}

    def _do(self, instruction: Instruction) -> None:
        match instruction:
            case Form(view):
                self._silence.went_on(time.monotonic())
                for name in view.members:
                    self._tell(name, view)
            case Commit():
                self._silence.went_on(time.monotonic())
                for name in instruction.members:
                    self._tell(name, instruction)
            case Expel(name):
                self._tell(name, instruction)
            case Finish():
                self._finish = instruction

    def _look(self, began: float) -> None:
        """Now and then: has anybody fallen silent, or do founders not come?"""
        now = time.monotonic()
        if self._membership.phase is EpochPhase.GATHERING:
            if now - began > self._timeouts.start_s:
                for instruction in self._membership.gathers_no_more():
                    self._do(instruction)
            return
        for name in self._silence.to_ask(self._membership.awaited, now):
            self._ask(name)
        for name in self._silence.overdue(now):
            self._silence.forget(name)
            self._unfinished.add(name)
            why = f"has not answered for {self._timeouts.silent_s:g} s and counts as dead (is it stopped?)"
            self._tell(name, Expel(name, f"{name} {why}"))  # it hears of it when it wakes up
            for instruction in self._membership.died(name, why):
                self._do(instruction)

    def _watch(self, name: str, replica: int) -> list[Instruction]:
        try:
            client = self._workers[replica]
        except IndexError:  # the program was scaled down before this worker's word was heard
            return self._membership.died(name, "was ended before it had joined")
        self._clients[name] = client
        watch_end(client, name, lambda why: self._events.put(lambda: self._has_gone(name, why)))
        return []

    def _has_gone(self, name: str, why: str) -> list[Instruction]:
        self._unfinished.discard(name)
        self._silence.forget(name)
        self._clients.pop(name, None)
        return self._membership.died(name, f"died: {why}")

    def _ask(self, name: str) -> None:
        client = self._clients.get(name)
        if client is not None:
            ping(client, lambda: self._events.put(lambda: self._is_there(name)))

    def _is_there(self, name: str) -> list[Instruction]:
        if name in self._clients:
            self._silence.answered(name, time.monotonic())
        return []

    def _tell(self, name: str, message: object) -> Future[Any] | None:
        client = self._clients.get(name)
        return None if client is None else client.hear.future(name, message)

    def _has_left(self, name: str, will: Any, includes: Sequence[str]) -> list[Instruction]:
        said = self._membership.left(name, has_will=will is not None, includes=includes)
        with self._wills_lock:
            self._wills[name] = will
        return said

    def _fail(self, name: str, failure: Failure) -> list[Instruction]:
        self._failure = self._failure or (name, failure)
        return [Finish(f"{name} failed", failed=True)]

    def _conclude(self, finish: Finish) -> None:
        told: Mapping[str, Future[Any] | None] = {name: self._tell(name, finish) for name in list(self._clients)}
        wait([future for future in told.values() if future], _LAST_WORDS_S)
        if self._failure is not None:
            name, failure = self._failure
            raise rebuild_error(failure, name)
        if finish.failed:
            raise MemberLost(finish.why, epoch=self._membership.view.epoch if self._membership.view else 0)
        if self._unfinished:  # they would never complete: it ends with them, and not when they do
            node_context.stop(finish.why)
