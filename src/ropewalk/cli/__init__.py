"""The `ropewalk` command: one file per subcommand.

Exit codes: 0 done, 1 something failed, 2 wrong usage, 130 after Ctrl-C, 143 after SIGTERM; `ropewalk run` and
`ropewalk attach` pass on the script's own.
"""

from __future__ import annotations

import errno
import importlib
import os
import sys
from typing import Any

import click
from click.exceptions import Exit
from click.shell_completion import CompletionItem, get_completion_class

from ropewalk.cli.command_line import PanelGroup
from ropewalk.version import VERSION

COMMANDS = {
    "run": "Run a Python script whose pools and programs use the engine, number of workers and mode given here.",
    "submit": "Run a script without this terminal; on a cluster, the script itself becomes a job.",
    "plan": "Cut a model into pipeline stages for a set of devices, and show the predicted result.",
    "search": "Search for hyperparameters of a training function: many trials, kept in the store of runs.",
    "checkpoint": "List the contents of a trainer's checkpoint, and check that every byte is as it was written.",
    "runs": "List, show, compare, export, label, archive and delete runs; pause, continue, stop, fork and rerun them.",
    "page": "Serve a page that shows all that you run on this machine, and your tracked runs, until Ctrl-C.",
    "ps": "Show what runs (programs, pools and others), its processes, and the runs submitted from here.",
    "top": "Show what runs and keep the view up to date: rates, CPU, memory, silence and failures of each process.",
    "report": "Write one HTML file with the pictures of the page, which needs neither a server nor a network.",
    "logs": "Show the last output of the nodes of a running program, each line with the name of its replica.",
    "attach": "Follow the output of a submitted run until it ends; the exit code is that of the run.",
    "stop": "Stop a running program or a submitted run, and wait until it has ended.",
    "stack": "Print the Python stack of every node of a running program, without stopping it.",
    "explain": "Explain what an error means, why it happens and what to do about it.",
    "doctor": "Check this machine: versions, limits, folders, kernel, network, settings and a real round trip.",
}
"""Each command is one file with one click command of its name; here is the first sentence of its help.

It is imported when it is called: importing all of them, for a list or for a near name, takes 0.4 s.
"""


class _Commands(PanelGroup):
    """The commands, of which only the one that is called is imported."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        return getattr(importlib.import_module(f"ropewalk.cli.{cmd_name}"), cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        own = [CompletionItem(name, help=words) for name, words in COMMANDS.items() if name.startswith(incomplete)]
        return own + click.Command.shell_complete(self, ctx, incomplete)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise Exit(130) from None  # click's own is 1, with the word "Aborted!"


def _show_completion(ctx: click.Context, _: click.Parameter, shell: str | None) -> None:
    if shell is not None and (kind := get_completion_class(shell)):
        click.echo(kind(app, {}, "ropewalk", "_ROPEWALK_COMPLETE").source())
        ctx.exit()


@click.group(
    "ropewalk", cls=_Commands, no_args_is_help=True,
    context_settings={"show_default": True, "help_option_names": ["-h", "--help"]},
)  # fmt: skip
@click.version_option(VERSION, message="ropewalk %(version)s")
@click.option(
    "--show-completion", type=click.Choice(["bash", "zsh", "fish"]), is_eager=True, expose_value=False,
    callback=_show_completion,
    help="Show what completes this command in a shell; docs/command-line.md says where to put it.",
)  # fmt: skip
def app() -> None:
    """Take a distributed Python training program from one laptop to a cluster without a rewrite."""


def main() -> None:
    """Run the command that `sys.argv` names, and exit with its code."""
    try:
        app(prog_name="ropewalk")
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT) or error.filename is not None:
            raise
        sys.stderr.write(f"ropewalk: the output cannot be written: {error.strerror}\n")
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the end of Python writes the rest, and would fail again
        sys.exit(1)
