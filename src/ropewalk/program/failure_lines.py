"""Tracebacks of nodes on the terminal and in their output, and the cause of an end in words."""

from __future__ import annotations

from ropewalk.errors import ServiceLost
from ropewalk.processes.output_marks import append_to
from ropewalk.program.hosting import Hosting
from ropewalk.program.instructions import ProgramOutcome
from ropewalk.program.messages import UnitEnded
from ropewalk.program.supervisor import Supervisor
from ropewalk.program.units import UnitReplica, Units
from ropewalk.supervision.failure import DeathRecord
from ropewalk.transport.failures import Failure

_SERVICE_LOST = f"{ServiceLost.__module__}.{ServiceLost.__qualname__}"


class FailureLines:
    """Prints the tracebacks of nodes that a program survives, each once. On the loop.

    Args:
        units: the units of the program.
        supervisor: knows whether the program goes on.
    """

    def __init__(self, units: Units, supervisor: Supervisor) -> None:
        self._units = units
        self._supervisor = supervisor
        self._told: dict[tuple[str, int], str] = {}
        """The traceback printed last, by unit and replica."""
        self._hosting: Hosting

    def begin(self, hosting: Hosting) -> None:
        """Set the hosting in which units run."""
        self._hosting = hosting

    def failed(
        self, unit: UnitReplica, failure: Failure, record: DeathRecord | None, *, follows: bool, is_told: bool
    ) -> None:
        """Add a node's traceback to its output, and print it unless the program fails by it, which raises it.

        That of a rank which failed after another one of its group (`follows`) is not printed either. One that was
        printed before is not repeated: a line says so, unless another line tells of the failure anyway (`is_told`).
        """
        name, text = unit.name, failure.traceback
        if _is_exit(failure):
            return  # Python prints nothing either
        append_to(self._hosting.log_file(name.unit, name.replica), text)
        outcome = self._supervisor.outcome
        follows = follows and self._units.is_rank_group(name.unit)
        if (
            follows
            or outcome is ProgramOutcome.FAILED
            or (outcome is not ProgramOutcome.RUNNING and failure.type_name == _SERVICE_LOST)
        ):
            return  # it is expected that a service is gone because the program has come to its end
        if self._told.get((name.unit, name.replica)) == text:
            text = "" if is_told else f"{unit.label} {_cause_of(failure)} again, with the same traceback\n"
        else:
            self._told[name.unit, name.replica] = text
        if text:
            self._hosting.show(name, record.host if record else "", text)


def cause(ending: UnitEnded | None, record: DeathRecord | None, problem: str) -> str:
    """The cause of a unit's end, in words that follow its name."""
    if ending is not None and ending.failure is not None:
        return _cause_of(ending.failure)
    if problem:
        return problem
    return record.ending if record is not None else "ended"


def _is_exit(failure: Failure) -> bool:
    return failure.type_name == "builtins.SystemExit" and failure.message.isdecimal()


def _cause_of(failure: Failure) -> str:
    kind = failure.type_name.removeprefix("builtins.")
    if _is_exit(failure):
        return f"exited with code {failure.message}"
    return f"raised {kind}: {failure.message}" if failure.message else f"raised {kind}"
