"""The coordinator: a small service that receives joins, votes, leaves and deaths, and tells members the outcome.

    worker ── vote, join, leave ──▶ queue ──▶ run: Membership decides ──▶ worker.hear(view | commit)
    worker's process ends ──▶ the call of its `stay` fails ──▶ queue

One thread decides everything, in the order of the queue, so all members are told of decisions in one order.
"""

from __future__ import annotations

import contextlib
import functools
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from typing import Any

from ropewalk.calls.client import Client
from ropewalk.errors import MemberLost, ProgramStopped
from ropewalk.exchange.elastic.membership import (
    Commit,
    EpochPhase,
    Expel,
    Finish,
    Form,
    Instruction,
    Membership,
    RefusedBatch,
    StepSpan,
)
from ropewalk.exchange.elastic.silence import Silence
from ropewalk.exchange.groups.watched_worker import WatchTimeouts, ping, process_name, watch_end
from ropewalk.program import node_context
from ropewalk.transport.failures import Failure, rebuild_error

WORKERS = "workers"
"""Name of the node of the workers."""
_LOOK_S = 0.1
_LAST_WORDS_S = 1.0
"""Timeout in seconds for telling the workers that the training is over."""


class ExchangeTimeouts(WatchTimeouts):
    """How long an elastic training waits, in seconds; after `start_s` it begins with the workers that have joined."""


Event = Callable[[], list[Instruction]]


class Coordinator:
    """Decides, alone, which workers are members.

    Args:
        workers: the client of the workers' service.
        founders: number of workers that begin together.
        timeouts: how long it waits.
        restarts: whether workers that die are restarted.
    """

    def __init__(self, workers: Client, founders: int, timeouts: ExchangeTimeouts, *, restarts: bool = True) -> None:
        self._workers = workers
        self._timeouts = timeouts
        self._founders, self._restarts = founders, restarts
        self._membership = Membership(founders, restarts=restarts)
        self._silence = Silence(timeouts.quiet_s, timeouts.silent_s)
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._clients: dict[str, Client] = {}
        self._replicas: dict[str, int] = {}
        """The replica number of each worker that has started, also of those that are gone."""
        self._unfinished: set[str] = set()
        """Workers that count as dead, and whose processes may still be alive."""
        self._wills: dict[str, Any] = {}
        """Residuals of workers that left, by name, until a step that includes them is committed."""
        self._wills_lock = threading.Lock()
        self._failure: tuple[str, Failure] | None = None
        self._finish: Finish | None = None
        self._ending = threading.Lock()
        self._is_over = False
        """Whether events are refused; changed while `_ending` is held."""

    # Called by workers; each method only queues an event, and raises ProgramStopped when the training is over

    def hello(self, name: str, replica: int) -> None:
        """Register a worker that has started, and prepares."""
        self._put(lambda: self._watch(name, replica))

    def join(self, name: str) -> None:
        """Record that a worker is ready to take part."""
        self._put(lambda: self._membership.joins(name))

    def leave(self, name: str) -> None:
        """Record that a worker wants to leave after the current step."""
        self._put(lambda: self._membership.leaves(name))

    def vote(self, name: str, epoch: int, step: int, loss: float, samples: float) -> None:
        """Record that a worker holds all gradients of a step; `loss` is the sum over its samples."""
        self._put(lambda: self._membership.voted(name, epoch, step, loss, samples))

    def refuse(self, name: str, epoch: int, batch: RefusedBatch) -> None:
        """Record that a worker's exchange has refused a gradient: all members leave the batch out."""
        self._put(lambda: self._membership.refuses(name, epoch, batch))

    def left(self, name: str, will: Any, includes: Sequence[str] = ()) -> None:
        """Record that a worker has done its last step.

        Args:
            name: name of the worker.
            will: its residuals, or None.
            includes: names of earlier leavers whose residuals it had taken over.
        """
        self._put(lambda: self._has_left(name, will, includes))

    def take_wills(self) -> dict[str, Any]:
        """Return the residuals of workers that left, by name: for rank 0, and for the next rank 0 if that one dies."""
        with self._wills_lock:
            return dict(self._wills)

    def finished(self, name: str) -> None:
        """Record that the code of a worker has finished."""
        self._put(lambda: self._membership.finished(name))

    def failed(self, name: str, failure: Failure) -> None:
        """Record that the code of a worker has raised: the training fails with its error."""
        self._put(lambda: self._fail(name, failure))

    def history(self) -> list[StepSpan]:
        """Return which steps were done by which members, so far."""
        return list(self._membership.history)

    def _put(self, event: Event) -> None:
        with self._ending:
            if self._is_over:
                raise ProgramStopped(f"the training is over: {self._finish.why if self._finish else 'it has failed'}")
            self._events.put(event)

    # The coordinator's own thread

    def run(self) -> None:
        """Decide until the training is over.

        Raises:
            MemberLost: all members that had the weights are gone.
            Exception: the error that the code of a worker raised.
        """
        node_context.on_stop(lambda: self._events.put(lambda: [Finish("the program is stopping")]))
        began = time.monotonic()
        # One that dies before its first call, and is not restarted, would be waited for without an end.
        for replica in range(0 if self._restarts else self._founders):
            self._events.put(functools.partial(self._watch, process_name(WORKERS, replica, 0), replica))
        while self._finish is None:
            said: list[Instruction] = []
            with contextlib.suppress(queue.Empty):
                said = self._events.get(timeout=_LOOK_S)()
            self._keep_wills()
            for instruction in said:
                self._do(instruction)
            self._look(began)
        self._close()
        self._conclude(self._finish)

    def _close(self) -> None:
        """Refuse further events, and handle those that came before: they change nothing any more, with two exceptions.

        A worker that has just started is told of the end, or it would wait for its first view for ever, and the program
        for the worker. The error of a worker's code makes the training fail.
        """
        with self._ending:
            self._is_over = True
        while not self._events.empty():
            self._events.get()()

    def _keep_wills(self) -> None:
        """Forget residuals that no longer count; before any member is told of the decision."""
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
            case Expel(name):  # it is there, although its end was seen: its link was lost, and made again
                with contextlib.suppress(KeyError, IndexError):
                    self._workers[self._replicas[name]].hear.future(name, instruction)
            case Finish():
                self._finish = self._finish or instruction  # a worker may be overdue in the turn of the end

    def _look(self, began: float) -> None:
        """Check regularly whether a worker has become silent, or founders are missing."""
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
            self._tell(name, Expel(name, f"{name} {why}"))  # the worker reads it when it wakes up
            for instruction in self._membership.died(name, why):
                self._do(instruction)

    def _watch(self, name: str, replica: int) -> list[Instruction]:
        if name in self._clients:
            return []
        try:
            client = self._workers[replica]
        except IndexError:  # the program was scaled down before this worker's call was handled
            return self._membership.died(name, "was ended before it had joined")
        self._clients[name], self._replicas[name] = client, replica
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
        if said := self._membership.failed(name):
            return said
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
        if self._unfinished:  # their calls would never return, so the program ends here and does not wait for them
            node_context.stop(finish.why)
