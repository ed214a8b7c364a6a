"""Rows of processes, as the table and the map in the browser have them, and what has changed in them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ropewalk.control.view import ProcessView
from ropewalk.escaping import escaped
from ropewalk.page.style import state_group
from ropewalk.page.totals import UP
from ropewalk.page.watcher import Seen, ViewSample, cores_of, rate_of

Row = dict[str, Any]
GONE = "gone"
"""What is shown as the state of a process that was up when its launcher was seen last."""
_LIVING = UP | {"starting", "restarting", "stopping"}
_LONGEST = 300
"""Characters of a text in a row; the dialog of a process has the whole text."""


def process_rows(seen: Seen) -> dict[str, Row]:
    """Return a row for each process, by its name; the numbers are rounded, so that noise is no change.

    Args:
        seen: what is known of the thing.
    """
    recent = seen.recent()
    is_gone = seen.gone and not seen.view.has_ended  # its launcher was killed, and nobody has said what became of them
    return {process.name: _row(process, recent, is_gone=is_gone) for process in seen.view.processes}


def changes(old: Mapping[str, Row], new: Mapping[str, Row]) -> tuple[list[Row], list[str]]:
    """Return what turns old rows into new ones.

    Returns:
        New rows, and of old ones their name with the entries that have changed; and the names of rows that are gone.
    """
    found: list[Row] = []
    for name, row in new.items():
        before = old.get(name)
        if before is None:
            found.append(row)
        elif row != before:
            found.append({"name": row["name"], **{key: value for key, value in row.items() if before[key] != value}})
    return found, [old[name]["name"] for name in old if name not in new]


def _row(process: ProcessView, recent: Sequence[ViewSample], *, is_gone: bool) -> Row:
    state = GONE if is_gone and process.state in _LIVING else process.state
    cores, rate = cores_of(process.name, recent), rate_of(process.name, recent)
    return {
        "name": escaped(process.name),
        "group": escaped(process.group),
        "host": escaped(process.host) or "this host",
        "pid": process.pid,
        "state": escaped(state),
        "look": state_group(state),
        "doing": _short(process.doing),
        "doing_s": _rounded(process.doing_s) if process.doing else None,
        "cpu": None if cores is None else round(cores, 2),
        "memory": round(process.memory_bytes / 2**20),
        "silent_s": round(process.silent_s),
        "straggler": process.straggler,
        "restarts": process.restarts,
        "done": process.done if process.is_counted else None,
        "rate": float(f"{rate:.3g}") if process.is_counted and rate is not None else None,
        "waiting": process.waiting,
        "cause": _short(without_subject(process)),
    }


def _rounded(seconds: float) -> float:
    return round(seconds, 1) if seconds < 10 else round(seconds)


def without_subject(process: ProcessView) -> str:
    """Return why a process ended, without its name and place, which stand in the same row."""
    subject = re.compile(rf"{re.escape(process.name)}( on host \S+)?( \(pid \d+\))?( was)? ")
    return subject.sub("", process.last_cause, count=1) if subject.match(process.last_cause) else process.last_cause


def _short(text: str) -> str:
    shown = escaped(text)
    return shown if len(shown) <= _LONGEST else f"{shown[: _LONGEST - 1]}…"


__all__ = ["Row", "changes", "process_rows", "without_subject"]
