"""`ropewalk attach`: follow a submitted run as if it ran in this terminal, and exit with its code."""

from __future__ import annotations

import json

import click
from click.exceptions import Exit

from ropewalk.cli.choosing import choose_submission, telling_failures
from ropewalk.cli.command_line import PanelCommand, argument
from ropewalk.cli.run_output import show
from ropewalk.escaping import escaped


@click.command(cls=PanelCommand)
@argument("run", help="The id of a submitted run, or the start of it.")
@click.option(
    "--lines",
    "-n",
    type=click.IntRange(min=0),
    default=1000,
    metavar="N",
    help="Begin with this many of the last lines.",
)
@click.option("--json", "as_json", is_flag=True, help="Print each line as a JSON object, and at last one of the run.")
def attach(run: str, lines: int, as_json: bool) -> None:
    """Follow the output of a submitted run until it ends; the exit code is that of the run.

    Ctrl-C detaches from the run, which continues.
    """
    submission = choose_submission(run)
    with telling_failures():
        try:
            state = show(submission, lines, follow=True, as_json=as_json)
        except KeyboardInterrupt:
            click.echo(
                f"\nropewalk: {submission.id} goes on; ropewalk attach {submission.id} comes back to it, ropewalk stop "
                f"{submission.id} ends it",
                err=True,
            )
            raise Exit(130) from None
    assert state  # `show` follows to the end
    if as_json:
        click.echo(json.dumps(state.to_json()))
    else:
        click.echo(f"ropewalk: {escaped(state.describe())}", err=True)
    raise Exit(1 if state.exit_code is None else state.exit_code)
