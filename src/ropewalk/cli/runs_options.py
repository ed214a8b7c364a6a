"""What the commands of `ropewalk runs` have in common: their options, the store, and how they fail."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import TYPE_CHECKING

import click

from ropewalk import tracking
from ropewalk.cli.command_line import argument, failure
from ropewalk.errors import FileNotTrusted, RunNotFound, RunStillRunning, RunUnsuitable, SettingsError, StoreError

if TYPE_CHECKING:  # stores need an extra, and `ropewalk --help` does not
    from ropewalk.tracking import RunStore

store_option = click.option("--store", metavar="STORE", help="Path of a store, or its URL (default: ROPEWALK_STORE).")
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
run_argument = argument("run", help="Id of a run or the start of it, or a name.")
runs_argument = argument(
    "refs", nargs=-1, required=True, metavar="RUNS...", help="Ids of runs, their beginnings, or names."
)


@contextlib.contextmanager
def opened(store: str | None) -> Generator[RunStore]:
    """Open the store that an option names; an error of a store or a run ends the command with a message.

    The exit code is 2 for wrong usage and an unknown run, otherwise 1.
    """
    try:
        with tracking.open_store(store, create=False) as opened_store:
            yield opened_store
    except (RunNotFound, RunUnsuitable, SettingsError, ModuleNotFoundError) as error:
        raise failure(str(error)) from None
    except (StoreError, RunStillRunning, FileNotTrusted) as error:
        raise failure(str(error), 1) from None
