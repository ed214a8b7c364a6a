"""`ropewalk runs logs`: the output of a run, kept for each attempt."""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ropewalk.cli.command_line import PanelCommand, failure, shows_colours
from ropewalk.cli.runs_options import json_option, opened, run_argument, store_option
from ropewalk.escaping import escaped, escaped_line
from ropewalk.program.log_files import LogFile
from ropewalk.tracking.kept_output import output_files

if TYPE_CHECKING:  # stores need an extra, and `ropewalk --help` does not
    from ropewalk.tracking import RunRow, RunStore

_LOOK_S = 0.2
"""Seconds between two checks for new lines."""
_UNDER_WAY = ("queued", "running")


@click.command(cls=PanelCommand)
@run_argument
@click.option("--attempt", type=click.IntRange(min=1), metavar="N", help="Only this attempt (default: all).")
@click.option("--follow", "-f", is_flag=True, help="Follow until the run ends, or Ctrl-C.")
@click.option(
    "--lines", "-n", type=click.IntRange(min=0), default=50, metavar="N", help="Number of last lines of each attempt."
)
@json_option
@store_option
def logs(run: str, attempt: int | None, follow: bool, lines: int, as_json: bool, store: str | None) -> None:
    """Show the last output of a run, and follow it; with --json, each line is an object.

    The output of a trial's processes is kept. The output of a script is wherever it was started.
    """
    with opened(store) as runs, contextlib.ExitStack() as files:
        found = runs.run(run)
        shown = dict(output_files(found.folder))
        chosen = {number: path for number, path in shown.items() if attempt in (None, number)}
        will_print = follow and found.kind != "script" and found.state in _UNDER_WAY
        if not chosen and not will_print:
            raise failure(_nothing(found, shown), 1)
        opened_files = {number: files.enter_context(LogFile(path)) for number, path in chosen.items()}
        for number, file in opened_files.items():
            _print(number, file.tail(lines), as_json)
        if follow:
            _follow(runs, found, opened_files, files, as_json, attempt)


def _nothing(run: RunRow, shown: dict[int, Path]) -> str:
    if shown:
        return f"run {run.id} has output of the attempts {', '.join(map(str, shown))}"
    if run.kind == "script":
        return f"run {run.id} was a script, whose output is wherever it was started; ropewalk runs show {run.id}"
    return f"run {run.id} has kept no output; ropewalk runs show {run.id} shows its attempts and events"


def _follow(
    store: RunStore,
    run: RunRow,
    opened_files: dict[int, LogFile],
    files: contextlib.ExitStack,
    as_json: bool,
    attempt: int | None,
) -> None:
    is_over = False
    while not is_over:
        time.sleep(_LOOK_S)
        run = store.run(run.id)
        is_over = run.state not in _UNDER_WAY  # asked before the last lines are read
        for number, path in output_files(run.folder):
            if number not in opened_files and attempt in (None, number):
                opened_files[number] = files.enter_context(LogFile(path))
        for number, file in opened_files.items():
            _print(number, file.read_new(everything=is_over), as_json)
    click.echo(f"ropewalk: run {escaped(run.id)} is {run.state}", err=True)


def _print(number: int, lines: list[str], as_json: bool) -> None:
    colours = shows_colours()
    for line in lines:
        if as_json:
            click.echo(json.dumps({"attempt": number, "line": line}))
        else:
            click.echo(f"[{number}] {escaped_line(line, colours=colours)}", color=colours)
