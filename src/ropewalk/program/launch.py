"""Launching: check the program, pack it, choose where it runs, and start it."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from ropewalk import settings
from ropewalk.control.target import ControlTarget
from ropewalk.processes.session import Session
from ropewalk.processes.shared_sessions import default_session
from ropewalk.program.hosting import ProcessHosting, ThreadHosting
from ropewalk.program.kept_folder import KeptFolder
from ropewalk.program.observing import observe
from ropewalk.program.packing import PackedProgram
from ropewalk.program.running import RunningProgram
from ropewalk.program.validation import Mode
from ropewalk.tracking.observed_run import Track

if TYPE_CHECKING:
    from ropewalk.program.program import Program


def launch(
    program: Program,
    mode: Mode | None = None,
    engine: str | None = None,
    *,
    session: Session | None = None,
    copy: bool = True,
    track: Track = False,
    shown_as: ControlTarget | None = None,
    checkpoint: str | Path | None = None,
) -> RunningProgram:
    """Start a program, and return at once; see `Program.launch`."""
    here = settings.current(engine=engine, mode=mode)
    chosen: Mode = "threads" if here.mode == "threads" else "processes"
    if chosen == "processes" and not copy:
        raise ValueError('copy=False needs mode="threads": values sent between processes are always copied')
    program.validate(chosen, engine=engine, copy=copy)
    specs = program.specs
    packed = PackedProgram(specs if chosen == "processes" else ())
    with contextlib.ExitStack() as undo:
        undo.callback(packed.close)
        states = None if checkpoint is None else KeptFolder(Path(checkpoint))
        if states:
            undo.callback(states.close)
        watched = observe(track, program, chosen, here.engine)
        undo.push(watched)
        running = RunningProgram(program.name, specs, packed, watched, states)
        if chosen == "threads":
            hosting = ThreadHosting(running, here, copy=copy)
        else:
            hosting = ProcessHosting(session or default_session(engine), running, watched.given)
        undo.callback(hosting.close)
        undo.callback(running.abandon)
        running.begin(hosting, shown_as)
        undo.pop_all()
    return running
