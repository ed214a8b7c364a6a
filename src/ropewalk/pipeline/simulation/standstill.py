"""Explains the deadlock of a simulated schedule: which worker waits for what, in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ropewalk.errors import ScheduleInvalid
from ropewalk.pipeline.simulation.stream_program import COMPUTE, StreamProgram
from ropewalk.quantities import counted

_NUM_SHOWN = 6


@dataclass(frozen=True, slots=True)
class _BlockedAction:
    worker: str
    action: str
    text: str
    is_hopeless: bool
    """Whether no worker will ever perform the action that it waits for."""


def standstill(program: StreamProgram, places: Sequence[int], slots: int) -> ScheduleInvalid:
    """Return the error for workers that cannot go on.

    Waits for actions that no worker will ever perform come first, since the other waits may only follow from them.

    Args:
        program: the program of all workers.
        places: the index of each worker in its list.
        slots: most tensors on a link.
    """
    waits = [
        _wait(program, places, slots, worker)
        for worker, place in enumerate(places)
        if place < len(program.codes[worker])
    ]
    waits.sort(key=lambda wait: not wait.is_hopeless)
    lines = [wait.text for wait in waits[:_NUM_SHOWN]]
    if len(waits) > _NUM_SHOWN:
        lines.append(f"and {len(waits) - _NUM_SHOWN} more wait")
    return ScheduleInvalid(
        f"the schedule comes to a standstill: {'; '.join(lines)}", action=waits[0].action, worker=waits[0].worker
    )


def _wait(program: StreamProgram, places: Sequence[int], slots: int, worker: int) -> _BlockedAction:
    action, code = program.lists[worker][places[worker]], program.codes[worker][places[worker]]
    if code < COMPUTE:
        members = program.reductions[-2 - code].members
        other = next(member for member in members if program.codes[member][places[member] :][:1] != [code])
        what, comes = "to take part in it", code in program.codes[other][places[other] :]
    else:
        link = program.links[program.link_of[code >> 1]]
        if code & 1:
            other = link.sender
            what, comes = "to send it", code - 1 in program.codes[other][places[other] :]
        else:
            other = link.receiver
            what = f"to receive what takes the link's {counted(slots, 'slot')}"
            comes = any(
                later >= 0 and later & 1 and program.link_of[later >> 1] == link.number
                for later in program.codes[other][places[other] :]
            )
    name, held_by = program.workers[worker], program.workers[other]
    text = f"worker {name} waits at {action} (place {places[worker]} of its list) for worker {held_by} {what}"
    if not comes:
        text += ", which stands nowhere in what is left of that worker's list"
    return _BlockedAction(str(name), str(action), text, not comes)
