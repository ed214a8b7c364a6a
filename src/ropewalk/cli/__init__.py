"""The `ropewalk` command: one file per subcommand.

Exit codes: 0 done, 1 something failed, 2 wrong usage, 130 after Ctrl-C, 143 after SIGTERM; `ropewalk run` and
`ropewalk attach` pass on the script's own.
"""

from __future__ import annotations

import importlib
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from ropewalk.version import VERSION

COMMANDS = (
    "run",
    "submit",
    "plan",
    "search",
    "checkpoint",
    "runs",
    "page",
    "ps",
    "top",
    "report",
    "logs",
    "attach",
    "stop",
    "stack",
    "explain",
    "doctor",
)
"""Each command is one file with one function of its name, or with an `app` of several commands.

It is imported when the command is called or its help is shown.
"""
_RUN_SCRIPTS = ("run", "submit")
"""Those that take the arguments of a script."""


class _Commands(TyperGroup):
    """The commands, of which only the one that is called is imported: importing all of them takes 0.15 s more."""

    commands: Any

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:  # the error suggests a near one of those that are there
            for one in COMMANDS:
                self.get_command(ctx, one)
            return None
        if cmd_name not in self.commands:
            module = importlib.import_module(f"ropewalk.cli.{cmd_name}")
            if not (alone := getattr(module, "app", None)):
                alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
                kind = importlib.import_module("ropewalk.cli.run").RunCommand if cmd_name in _RUN_SCRIPTS else None
                alone.command(cmd_name, cls=kind)(getattr(module, cmd_name))
            self.commands[cmd_name] = typer.main.get_command(alone)
        return self.commands[cmd_name]


app = typer.Typer(
    name="ropewalk",
    cls=_Commands,
    help="Take a distributed Python training program from one laptop to a cluster without a rewrite.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"ropewalk {VERSION}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command that `sys.argv` names, and exit with its code."""
    app(prog_name="ropewalk")
