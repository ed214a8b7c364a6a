"""`Shard`: all decisions of a parameter server. Pure: events in, outcomes out.

    introduce(settings, pieces)    settings and pieces       the first worker sets them, all others must agree
    enrol(worker, epoch, ...)      members                   a new epoch takes back the rounds that not all have
    push, pull                     rounds                    by (worker, step, epoch): repeating a push has no effect
    leave                          a member leaves

Each call of a worker carries its epoch. A call of an older epoch is answered with `Outdated` and changes nothing, so
calls that were in flight when members changed do no harm.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor

from ropewalk.errors import ExchangeInvalid
from ropewalk.exchange.buckets import Layout
from ropewalk.exchange.parameter_server.outcomes import (
    Accepted,
    Behind,
    Enrolled,
    Outdated,
    PieceStanding,
    PullAnswer,
    Pulled,
    ServerSettings,
)
from ropewalk.exchange.parameter_server.piece_rounds import PieceRounds, PushedGradient

ANSWER_BYTES = 8 << 20
"""Maximum size in bytes of one answer to a pull, besides its first piece, so that a more urgent piece can overtake."""


class Shard:
    """The pieces of one server.

    Attributes:
        epoch: epoch of the members; -1 before the first.
    """

    def __init__(self) -> None:
        self.epoch = -1
        self._settings: ServerSettings | None = None
        self._pieces: dict[int, PieceRounds] = {}
        self._members: set[str] = set()
        # Members that have enrolled themselves: the first one names all members, and each brings its own state.
        self._enrolled: set[str] = set()
        # The last ticket of each member, by which a repeated enrolment is recognized.
        self._tickets: dict[str, str] = {}
        # The last saved states: by piece, the step of its slowest member. The newest is last.
        self._saved: list[dict[int, int]] = []

    # Members

    def introduce(self, settings: ServerSettings, layouts: Mapping[int, Layout]) -> None:
        """Set the shard's pieces and settings; they are the same from every worker.

        Raises:
            ExchangeInvalid: other workers have sent different ones.
        """
        if self._settings is None:
            self._settings = settings
            self._pieces = {key: PieceRounds(key, layout, settings) for key, layout in sorted(layouts.items())}
            return
        # Compared by their text: settings may hold tensors, which compare component by component.
        if repr(settings) != repr(self._settings):
            raise ExchangeInvalid(
                f"other workers of this parameter server use {self._settings!r}, this one {settings!r}"
            )
        here = {key: piece.layout for key, piece in self._pieces.items()}
        if here != dict(layouts):
            raise ExchangeInvalid(
                f"other workers cut the model into pieces {_shown(here)}, this one into {_shown(layouts)}; "
                "give all of them the same model and the same piece_bytes"
            )

    def enrol(
        self,
        worker: str,
        epoch: int,
        members: Sequence[str],
        step: int,
        memories: Mapping[int, Tensor] | None = None,
        ticket: str = "",
    ) -> Enrolled | Outdated | Behind:
        """Take part from this step on, as one of these members; the pieces were introduced before.

        Args:
            worker: name of the worker, the same in all epochs.
            epoch: epoch of the group; an epoch newer than the shard's begins with these members.
            members: names by rank.
            step: the next step; the same from every member, unless rounds are not synchronous.
            memories: memories of the worker's encoders by piece, flat, those that are not zero; None: as the shard has
                them.
            ticket: different for each enrolment, the same for a repeated call; "" always counts as new.

        Returns:
            Whether the worker is a member, is outdated, or has to push earlier steps again.
        """
        assert self._settings is not None, "a member of nothing would be unknown to the pieces that come later"
        if epoch < self.epoch:
            return Outdated(self.epoch)
        if epoch > self.epoch:
            for piece in self._pieces.values():
                behind = piece.form(members, step)
                if behind:
                    return behind
            self.epoch, self._members = epoch, set(members)
            self._enrolled.clear()
            self._tickets.clear()
        elif worker not in self._members:
            if self._synchronous:
                return Outdated(self.epoch)
            self._members.add(worker)
            for piece in self._pieces.values():
                piece.add(worker, step)
        self._enrolled.add(worker)
        if not ticket or self._tickets.get(worker) != ticket:  # else its memories are in, and rounds have gone on
            for key, piece in self._pieces.items():
                if piece.awaits_memory or memories is not None:
                    piece.settle_before(step)
                    piece.remember(worker, (memories or {}).get(key))
        self._tickets[worker] = ticket
        return Enrolled(self.lacking, min((piece.clocks[worker] for piece in self._pieces.values()), default=step))

    def provide(self, weights: Mapping[int, Tensor]) -> None:
        """Take the initial weights; pieces that have weights keep theirs."""
        for key, flat in weights.items():
            self._pieces[key].provide(flat)

    @property
    def lacking(self) -> tuple[int, ...]:
        """Keys of pieces that need weights and have none yet."""
        return tuple(key for key, piece in self._pieces.items() if piece.lacks_weights)

    def standing(self, keys: Iterable[int], with_memory: bool = True) -> dict[int, PieceStanding] | None:
        """Return the state of pieces for a worker that joins; None while some of it is missing."""
        if self._settings is None:
            return None
        found = {key: self._pieces[key].standing(with_memory) for key in keys}
        complete = {key: standing for key, standing in found.items() if standing is not None}
        return complete if len(complete) == len(found) else None

    def leave(
        self,
        worker: str,
        epoch: int,
        step: int,
        memories: Mapping[int, Tensor] | None = None,
        errors: Mapping[int, Tensor] | None = None,
    ) -> Accepted | Outdated:
        """Stop taking part from this step on; see `PieceRounds.leave`."""
        if epoch < self.epoch:
            return Outdated(self.epoch)
        self._members.discard(worker)
        self._enrolled.discard(worker)
        self._tickets.pop(worker, None)
        for key, piece in self._pieces.items():
            piece.leave(worker, step, (memories or {}).get(key), (errors or {}).get(key))
        return Accepted()

    # Rounds

    def push(
        self, worker: str, epoch: int, step: int, key: int, data: bytes, samples: float
    ) -> Accepted | Behind | Outdated:
        """Take a worker's push of one piece in one step."""
        if refused := self._refused(worker, epoch):
            return refused
        outcome = self._pieces[key].push(worker, step, PushedGradient(data, samples))
        return outcome if isinstance(outcome, Behind) else Accepted(self._durable(key))

    def pull(self, worker: str, epoch: int, step: int, keys: Sequence[int]) -> Pulled | Outdated:
        """Return the answers that are ready for these pieces after this step, the most urgent first; never waits."""
        if refused := self._refused(worker, epoch):
            return refused
        answers: list[PullAnswer] = []
        missing: dict[str, None] = {}
        behind = self._lacking_of(worker, step, keys)
        corrupt = {key: self._pieces[key].corrupt[worker] for key in behind if worker in self._pieces[key].corrupt}
        size = 0
        for key in sorted(set(keys) - behind.keys()):
            piece = self._pieces[key]
            answer = piece.pull(step)
            if answer is None:
                missing.update(dict.fromkeys(piece.missing(step)))
            elif not answers or size + len(answer.data) <= ANSWER_BYTES:
                answers.append(answer)
                size += len(answer.data)
        return Pulled(tuple(answers), () if answers else tuple(missing), behind, corrupt)

    def behind(self, worker: str, epoch: int, step: int, keys: Sequence[int]) -> dict[int, int] | Outdated:
        """Return those of these pieces whose push for this step is not here, with the step from which it is needed."""
        if refused := self._refused(worker, epoch):
            return refused
        return self._lacking_of(worker, step, keys)

    @property
    def num_changes(self) -> int:
        """Counts the changes that pulls may wait for."""
        return sum(piece.num_changes for piece in self._pieces.values())

    # State

    def state_dict(self) -> dict[str, Any]:
        """Return the whole state; call it again only after the last one was saved, or saving it has failed."""
        self._saved = [*self._saved[-2:], {key: piece.floor for key, piece in self._pieces.items()}]
        return {
            "epoch": self.epoch,
            "settings": self._settings,
            "members": set(self._members),
            "enrolled": set(self._enrolled),
            "tickets": dict(self._tickets),
            "pieces": {key: (piece.layout, piece.state_dict()) for key, piece in self._pieces.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a state."""
        self.epoch, self._settings = state["epoch"], state["settings"]
        self._members, self._enrolled = set(state["members"]), set(state["enrolled"])
        self._tickets = dict(state.get("tickets", {}))
        self._pieces = {}
        for key, (layout, saved) in state["pieces"].items():
            assert self._settings
            self._pieces[key] = PieceRounds(key, layout, self._settings)
            self._pieces[key].load_state_dict(saved)

    def _lacking_of(self, worker: str, step: int, keys: Iterable[int]) -> dict[int, int]:
        """Those of these pieces that lack the push of a worker for a step, with the step from which they lack it."""
        clocks = {key: self._pieces[key].clocks[worker] for key in keys}
        return {key: clock for key, clock in clocks.items() if clock <= step}

    def _durable(self, key: int) -> int:
        """Return the step before which pushes need no replay: two later states were taken, so one of them is stored."""
        return self._saved[0].get(key, 0) if len(self._saved) == 3 else 0  # a state may be older than all pieces

    @property
    def _synchronous(self) -> bool:
        return self._settings is None or self._settings.synchronous

    def _refused(self, worker: str, epoch: int) -> Outdated | None:
        """Refuse a worker that is not enrolled; it must enrol if the epoch in the answer is older than its own."""
        if epoch != self.epoch or worker not in self._members:
            return Outdated(self.epoch)
        return None if worker in self._enrolled else Outdated(epoch - 1)


def _shown(layouts: Mapping[int, Layout]) -> str:
    return ", ".join(f"{key}: {'+'.join(layout.names)} ({layout.numel})" for key, layout in layouts.items())
