"""Pages of the store: runs, comparisons, searches, and the doctor."""

from __future__ import annotations

from ropewalk.page.runs.run_table import RunTable
from ropewalk.page.runs.store_reader import StoreOpener, StoreReader
from ropewalk.page.runs.table_data import add_table_routes
from ropewalk.page.runs.table_page import add_table_page


def add_runs_pages(opener: StoreOpener) -> StoreReader:
    """Serve the pages of a store of runs.

    Args:
        opener: opens the store; called at first use, in a thread.

    Returns:
        What reads the store; close it at the end.
    """
    reader, table = StoreReader(opener), RunTable()
    add_table_routes(reader, table)
    add_table_page(reader, table)
    return reader


__all__ = ["add_runs_pages"]
