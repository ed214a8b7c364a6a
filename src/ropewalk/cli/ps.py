"""`ropewalk ps`: list what runs of this user on this machine, its processes, and submitted runs."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import click
from click.exceptions import Exit
from rich.console import Console, Group, RenderableType
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ropewalk.cli.choosing import fitting_things, running_launchers
from ropewalk.cli.command_line import PanelCommand, argument
from ropewalk.cli.submissions import RunState, states, submissions
from ropewalk.cli.top import show_what_runs
from ropewalk.control.launchers import Launcher, LauncherGone, LauncherSilent, RequestFailed
from ropewalk.control.parts import below_wholes
from ropewalk.control.server import Look, ViewIs
from ropewalk.control.view import ProcessView, View
from ropewalk.control.view_text import described, fact_lines, foremost, headline, process_lines, remarks, shown_events
from ropewalk.errors import TransportRefused
from ropewalk.escaping import escaped
from ropewalk.quantities import counted, shown_duration, shown_size

_REFRESH_S = 1.0
_INDENT = "  "
"""Before each line of a part."""
_NOTHING = "this user runs nothing on this machine: no program, pool or other"
_MOST_PROCESSES = 40
"""Processes of one thing that are listed if it was not named."""
_REMARKS_WIDTH = 32
"""Columns of a terminal from which on a remark stands beside its process."""
_WIDE = Console(width=10_000)
"""Measures tables; nothing is printed to it."""
_STYLES = {
    "running": "green", "completed": "green", "idle": "green", "failed": "bold red",
    "restarting": "yellow", "starting": "cyan", "stopping": "yellow",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class LauncherReply:
    """What a target shows of itself, or why its launcher did not answer."""

    launcher: Launcher
    view: View | None
    problem: str = ""


@click.command(cls=PanelCommand)
@argument(
    "program",
    required=False,
    help="Show only this one: its name or the start of it, the launcher's pid, or the id of a submitted run.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON; with --watch, one object in each line.")
@click.option("--all", "everything", is_flag=True, help="Also show submitted runs that have ended.")
@click.option("--watch", is_flag=True, help="Show it every second; in a terminal: ropewalk top.")
def ps(program: str | None, as_json: bool, everything: bool, watch: bool) -> None:
    """Show what runs (programs, pools and others), its processes, and the runs submitted from here.

    Exit code 1 if a launcher does not answer, 2 if nothing has that name.
    """
    console = Console(highlight=False)
    if watch and console.is_terminal and not as_json and program is None:
        show_what_runs()
        return
    while True:
        launchers, submitted = running_launchers(), survey_submitted()
        if program is not None:
            launchers, submitted = fitting_things(program, launchers, submitted)
        findings = survey(launchers)
        ended = [state for state in submitted if not state.is_live and not everything and program is None]
        submitted = [state for state in submitted if state not in ended]
        if as_json:
            click.echo(json.dumps(to_json(findings, submitted), indent=None if watch else 2))
        elif console.is_terminal:
            console.print(render(findings, submitted, None if program else _MOST_PROCESSES, console.width))
        else:
            click.echo(describe(findings, submitted, None if program else _MOST_PROCESSES))
        if ended and not as_json:
            ends = "have ended" if len(ended) > 1 else "has ended"
            click.echo(f"{counted(len(ended), 'submitted run')} {ends}: see ropewalk ps --all")
        if not watch:
            break
        time.sleep(_REFRESH_S)
    if any(finding.problem for finding in findings):
        raise Exit(1)


def survey(launchers: Sequence[Launcher]) -> list[LauncherReply]:
    """Ask all launchers in parallel; what has just ended is left out."""
    if not launchers:
        return []
    with ThreadPoolExecutor(min(len(launchers), 32)) as executor:
        return [finding for finding in executor.map(_ask, launchers) if finding]


def survey_submitted() -> list[RunState]:
    """Return the states of submitted runs."""
    return states(submissions())


def _ask(launcher: Launcher) -> LauncherReply | None:
    try:
        with launcher.connect() as conversation:
            return LauncherReply(launcher, conversation.ask(Look(), ViewIs).view)
    except LauncherGone:
        return None
    except (LauncherSilent, RequestFailed, TransportRefused) as error:
        return LauncherReply(launcher, None, str(error))


def to_json(findings: Sequence[LauncherReply], submitted: Sequence[RunState] = ()) -> dict[str, Any]:
    """Return the report for programs.

    Its form is `{"running": [view], "problems": [{kind, name, pid, problem}], "submitted": [run]}`.
    """
    return {
        "running": [finding.view.to_json() for finding in findings if finding.view],
        "problems": [
            {
                "kind": finding.launcher.kind,
                "name": finding.launcher.name,
                "pid": finding.launcher.pid,
                "problem": finding.problem,
            }
            for finding in findings
            if finding.problem
        ],
        "submitted": [state.to_json() for state in submitted],
    }


def describe(
    findings: Sequence[LauncherReply], submitted: Sequence[RunState] = (), most: int | None = _MOST_PROCESSES
) -> str:
    """Return the report for logs: a line for each target and each process; `most` is as for `foremost`."""
    views = [(described(view, most), depth) for view, depth in _ordered(findings)]
    lines = [f"{_INDENT * depth}{line}" for view, depth in views for line in view.split("\n")]
    lines += [escaped(finding.problem) for finding in findings if not finding.view]
    lines += [f"submitted {escaped(state.describe())}" for state in submitted]
    return "\n".join(lines) or _NOTHING


def render(
    findings: Sequence[LauncherReply],
    submitted: Sequence[RunState] = (),
    most: int | None = _MOST_PROCESSES,
    width: int = 200,
) -> RenderableType:
    """Return the report for a terminal of `width` columns: a table for each target; `most` is as for `foremost`."""
    blocks: list[RenderableType] = []
    for view, depth in _ordered(findings):
        processes, more = foremost(view, most)
        lines: list[RenderableType] = [Text(escaped(headline(view)), style="bold")]
        lines += _rows(view, processes, width - len(_INDENT) * depth) if processes else []
        lines += [Text(f"  {escaped(line)}") for line in more]
        lines += [Text(f"  {escaped(line)}") for line in fact_lines(view)]
        lines += [Text(f"  {escaped(event)}", style="dim") for event in shown_events(view)]
        blocks.append(Padding(Group(*lines), (0, 0, 0, len(_INDENT) * depth)))
    blocks += [Text(escaped(finding.problem), style="red") for finding in findings if not finding.view]
    blocks += [Text(f"submitted {escaped(state.describe())}") for state in submitted]
    return Group(*blocks) if blocks else Text(_NOTHING)


def _ordered(findings: Sequence[LauncherReply]) -> list[tuple[View, int]]:
    """Return the views, each part below its whole, with its depth."""
    return below_wholes([finding.view for finding in findings if finding.view])


def _rows(view: View, processes: Sequence[ProcessView], width: int) -> list[RenderableType]:
    """Return the table of the processes, with remarks beside it, or below it where the terminal is narrow.

    Where not even the table fits, the rows are lines of text, which the terminal wraps: no number is cut.
    """
    said = [Text(escaped("; ".join(remarks(process)))) for process in processes]
    table = _table(view, processes)
    room = width - Measurement.get(_WIDE, _WIDE.options, table).maximum
    if room < 0:
        return [Text(f"  {escaped(line)}") for line in process_lines(view.kind, processes)]
    if room >= min(_REMARKS_WIDTH, max(line.cell_len for line in said) + 2):
        return [_table(view, processes, said)]
    below = [Text(f"  {escaped(process.name)}: ") + line for process, line in zip(processes, said, strict=True) if line]
    return [table, *below]


def _table(view: View, processes: Sequence[ProcessView], said: Sequence[Text] = ()) -> Table:
    table = Table(box=None, padding=(0, 1), header_style="dim")
    for heading in ("node" if view.kind == "program" else "process", "kind", "state"):
        table.add_column(heading, no_wrap=True)
    for heading in ("pid", "up", "memory", "cpu", "done", "waiting"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("host", no_wrap=True)
    if said:
        table.add_column("", overflow="fold")
    for index, process in enumerate(processes):
        table.add_row(
            Text(escaped(process.name)),
            Text(escaped(process.kind)),
            Text(escaped(process.state), style=_STYLES.get(process.state, "")),
            str(process.pid or ""),
            shown_duration(process.uptime_s) if process.uptime_s else "",
            shown_size(process.memory_bytes) if process.memory_bytes else "",
            shown_duration(process.cpu_s) if process.cpu_s else "",
            str(process.done) if process.is_counted else "",
            Text(str(process.waiting) if process.is_counted else "", style="yellow" if process.waiting else ""),
            Text(escaped(process.host)),
            *said[index : index + 1],
        )
    return table
