"""`ropewalk runs pause|continue|stop|kill|fork|rerun`: the life of a run, from another terminal.

pause, stop, kill ─▶ request in the store ─▶ its process, which looks every half second ─▶ answer
continue, fork, rerun ─▶ this process becomes the command of the run, in its folder, with variables for `rw.track`
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click
from click.exceptions import Exit

from ropewalk.cli.command_line import PanelCommand, Seconds, failure
from ropewalk.cli.runs_options import json_option, opened, run_argument, store_option
from ropewalk.escaping import escaped
from ropewalk.tracking.records import RUNNING
from ropewalk.tracking.relaunch_commands import (
    RelaunchCommand,
    goes_on_in_its_search,
    settings_of,
    to_continue,
    to_fork,
    to_rerun,
)
from ropewalk.tracking.run_requests import answer_to, answer_words, check_can_be_asked, kill_run, wait_for_end
from ropewalk.tracking.store.rows import LOST, RequestRow, RunRow

if TYPE_CHECKING:  # stores need an extra, and `ropewalk --help` does not
    from ropewalk.tracking import RunStore

_ANSWER_S = 5.0
"""Seconds within which the process of a run answers, which looks for requests every half second."""

_wait_option = click.option(
    "--wait", type=Seconds(), default=30.0, metavar="SECONDS", help="How long to wait until it has happened."
)
_set_option = click.option(
    "--set", "settings", multiple=True, metavar="NAME=VALUE", help="A setting to replace; may be repeated."
)
_dry_run_option = click.option("--dry-run", is_flag=True, help="Print the command without running it.")
_command_json_option = click.option(
    "--json", "as_json", is_flag=True,
    help="Print the command as JSON; the answer, if a search goes on with its trial.",
)  # fmt: skip
_trust_option = click.option(
    "--trust-store", is_flag=True, help="Run a command from a database to which others may write."
)


# --- commands ---------------------------------------------------------------------------------------------------------


@click.command(cls=PanelCommand)
@run_argument
@_wait_option
@json_option
@store_option
def pause(run: str, wait: float, as_json: bool, store: str | None) -> None:
    """Ask a run to write a checkpoint and end; `ropewalk runs continue` goes on with it.

    Exit code 1 if it does not answer, or has not paused in time; it then pauses at its next checkpoint.
    """
    _ask("pause", run, wait, as_json, store)


@click.command(cls=PanelCommand)
@run_argument
@_wait_option
@json_option
@store_option
def stop(run: str, wait: float, as_json: bool, store: str | None) -> None:
    """Ask a run to end after its current step.

    Exit code 1 if it does not answer, or has not ended in time.
    """
    _ask("stop", run, wait, as_json, store)


@click.command(cls=PanelCommand)
@run_argument
@json_option
@store_option
def kill(run: str, as_json: bool, store: str | None) -> None:
    """Kill the process of a run, with SIGKILL; what it has written is kept.

    Exit code 1 if its process is on another host and does not answer.
    """
    with opened(store) as runs:
        row = _running(runs, run, "kill")
        number, answered = kill_run(runs, row, _ANSWER_S)
        _tell(runs, row, "kill", number, answered, as_json)
        if answered is None or not answered.ok:
            raise Exit(1)


@click.command("continue", cls=PanelCommand)
@run_argument
@_dry_run_option
@_trust_option
@_command_json_option
@store_option
def continue_(run: str, dry_run: bool, trust_store: bool, as_json: bool, store: str | None) -> None:
    """Go on with a run that has paused, failed, stopped or died: run its command again, here, from its checkpoint."""
    with opened(store) as runs:
        row = runs.run(run)
        if goes_on_in_its_search(runs, row):
            _tell_its_search(runs, row, as_json)
            return
        command = to_continue(runs, row, is_trusted=trust_store or dry_run, where=store)
    _become(command, dry_run, as_json)


@click.command(cls=PanelCommand)
@run_argument
@_set_option
@click.option("--from", "step", type=float, metavar="STEP", help="The checkpoint (default: the newest).")
@_dry_run_option
@_trust_option
@_command_json_option
@store_option
def fork(
    run: str,
    settings: tuple[str, ...],
    step: float | None,
    dry_run: bool,
    trust_store: bool,
    as_json: bool,
    store: str | None,
) -> None:
    """Begin a new run from a checkpoint of another one, with other settings: run its command again, here.

    The fork of a trial is a run of its own: the function of the search, without the scheduler. If the trial has no
    checkpoint, it begins with the first step.

    Values are JSON, or text: --set lr=1e-4 --set model.layers=3 --set name=wide.
    """
    with opened(store) as runs:
        given, is_trusted = parse_settings(settings), trust_store or dry_run
        command = to_fork(runs, runs.run(run), given, step, is_trusted=is_trusted, where=store)
    _become(command, dry_run, as_json)


@click.command(cls=PanelCommand)
@run_argument
@_set_option
@_dry_run_option
@_trust_option
@_command_json_option
@store_option
def rerun(
    run: str, settings: tuple[str, ...], dry_run: bool, trust_store: bool, as_json: bool, store: str | None
) -> None:
    """Run the command of a run again, here, as a new run from the beginning."""
    with opened(store) as runs:
        given, is_trusted = parse_settings(settings), trust_store or dry_run
        command = to_rerun(runs, runs.run(run), given, is_trusted=is_trusted, where=store)
    _become(command, dry_run, as_json)


def parse_settings(given: Iterable[str]) -> dict[str, Any]:
    """Return the settings of `--set`, by name.

    Raises:
        Exit: one has no "=".
    """
    try:
        return settings_of(given)
    except ValueError as error:
        raise failure(f"--set {error}") from None


def _tell_its_search(store: RunStore, trial: RunRow, as_json: bool) -> None:
    number = store.request(trial.id, "continue")
    answered = answer_to(store, number, _ANSWER_S)
    words = f"its search {trial.parent} does not answer" if answered is None else answered.answer
    if as_json:
        _tell(store, trial, "continue", number, answered, as_json)
    else:
        click.echo(f"{escaped(trial.name)}: {escaped(words)}", err=True)
    if answered is None or not answered.ok:
        raise Exit(1)


# --- requests ---------------------------------------------------------------------------------------------------------


def _ask(action: str, run: str, wait_s: float, as_json: bool, store: str | None) -> None:
    with opened(store) as runs:
        row = _running(runs, run, action)
        number = runs.request(row.id, action)
        answered = answer_to(runs, number, _ANSWER_S)
        if answered is not None and not as_json:
            click.echo(f"{escaped(row.name)}: {escaped(answered.answer)}", err=True)
        is_taken = answered is not None and bool(answered.ok)
        if is_taken:
            wait_for_end(runs, row.id, wait_s)
        now = _tell(runs, row, action, number, answered, as_json)
        if not is_taken or (wait_s and now.state in (RUNNING, LOST)):
            raise Exit(1)


def _running(store: RunStore, run: str, action: str) -> RunRow:
    row = store.run(run)
    check_can_be_asked(row, action)
    return row


def _tell(
    store: RunStore, before: RunRow, action: str, number: int, answered: RequestRow | None, as_json: bool
) -> RunRow:
    now = store.run(before.id)
    words = answer_words(now, answered, _ANSWER_S)
    if as_json:
        report = {"run": now.id, "name": now.name, "action": action, "request": number, "state": now.state}
        click.echo(json.dumps({**report, "ok": bool(answered and answered.ok), "answer": words}, indent=2))
    elif answered is None:
        click.echo(f"ropewalk runs {action}: {escaped(words)}; to end it now: ropewalk runs kill {now.id}", err=True)
    else:
        click.echo(f"{escaped(now.name)} ({now.id}) is {now.state}")
    return now


# --- commands of runs -------------------------------------------------------------------------------------------------


def _become(command: RelaunchCommand, dry_run: bool, as_json: bool) -> None:
    if command.remark:
        click.echo(escaped(command.remark), err=True)
    # What it prints itself is on the standard output.
    click.echo(json.dumps(dataclasses.asdict(command)) if as_json else escaped(str(command)), err=not dry_run)
    if dry_run:
        return
    try:
        os.chdir(command.folder)
        os.execvpe(command.argv[0], command.argv, {**os.environ, **command.variables})
    except OSError as error:
        raise failure(f"its command cannot be run in {command.folder}: {error}") from None


COMMANDS = (pause, continue_, stop, kill, fork, rerun)
"""The subcommands of `ropewalk runs` that act on the process of a run."""
