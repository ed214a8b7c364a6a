"""`track`: a run of any script or notebook, without processes of ours.

track ─▶ Run ─▶ every record ─▶ StoreWriter ─▶ RunStore        (and a StoreWriter for each sink)
                                   └─ each 0.5 s: what was asked of the run?   each 20 s: this process still lives

`ropewalk runs pause ID` ─▶ request in the store ─▶ run.steps raises RunPaused after a checkpoint
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from ropewalk.errors import RunOpen
from ropewalk.processes import open_sessions
from ropewalk.processes.given_run import listen_to_deaths
from ropewalk.processes.record_relay import RecordBatch, listen_everywhere
from ropewalk.supervision.failure import DeathRecord
from ropewalk.tracking import facts
from ropewalk.tracking.checkpoints import CheckpointFolder, CheckpointPolicy
from ropewalk.tracking.current import current_run, set_current_run
from ropewalk.tracking.failure_classes import class_of_exception
from ropewalk.tracking.given_runs import id_given
from ropewalk.tracking.interruptions import PAUSE, STOP, RunStopped, RunTerminated, outcome_of
from ropewalk.tracking.launcher_records import LauncherRecords
from ropewalk.tracking.observed_run import event_of_death
from ropewalk.tracking.records import (
    FAILED,
    PAUSED,
    RUNNING,
    STOPPED,
    AttemptBegan,
    AttemptEnded,
    EventHappened,
    Record,
    RunCreated,
    RunRecord,
    StateIs,
)
from ropewalk.tracking.relaunch import Relaunch, take_relaunch
from ropewalk.tracking.run import Run
from ropewalk.tracking.run_config import to_plain
from ropewalk.tracking.run_identity import RunIdentity
from ropewalk.tracking.sinks import make_sink
from ropewalk.tracking.sinks.sink import CopiedRun, RunSink
from ropewalk.tracking.store.opening import open_store
from ropewalk.tracking.store.rows import RequestRow, RunRow
from ropewalk.tracking.store.store import RunStore
from ropewalk.tracking.system_metrics import SystemMetrics
from ropewalk.tracking.writer import StoreWriter
from ropewalk.trusted_files import make_private_folder

_log = logging.getLogger(__name__)
_ASK_S = 0.5
"""Seconds between looks for requests."""
_ALIVE_S = 20.0
"""Seconds between signs of life, without which a run on another host counts as lost after a minute."""
_BEGIN_S = 2.0
"""Seconds within which a store takes the first records; training does not wait longer for it."""
_END_S = 10.0
_SETTLE_S = 2.0
_MOST_SCRIPT_BYTES = 1 << 20

TakesRequest = Callable[[str], tuple[bool, str]]
"""Called with "pause" or "stop"; returns whether that is done, and the answer for whoever asked."""


def track(
    project: str | None = None,
    config: Mapping[str, Any] | None = None,
    *,
    name: str | None = None,
    labels: Sequence[str] = (),
    notes: str = "",
    folder: Path | str | None = None,
    store: str | Path | RunStore | None = None,
    seed: int | None = None,
    system: bool = True,
    sinks: Sequence[str | RunSink] = (),
    checkpoints: CheckpointPolicy | None = None,
) -> Run:
    """Begin a run, and return it; use it in `with`, whose end ends it, or call `run.finish()`.

    An exception that leaves `with` makes the run failed, with its traceback; Ctrl-C and SIGTERM make it stopped.
    If the script was started by `ropewalk runs continue` or `fork`, the run goes on, or begins with that checkpoint.

    Args:
        project: a name for what belongs together; None: that of the script.
        config: hyperparameters and other settings. Read them from `run.config`: `ropewalk runs fork --set` changes
            them there.
        name: a name for people; None: one is made up.
        labels: labels by which it is found.
        notes: a first remark.
        folder: folder of checkpoints, artifacts and images; None: one beside the store.
        store: path or URL of the store, or a store that is open; None: `ROPEWALK_STORE`, or this user's own.
        seed: kept with the run; nothing is seeded by it.
        system: whether the use of CPU, memory, disk, network and GPUs is measured every 5 s.
        sinks: where the run is copied to: "csv", "jsonl", "tensorboard", "mlflow", "wandb", or objects of these.
        checkpoints: which checkpoints `run.checkpoint` writes and keeps; None: the newest one.

    Raises:
        RunOpen: this process has a run already.
        StoreError: the store cannot be opened.
        ModuleNotFoundError: a sink needs a package that is not installed.
        SettingsError: the variables of `ropewalk runs fork` name a setting that the configuration does not have.
    """
    open_run = current_run()
    if open_run is not None:
        raise RunOpen(
            f"this process writes the run {open_run.name} ({open_run.id}) already; end it with run.finish() or the end "
            f"of its `with`, or write to it: ropewalk.tracking.current_run(), with group= for what is to be kept apart",
            run=open_run.id,
        )
    return begin_run(
        "script",
        project,
        config,
        name=name,
        labels=labels,
        notes=notes,
        folder=folder,
        store=store,
        seed=seed,
        system=system,
        sinks=sinks,
        checkpoints=checkpoints,
    )


def begin_run(
    kind: str,
    project: str | None,
    config: Mapping[str, Any] | None,
    *,
    name: str | None = None,
    labels: Sequence[str] = (),
    notes: str = "",
    folder: Path | str | None = None,
    store: str | Path | RunStore | None = None,
    seed: int | None = None,
    system: bool = True,
    sinks: Sequence[str | RunSink] = (),
    checkpoints: CheckpointPolicy | None = None,
    take: TakesRequest | None = None,
) -> Run:
    """Begin a run as `track` does, of any kind that `RunCreated` knows. A current run of this process stays that.

    `take` is asked about a request to pause or to stop, in the writer's thread, in place of `run.steps`; it returns
    whether that can be done, and the answer. Without it, the run is that of a script.
    """
    relaunch = take_relaunch(os.environ)
    settings = relaunch.configure(config or {})
    opened = store if isinstance(store, RunStore) else open_store(store)
    made: list[RunSink] = []
    try:
        earlier = opened.run(relaunch.continues) if relaunch.continues else None
        parent = opened.run(relaunch.forks) if relaunch.forks else None
        identity = _identity(opened, earlier, parent, relaunch, project, name, folder, seed)
        make_private_folder(identity.folder)
        for sink in sinks:
            made.append(make_sink(sink))
            made[-1].begin(_copied_run(identity, settings))
    except BaseException:
        for sink in made:
            sink.close()
        if opened is not store:
            opened.close()
        raise
    known = facts.collect(seed)
    detached = _Detached(identity, opened, made, take, owns_store=opened is not store)
    if earlier is None:
        detached.put(identity.id, _created(kind, identity, settings, known, labels, parent))
    run = Run(identity, settings, detached, checkpoints=checkpoints, asked=detached.asked, ended=detached.end)
    detached.start(run, system=system)
    _tell(run, known, earlier, settings, labels, notes)
    run.flush(_BEGIN_S)  # from here on, other terminals find it
    return run


def _created(
    kind: str,
    identity: RunIdentity,
    settings: Mapping[str, Any],
    known: Mapping[str, Any],
    labels: Sequence[str],
    parent: RunRow | None,
) -> RunCreated:
    return RunCreated(
        project=identity.project,
        name=identity.name,
        kind=kind,
        time=time.time(),
        config=to_plain(settings),
        facts=to_plain(known),
        labels=list(labels),
        parent=parent.id if parent else "",
        parent_step=identity.forked_at,
        folder=str(identity.folder),
    )


def _copied_run(identity: RunIdentity, settings: Mapping[str, Any]) -> CopiedRun:
    return CopiedRun(
        identity.id, identity.project, identity.name, identity.folder, to_plain(settings), identity.attempt
    )


def _identity(
    store: RunStore,
    earlier: RunRow | None,
    parent: RunRow | None,
    relaunch: Relaunch,
    project: str | None,
    name: str | None,
    folder: Path | str | None,
    seed: int | None,
) -> RunIdentity:
    if earlier is not None:
        attempt = max((one.number for one in store.attempts(earlier.id)), default=0) + 1
        return RunIdentity(earlier.id, earlier.project, earlier.name, Path(earlier.folder), attempt, seed)
    script = facts.script_path()
    stem = script.stem if script else "notebook" if facts.is_notebook() else "interactive"
    run_id = secrets.token_hex(8)
    forked_at = relaunch.fork_step
    if parent is not None and forked_at is None:
        saved = CheckpointFolder(Path(parent.folder) / "checkpoints").saved()
        forked_at = saved[-1].step if saved else None
    return RunIdentity(
        id=run_id,
        project=project or (parent.project if parent else stem),
        name=name or f"{stem}-{run_id[:6]}",
        folder=Path(folder).absolute() if folder is not None else store.folder / run_id,
        seed=seed,
        forked_from=Path(parent.folder) if parent else None,
        forked_at=forked_at,
    )


def _tell(
    run: Run,
    known: Mapping[str, Any],
    earlier: RunRow | None,
    settings: Mapping[str, Any],
    labels: Sequence[str],
    notes: str,
) -> None:
    if notes:
        run.note(notes)
    if earlier is None:
        script = Path(known["script"]) if known["script"] else None
        if not known["git"] and script and script.is_file() and script.stat().st_size <= _MOST_SCRIPT_BYTES:
            run.artifact(script, f"code/{script.name}")  # the only copy of the code that there is
        return
    if labels:
        run.label(*labels)
    changed = {name: value for name, value in to_plain(settings).items() if earlier.config.get(name) != value}
    if changed:
        run.config.update(changed)


class _Detached:
    """What a run has around it in its own process. It is the run's `RecordSink`."""

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
        self._take_request = take
        self._is_current = False
        self._pid, self._owner = os.getpid(), facts.this_process()
        self._request = ""
        self._interrupted: BaseException | None = None
        self._system: SystemMetrics | None = None
        self._handled: list[tuple[int, Any]] = []
        self._writer = StoreWriter(store, store.where)
        self._copies = [StoreWriter(sink, type(sink).__name__) for sink in sinks]

    def start(self, run: Run, *, system: bool) -> None:
        """Say that the process works on the run; handle signals; measure the machine."""
        self._run = run
        saved = CheckpointFolder(run.folder / "checkpoints").saved()
        began = AttemptBegan(
            run.attempt, self._owner.host, self._owner.pid, time.time(), saved[-1].step if saved else 0
        )
        for record in (self._owner, StateIs(RUNNING, time.time()), began):
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

    # --- requests and signals -----------------------------------------------------------------------------------------

    def asked(self) -> str:
        """Return what is asked of the run now."""
        return self._request

    def _look_for_requests(self) -> None:
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
                if self._run.step:
                    return True, "it stops after the step in which it is"
                if self._handled:
                    os.kill(os.getpid(), signal.SIGTERM)  # interrupts what waits, too
                    return True, "it does not use run.steps, and was interrupted as by SIGTERM"
                return False, (
                    "it does not use run.steps, and handles SIGTERM by itself or is not in the main thread; it stops "
                    "if it begins to use run.steps. To end it now: ropewalk runs kill"
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
        return f"it is in step {self._run.step:g}, and pauses at its next checkpoint{known}"

    def _kill(self) -> NoReturn:
        now = time.time()
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
            self._handled.append((signal.SIGTERM, signal.signal(signal.SIGTERM, self._terminate)))

    def _terminate(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._pid:  # a forked child has inherited the handler, and not the run
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        kind, why = (RunStopped, "stopped by request") if self._request == STOP else (RunTerminated, "ended by SIGTERM")
        self._interrupted = kind(why, self._run.step)
        raise self._interrupted

    # --- the end ------------------------------------------------------------------------------------------------------

    def end(self, state: str, why: str) -> None:
        """Write how the run ended, and end what was started for it."""
        if os.getpid() != self._pid:
            return
        run, now = self._run, time.time()
        for number, before in self._handled:
            with contextlib.suppress(ValueError):  # ended by another thread than the main one
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
            self.put(self._identity.id, event_of_death(record.describe(), record))

    def _end_at_exit(self) -> None:
        """End a run that was not used in `with`, at the end of the process."""
        error = self._interrupted or self._run.interrupted
        if error is None and not facts.is_notebook():
            error = getattr(sys, "last_value", None)  # set if an exception ended the interpreter
        self._run.finish(*outcome_of(error))


__all__ = ["track"]
