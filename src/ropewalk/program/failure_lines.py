"""What the terminal tells of failures: a line for each death of a node, with what follows, and tracebacks."""

from __future__ import annotations

import logging

from ropewalk.errors import ServiceLost
from ropewalk.processes.death_warnings import DeathWarnings
from ropewalk.processes.output_marks import append_to
from ropewalk.program.hosting import Hosting
from ropewalk.program.instructions import ProgramOutcome
from ropewalk.program.messages import UnitEnded
from ropewalk.program.supervisor import Supervisor
from ropewalk.program.units import UnitReplica, Units
from ropewalk.supervision.failure import DeathRecord
from ropewalk.transport.failures import Failure


class DeathLines:
    """Warns of deaths that a program survives; one that ends the program is told by its error. On the loop.

    Args:
        units: the units of the program.
        supervisor: knows what follows.
        logger: gets the warnings.
    """

    def __init__(self, units: Units, supervisor: Supervisor, logger: logging.Logger) -> None:
        self.is_quiet = False
        """Whether something else tells of them."""
        self._units = units
        self._supervisor = supervisor
        self._logger = logger
        self._warnings: DeathWarnings

    def begin(self, hosting: Hosting) -> None:
        """Set the hosting in which units run."""
        self._warnings = DeathWarnings(self._logger, hosting.loop, hosting.when_shown)

    @property
    def are_told(self) -> bool:
        """Whether a failure that was not asked for is told now."""
        return not self.is_quiet and self._supervisor.outcome is ProgramOutcome.RUNNING

    def failed(self, unit: UnitReplica, record: DeathRecord | None, cause: str, now: float) -> None:
        """A replica has failed, and the supervisor has decided what follows.

        Args:
            unit: the replica.
            record: of the death of its process; None if it had none.
            cause: why it failed, in words that follow its name.
            now: monotonic time in seconds.
        """
        if not self.are_told:
            return
        name = unit.name
        if record is None:
            told = f"{unit.label} {cause}"
        elif cause == record.ending:
            told = record.describe()
        else:
            told = f"{unit.label}{record.whereabouts} {cause}"
        peers = "ranks" if self._units.is_rank_group(name.unit) else "of its gang"
        follows = self._supervisor.sequel(name.unit, name.replica).in_words(peers)
        self._warnings.warn(name.unit, f"{told}; {follows}", now)

    def close(self) -> None:
        """Tell of the deaths that were not told one by one."""
        self._warnings.close()


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
    came = f", which came from {failure.origin}" if failure.origin else ""
    return f"raised {kind}{came}: {failure.message}" if failure.message else f"raised {kind}{came}"
