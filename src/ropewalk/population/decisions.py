"""The log of decisions: the asks, tells, drops and failures of a run, in order. A run can be repeated from it.

The first line describes the run; each further line is one decision, as JSON: `["ask", 256]`, `["tell", [[7, 0, 256]]]`,
`["drop", [[7, 31, 1]]]`, `["fail", [7, 12], "TaskPoisoned: ..."]`. Tickets are written as spans: [ask, first position,
count].
"""

from __future__ import annotations

import contextlib
import itertools
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from ropewalk.population.pacing.pacing import Ask, CancelEvaluations, Instruction, Tell, Ticket
from ropewalk.trusted_files import make_folder


@dataclass(frozen=True, slots=True)
class Fail:
    """An evaluation failed, with the reason: not every cause of a failure recurs in a replay."""

    ticket: Ticket
    why: str
    fitness: float | None = None
    """A fitness that the evaluator assigns despite the failure; None leaves it to the policy for failures."""


Decision = Ask | Tell | CancelEvaluations | Fail


class Decisions:
    """The decisions of a run, in memory and optionally in a file.

    Args:
        path: a file, which `open` overwrites, and to which each decision is then appended as a line. None keeps the
            log in memory.
        about: facts of the run, for the first line.
    """

    def __init__(self, path: Path | None = None, about: Mapping[str, Any] | None = None) -> None:
        self.about: dict[str, Any] = dict(about or {})
        self._made: list[Decision] = []
        self._file: IO[str] | None = None
        self._path = path
        self._packer = zlib.compressobj()
        self._packed: list[bytes] = []
        self._num_packed = 0

    def __repr__(self) -> str:
        return f"<Decisions: {len(self)}>"

    def __iter__(self) -> Iterator[Decision]:
        return iter(self._made)

    def lines(self) -> Iterator[str]:
        """Yield the first line, then each decision as a line."""
        return itertools.chain([json.dumps(["run", self.about])], map(line_of, self._made))

    def __len__(self) -> int:
        return len(self._made)

    def add(self, decision: Decision) -> None:
        """Append a decision that was carried out."""
        self._made.append(decision)
        if self._file is not None:
            self._file.write(line_of(decision) + "\n")

    def open(self) -> None:
        """Replace the file, if there is to be one, by what was decided so far; later decisions are appended.

        Raises:
            OSError: it cannot be written.
        """
        if self._path is not None:
            make_folder(self._path.parent)
            self._file = self._path.open("w")
            self._file.writelines(line + "\n" for line in self.lines())

    def packed(self) -> bytes:
        """Return all lines, compressed; the cost depends only on what was added since the last call."""
        for decision in self._made[self._num_packed :]:
            self._packed.append(self._packer.compress(line_of(decision).encode() + b"\n"))
        self._num_packed = len(self._made)
        return b"".join((*self._packed, self._packer.copy().flush()))

    def flush(self) -> None:
        """Flush the file, so that all decisions outlive this process."""
        if self._file is not None:
            self._file.flush()

    def begin_with(self, decisions: Sequence[Decision]) -> None:
        """Prepend the decisions of an earlier part of the run; call it before `open` and `add`."""
        self._made = list(decisions)

    def close(self) -> None:
        """Flush and close the file; may be called twice."""
        if self._file is not None:
            file, self._file = self._file, None
            with contextlib.closing(file):
                file.flush()

    @property
    def instructions(self) -> list[Instruction]:
        """The instructions that a replay carries out."""
        return [decision for decision in self._made if not isinstance(decision, Fail)]

    @property
    def failed(self) -> dict[Ticket, Fail]:
        """The evaluations that failed."""
        return {decision.ticket: decision for decision in self._made if isinstance(decision, Fail)}

    @property
    def dropped(self) -> set[Ticket]:
        """The evaluations that were dropped."""
        return {
            ticket for decision in self._made if isinstance(decision, CancelEvaluations) for ticket in decision.tickets
        }


def read_decisions(source: str | Path | Decisions | Iterable[str]) -> Decisions:
    """Read a log from a file or from its lines.

    Raises:
        ValueError: a line is not a decision; the message names it.
    """
    if isinstance(source, Decisions):
        return source
    lines = Path(source).read_text().splitlines() if isinstance(source, str | Path) else source
    log = Decisions()
    for number, line in enumerate(lines, 1):
        try:
            if number == 1 and line.startswith('["run"'):
                log.about = dict(json.loads(line)[1])
            else:
                log.add(decision_of(line))
        except (ValueError, TypeError, KeyError, IndexError, RecursionError) as error:
            raise ValueError(f"line {number} of the log of decisions is none: {line!r:.100} ({error})") from None
    return log


def unpacked_decisions(data: bytes) -> list[Decision]:
    """Decode the bytes of `Decisions.packed`."""
    return list(read_decisions(zlib.decompress(data).decode().splitlines()))


def line_of(decision: Decision) -> str:
    """Format a decision as a line."""
    match decision:
        case Ask(n):
            record: list[Any] = ["ask", n]
        case Tell(told):
            record = ["tell", _spans(told)]
        case CancelEvaluations(dropped):
            record = ["drop", _spans(dropped)]
        case Fail(ticket, why, fitness):
            record = ["fail", list(ticket), why, *([] if fitness is None else [fitness])]
    return json.dumps(record)


def decision_of(line: str) -> Decision:
    """Parse a line of `line_of`.

    Raises:
        ValueError: the line is not a decision.
    """
    kind, *rest = json.loads(line)
    match kind, rest:
        case "ask", [int(n)]:
            return Ask(n)
        case "tell", [[*spans]]:
            return Tell(_tickets(cast("list[list[int]]", spans)))
        case "drop", [[*spans]]:
            return CancelEvaluations(_tickets(cast("list[list[int]]", spans)))
        case "fail", [[int(ask), int(position)], str(why), *fitness]:
            return Fail(Ticket(ask, position), why, *map(float, fitness))
        case _:
            raise ValueError(f"{kind!r} is not ask, tell, drop or fail with what belongs to it")


def _spans(tickets: Sequence[Ticket]) -> list[list[int]]:
    spans: list[list[int]] = []
    for ask, position in tickets:
        if spans and spans[-1][0] == ask and spans[-1][1] + spans[-1][2] == position:
            spans[-1][2] += 1
        else:
            spans.append([ask, position, 1])
    return spans


def _tickets(spans: Sequence[Sequence[int]]) -> tuple[Ticket, ...]:
    return tuple(Ticket(ask, position) for ask, first, count in spans for position in range(first, first + count))
