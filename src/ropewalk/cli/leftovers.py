"""Finds leftovers of launchers that are gone: jobs and their objects on clusters, and run folders on this machine.

Agents end by themselves soon after their launcher; the leftovers are jobs that still wait in a queue, hosts that are
cut off, containers and pods that have ended with their credentials, networks and files made for them, and folders of
processes that were all killed at once. Only certain leftovers are removed: whether a launcher on another host is alive
is not known here, so its run has to be named to `ropewalk stop`.
"""

from __future__ import annotations

import os
import shlex
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ropewalk import settings
from ropewalk.cli.submissions import has_ended, submissions
from ropewalk.control.launchers import usual_parents
from ropewalk.engines import make_engine
from ropewalk.engines.engine import Engine
from ropewalk.errors import EngineError, RopewalkError
from ropewalk.processes.launcher_record import LauncherState, forget_run, launcher_of, recorded_engines
from ropewalk.processes.left_folders import CLAIM, is_ours, made_elsewhere, sweep
from ropewalk.quantities import counted
from ropewalk.transport.probe import is_answered

_YOUNG_S = 60.0
"""A folder that is younger, in seconds, may belong to a run that is just starting."""
_NUM_SHOWN = 5
"""The number of jobs, and of other leftovers, of a run that are listed by name."""


@dataclass(frozen=True, slots=True)
class LeftRun:
    """Jobs of a run whose launcher is not alive on this machine, and other objects that the engine holds of it."""

    engine: str
    run_id: str
    jobs: tuple[str, ...]
    launcher: LauncherState
    detail: str
    remains: tuple[str, ...] = ()
    """The other objects, see `Engine.remains`."""
    removed: bool = False
    options: Mapping[str, object] = field(default_factory=dict[str, object])
    """The options of the engine with which it was found, which `ropewalk stop` needs too."""

    def describe(self) -> str:
        """Return one line for users, with advice."""
        count = f"{counted(len(self.jobs), 'job')} ({', '.join(self.jobs[:_NUM_SHOWN])})"
        more = [f"{len(self.remains) - _NUM_SHOWN} more"] if len(self.remains) > _NUM_SHOWN else []
        left = ", ".join([*([count] if self.jobs else []), *self.remains[:_NUM_SHOWN], *more])
        verb = "ends and removes" if self.jobs and self.remains else "removes" if self.remains else "ends"
        stop = f"ropewalk stop {self.run_id} {engine_words(self.engine, self.options)} {verb} it"
        return f"run {self.run_id} on {self.engine}: {left}; {self.detail}; {'removed' if self.removed else stop}"

    def to_json(self) -> dict[str, Any]:
        """Return the record for programs."""
        return {
            "engine": self.engine, "run_id": self.run_id, "jobs": list(self.jobs), "launcher": self.launcher.value,
            "remains": list(self.remains), "detail": self.detail, "removed": self.removed,
        }  # fmt: skip


def engine_words(name: str, options: Mapping[str, object]) -> str:
    """Return the words of a command line that choose an engine with options."""
    chosen = (word for option, value in options.items() for word in ("-o", f"{option}={value}"))
    return shlex.join(["--engine", name, *chosen])


def engine_of(name: str, options: Mapping[str, object] | None = None) -> Engine:
    """Make an engine with the settings of this site.

    Args:
        name: the name of the engine.
        options: options of the command line, which replace those of the same name.

    Raises:
        RopewalkError: there is no such engine, or it cannot be used here.
    """
    return make_engine(name, settings.current(engine=name, engine_options=options or None).engine_options)


def usual_engines() -> list[str]:
    """Return the engines that may have jobs of this user: the chosen one, and those that were used from here."""
    names = {settings.current().engine, *recorded_engines(), *(run.engine for run in submissions())}
    return sorted(names - {"local"})


