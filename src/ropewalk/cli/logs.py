"""`ropewalk logs`: show the output of the nodes of a running program, or of a submitted run, and follow it."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping
from pathlib import Path

import click

from ropewalk.cli.choosing import choose_launcher, choose_run, names_of_node, telling_failures
from ropewalk.cli.command_line import PanelCommand, argument, failure, shows_colours
from ropewalk.cli.run_output import show
from ropewalk.cli.submissions import Submission
from ropewalk.control.launchers import LauncherConnection, LauncherGone
from ropewalk.control.server import LogFiles, LogFilesAre
from ropewalk.escaping import escaped, escaped_line
from ropewalk.program.log_files import LogFile
from ropewalk.user_frames import stacks_text

_LOOK_S = 0.2
"""Seconds between two checks for new lines, and between two checks for new replicas."""
_ASK_S = 1.0


@click.command(cls=PanelCommand)
@argument(
    "program", required=False, help="Name or pid of a program, or id of a submitted run (default: the only program)."
)
@argument("node", required=False, help="A node, or a replica such as actor.3 (default: all).")
@click.option("--follow", "-f", is_flag=True, help="Follow until the program ends, or Ctrl-C.")
@click.option("--json", "as_json", is_flag=True, help="Print each line as a JSON object.")
@click.option(
    "--lines", "-n", type=click.IntRange(min=0), default=50, metavar="N", help="Number of last lines of each replica."
)
def logs(program: str | None, node: str | None, follow: bool, as_json: bool, lines: int) -> None:
    """Show the last output of the nodes of a running program, each line with the name of its replica.

    For a submitted run it shows the output of the script and of its processes.
    """
    launcher = choose_launcher(None) if program is None else choose_run(program)
    if isinstance(launcher, Submission):
        _show_submission(launcher, node, lines, follow=follow, as_json=as_json)
        return
    with telling_failures(), launcher.connect() as conversation:
        paths = _ask(conversation)
        if not paths:
            raise failure(
                f"{escaped(str(launcher))} keeps no files of output; in mode threads, its nodes print into the "
                "launcher's own terminal"
            )
        chosen = _choose(node, paths)
        if not chosen:
            raise failure(f"there is no node '{escaped(str(node))}'; there are: {escaped(', '.join(sorted(paths)))}")
        with contextlib.ExitStack() as files:
            logs = _Logs(files, as_json)
            logs.show_last(chosen, lines)
            if follow:
                _follow(conversation, node, logs)


def _show_submission(run: Submission, node: str | None, lines: int, *, follow: bool, as_json: bool) -> None:
    if node is not None:
        raise failure(
            f"{run.id} is a submitted run, whose nodes print into one output; name the program instead to see node "
            f"'{escaped(node)}' alone (ropewalk ps shows it)"
        )
    with telling_failures():
        state = show(run, lines, follow=follow, as_json=as_json)
    if state:
        click.echo(f"ropewalk: {escaped(state.describe())}", err=True)


def _follow(conversation: LauncherConnection, node: str | None, logs: _Logs) -> None:
    asked_at = time.monotonic()
    while True:
        time.sleep(_LOOK_S)
        logs.show_new()
        if time.monotonic() - asked_at >= _ASK_S:
            asked_at = time.monotonic()
            try:
                logs.add(_choose(node, _ask(conversation)))
            except LauncherGone:
                break
    logs.show_new(everything=True)
    click.echo("ropewalk: the program has ended", err=True)


def _ask(conversation: LauncherConnection) -> dict[str, Path]:
    return {name: Path(path) for name, path in conversation.ask(LogFiles(), LogFilesAre).paths.items()}


def _choose(node: str | None, paths: Mapping[str, Path]) -> dict[str, Path]:
    names = list(paths) if node is None else names_of_node(node, list(paths))
    return {name: paths[name] for name in sorted(names)}


class _Logs:
    """The open files of the replicas that are shown."""

    def __init__(self, files: contextlib.ExitStack, as_json: bool) -> None:
        self._files = files
        self._as_json = as_json
        self._logs: dict[str, LogFile] = {}
        self._colours = shows_colours()

    def add(self, paths: Mapping[str, Path]) -> None:
        for name, path in paths.items():
            if name not in self._logs:
                with contextlib.suppress(OSError):  # a replica that has just ended, or not started
                    self._logs[name] = self._files.enter_context(LogFile(path))

    def show_last(self, paths: Mapping[str, Path], num_lines: int) -> None:
        self.add(paths)
        for name, log in self._logs.items():
            self._show(name, log.tail(num_lines))

    def show_new(self, *, everything: bool = False) -> None:
        for name, log in self._logs.items():
            self._show(name, log.read_new(everything=everything))

    def _show(self, name: str, lines: list[str]) -> None:
        # Stacks, for which `ropewalk stack` asks, have frames of ours.
        lines = stacks_text("".join(f"{line}\n" for line in lines)).split("\n")[:-1]
        if not lines:
            return
        if self._as_json:
            shown = [json.dumps({"node": name, "line": line}) for line in lines]
        else:
            shown = [f"[{escaped(name)}] {escaped_line(line, colours=self._colours)}" for line in lines]
        click.echo("\n".join(shown), color=self._colours)
