"""The `ropewalk` command: one file per subcommand.

Exit codes: 0 done, 1 something failed, 2 wrong usage, 130 after Ctrl-C, 143 after SIGTERM; `ropewalk run` and
`ropewalk attach` pass on the script's own.
"""

from __future__ import annotations

import importlib.metadata
from typing import Annotated

import typer

from ropewalk.cli.attach import attach
from ropewalk.cli.checkpoint import checkpoint
from ropewalk.cli.doctor import doctor
from ropewalk.cli.logs import logs
from ropewalk.cli.plan import plan
from ropewalk.cli.ps import ps
from ropewalk.cli.run import RunCommand, run
from ropewalk.cli.stack import stack
from ropewalk.cli.stop import stop
from ropewalk.cli.submit import submit

app = typer.Typer(
    name="ropewalk",
    help="Take a distributed Python training program from one laptop to a cluster without a rewrite.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
# A new command is one file with one function, and one line here.
app.command("run", cls=RunCommand)(run)
app.command("submit", cls=RunCommand)(submit)
app.command("plan")(plan)
app.command("checkpoint")(checkpoint)
app.command("ps")(ps)
app.command("logs")(logs)
app.command("attach")(attach)
app.command("stop")(stop)
app.command("stack")(stack)
app.command("doctor")(doctor)


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"ropewalk {importlib.metadata.version('ropewalk')}")
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
