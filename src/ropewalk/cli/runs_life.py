"""`ropewalk runs pause|continue|stop|kill|fork|rerun`: the life of a run, from another terminal.

pause, stop, kill ─▶ request in the store ─▶ its process, which looks every half second ─▶ answer
continue, fork, rerun ─▶ this process becomes the command of the run, in its folder, with variables for `rw.track`
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from ropewalk.cli.runs_options import AsJson, Ref, Store, failure, opened
from ropewalk.escaping import escaped
from ropewalk.tracking.checkpoints import CheckpointFolder, shown_step
from ropewalk.tracking.records import (
    DONE,
    FAILED,
    RUNNING,
    STOPPED,
    AttemptEnded,
    RunRecord,
    StateIs,
)
from ropewalk.tracking.relaunch import Relaunch
from ropewalk.tracking.store.owners import LocalProcesses
from ropewalk.tracking.store.rows import LOST, RequestRow, RunRow

if TYPE_CHECKING:  # stores need an extra, and `ropewalk --help` does not
    from ropewalk.tracking import RunStore

TRIAL = "trial"
"""Kind of the runs of trials; and the fact of a run that was forked from one, of whose search its function is."""
_ANSWER_S = 5.0
"""Seconds within which an owner answers, which looks for requests every half second."""
_LOOK_S = 0.1
_SAME_S = 2.0
"""How far two measurements of the start of one process may differ."""

_Wait = Annotated[float, typer.Option("--wait", min=0.0, metavar="SECONDS", help="How long to wait until it has.")]
_Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A setting to replace; may be repeated.")
]
_Step = Annotated[float | None, typer.Option("--from", metavar="STEP", help="The checkpoint (default: the newest).")]
_DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the command, and do not run it.")]
_Trust = Annotated[
    bool, typer.Option("--trust-store", help="Run a command that a database names, which others may have written.")
]


# --- commands ---------------------------------------------------------------------------------------------------------


def pause(run: Ref, wait: _Wait = 30.0, as_json: AsJson = False, store: Store = None) -> None:
    """Ask a run to write a checkpoint and end; `ropewalk runs continue` goes on with it.

    Exit code 1 if it does not answer, or has not paused in time; it does so at its next checkpoint then.
    """
    _ask("pause", run, wait, as_json, store)


def stop(run: Ref, wait: _Wait = 30.0, as_json: AsJson = False, store: Store = None) -> None:
    """Ask a run to end after its current step.

    Exit code 1 if it does not answer, or has not ended in time.
    """
    _ask("stop", run, wait, as_json, store)


def kill(run: Ref, as_json: AsJson = False, store: Store = None) -> None:
    """Kill the process of a run, with SIGKILL; what it has written is kept.

    Exit code 1 if its process is on another host and does not answer.
    """
    with opened(store) as runs:
        row = _running(runs, run, "killed")
        number = runs.request(row.id, "kill")
        answered = _answer(runs, number, _ANSWER_S)
        # Who can write a database could name another process of this user as the owner.
        if answered is None and "://" not in runs.where and _is_here(row):
            answered = _kill_here(runs, row, number)
        _tell(runs, row, "kill", number, answered, as_json)
        if answered is None or not answered.ok:
            raise typer.Exit(1)


def continue_(run: Ref, dry_run: _DryRun = False, trust_store: _Trust = False, store: Store = None) -> None:
    """Go on with a run that has paused, failed, stopped or died: run its command again, here, from its checkpoint."""
    with opened(store) as runs:
        row = runs.run(run)
        if row.state == RUNNING:
            raise failure(f"run {row.name} ({row.id}) is running; pause it first: ropewalk runs pause {row.id}", 2)
        if row.state == DONE:
            raise failure(
                f"run {row.name} ({row.id}) is done; begin anew with: ropewalk runs rerun {row.id}, or from a "
                f"checkpoint of it: ropewalk runs fork {row.id}",
                2,
            )
        if row.kind == TRIAL and _is_of_its_search(runs, row):
            return
        launch = _launch(runs, row, Relaunch(continues=row.id), trust_store or dry_run, store)
    _become(launch, dry_run)


def fork(
    run: Ref,
    settings: _Settings = None,
    step: Annotated[
        float | None, typer.Option("--from", metavar="STEP", help="The checkpoint (default: the newest).")
    ] = None,
    dry_run: _DryRun = False,
    trust_store: _Trust = False,
    store: Store = None,
) -> None:
    """Begin a new run from a checkpoint of another one, with other settings: run its command again, here.

    The fork of a trial is a run of its own: the function of the search, without the scheduler. If the trial has no
    checkpoint, it begins with the first step.

    Values are JSON, or text: --set lr=1e-4 --set model.layers=3 --set name=wide.
    """
    with opened(store) as runs:
        row = runs.run(run)
        relaunch = Relaunch(forks=row.id, fork_step=step, settings=parse_settings(settings or []))
        relaunch.configure(row.config)
        there = [one.step for one in CheckpointFolder(Path(row.folder) / "checkpoints").saved()]
        if row.kind == TRIAL and not there and step is None:
            typer.echo(f"{escaped(row.name)} has no checkpoint: its fork begins with the first step", err=True)
        elif not there or (step is not None and step not in there):
            known = ", ".join(map(shown_step, there)) or "none"
            asked = "" if step is None else f" of step {shown_step(step)}"
            raise failure(f"run {row.name} ({row.id}) has no checkpoint{asked}; it has {known}", 2)
        launch = _launch(runs, row, relaunch, trust_store or dry_run, store)
    _become(launch, dry_run)


def rerun(
    run: Ref,
    settings: _Settings = None,
    dry_run: _DryRun = False,
    trust_store: _Trust = False,
    store: Store = None,
) -> None:
    """Run the command of a run again, here, as a new run from the beginning."""
    with opened(store) as runs:
        row = runs.run(run)
        relaunch = Relaunch(settings=parse_settings(settings or []))
        relaunch.configure(row.config)
        launch = _launch(runs, row, relaunch, trust_store or dry_run, store)
    _become(launch, dry_run)


def parse_settings(given: list[str]) -> dict[str, Any]:
    """Return settings by name, from texts such as "lr=1e-4"; a value that is no JSON is a text.

    Raises:
        typer.Exit: one has no "=".
    """
    found: dict[str, Any] = {}
    for text in given:
        name, sign, value = text.partition("=")
        if not sign or not name:
            raise failure(f"--set {text!r} is not of the form NAME=VALUE", 2)
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found


def _is_of_its_search(store: RunStore, trial: RunRow) -> bool:
    """Whether it is the search that goes on with a trial, which was asked to, and not the trial by itself.

    Raises:
        typer.Exit: the search does not do so now.
    """
    search = store.run(trial.parent)
    if trial.state in (STOPPED, FAILED) or search.state in (DONE, FAILED):
        return False  # its search never begins it again
    if search.state != RUNNING:
        raise failure(
            f"trial {trial.name} ({trial.id}) is {trial.state}, and its search {search.name} ({search.id}), which goes "
            f"on with it, is {search.state}: ropewalk runs continue {search.id}. Or, by itself: "
            f"ropewalk runs fork {trial.id}",
            2,
        )
    answered = _answer(store, store.request(trial.id, "continue"), _ANSWER_S)
    words = f"its search {search.id} does not answer" if answered is None else answered.answer
    typer.echo(f"{escaped(trial.name)}: {escaped(words)}", err=True)
    if answered is None or not answered.ok:
        raise typer.Exit(1)
    return True


# --- requests ---------------------------------------------------------------------------------------------------------


def _ask(action: str, run: str, wait_s: float, as_json: bool, store: str | None) -> None:
    with opened(store) as runs:
        row = _running(runs, run, "paused" if action == "pause" else "stopped")
        number = runs.request(row.id, action)
        answered = _answer(runs, number, _ANSWER_S)
        if answered is not None and not as_json:
            typer.echo(f"{escaped(row.name)}: {escaped(answered.answer)}", err=True)
        is_taken = answered is not None and bool(answered.ok)
        if is_taken:
            _wait_for_end(runs, row.id, wait_s)
        now = _tell(runs, row, action, number, answered, as_json)
        if not is_taken or (wait_s and now.state in (RUNNING, LOST)):
            raise typer.Exit(1)


def _running(store: RunStore, run: str, participle: str) -> RunRow:
    row = store.run(run)
    if row.state == RUNNING:
        return row
    if row.state == LOST and participle == "killed" and row.owner is not None and _is_here(row):
        return row
    state = "lost: the process that wrote it is gone" if row.state == LOST else row.state
    raise failure(f"run {row.name} ({row.id}) is {state}; only a running one can be {participle}", 2)


def _answer(store: RunStore, number: int, timeout_s: float) -> RequestRow | None:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        found = store.requested(number)
        if found is not None and found.answered is not None:
            return found
        time.sleep(_LOOK_S)
    return None


def _wait_for_end(store: RunStore, run: str, wait_s: float) -> None:
    deadline = time.monotonic() + wait_s
    while time.monotonic() < deadline and store.run(run).state == RUNNING:
        time.sleep(_LOOK_S)


def _tell(
    store: RunStore, before: RunRow, action: str, number: int, answered: RequestRow | None, as_json: bool
) -> RunRow:
    now = store.run(before.id)
    owner = f"process {now.owner.pid} on {now.owner.host}" if now.owner else "its process"
    words = answered.answer if answered else f"{owner} has not answered within {_ANSWER_S:g} s; the request stays open"
    if as_json:
        report = {"run": now.id, "name": now.name, "action": action, "request": number, "state": now.state}
        typer.echo(json.dumps({**report, "ok": bool(answered and answered.ok), "answer": words}, indent=2))
    elif answered is None:
        typer.echo(f"ropewalk runs {action}: {escaped(words)}; to end it now: ropewalk runs kill {now.id}", err=True)
    else:
        typer.echo(f"{escaped(now.name)} ({now.id}) is {now.state}")
    return now


# --- kill -------------------------------------------------------------------------------------------------------------


def _is_here(row: RunRow) -> bool:
    """Whether the process that owns a run is one of this host, and not another one with its number."""
    here = LocalProcesses()
    owner = row.owner
    if owner is None or owner.host != here.host or not here.boot or owner.boot != here.boot:
        return False
    started = here.started(owner.pid)
    return started is not None and abs(started - owner.started) <= _SAME_S


def _kill_here(store: RunStore, row: RunRow, number: int) -> RequestRow | None:
    """Kill a process that does not answer, because it is deep in C code or was halted."""
    assert row.owner is not None
    os.kill(row.owner.pid, signal.SIGKILL)
    now, why = time.time(), "killed by `ropewalk runs kill`; its process did not answer"
    attempts = store.attempts(row.id)
    ended = [AttemptEnded(attempts[-1].number, "lost", now, why)] if attempts else []
    store.apply([RunRecord(row.id, record) for record in (*ended, StateIs(STOPPED, now, why))])
    store.answer(number, True, f"process {row.owner.pid} did not answer, and was killed")
    return store.requested(number)


# --- commands of runs -------------------------------------------------------------------------------------------------


def _launch(
    store: RunStore, row: RunRow, relaunch: Relaunch, is_trusted: bool, where: str | None
) -> tuple[list[str], str, Mapping[str, str]]:
    """Return command, folder and environment of a run that is started again."""
    if "://" in store.where and not is_trusted:
        raise failure(
            f"the command of a run is run from a file that only you can write. {store.where} is a database, and who "
            f"can write it would choose what runs here: look at it with --dry-run, and trust it with --trust-store",
            2,
        )
    facts = store.facts(row.id)
    if row.kind == TRIAL:  # its function is in what runs the search
        relaunch, facts = replace(relaunch, trial=row.id), store.facts(row.parent)
    elif facts.get(TRIAL):
        relaunch = replace(relaunch, trial=str(facts[TRIAL]))
    command = list(map(str, cast("list[object]", facts.get("argv") or [])))
    if facts.get("is_notebook") or not command:
        names = " ".join(f"{name}={shlex.quote(value)}" for name, value in relaunch.to_environment().items())
        if relaunch.trial:
            raise failure(
                f"the search of {row.name} ({row.id}) was run in a notebook, which has no command, so the function of "
                f"the trial is not found; start a kernel with {names}, and run the cells up to the search",
                2,
            )
        raise failure(
            f"run {row.name} ({row.id}) is of a notebook, which has no command; start its kernel with {names}, and "
            f"run its cells",
            2,
        )
    environment = {**os.environ, **relaunch.to_environment()}
    if where is not None or "://" not in store.where:
        environment["ROPEWALK_STORE"] = where if where is not None else store.where
    return command, str(facts.get("cwd") or os.getcwd()), environment


def _become(launch: tuple[list[str], str, Mapping[str, str]], dry_run: bool) -> None:
    command, folder, environment = launch
    own = {name: value for name, value in environment.items() if os.environ.get(name) != value}
    shown = " ".join(f"{name}={shlex.quote(value)}" for name, value in own.items())
    typer.echo(escaped(f"cd {shlex.quote(folder)} && {shown} {shlex.join(command)}"), err=not dry_run)
    if dry_run:
        return
    try:
        os.chdir(folder)
        os.execvpe(command[0], command, dict(environment))
    except OSError as error:
        raise failure(f"its command cannot be run in {folder}: {error}", 2) from None


COMMANDS = {
    "pause": pause,
    "continue": continue_,
    "stop": stop,
    "kill": kill,
    "fork": fork,
    "rerun": rerun,
}
"""Functions of the subcommands, by name."""