def left_runs(name: str, engine: Engine, options: Mapping[str, object], *, remove: bool) -> list[LeftRun]:
    """Return the runs of an engine whose launchers are not known to be alive.

    Args:
        name: the name of the engine.
        engine: what `engine_of` made of the name and the options; it is closed.
        options: of the command line.
        remove: whether to end the runs of launchers that are certainly gone.

    Raises:
        RopewalkError: the engine cannot be asked.
    """
    try:
        remembered = submissions()
        submitted = {run.run_id for run in remembered}
        alive = [run.id for run in remembered if run.engine == name and not has_ended(run)]
        found: list[LeftRun] = []
        jobs, remains = engine.runs(), engine.remains()
        for run_id in sorted(jobs.keys() | remains.keys()):
            launcher, detail = launcher_of(run_id)
            if run_id in submitted or launcher is LauncherState.ALIVE:
                continue
            if alive and launcher is not LauncherState.GONE:
                detail += f", and they may be of {', '.join(alive[-5:])} (submitted here; ropewalk ps says how it is)"
            certain = remove and launcher is LauncherState.GONE
            if certain:
                _end(engine, run_id, jobs.get(run_id, []))
            of_jobs, others = tuple(jobs.get(run_id, ())), tuple(remains.get(run_id, ()))
            found.append(LeftRun(name, run_id, of_jobs, launcher, detail, others, removed=certain, options=options))
        return found
    finally:
        engine.close()


def _end(engine: Engine, run_id: str, jobs: Sequence[str]) -> None:
    if jobs:
        engine.cancel(jobs)
    engine.remove_remains(run_id)
    forget_run(run_id)


def end_run(
    run_id: str, engine_names: Iterable[str], options: Mapping[str, object] | None = None
) -> tuple[str, list[str], list[str]] | None:
    """End all jobs of a run, wherever its launcher is, and remove its other objects from the engine.

    Args:
        run_id: the id of the run.
        engine_names: the engines to ask.
        options: as for `engine_of`.

    Returns:
        The engine of the run, the ids of its jobs, and its other objects; None if no engine knows the run.

    Raises:
        RopewalkError: no engine knows the run, and one engine could not be asked.
    """
    problem: RopewalkError | None = None
    for name in engine_names:
        try:
            engine = engine_of(name, options)
            try:
                jobs, remains = engine.runs().get(run_id, []), engine.remains().get(run_id, [])
                if jobs or remains:
                    _end(engine, run_id, jobs)
                    return name, jobs, remains
            finally:
                engine.close()
        except RopewalkError as error:
            problem = EngineError(f"the engine {name!r} does not say which runs it has: {error}")
    if problem:
        raise problem
    return None


@dataclass(frozen=True, slots=True)
class LeftFolder:
    """A run folder of this user in which no process of this machine listens."""

    path: Path
    detail: str
    """Why it is certain that no process uses it, or why that is not known here."""
    is_certain: bool
    removed: bool = False

    def describe(self) -> str:
        """Return one line for users, with advice."""
        if self.removed:
            return f"folder {self.path} was removed"
        remedy = f"; if nothing of it runs there, rm -r {shlex.quote(str(self.path))} removes it"
        return f"folder {self.path}: {self.detail}{'' if self.is_certain else remedy}"

    def to_json(self) -> dict[str, Any]:
        """Return the record for programs."""
        return {"path": str(self.path), "detail": self.detail, "removed": self.removed}


def left_folders(*, remove: bool) -> list[LeftFolder]:
    """Return run folders of this user in which no process of this machine listens.

    Args:
        remove: whether to delete those that were certainly made on this machine since it started. Another one that
            shares them may have processes in the others.
    """
    parents = usual_parents(settings.current().run_folder)
    sweep(parents)
    looked_at = (_look_at(folder) for parent in parents for folder in sorted(parent.glob("ropewalk-*")))
    found = [folder for folder in looked_at if folder]
    for at, folder in enumerate(found):
        if remove and folder.is_certain:
            shutil.rmtree(folder.path, ignore_errors=True)
            found[at] = replace(folder, removed=True)
    return found


def _look_at(folder: Path) -> LeftFolder | None:
    """Return what is known of a folder that may be left over; None if it is in use, or no run folder."""
    try:
        age_s = time.time() - os.lstat(folder).st_mtime
    except OSError:
        return None
    sockets = list(folder.glob("*.sock"))
    # A folder without a socket is not a known run folder; the code of a submitted run looks like this.
    if not is_ours(folder) or age_s < _YOUNG_S or not sockets:
        return None
    elsewhere = made_elsewhere(folder)
    if elsewhere:
        return LeftFolder(folder, f"{elsewhere}; whether its processes run cannot be seen here", is_certain=False)
    if (folder / CLAIM).exists() or any(map(is_answered, sockets)):  # `sweep` removes folders with a claim
        return None
    return LeftFolder(folder, "nobody listens in it", is_certain=True)
