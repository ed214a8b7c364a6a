"""Which runs of a store this user has begun, so that a command may go on with them.

A file of this user's says nothing else. Into a database others may have written runs of any name, whose folder they
choose: to go on with one would make that folder, keep and remove checkpoints in it, and run a search with their
configurations. So a run of a database counts only if its folder is where this user's runs are, and is there: nobody
else can make it.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from ropewalk.escaping import escaped
from ropewalk.tracking.store.rows import RunRow
from ropewalk.tracking.store.store import RunStore

_log = logging.getLogger(__name__)
_told: set[str] = set()
"""Runs that this process has told to pass over."""


def own_runs(store: RunStore, rows: Iterable[RunRow], folder: Path | None = None) -> Iterator[RunRow]:
    """Yield the runs that this user has begun; the first one that is passed over is told.

    Args:
        store: the store.
        rows: runs of it.
        folder: folder in which each run has its own, if the user names one; None: that of the store.
    """
    within = folder or store.folder
    passed_over: RunRow | None = None
    for row in rows:
        if "://" not in store.where or _is_own(row, within):
            yield row
        elif passed_over is None:
            passed_over = row
            _tell(store, row, within)


def _tell(store: RunStore, row: RunRow, within: Path) -> None:
    if row.id in _told:
        return
    _told.add(row.id)
    _log.warning(
        "%s (%s) in %s does not go on here: whoever can write to a database can name a run like yours, and the folder "
        "of this one, %s, is not one of your runs in %s; if it is yours, give folder= as it was",
        escaped(row.name), escaped(row.id), store.where, escaped(row.folder), within,
    )  # fmt: skip


def _is_own(row: RunRow, within: Path) -> bool:
    place = Path(row.folder)
    if place.name != row.id or os.path.realpath(place.parent) != os.path.realpath(within):
        return False
    try:
        facts = os.lstat(place)
    except (OSError, ValueError):
        return False
    return stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.geteuid()


__all__ = ["own_runs"]
