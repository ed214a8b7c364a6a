"""Records for tests of stores, and stores that are quickly made."""

from __future__ import annotations

import functools
import itertools
import os
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ropewalk.process_start import start_ticks
from ropewalk.tracking.records import Metrics, OwnerIs, Record, RunCreated, RunRecord, StateIs
from ropewalk.tracking.store.opening import open_store
from ropewalk.tracking.store.owners import LocalProcesses
from ropewalk.tracking.store.store import RunStore

#: When runs of tests are made.
NOW = 1_000_000.0

_numbers = itertools.count(1)


@functools.cache
def _empty_file() -> bytes:
    """A store without runs; to copy it is quicker than to migrate a new one."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "empty.db")
        open_store(path).close()
        return path.read_bytes()


def new_store(folder: Path) -> RunStore:
    """A store in a file of its own."""
    path = folder / f"runs-{next(_numbers)}.db"
    with open(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
        file.write(_empty_file())
    return open_store(path)


def copy_of(path: Path) -> Path:
    copy = path.with_name(f"copy-{next(_numbers)}.db")
    shutil.copy(path, copy)
    return copy


def created(**changes: Any) -> RunCreated:
    facts: dict[str, Any] = {
        "project": "digits", "name": "first", "kind": "script", "time": NOW, "config": {}, "facts": {}, **changes,
    }  # fmt: skip
    return RunCreated(**facts)


def own_process() -> OwnerIs:
    """This process, as the owner of a run."""
    here = LocalProcesses()
    return OwnerIs(here.host, os.getpid(), start_ticks(os.getpid()), here.boot)


def of(run: str, *records: Record) -> list[RunRecord]:
    return [RunRecord(run, record) for record in records]


def begin(store: RunStore, run: str = "r1", *more: Record, **changes: Any) -> None:
    """A run in the store, with these records after its first one."""
    store.apply(of(run, created(**changes), *more))


def running(store: RunStore, run: str = "r1", **changes: Any) -> None:
    begin(store, run, own_process(), StateIs("running", NOW), **changes)


def logged(name: str, values: Iterable[float], *, first: int = 1, group: str = "") -> list[Metrics]:
    return [Metrics(group, [name], [value], float(step), NOW + step) for step, value in enumerate(values, first)]
