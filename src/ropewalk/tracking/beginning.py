"""`track`: a run of any script or notebook, without processes of ours."""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ropewalk.argument_kinds import check_kind, check_texts
from ropewalk.errors import FileNotTrusted, RunNotFound, RunOpen, StoreError
from ropewalk.misplaced_options import tells_places
from ropewalk.processes.interrupts import interrupts_deferred
from ropewalk.tracking import facts
from ropewalk.tracking.begun_runs import RunPlace, begun_runs
from ropewalk.tracking.checkpoints import CheckpointFolder, CheckpointPolicy
from ropewalk.tracking.current import current_run
from ropewalk.tracking.detached_run import DetachedRun, TakesRequest
from ropewalk.tracking.interruptions import outcome_of
from ropewalk.tracking.records import RUNNING, RunCreated
from ropewalk.tracking.relaunch import TOLD, Relaunch, take_relaunch
from ropewalk.tracking.resuming import unfinished_run
from ropewalk.tracking.run import Run
from ropewalk.tracking.run_config import to_plain
from ropewalk.tracking.run_identity import RunIdentity
from ropewalk.tracking.sinks import make_sink
from ropewalk.tracking.sinks.sink import CopiedRun, RunSink
from ropewalk.tracking.store.opening import open_store
from ropewalk.tracking.store.rows import RunRow
from ropewalk.tracking.store.store import RunStore
from ropewalk.tracking.tracker_names import ARGUMENTS
from ropewalk.trusted_files import make_private_folder
from ropewalk.user_frames import user_frames_only

_BEGIN_S = 2.0
"""Seconds within which a store takes the first records; training does not wait longer for it."""


@user_frames_only
@tells_places(ARGUMENTS)
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
    resume: bool = False,
) -> Run:
    """Begin a run, and return it; use it in `with`, whose end ends it, or call `run.finish()`.

    An exception that leaves `with` makes the run failed, with its traceback; Ctrl-C and SIGTERM make it stopped.
    If the script was started by `ropewalk runs continue` or `fork`, the run resumes, or begins with that checkpoint.

    Example:
        >>> import ropewalk as rw
        >>> with rw.track("digits", config={"rate": 0.1}) as run:
        ...     for step in run.steps(3):
        ...         run.log(loss=run.config["rate"] / step)
        >>> run.project
        'digits'

    Args:
        project: a name that groups runs; None: that of the script.
        config: hyperparameters and other settings. Read them from `run.config`: `ropewalk runs fork --set` changes
            them there.
        name: a readable name; None: one is made up.
        labels: labels by which it is found.
        notes: a first remark.
        folder: the run gets a folder in this one, named by its id, for checkpoints, artifacts and images; None: beside
            the store.
        store: path or URL of the store, or a store that is open; None: `ROPEWALK_STORE`, or this user's own.
        seed: kept with the run; nothing is seeded by it.
        system: whether the use of CPU, memory, disk, network and GPUs is measured every 5 s.
        sinks: where the run is copied to: "csv", "jsonl", "tensorboard", "mlflow", "wandb", or objects of these.
        checkpoints: which checkpoints `run.checkpoint` writes and keeps; None: the newest one.
        resume: continue the newest run of this project and `name`, as its next attempt, unless it is done: for a job
            that is requeued, or submitted again. If a process on another host wrote it less than a minute ago, this
            call first waits until that one is heard again, or is lost.

    Raises:
        RunOpen: this process already has a run; or the run that should continue is running.
        ValueError: `resume` without a `name`.
        StoreError: the store cannot be opened, or the folder of the run not be made.
        ModuleNotFoundError: a sink needs a package that is not installed.
        TypeError: the settings have no names, or labels or sinks are one text.
        SettingsError: the variables of `ropewalk runs fork` name a setting that the configuration does not have.
    """
    _check_kinds(config, labels, sinks)
    if resume and not name:
        raise ValueError('resume=True needs a name, by which the run is found again: rw.track(name="...", resume=True)')
    open_run = current_run()
    if open_run is not None:
        raise RunOpen(
            f"this process writes the run {open_run.name} ({open_run.id}) already; end it by the end of its `with` or "
            f"by ropewalk.tracking.current_run().finish(), or write to it, with group= for what is to be kept apart",
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
        resume=resume,
    )


