"""`RelaunchCommand`: the command by which a run goes on, is forked or run again, with variables for `rw.track`."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ropewalk.errors import RunUnsuitable
from ropewalk.escaping import escaped
from ropewalk.tracking.checkpoints import CheckpointFolder, shown_step
from ropewalk.tracking.records import DONE, FAILED, RUNNING, STOPPED
from ropewalk.tracking.relaunch import Relaunch
from ropewalk.tracking.store.rows import RunRow

if TYPE_CHECKING:  # stores need an extra, and `ropewalk --help` does not
    from ropewalk.tracking.store.store import RunStore


TRIAL = "trial"
"""Kind of the runs of trials; and the fact of a run that was forked from one, of whose search its function is."""


@dataclass(frozen=True, slots=True)
class RelaunchCommand:
    """A command, where it is run, and with which variables.

    Attributes:
        argv: the command and its arguments.
        folder: in which it is run.
        variables: variables of the environment, beside those of this process.
        remark: what the user should know of it; "".
    """

    argv: list[str]
    folder: str
    variables: Mapping[str, str] = field(default_factory=dict[str, str])
    remark: str = ""

    def __str__(self) -> str:
        """The line that does the same in a shell."""
        shown = " ".join(f"{name}={shlex.quote(value)}" for name, value in self.variables.items())
        return f"cd {shlex.quote(self.folder)} && {shown} {shlex.join(self.argv)}"


def goes_on_in_its_search(store: RunStore, row: RunRow) -> bool:
    """Return whether a run is a trial whose search, which runs now, is to go on with it.

    Raises:
        RunUnsuitable: its search would go on with it, and does not run.
    """
    if row.kind != TRIAL or row.state in (RUNNING, DONE, STOPPED, FAILED):
        return False  # its search never begins it again
    search = store.run(row.parent)
    if search.state in (DONE, FAILED):
        return False
    if search.state != RUNNING:
        raise RunUnsuitable(
            f"trial {_named(row)} is {row.state}, and its search {_named(search)}, which goes on "
            f"with it, is {search.state}: ropewalk runs continue {search.id}. Or, by itself: "
            f"ropewalk runs fork {row.id}"
        )
    return True


def to_continue(store: RunStore, row: RunRow, *, is_trusted: bool, where: str | None = None) -> RelaunchCommand:
    """Return the command that goes on with a run, from its checkpoint; see `to_rerun`."""
    if row.state == RUNNING:
        raise RunUnsuitable(f"run {_named(row)} is running; pause it first: ropewalk runs pause {row.id}")
    if row.state == DONE:
        raise RunUnsuitable(
            f"run {_named(row)} is done; start over with: ropewalk runs rerun {row.id}, or from a checkpoint "
            f"of it: ropewalk runs fork {row.id}"
        )
    return _command(store, row, Relaunch(continues=row.id), is_trusted, where)


def to_fork(
    store: RunStore,
    row: RunRow,
    settings: Mapping[str, Any],
    step: float | None,
    *,
    is_trusted: bool,
    where: str | None = None,
) -> RelaunchCommand:
    """Return the command of a new run from a checkpoint of another one; see `to_rerun`.

    Args:
        store: the store.
        row: the other run.
        settings: settings to replace, by dotted name.
        step: step of the checkpoint; None: the newest.
        is_trusted: as for `to_rerun`.
        where: as for `to_rerun`.
    """
    relaunch = Relaunch(forks=row.id, fork_step=step, settings=settings)
    relaunch.configure(row.config)
    there = [one.step for one in CheckpointFolder(Path(row.folder) / "checkpoints").saved()]
    begins_anew = row.kind == TRIAL and not there and step is None
    if not begins_anew and (not there or (step is not None and step not in there)):
        known = ", ".join(map(shown_step, there)) or "none"
        asked = "" if step is None else f" of step {shown_step(step)}"
        raise RunUnsuitable(f"run {_named(row)} has no checkpoint{asked}; it has {known}")
    command = _command(store, row, relaunch, is_trusted, where)
    remark = f"{escaped(row.name)} has no checkpoint: its fork begins with the first step"
    return replace(command, remark=remark) if begins_anew else command


def to_rerun(
    store: RunStore, row: RunRow, settings: Mapping[str, Any], *, is_trusted: bool, where: str | None = None
) -> RelaunchCommand:
    """Return the command of a run, for a new run from the beginning.

    Args:
        store: the store.
        row: the run.
        settings: settings to replace, by dotted name.
        is_trusted: whether a command may be run that a database names, which others may have written.
        where: path or URL of the store, as the user named it; None if the user did not.

    Raises:
        RunUnsuitable: the run has no command that can be run, or nobody said that the database is trusted.
        SettingsError: the run has no such setting.
    """
    relaunch = Relaunch(settings=settings)
    relaunch.configure(row.config)
    return _command(store, row, relaunch, is_trusted, where)


def settings_of(given: Iterable[str]) -> dict[str, Any]:
    """Return settings by name, from texts such as "lr=1e-4"; a value that is not JSON is a text.

    Raises:
        ValueError: one has no "=".
    """
    found: dict[str, Any] = {}
    for text in given:
        name, sign, value = text.partition("=")
        if not sign or not name:
            raise ValueError(f"{text!r} is not of the form NAME=VALUE")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found


def _named(row: RunRow) -> str:
    """Return how a message names a run: what others call it makes no lines of its own."""
    return f"{escaped(row.name)} ({row.id})"


def _command(store: RunStore, row: RunRow, relaunch: Relaunch, is_trusted: bool, where: str | None) -> RelaunchCommand:
    if "://" in store.where and not is_trusted:
        raise RunUnsuitable(
            f"the command of a run is run from a file that only you can write. {store.where} is a database: whoever "
            f"can write to it chooses what runs here; look at it with --dry-run, and trust it with --trust-store"
        )
    facts = store.facts(row.id)
    if row.kind == TRIAL:  # its function is in what runs the search
        relaunch, facts = replace(relaunch, trial=row.id), store.facts(row.parent)
    elif facts.get(TRIAL):
        relaunch = replace(relaunch, trial=str(facts[TRIAL]))
    command = list(map(str, cast("list[object]", facts.get("argv") or [])))
    variables = relaunch.to_environment()
    if facts.get("is_notebook") or not command:
        names = " ".join(f"{name}={shlex.quote(value)}" for name, value in variables.items())
        if relaunch.trial:
            raise RunUnsuitable(
                f"the search of {_named(row)} was run in a notebook, which has no command, so the function of "
                f"the trial is not found; start a kernel with {names}, and run the cells up to the search"
            )
        raise RunUnsuitable(
            f"run {_named(row)} is of a notebook, which has no command; start its kernel with {names}, and "
            f"run its cells"
        )
    if where is not None or "://" not in store.where:
        variables["ROPEWALK_STORE"] = where if where is not None else store.where
    return RelaunchCommand(command, str(facts.get("cwd") or os.getcwd()), variables)


__all__ = ["RelaunchCommand", "settings_of", "to_continue", "to_fork", "to_rerun"]
