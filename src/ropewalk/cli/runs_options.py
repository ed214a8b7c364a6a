"""What the commands of `ropewalk runs` have in common: their options, the store, and how they fail."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import TYPE_CHECKING, Annotated

import typer

from ropewalk import tracking
from ropewalk.errors import FileNotTrusted, RunNotFound, RunStillRunning, RunUnsuitable, SettingsError, StoreError
from ropewalk.escaping import escaped_lines

if TYPE_CHECKING:  # stores need an extra, and `ropewalk --help` does not
    from ropewalk.tracking import RunStore

Store = Annotated[
    str | None,
    typer.Option("--store", help="Path of a store, or its URL (default: ROPEWALK_STORE).", show_default=False),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Ref = Annotated[str, typer.Argument(help="Id of a run or the start of it, or a name.", show_default=False)]
Refs = Annotated[list[str], typer.Argument(help="Ids of runs, their beginnings, or names.", show_default=False)]


@contextlib.contextmanager
def opened(store: str | None) -> Generator[RunStore]:
    """Open the store that an option names; an error of a store or a run ends the command with a message.

    The exit code is 2 for wrong usage and an unknown run, otherwise 1.
    """
    try:
        with tracking.open_store(store, create=False) as opened_store:
            yield opened_store
    except (RunNotFound, RunUnsuitable, SettingsError, ModuleNotFoundError) as error:
        raise failure(str(error), 2) from None
    except (StoreError, RunStillRunning, FileNotTrusted) as error:
        raise failure(str(error), 1) from None


def failure(message: str, code: int) -> typer.Exit:
    """Report an error; the caller raises the exception that is returned."""
    typer.echo(f"ropewalk runs: {escaped_lines(message)}", err=True)
    return typer.Exit(code)
