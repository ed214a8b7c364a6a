"""How a launcher comes to its search: it finds one in the store that goes on, or creates it, and claims it.

An unfinished search goes on, and so does a complete one that is asked for more trials than it has had.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ropewalk.errors import SearchInvalid
from ropewalk.launcher_claim import LauncherClaim
from ropewalk.search.book import Line, SearchBook
from ropewalk.search.lost_launcher import wait_for_lost_launcher
from ropewalk.search.search_settings import SearchSettings
from ropewalk.search.store_keeper import (
    StoreKeeper,
    check_same,
    complete_search,
    lines_of,
    told_of_running,
    unfinished_search,
)
from ropewalk.tracking.facts import collect, file_of
from ropewalk.tracking.store.rows import RunRow
from ropewalk.tracking.store.store import RunStore
from ropewalk.tracking.writer import StoreWriter

_MAY_CHANGE = ("trials", "max_restarts", "max_concurrent")
"""Settings that may differ when a search goes on."""


@dataclass(frozen=True, slots=True)
class ClaimedSearch:
    """A search that belongs to this process.

    Attributes:
        keeper: keeps it in the store.
        earlier: the search as it was, if it goes on; else None.
        changed: which settings have changed since.
        note: why it does not go on with the complete search of its name; "" if there is none, or it does.
    """

    keeper: StoreKeeper
    earlier: RunRow | None
    changed: Sequence[str]
    note: str = ""


@contextlib.contextmanager
def claimed_search(
    settings: SearchSettings, store: RunStore, writer: StoreWriter, folder: Path | None, resume: bool
) -> Generator[ClaimedSearch]:
    """Find the search in the store, or create it there, and keep other launchers from it.

    Args:
        settings: its settings.
        store: the store.
        writer: writes to it.
        folder: folder of its runs; None: beside the store, or where an earlier launcher has put them.
        resume: whether it goes on with a search of this name: with one that is unfinished, or else with a complete one
            that has had fewer trials than are wanted now.
    """
    config = settings.config()
    found, note = None, ""
    if resume:
        lost = wait_for_lost_launcher(store, settings.project, settings.name, folder)
        found = unfinished_search(store, settings.project, settings.name, folder, lost)
    if resume and found is None and settings.population is None:
        found, note = complete_search(store, settings.project, settings.name, config, _MAY_CHANGE, folder)
    if resume and found is None:
        note = told_of_running(store, settings.project, settings.name, folder) or note
    earlier, claim = found or (None, None)
    try:
        changed = [] if earlier is None else check_same(earlier, config, _MAY_CHANGE)
        where = folder or store.folder
        if earlier is not None:  # where its checkpoints are
            where = Path(earlier.folder).parent
        run = earlier.id if earlier else secrets.token_hex(8)
        keeper = StoreKeeper(store, writer, run, settings.project, settings.name, where)
        if earlier is None:
            claim = LauncherClaim.on(where / run)
            keeper.create(config, collect(settings.seed, file_of(settings.train)))
        yield ClaimedSearch(keeper, earlier, changed, note)
    finally:
        writer.flush()  # so that the next one sees how it ended
        if claim is not None:
            claim.close()


def begun_book(settings: SearchSettings, store: RunStore, claimed: ClaimedSearch) -> SearchBook:
    """Return the book of the search, as far as it has come."""
    keeper, earlier = claimed.keeper, claimed.earlier
    book = settings.book(keeper.line)
    if earlier is not None:
        _replay(book, lines_of(store, keeper.run), earlier.name, keeper.run)
    keeper.begin()
    if earlier is not None:
        keeper.event("continued", "; ".join(["the search goes on", *claimed.changed]))
        if claimed.changed:
            keeper.change(settings.config())
        book.suspended()
        if settings.trials is None or settings.trials > len(book.trials):
            book.extended()
        keeper.go_on(book.trials)
    return book


def _replay(book: SearchBook, lines: Sequence[Line], name: str, run: str) -> None:
    try:
        book.replay(lines)
    except ValueError as error:
        raise SearchInvalid(
            f"search {name!r} ({run}) cannot go on: {error}. Its scheduler has other settings now; restore them, "
            "or start over with resume=False"
        ) from error


__all__ = ["ClaimedSearch", "begun_book", "claimed_search"]
