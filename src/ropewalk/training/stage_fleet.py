"""The stage processes of a trainer, by their seats: started, called, watched, and killed when they do not answer.

    seat 0   stages.0#0   ── dies ──▶ its `stay` call fails ──▶ lost; the program starts stages.0#1
    seat 1   stages.1#0

A seat is a replica of the node "stages". A wait for answers ends as soon as one of the processes waited for is gone;
a process that does not answer even a ping is killed, so that it is gone too.
"""

from __future__ import annotations

import contextlib
import inspect
import time
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import Future
from typing import Any, TypeVar

from ropewalk.calls.client import Client
from ropewalk.errors import ExchangeAborted, ProgramInvalid, ProgramStopped, ServiceLost, StageLost, StageStalled
from ropewalk.exchange.elastic.silence import Silence
from ropewalk.exchange.groups.watched_worker import cause_of, ping, watch_end
from ropewalk.processes.notifier import Notifier
from ropewalk.program.nodes.service import Service
from ropewalk.program.program import Program
from ropewalk.program.restart_rule import Restart
from ropewalk.program.running import RunningProgram
from ropewalk.tracking.observed_run import Track
from ropewalk.training.assignment import Presence, TrainingConfig
from ropewalk.training.stage_process import StageProcess
from ropewalk.training.target import TrainerTarget
from ropewalk.training.timeouts import TrainerTimeouts
from ropewalk.training.trainer_options import ProcessOptions
from ropewalk.transport.serialization import dumps_code

K = TypeVar("K")

STAGES = "stages"
"""The node of stage processes."""
PRELOADED = ("torch", "torch._dynamo", "ropewalk.training.stage_process")
"""Imported once, before processes are forked, so that a replacement starts quickly. Torch imports dynamo when it makes
the first optimizer: a second of every process, and a second more of each recovery."""
_LOOK_S = 0.25


class SeatsLost(Exception):
    """Processes are gone, or do not answer.

    Attributes:
        seats: their seats, and what is known of their ends.
    """

    def __init__(self, seats: Mapping[int, str]) -> None:
        super().__init__(f"lost: {seats}")
        self.seats = dict(seats)


