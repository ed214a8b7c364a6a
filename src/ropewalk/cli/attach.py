"""`ropewalk attach`: follow a submitted run as if it ran in this terminal, and exit with its code."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from ropewalk.cli.choosing import choose_submission, telling_failures
from ropewalk.cli.run_output import show
from ropewalk.escaping import escaped


def attach(
    run: Annotated[str, typer.Argument(help="The id of a submitted run, or the start of it.")],
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="Begin with this many of the last lines.")] = 1000,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print each line as a JSON object, and at last one of the run.")
    ] = False,
) -> None:
    """Follow the output of a submitted run until it ends; the exit code is that of the run.

    Ctrl-C detaches from the run, which continues.
    """
    submission = choose_submission(run)
    with telling_failures():
        try:
            state = show(submission, lines, follow=True, as_json=as_json)
        except KeyboardInterrupt:
            typer.echo(
                f"\nropewalk: {submission.id} goes on; ropewalk attach {submission.id} comes back to it, ropewalk stop "
                f"{submission.id} ends it",
                err=True,
            )
            raise typer.Exit(130) from None
    assert state  # `show` follows to the end
    if as_json:
        typer.echo(json.dumps(state.to_json()))
    else:
        typer.echo(f"ropewalk: {escaped(state.describe())}", err=True)
    raise typer.Exit(1 if state.exit_code is None else state.exit_code)