def _check_kinds(config: object, labels: object, sinks: object) -> None:
    named = 'settings by name, {"lr": 0.1}; of argparse vars(arguments), of a dataclass dataclasses.asdict(settings)'
    check_kind("config", config, Mapping, named)
    check_texts("labels", labels)
    check_texts("sinks", sinks)


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
    relaunch: Relaunch | None = None,
    more_facts: Mapping[str, Any] | None = None,
    make_run: MakeRun | None = None,
    resume: bool = False,
) -> Run:
    """Begin a run as `track` does, of any kind that `RunCreated` knows. A current run of this process stays that.

    `take` is asked about a request to pause or to stop, in the writer's thread, in place of `run.steps`; it returns
    whether that can be done, and the answer. Without it, the run is that of a script. `relaunch` is what the run
    continues or forks; None: what the environment says, or else, with `resume`, the run of this name. `more_facts` are
    kept with it. `make_run` makes its object.
    """
    begun = begun_runs() if relaunch is None else None
    is_told = relaunch is not None or not TOLD.isdisjoint(os.environ)  # by `ropewalk runs continue`, `fork` or `rerun`
    relaunch = relaunch or take_relaunch(os.environ)
    settings = relaunch.configure(config or {})
    opened = store if isinstance(store, RunStore) else open_store(store)
    place = RunPlace(kind, project or "", opened.where)
    made: list[RunSink] = []
    try:
        before = begun.earlier(place) if begun else ""
        if resume and name and not before and not is_told:
            within = None if folder is None else Path(folder).absolute()
            before = unfinished_run(opened, project or _own_project(), name, within)
        relaunch = _after(opened, before, relaunch)
        earlier = opened.run(relaunch.continues) if relaunch.continues else None
        parent = opened.run(relaunch.forks) if relaunch.forks else None
        identity = _identity(opened, earlier, parent, relaunch, project, name, folder, seed)
        _make_folder(identity.folder, opened.where)
        for sink in sinks:
            made.append(make_sink(sink))
            made[-1].begin(_copied_run(identity, settings))
    except BaseException:
        for sink in made:
            sink.close()
        if opened is not store:
            opened.close()
        raise
    known = {**facts.collect(seed), **(more_facts or {})}
    detached = DetachedRun(identity, opened, made, take, owns_store=opened is not store)
    if earlier is None:
        detached.put(identity.id, _created(kind, identity, settings, known, labels, parent))
    else:
        for lost in opened.attempts(earlier.id):
            if not lost.outcome:
                detached.put(identity.id, lost.ended_unseen())
    run = (make_run or _make_run)(identity, settings, detached, checkpoints)
    try:
        with interrupts_deferred:  # what has half begun cannot be ended
            detached.start(run, system=system)
        _tell(run, known, earlier, settings, labels, notes)
        run.flush(_BEGIN_S)  # from here on, other terminals find it
        if begun and run.id != before:
            begun.note(place, run.id)
    except BaseException as error:  # Ctrl-C: nobody has the run, and the next one would be refused
        run.finish(*outcome_of(error))
        raise
    return run


def _make_folder(folder: Path, where: str) -> None:
    try:
        make_private_folder(folder)
    except FileNotTrusted:
        raise
    except OSError as error:
        raise StoreError(
            f"a run in the store {where} cannot begin, because its folder cannot be made: {error}; make it writable, "
            f"choose another store with ROPEWALK_STORE, or say folder=",
            where=where,
        ) from error


def _after(store: RunStore, before: str, relaunch: Relaunch) -> Relaunch:
    """Return what is meant by a run that a launcher which was killed has begun before at the same place.

    Args:
        store: the store.
        before: id of that run; empty if there is none.
        relaunch: what the environment says.
    """
    if before:
        with contextlib.suppress(RunNotFound):  # it was deleted
            return Relaunch(continues=store.run(before).id, settings=relaunch.settings)
    return relaunch


def _make_run(
    identity: RunIdentity, config: Mapping[str, Any], detached: DetachedRun, checkpoints: CheckpointPolicy | None
) -> Run:
    return Run(identity, config, detached, checkpoints=checkpoints, asked=detached.asked, ended=detached.end)


MakeRun = Callable[[RunIdentity, Mapping[str, Any], DetachedRun, CheckpointPolicy | None], Run]
"""Makes the object of a run from its identity, its configuration, what takes its records, and its policy."""


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
        if earlier.state == RUNNING:
            owner = f" in process {earlier.owner.pid} on {earlier.owner.host}" if earlier.owner else ""
            raise RunOpen(
                f"the run {earlier.name} ({earlier.id}) should continue here, but is running{owner}; pause or stop it "
                f"first: ropewalk runs pause {earlier.id}",
                run=earlier.id,
            )
        attempt = max((one.number for one in store.attempts(earlier.id)), default=0) + 1
        return RunIdentity(earlier.id, earlier.project, earlier.name, Path(earlier.folder), attempt, seed)
    stem = _own_project()
    run_id = secrets.token_hex(8)
    forked_at = relaunch.fork_step
    if parent is not None and forked_at is None:
        saved = CheckpointFolder(Path(parent.folder) / "checkpoints").saved()
        forked_at = saved[-1].step if saved else None
    return RunIdentity(
        id=run_id,
        project=project or (parent.project if parent else stem),
        name=name or f"{stem}-{run_id[:6]}",
        folder=(store.folder if folder is None else Path(folder).absolute()) / run_id,
        seed=seed,
        forked_from=Path(parent.folder) if parent else None,
        forked_at=forked_at,
    )


def _own_project() -> str:
    """Return the project of runs that name none."""
    script = facts.script_path()
    return script.stem if script else "notebook" if facts.is_notebook() else "interactive"


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
        if script := facts.code_to_copy(known):
            run.artifact(script, f"code/{script.name}")
        return
    if labels:
        run.label(*labels)
    changed = {name: value for name, value in to_plain(settings).items() if earlier.config.get(name) != value}
    if changed:
        run.config.update(changed)


__all__ = ["track"]