class StageFleet:
    """The stage processes of a trainer.

    Args:
        processes: where they run, with which resources, and the name of their program.
        training: the configuration that all of them get when they start.
        num: the number of processes.
        timeouts: the timeouts of the trainer.
        track: what keeps the run of the trainer, if it is tracked.
        shown_as: what `ropewalk ps` and the page show in place of the program of the processes.
    """

    def __init__(
        self,
        processes: ProcessOptions,
        training: TrainingConfig,
        num: int,
        *,
        timeouts: TrainerTimeouts,
        track: Track = False,
        shown_as: TrainerTarget | None = None,
    ) -> None:
        self.num = num
        self._training = training
        self._shown_as = shown_as
        self._track = track
        data = training.data
        self.data_is_sharded = data is not None and "shard" in inspect.signature(data).parameters
        """Whether micro-batches must be divided evenly among replicas."""
        self.has_exchange = training.exchange is not None
        """Whether an exchange averages the gradients of replicas."""
        self._timeouts = timeouts
        self._processes = processes
        self._program = Program(processes.name)
        # One failure must not end all processes: the trainer decides what a death means, and how many are too many.
        rule = Restart("on_failure", max_restarts=timeouts.max_restarts, window_s=60.0)
        self._program.add(
            Service(StageProcess, training, self._program.declare(STAGES)),
            name=STAGES,
            replicas=num,
            resources=processes.resources,
            environment=processes.environment,
            restart=rule,
            essential=False,
            preload=PRELOADED,
        )
        self._running: RunningProgram | None = None
        self._clients: Client | None = None
        self.present: dict[int, Presence] = {}
        """By seat, the process there, known to live."""
        self._lost: dict[int, str] = {}
        self._asked: dict[int, Future[Presence]] = {}
        """By seat without a known process, the pending `hello` call."""
        self._notifier = Notifier()

    def start(self) -> None:
        """Start all processes; returns before they are up."""
        # Never threads, whatever the mode of programs: torch has one random generator for all threads of a process, and
        # one thread count. For a debugger there is `inline`.
        try:
            self._running = self._program.launch(
                "processes",
                self._processes.engine,
                session=self._processes.session,
                track=self._track,
                shown_as=self._shown_as,
            )
        except ProgramInvalid:
            _check_sendable(self._training)  # which knows the names that the user has given
            raise
        if self._shown_as is not None:
            self._shown_as.processes = self._running
        self._clients = self._running.client(STAGES)

    def close(self, grace_s: float | None = None) -> None:
        """End all processes; may be called twice."""
        if self._running is not None:
            self._running.stop(grace_s)

    def scale(self, num: int) -> None:
        """Change the number of processes to `num`; the last ones are removed."""
        assert self._running is not None
        self.num = num
        for seat in [seat for seat in {**self.present, **self._asked} if seat >= num]:
            self.present.pop(seat, None)
            self._asked.pop(seat, None)
        self._running.scale(STAGES, num)

    def client(self, seat: int) -> Any:
        """Return the client of the process at a seat."""
        assert self._clients is not None
        due = time.monotonic() + self._timeouts.start_s
        while True:
            try:
                return self._clients[seat]
            except IndexError:  # the directory does not know of the larger size yet
                if time.monotonic() > due:
                    raise
                time.sleep(0.01)

    def take_seats(
        self, seats: Collection[int], timeout_s: float, *, enough: int | None = None, queues: bool = False
    ) -> dict[int, str]:
        """Wait until processes are at these seats, or `enough` of them; returns the empty seats, with the reasons.

        With `queues`, the timeout begins when no job waits in the queue of the cluster manager any more: there is
        nothing to do without it, and the queue says why it waits.
        """
        due = time.monotonic() + timeout_s
        failed: dict[int, str] = {}
        while True:
            found = self.look_for(seats)
            failed |= found
            missing = [seat for seat in seats if seat not in self.present]
            if queues and self._running is not None and self._running.has_queued_jobs:
                due = time.monotonic() + timeout_s
            left_s = due - time.monotonic()
            if not missing or left_s <= 0 or (enough is not None and len(self.present) >= enough):
                return {seat: failed.get(seat, "it did not start") for seat in missing}
            if found:
                time.sleep(0.02)
            self._notifier.wait_until(self._one_has_answered, min(_LOOK_S, left_s))

    def look_for(self, seats: Collection[int]) -> dict[int, str]:
        """See which processes have started, without waiting; returns the seats that could not answer, and why."""
        failed: dict[int, str] = {}
        for seat in seats:
            if seat in self.present:
                continue
            future = self._asked.pop(seat, None)
            if future is not None and future.done():
                if (error := future.exception()) is None:
                    self._seated(seat, future.result())
                    continue
                if not self._is_running:
                    raise StageLost(f"the processes of the trainer have ended: {cause_of(error)}", cause=str(error))
                failed[seat] = cause_of(error)
                future = None
            if future is None:
                future = self.client(seat).hello.future()
                future.add_done_callback(self._ring)
            self._asked[seat] = future
        return failed

    def _one_has_answered(self) -> bool:
        return any(future.done() for future in self._asked.values())

    def _seated(self, seat: int, presence: Presence) -> None:
        self.present[seat] = presence
        self._lost.pop(seat, None)

        def has_gone(why: str) -> None:
            if self.present.get(seat) == presence:
                self._lost[seat] = why
                self.present.pop(seat, None)
            self._notifier.ring()

        watch_end(self.client(seat), presence.name, has_gone)

    @property
    def hosts(self) -> dict[int, str]:
        """Return, by seat, the host of each process that is known to live."""
        return {seat: presence.host for seat, presence in self.present.copy().items()}

    @property
    def _is_running(self) -> bool:
        assert self._running is not None
        return not self._running.has_ended

    def lost_among(self, seats: Collection[int]) -> dict[int, str]:
        """Return which of these seats have lost their process, and why."""
        return {seat: self._lost[seat] for seat in seats if seat not in self.present and seat in self._lost}

    def answers(self, futures: Mapping[K, Future[Any]], seats: Mapping[K, int], what: str) -> dict[K, Any]:
        """Wait for the answers to calls.

        Args:
            futures: calls under way.
            seats: the seat that each of them goes to.
            what: a description of the calls, for messages.

        Returns:
            The answers.

        Raises:
            SeatsLost: a process is gone, or did not answer in time and was killed.
            StageStalled: all processes answer pings, but a call does not end in time.
            Exception: raised by one of the calls.
        """
        silence = Silence(self._timeouts.quiet_s, self._timeouts.silent_s)
        began = time.monotonic()
        silence.went_on(began)
        self._ring_when_done(futures)
        while True:
            self._notifier.wait_until(lambda: self._is_settled(futures, seats), _LOOK_S)
            if self._is_settled(futures, seats):
                break
            self._look(silence, {seats[key] for key, future in futures.items() if not future.done()}, began, what)
        self._raise(futures, seats)
        return {key: future.result() for key, future in futures.items()}

    def wait_at_most(self, futures: Mapping[K, Future[Any]], seats: Mapping[K, int], timeout_s: float) -> None:
        """Wait until all calls have ended, one of the processes is gone, or `timeout_s` seconds are over."""
        self._ring_when_done(futures)
        self._notifier.wait_until(
            lambda: (
                all(future.done() for future in futures.values())
                or any(seat not in self.present for seat in seats.values())
            ),
            timeout_s,
        )

    def abort(self, seats: Iterable[int], epoch: int) -> None:
        """Make the living processes drop the work of an epoch, once their present action is done.

        A process that does not answer a ping, or does not finish its action in time, is killed.
        """
        asked = {seat: self.client(seat).abort.future(epoch) for seat in seats if seat in self.present}
        while waiting := [seat for seat, future in asked.items() if seat in self.present and not future.done()]:
            try:
                self.answers({seat: asked[seat] for seat in waiting}, {seat: seat for seat in waiting}, "stopping")
            except SeatsLost:
                continue
            except StageStalled:
                for seat in waiting:
                    self.give_up(seat, f"it did not drop its work within {self._timeouts.stalled_s:g} s")

    def kept(self) -> dict[int, Any]:
        """Return, by seat, the snapshots that living processes keep for others."""
        asked = {seat: self.client(seat).kept.future() for seat in sorted(self.present)}
        found: dict[int, Any] = {}
        for seat, future in asked.items():
            with contextlib.suppress(ServiceLost, TimeoutError):  # the process is gone by now
                found[seat] = future.result(self._timeouts.silent_s)
        return found

    def _is_settled(self, futures: Mapping[K, Future[Any]], seats: Mapping[K, int]) -> bool:
        """Whether all calls have ended, or are known never to end."""
        if any(seat not in self.present for seat in seats.values()):
            return True
        return all(future.done() for future in futures.values()) or any(
            future.done() and future.exception() is not None for future in futures.values()
        )

    def _raise(self, futures: Mapping[K, Future[Any]], seats: Mapping[K, int]) -> None:
        gone: dict[int, str] = {}
        for key, future in futures.items():
            error = future.exception() if future.done() else None
            if isinstance(error, ServiceLost):
                gone[seats[key]] = cause_of(error)
            elif isinstance(error, ProgramStopped):  # from outside: the call was made before its process was missed
                gone[seats[key]] = str(error)
            elif error is not None and not isinstance(error, ExchangeAborted):
                raise error  # an error of the user's code explains more than the loss that followed
        if gone:  # a lost call may show it sooner than `stay`
            self._notifier.wait_until(lambda: not gone.keys() & self.present.keys(), 1.0)
        elif any(future.done() and future.exception() is not None for future in futures.values()):
            # A process that stopped because a peer was gone may say so sooner than the loss is known here.
            self._notifier.wait_until(lambda: any(seat not in self.present for seat in seats.values()), 1.0)
        gone |= self.lost_among(set(seats.values()))
        for seat in set(seats.values()) - self.present.keys():
            gone.setdefault(seat, "it is gone")
        if gone:
            for seat in gone:
                self.present.pop(seat, None)
            raise SeatsLost(gone)
        for future in futures.values():
            if future.done() and (error := future.exception()) is not None:
                raise error

    def _look(self, silence: Silence, awaited: Collection[int], began: float, what: str) -> None:
        now = time.monotonic()
        names = {str(seat): seat for seat in awaited}
        for name in silence.to_ask(names, now):
            ping(self.client(names[name]), lambda name=name: silence.answered(name, time.monotonic()))
        for name in silence.overdue(now):
            silence.forget(name)
            self.give_up(names[name], f"it has not answered for {self._timeouts.silent_s:g} s")
        if now - began > self._timeouts.stalled_s:
            raise StageStalled(
                f"{what} takes longer than {self._timeouts.stalled_s:g} s, and all stages answer; raise stalled_s if "
                f"that is what it takes. Where they stand:\n{self._where(awaited)}",
                waited_s=self._timeouts.stalled_s,
            )

    def _ring_when_done(self, futures: Mapping[Any, Future[Any]]) -> None:
        for future in futures.values():
            future.add_done_callback(self._ring)

    def _ring(self, _: Future[Any]) -> None:
        self._notifier.ring()

    def give_up(self, seat: int, why: str) -> None:
        """Kill a process that is of no further use."""
        self._lost[seat] = why
        self.present.pop(seat, None)
        assert self._running is not None
        self._running.kill(STAGES, seat)
        self._notifier.ring()

    def _where(self, seats: Collection[int]) -> str:
        asked = {seat: self.client(seat).where.future() for seat in seats}
        due = time.monotonic() + 2.0
        lines: list[str] = []
        for seat, future in sorted(asked.items()):
            try:
                lines.append(f"  {self._name_at(seat)}: {future.result(max(0.0, due - time.monotonic()))}")
            except Exception as error:
                lines.append(f"  {self._name_at(seat)}: {type(error).__name__}: {error}")
        return "\n".join(lines)

    def _name_at(self, seat: int) -> str:
        presence = self.present.get(seat)
        return f"seat {seat}" if presence is None else presence.name


def _check_sendable(training: TrainingConfig) -> None:
    """Raise `NotPicklable` for an argument of the trainer that cannot be sent to its processes."""
    arguments = {
        "loss_fn": training.loss.function,
        "optimizer": training.optimizers.make_optimizer,
        "lr_schedule": training.optimizers.lr_schedule,
        "exchange": training.exchange,
        "data": training.data,
    }
    for name, value in arguments.items():
        dumps_code(value, what=name)
