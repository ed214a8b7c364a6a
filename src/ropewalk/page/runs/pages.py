"""Pages of the store: runs, comparisons, searches, and the doctor."""

from __future__ import annotations

import contextlib

from nicegui import app

from ropewalk.page.actions import NumberedActions
from ropewalk.page.runs.compare_page import add_compare_page
from ropewalk.page.runs.curve_data import CurveReader
from ropewalk.page.runs.doctor_page import add_doctor_page
from ropewalk.page.runs.run_files import add_file_routes
from ropewalk.page.runs.run_page import add_run_page
from ropewalk.page.runs.run_table import RunTable
from ropewalk.page.runs.search_page import add_search_pages
from ropewalk.page.runs.store_reader import StoreOpener, StoreReader, StoreUnreadable
from ropewalk.page.runs.table_data import add_table_routes
from ropewalk.page.runs.table_page import add_table_page


def add_runs_pages(opener: StoreOpener) -> StoreReader:
    """Serve the pages of a store of runs.

    Args:
        opener: opens the store; called at first use, in a thread.

    Returns:
        What reads the store; close it at the end.
    """
    reader, table, points, actions = StoreReader(opener), RunTable(), CurveReader(), NumberedActions()
    add_table_routes(reader, table)
    add_table_page(reader, table, actions)
    add_file_routes(reader)
    add_run_page(reader, table, points, actions)
    add_compare_page(reader, points)
    add_search_pages(reader, table, actions)
    add_doctor_page()

    @app.on_startup  # pyright: ignore[reportUnknownMemberType]
    async def read_ahead() -> None:  # pyright: ignore[reportUnusedFunction]
        """Read all runs before the first visitor comes, so that the table of runs is there at once."""
        with contextlib.suppress(StoreUnreadable):  # the pages of runs say why
            await reader.read(table.refresh)

    return reader


__all__ = ["add_runs_pages"]
