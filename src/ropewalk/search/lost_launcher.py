"""Waits until it is known whether the launcher of a running search on another host is still there.

Without this wait, a job that was killed and requeued began a new search, as the old one counted as running:

    the process is on this host                     the kernel knows: no wait
    the folder of the search is locked              it runs: no wait
    the store hears of it (every 20 s)              it runs: locks of that file system do not reach other hosts
    the store does not hear of it for a minute      it is lost, and the search goes on here
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from ropewalk.launcher_claim import LauncherClaim
from ropewalk.tracking import records
from ropewalk.tracking.resuming import wait_for_lost_owner
from ropewalk.tracking.store.own_runs import own_runs
from ropewalk.tracking.store.rows import RunRow
from ropewalk.tracking.store.store import RunStore


def running_search(store: RunStore, project: str, name: str, folder: Path | None = None) -> RunRow | None:
    """Return this user's newest search of this name that is running; None if there is none."""
    rows = store.runs(project=project, kind="search", states=(records.RUNNING,), order="-created")
    return next(own_runs(store, (row for row in rows if row.name == name), folder), None)


def wait_for_lost_launcher(
    store: RunStore,
    project: str,
    name: str,
    folder: Path | None = None,
    *,
    sleep: Callable[[float], object] = time.sleep,
) -> str:
    """Return when the newest search of this name has a launcher that certainly runs, or that is lost, or none.

    Args:
        store: the store.
        project: project of the search.
        name: its name.
        folder: folder in which each run has its own, if the user names one.
        sleep: waits for some seconds.

    Returns:
        The id of a search that still counts as running and is not: the clock of its host was ahead of this one's. Empty
        if there is none.
    """
    row = running_search(store, project, name, folder)
    if row is not None and not _is_locked(row) and wait_for_lost_owner(store, row, sleep=sleep):
        return row.id
    return ""


def _is_locked(row: RunRow) -> bool:
    claim = LauncherClaim.on(Path(row.folder))
    if claim is not None:
        claim.close()
    return claim is None


__all__ = ["running_search", "wait_for_lost_launcher"]
