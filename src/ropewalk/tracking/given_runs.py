"""The run that a process was given by its launcher, as the code in the process sees it.

launcher: given_text(run) ─▶ ProcessSpec.run ─▶ ProcessContext.run ─▶ run_given_here() ─▶ Run over a PipeSink
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import msgspec

from ropewalk.processes import bootstrap
from ropewalk.tracking.pipe_sink import sink_here
from ropewalk.tracking.run import Run
from ropewalk.tracking.run_config import to_plain
from ropewalk.tracking.run_identity import RunIdentity


class GivenRun(msgspec.Struct, frozen=True):
    """What a process knows of the run that it was given."""

    id: str
    project: str
    name: str
    folder: str
    attempt: int
    seed: int | None
    config: dict[str, Any]


def given_text(run: Run) -> str:
    """Return the text by which processes are given a run."""
    given = GivenRun(run.id, run.project, run.name, str(run.folder), run.attempt, run.seed, to_plain(run.config))
    return msgspec.json.encode(given).decode()


def id_given(text: str) -> str:
    """Return the id of the run in a text of `given_text`; empty if it is another text."""
    try:
        return msgspec.json.decode(text, type=GivenRun).id
    except msgspec.DecodeError:
        return ""


def run_given_here() -> Run | None:
    """Return the run that this process was given; None if it was given none, or is not a process of a session."""
    context, sink = bootstrap.current, sink_here()
    return _run_of(context.run) if context and context.run and sink else None


@functools.lru_cache(maxsize=1)
def _run_of(text: str) -> Run | None:
    sink = sink_here()
    try:
        given = msgspec.json.decode(text, type=GivenRun)
    except msgspec.DecodeError:
        return None
    assert sink
    identity = RunIdentity(given.id, given.project, given.name, Path(given.folder), given.attempt, given.seed)
    return Run(identity, given.config, sink)
