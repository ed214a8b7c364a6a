"""The Python stacks of nodes that are threads of this process; those of processes: `control/process_stacks.py`."""

from __future__ import annotations

import os
import sys
import traceback
from types import FrameType
from typing import Any

from ropewalk.calls.incoming import Turn
from ropewalk.control.process_stacks import OUR_FOLDER, Stack, described
from ropewalk.program.node_context import NodeContext, contexts_here

_LIBRARY = os.path.dirname(os.__file__)
"""Folder of the standard library and the installed packages."""


def of_threads(program: str, node: str | None) -> dict[str, str]:
    """The stacks of a program's nodes that are threads of this process, and of the calls that they serve."""
    threads: dict[NodeContext, list[tuple[str, Stack]]] = {
        context: []
        for context in contexts_here()
        if context.program == program and node in (None, context.name, f"{context.name}.{context.replica}")
    }
    frames = sys._current_frames()  # pyright: ignore[reportPrivateUsage]  # documented, and the only way
    for context, stacks in threads.items():
        frame = frames.get(context.thread)
        if frame:
            stacks.append(("", list(traceback.extract_stack(frame))))
    for frame in frames.values():
        turn = _turn_of(frame)
        context = getattr(turn and turn.served, "owner", None)
        if turn and context in threads:
            threads[context].append((f"In a call of {turn.label}:\n", list(traceback.extract_stack(frame))))
    return {f"{context.name}.{context.replica}": described(stacks) for context, stacks in threads.items()}


def places() -> tuple[dict[int, str], dict[int, str]]:
    """The line of user code that each thread of this process has reached, such as "store.py:12 in push".

    Returns:
        Lines by the identity of the thread, and lines by the identity of the `Turn` that a thread runs.
    """
    of_threads: dict[int, str] = {}
    of_turns: dict[int, str] = {}
    for thread, innermost in sys._current_frames().items():  # pyright: ignore[reportPrivateUsage]  # as above
        frame: FrameType | None = innermost
        while frame and frame.f_code.co_filename.startswith((OUR_FOLDER, _LIBRARY, "<frozen ")):
            frame = frame.f_back
        if frame:
            code = frame.f_code
            place = f"{os.path.basename(code.co_filename)}:{frame.f_lineno} in {code.co_name}"
            of_threads[thread] = place
            if turn := _turn_of(innermost):
                of_turns[id(turn)] = place
    return of_threads, of_turns


def _turn_of(frame: FrameType | None) -> Turn | None:
    """The turn that a thread runs."""
    while frame:
        if frame.f_code.co_name in ("run", "answer"):
            turn: Any = frame.f_locals.get("self")
            if isinstance(turn, Turn):
                return turn
        frame = frame.f_back
    return None
