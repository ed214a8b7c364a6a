"""`ropewalk stop`: ask a running program or pool, or a submitted run, to stop, wait for it, and say how it ended."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

import click
from click.exceptions import Exit

from ropewalk.cli import placing
from ropewalk.cli.choosing import choose_run, telling_failures
from ropewalk.cli.command_line import PanelCommand, Seconds, argument, failure
from ropewalk.cli.leftovers import end_run, usual_engines
from ropewalk.cli.submissions import RunState, Submission, end, forget, state_of
from ropewalk.control.launchers import Launcher, LauncherConnection, LauncherGone, LauncherSilent
from ropewalk.control.server import Stop, ViewIs
from ropewalk.control.view import View
from ropewalk.control.view_text import counts
from ropewalk.engines.options import words_to_options
from ropewalk.escaping import escaped
from ropewalk.quantities import counted

_OWN_GRACE_S = 60.0
"""The longest grace that a program may set itself, and the extra time that its end may take."""
_BEYOND_S = 15.0
_RUN_ID = re.compile("[0-9a-f]{16}")


@click.command(cls=PanelCommand)
@argument("program", help="Name or pid of a program or pool, or id of a submitted run.")
@click.option(
    "--grace",
    type=Seconds(),
    metavar="SECONDS",
    help="Time for nodes to end before they are killed (default: the program's own).",
)
@click.option("--json", "as_json", is_flag=True, help="Print its last view as JSON.")
@click.option("--engine", metavar="NAME", help="The engine, if you name a run by the id in its jobs' names.")
@placing.engine_options
@click.option(
    "--forget",
    "forget_it",
    is_flag=True,
    help="Of a submitted run, also remove the record here, even if no host answers.",
)
def stop(
    program: str,
    grace: float | None,
    as_json: bool,
    engine: str | None,
    option: tuple[str, ...],
    forget_it: bool,
) -> None:
    """Stop a running program or a submitted run, and wait until it has ended.

    Nothing is asked first. The first pool of every script is called pool-1, unless it has a name of its own, as
    rw.Pool(8, name="simulate") has: look at ropewalk ps, or give the pid.

    With the id of a run whose launcher is gone (ropewalk doctor --leftovers lists them), end its jobs; --engine and -o
    are then those with which it was started.

    A submitted run whose host or cluster does not answer is left as it is; --forget then removes its record here.

    Exit code 1 if a node failed, or if it is not known to have ended.
    """
    if engine is not None or _RUN_ID.fullmatch(program):
        if forget_it:
            raise failure("--forget is for submitted runs, which ropewalk ps --all lists; give the id that it shows")
        _end_jobs(program, engine, option, as_json)
        return
    if option:
        raise failure("-o is for a run that is named by the id in its jobs' names, with --engine")
    launcher = choose_run(program)
    if isinstance(launcher, Submission):
        _stop_submission(launcher, grace, as_json, is_forgotten=forget_it)
        return
    if forget_it:
        raise failure(f"--forget is for submitted runs, and {escaped(str(launcher))} runs on this machine")
    with telling_failures():
        try:
            with launcher.connect() as conversation:
                click.echo(f"stopping {escaped(str(launcher))}", err=True)
                view = _ask_to_stop(conversation, launcher, grace)
        except LauncherGone as gone:
            if gone.last is None:
                words = f"{escaped(str(launcher))} has ended, and did not say how"
                click.echo(json.dumps(_end_unknown(launcher), indent=2) if as_json else words)
                return
            view = gone.last
    click.echo(json.dumps(view.to_json(), indent=2) if as_json else describe_end(view))
    if view.state not in ("stopped", "completed", "closed"):
        raise Exit(1)


def _end_unknown(launcher: Launcher) -> dict[str, str | int]:
    """Return what a program is told of something that has ended without a last view: the same entries as in a view."""
    return {
        "kind": launcher.kind, "name": launcher.name, "id": launcher.id, "pid": launcher.pid, "state": "ended",
    }  # fmt: skip


def _end_jobs(run_id: str, engine: str | None, option: Sequence[str], as_json: bool) -> None:
    if option and engine is None:
        raise failure("-o needs --engine, which says whose options these are")
    with telling_failures():
        names = [engine] if engine else usual_engines()
        ended = end_run(run_id, names, words_to_options(option))
    if ended is None:
        where = ", ".join(names) or "no engine but the local one was used from here"
        raise failure(f"no jobs of a run {escaped(run_id)} were found (looked at: {where}); name another with --engine")
    name, jobs, remains = ended
    if as_json:
        click.echo(json.dumps({"run_id": run_id, "engine": name, "jobs": jobs, "remains": remains}, indent=2))
    else:
        removed = f", and removed {', '.join(remains)}" if remains else ""
        what = f"ended {counted(len(jobs), 'job')} of run {run_id} on {name}{removed}"
        click.echo(escaped(what))


def _stop_submission(run: Submission, grace_s: float | None, as_json: bool, *, is_forgotten: bool) -> None:
    with telling_failures():
        state = state_of(run)
        if state.is_live and state.state != "unknown":
            click.echo(f"stopping {escaped(str(run))}", err=True)
            state = end(run, _OWN_GRACE_S if grace_s is None else grace_s)
    click.echo(json.dumps(state.to_json(), indent=2) if as_json else escaped(state.describe()))
    if is_forgotten and (state.state == "unknown" or not state.is_live):
        forget(run)
        still = "; what may still run there is not ended" if state.is_live else ""
        click.echo(f"ropewalk: {run.id} is forgotten here{still}", err=True)
    elif state.is_live:
        click.echo(f"ropewalk: {_next_step(state)}", err=True)
        raise Exit(1)


def _next_step(state: RunState) -> str:
    """Return what to do about a run that is not known to have ended."""
    run = state.submission.id
    if state.state != "unknown":
        return f"{run} has not ended yet; ropewalk ps {run} shows when it has"
    return (
        f"{run} could not be stopped and may still run: call ropewalk stop {run} again when it can be asked; if that "
        f"will never be, ropewalk stop {run} --forget removes its record and its output here"
    )


def _ask_to_stop(conversation: LauncherConnection, launcher: Launcher, grace_s: float | None) -> View:
    wait_s = (_OWN_GRACE_S if grace_s is None else grace_s) + _BEYOND_S
    try:
        return conversation.ask(Stop(grace_s), ViewIs, wait_s).view
    except LauncherSilent as error:
        name = escaped(launcher.name)
        click.echo(
            f"ropewalk: {escaped(str(error))}. It was asked to stop and may still do so: ropewalk ps shows its nodes, "
            f"ropewalk stack {name} where they stand",
            err=True,
        )
        raise Exit(1) from None


def describe_end(view: View) -> str:
    """Describe how a program or pool ended, with a line for each process that needs one."""
    lines = [f"{view.name} {view.state}: {counts(view)}"]
    lines += [
        f"  {process.name} {process.state}: {process.last_cause}" for process in view.processes if process.last_cause
    ]
    return "\n".join(map(escaped, lines))
