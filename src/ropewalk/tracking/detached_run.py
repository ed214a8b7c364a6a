"""`DetachedRun`: what surrounds the run of a script in its own process: writers, requests, signals, its end.

    Run ─▶ every record ─▶ StoreWriter ─▶ RunStore        (and a StoreWriter for each sink)
                              └─ each 0.5 s: what was asked of the run?   each 20 s: this process still lives

`ropewalk runs pause ID` makes a request in the store, after which `run.steps` raises `RunPaused` as soon as there is a
checkpoint.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, NoReturn

from ropewalk.processes import interrupts, open_sessions
from ropewalk.processes.given_run import listen_to_deaths
from ropewalk.processes.record_relay import RecordBatch, listen_everywhere
from ropewalk.supervision.failure import DeathRecord
from ropewalk.tracking import facts
from ropewalk.tracking.checkpoints import CheckpointFolder
from ropewalk.tracking.current import current_run, set_current_run
from ropewalk.tracking.failure_classes import class_of_exception
from ropewalk.tracking.given_runs import id_given
from ropewalk.tracking.interruptions import PAUSE, STOP, RunStopped, RunTerminated, outcome_of
from ropewalk.tracking.journal import RecordJournal
from ropewalk.tracking.launcher_records import LauncherRecords
from ropewalk.tracking.records import (
    FAILED,
    PAUSED,
    RUNNING,
    STOPPED,
    AttemptBegan,
    AttemptEnded,
    EventHappened,
    Record,
    RunRecord,
    StateIs,
)
from ropewalk.tracking.run import Run
from ropewalk.tracking.run_clock import RunClock
from ropewalk.tracking.run_identity import RunIdentity
from ropewalk.tracking.sinks.sink import RunSink
from ropewalk.tracking.store.rows import RequestRow
from ropewalk.tracking.store.store import RunStore
from ropewalk.tracking.system_metrics import SystemMetrics
from ropewalk.tracking.writer import StoreWriter

_log = logging.getLogger(__name__)
_ASK_S = 0.5
"""Seconds between looks for requests."""
_ALIVE_S = 20.0
"""Seconds between signs of life, without which a run on another host counts as lost after a minute."""
_END_S = 10.0
_SETTLE_S = 2.0


TakesRequest = Callable[[str], tuple[bool, str]]
"""Called with "pause" or "stop"; returns whether that is done, and the answer for whoever asked."""


class DetachedRun:
    """What surrounds a run of a script. It is the run's `RecordSink`.

    Args:
        identity: the run.
        store: its store.
        sinks: other places to which it is copied; they have begun.
        take: decides about requests to pause and to stop; None: `run.steps` obeys them.
        owns_store: whether the store is closed at the end.
    """

    def __init__(
        self,
        identity: RunIdentity,
        store: RunStore,
        sinks: Sequence[RunSink],
        take: TakesRequest | None,
        *,
        owns_store: bool,
    ) -> None:
        self._identity, self._store, self._sinks, self._owns_store = identity, store, sinks, owns_store
        self._clock = RunClock()
        self._take_request = take
        self._is_current = False
        self._pid, self._owner = os.getpid(), facts.this_process()
        self._request = ""
        self._is_ending = False
        """From then on no request is taken, and none interrupts the script; the store answers it."""
        self._has_ended = False
        self._taking = threading.Lock()
        """Held while requests are taken."""
        self._interrupted: BaseException | None = None
        self._system: SystemMetrics | None = None
        self._handled: list[tuple[int, Any]] = []
        self._signals = interrupts.EndSignals()
        self._writer = StoreWriter(store, store.where, journal=RecordJournal(store))
        self._copies = [StoreWriter(sink, type(sink).__name__) for sink in sinks]

    def start(self, run: Run, *, system: bool) -> None:
        """Say that the process works on the run; handle signals; measure the machine."""
        self._run = run
        saved = CheckpointFolder(run.folder / "checkpoints").saved()
        began = AttemptBegan(
            run.attempt, self._owner.host, self._owner.pid, self._clock(), saved[-1].step if saved else 0
        )
        for record in (self._owner, StateIs(RUNNING, self._clock()), began):
            self.put(run.id, record)
        self._is_current = current_run() is None
        if self._is_current:
            set_current_run(run)
        if self._take_request is None:
            self._handle_termination()
        self._of_processes = LauncherRecords(listen_everywhere, self, self._runs_of)
        self._stop_deaths = listen_to_deaths(self._died)
        atexit.register(self._end_at_exit)
        self._writer.every(_ASK_S, self._look_for_requests)
        self._writer.every(_ALIVE_S, lambda: self._writer.put(run.id, self._owner))
        if system:
            self._system = SystemMetrics(lambda metrics: self.put(run.id, metrics))

    # --- records ------------------------------------------------------------------------------------------------------

    def put(self, run: str, record: Record) -> None:
        """Take a record, for the store and for each sink."""
        self._writer.put(run, record)
        for copy in self._copies:
            copy.put(run, record)

    def flush(self, timeout_s: float) -> bool:
        """Wait until all records so far are written."""
        deadline = time.monotonic() + timeout_s
        waits = [one.flush(max(0.0, deadline - time.monotonic())) for one in (self._writer, *self._copies)]
        return all(waits)

    def settle(self, timeout_s: float) -> bool:
        """Wait until none of the records so far can be lost; sinks, which keep no journal, have them then."""
        deadline = time.monotonic() + timeout_s
        waits = [one.settle(max(0.0, deadline - time.monotonic())) for one in (self._writer, *self._copies)]
        return all(waits)

    # --- requests and signals -----------------------------------------------------------------------------------------

    def asked(self) -> str:
        """Return what is asked of the run now."""
        return self._request

    def _look_for_requests(self) -> None:
        with self._taking:
            if not self._is_ending:
                self._answer_requests()

    def _answer_requests(self) -> None:
        for request in self._store.requests([self._identity.id]):
            ok, answer = self._take(request)
            self._store.answer(request.number, ok, answer)
            self._writer.put(
                self._identity.id,
                EventHappened("request", f"{request.action} was asked for: {answer}", time.time(), request.data),
            )
            if request.action == "kill":
                self._kill()

    def _runs_of(self, batch: RecordBatch) -> tuple[str, ...] | None:
        return (self._identity.id,) if id_given(batch.run) == self._identity.id else None

    def _take(self, request: RequestRow) -> tuple[bool, str]:
        match request.action:
            case "pause" | "stop" if self._take_request is not None:
                return self._take_request(request.action)
            case "pause":
                self._request = PAUSE
                return True, self._words_for_pause()
            case "stop":
                self._request = STOP
                if self._run.is_looping:
                    return True, "it stops after the step in which it is"
                if self._is_ending:
                    return True, "it is ending"
                if self._handled:
                    os.kill(os.getpid(), signal.SIGTERM)  # interrupts what waits, too
                    return True, f"{self._words_outside_loop()}, and was interrupted as by SIGTERM"
                return False, (
                    f"{self._words_outside_loop()}, and handles SIGTERM by itself or is not in the main thread; it "
                    "stops if it begins to use run.steps. To end it now: ropewalk runs kill"
                )
            case "kill":
                return True, f"process {os.getpid()} on {self._owner.host} was killed"
            case other:
                return False, f"a running script cannot do {other!r}; it can pause, stop and kill"

    def _words_for_pause(self) -> str:
        if not self._run.step:
            return (
                "it pauses if it uses run.steps and run.checkpoint, which it has not done so far; to stop it: "
                "ropewalk runs stop"
            )
        saved = self._run.checkpoint_step()
        known = f"; the last one was after step {saved:g}" if saved else "; it has not written one yet"
        if not self._run.is_looping:
            return (
                f"{self._words_outside_loop()}, and pauses only at a checkpoint of a further loop{known}; to stop it: "
                "ropewalk runs stop"
            )
        return f"it is in step {self._run.step:g}, and pauses at its next checkpoint{known}"

    def _words_outside_loop(self) -> str:
        step = self._run.step
        return f"it has left run.steps after step {step:g}" if step else "it does not use run.steps"

    def _kill(self) -> NoReturn:
        now = self._clock()
        why = "killed by `ropewalk runs kill`"
        ended = AttemptEnded(self._identity.attempt, "lost", now, why, at_step=self._run.step)
        with contextlib.suppress(Exception):  # the process ends in any case, and the store finds out
            self._store.apply(
                [RunRecord(self._identity.id, ended), RunRecord(self._identity.id, StateIs(STOPPED, now, why))]
            )
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("not reached")

    def _handle_termination(self) -> None:
        """Let SIGTERM end the run as Ctrl-C does, unless the program handles it by itself."""
        if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
            interrupts.raising_handlers.append(self._terminate)
            self._handled.append((signal.SIGTERM, signal.signal(signal.SIGTERM, self._terminate)))

    def _terminate(self, number: int, frame: FrameType | None) -> None:
        # A forked child has inherited the handler, and not the run; and one stays that another thread could not remove.
        if os.getpid() != self._pid or self._has_ended:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        if self._is_ending or self._signals.is_copy(number):  # an exception would leave it half ended
            return
        kind, why = (RunStopped, "stopped by request") if self._request == STOP else (RunTerminated, "ended by SIGTERM")
        self._interrupted = kind(why, self._run.step)
        raise self._interrupted

    # --- the end ------------------------------------------------------------------------------------------------------

    def end(self, state: str, why: str) -> None:
        """Write how the run ended, and end what was started for it."""
        if os.getpid() != self._pid:
            return
        self._is_ending = True
        with self._taking:  # requests that are being taken are answered
            pass
        run, now = self._run, self._clock()
        handled, self._handled = self._handled, []
        for number, before in handled:
            interrupts.raising_handlers.remove(self._terminate)
            with contextlib.suppress(ValueError):  # ended by another thread than the main one
                if signal.getsignal(number) == self._terminate:  # else the program has set another one meanwhile
                    signal.signal(number, before)
        atexit.unregister(self._end_at_exit)
        if self._system is not None:
            self._system.close()
        error = sys.exception() if state == FAILED else None
        failure_class = class_of_exception(error) if error is not None else ""
        if self._is_current:
            set_current_run(None)
        self._settle_records()
        self.put(run.id, AttemptEnded(run.attempt, state, now, why, failure_class, run.step))
        self.put(run.id, StateIs(state, now, why))
        for writer in (self._writer, *self._copies):
            writer.close(_END_S)
        for sink in self._sinks:
            sink.close()
        if self._owns_store:
            self._store.close()
        self._has_ended = True
        if state == PAUSED:
            _log.warning("%s: %s; it goes on with: ropewalk runs continue %s", run.name, why, run.id)

    def _settle_records(self) -> None:
        """Take the last records of processes that were given the run, and then no more."""
        for session in open_sessions.all_sessions():
            session.settle_records(_SETTLE_S)
        self._of_processes.close()
        self._stop_deaths()

    def _died(self, given: str, record: DeathRecord) -> None:
        if id_given(given) == self._identity.id:
            self.put(self._identity.id, EventHappened.of_death(record.describe(), record))

    def _end_at_exit(self) -> None:
        """End a run that was not used in `with`, at the end of the process."""
        error = self._interrupted or self._run.interrupted
        if error is None and not facts.is_notebook():
            error = getattr(sys, "last_value", None)  # set if an exception ended the interpreter
        self._run.finish(*outcome_of(error))


__all__ = ["DetachedRun", "TakesRequest"]
