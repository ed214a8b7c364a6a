"""`ropewalk ps`: list this user's running programs on this machine, the state of their nodes, and submitted runs."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ropewalk.cli.choosing import running_launchers
from ropewalk.cli.submissions import RunState, states, submissions
from ropewalk.errors import TransportRefused
from ropewalk.escaping import escaped
from ropewalk.control.server import Status, StatusIs
from ropewalk.control.launchers import Launcher, LauncherGone, LauncherSilent, RequestFailed
from ropewalk.program.status import ProgramStatus
from ropewalk.quantities import shown_duration, shown_size

_REFRESH_S = 1.0
_NOTHING = "no program of this user runs on this machine"
_STYLES = {
    "running": "green", "completed": "green", "failed": "bold red",
    "restarting": "yellow", "starting": "cyan", "stopping": "yellow",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class LauncherReply:
    """The status of a program from its launcher, or why the launcher did not answer."""

    launcher: Launcher
    status: ProgramStatus | None
    problem: str = ""


def ps(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON; with --watch, one object in each line.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="Also submitted runs that have ended.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Show it again every second, until Ctrl-C.")] = False,
) -> None:
    """Show the running programs and their nodes, and runs that were submitted from here.

    Exit code 1 if a launcher does not answer.
    """
    console = Console(highlight=False)
    if watch and console.is_terminal and not as_json:
        with Live(console=console, auto_refresh=False, screen=True) as live:
            while True:
                live.update(render(survey(running_launchers()), survey_submitted(everything=everything)), refresh=True)
                time.sleep(_REFRESH_S)
    while True:
        findings, submitted = survey(running_launchers()), survey_submitted(everything=everything)
        if as_json:
            typer.echo(json.dumps(to_json(findings, submitted), indent=None if watch else 2))
        elif console.is_terminal:
            console.print(render(findings, submitted))
        else:
            typer.echo(describe(findings, submitted))
        if not watch:
            break
        time.sleep(_REFRESH_S)
    if any(finding.problem for finding in findings):
        raise typer.Exit(1)


def survey(launchers: Sequence[Launcher]) -> list[LauncherReply]:
    """Ask all launchers in parallel; a program that has just ended is left out."""
    if not launchers:
        return []
    with ThreadPoolExecutor(min(len(launchers), 32)) as executor:
        return [finding for finding in executor.map(_ask, launchers) if finding]


def survey_submitted(*, everything: bool) -> list[RunState]:
    """Return the states of submitted runs; ended runs only with `everything`."""
    return [state for state in states(submissions()) if everything or state.is_live]


def _ask(launcher: Launcher) -> LauncherReply | None:
    try:
        with launcher.connect() as conversation:
            return LauncherReply(launcher, conversation.ask(Status(), StatusIs).status)
    except LauncherGone:
        return None
    except (LauncherSilent, RequestFailed, TransportRefused) as error:
        return LauncherReply(launcher, None, str(error))


def to_json(findings: Sequence[LauncherReply], submitted: Sequence[RunState] = ()) -> dict[str, Any]:
    """Return the report for programs.

    Its form is `{"programs": [status], "problems": [{program, pid, problem}], "submitted": [run]}`.
    """
    problems = [finding for finding in findings if finding.problem]
    return {
        "programs": [finding.status.to_json() for finding in findings if finding.status],
        "problems": [{"program": f.launcher.program, "pid": f.launcher.pid, "problem": f.problem} for f in problems],
        "submitted": [state.to_json() for state in submitted],
    }


def describe(findings: Sequence[LauncherReply], submitted: Sequence[RunState] = ()) -> str:
    """Return the report for logs: a line for each program and each replica."""
    blocks = [finding.status.describe() if finding.status else finding.problem for finding in findings]
    blocks += [f"submitted {state.describe()}" for state in submitted]
    return "\n".join(escaped(line) for block in blocks for line in block.split("\n")) or _NOTHING


def render(findings: Sequence[LauncherReply], submitted: Sequence[RunState] = ()) -> RenderableType:
    """Return the report for a terminal: a table for each program."""
    blocks: list[RenderableType] = []
    for finding in findings:
        if finding.status:
            blocks += [Text(escaped(finding.status.headline()), style="bold"), _table(finding.status)]
            blocks += [Text(f"  {escaped(event)}", style="dim") for event in finding.status.last_events()]
        else:
            blocks.append(Text(escaped(finding.problem), style="red"))
    blocks += [Text(f"submitted {escaped(state.describe())}") for state in submitted]
    return Group(*blocks) if blocks else Text(_NOTHING)


def _table(status: ProgramStatus) -> Table:
    table = Table(box=None, padding=(0, 1), header_style="dim")
    for heading in ("node", "kind", "state"):
        table.add_column(heading, no_wrap=True)
    for heading in ("gen", "pid", "up", "memory", "cpu", "done", "waiting"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("host", no_wrap=True)
    table.add_column("", overflow="fold")
    for node in status.nodes:
        table.add_row(
            Text(escaped(node.label)),
            Text(escaped(node.kind)),
            Text(escaped(node.state), style=_STYLES.get(node.state, "")),
            str(node.generation),
            str(node.pid or ""),
            shown_duration(node.uptime_s) if node.uptime_s else "",
            shown_size(node.memory_bytes) if node.memory_bytes else "",
            shown_duration(node.cpu_s) if node.cpu_s else "",
            str(node.calls_done),
            Text(str(node.calls_waiting), style="yellow" if node.calls_waiting else ""),
            Text(escaped(node.host)),
            Text(escaped("; ".join(node.remarks()))),
        )
    return table
