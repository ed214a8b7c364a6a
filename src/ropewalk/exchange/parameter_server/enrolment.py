"""`Enrolment`: makes a worker a member at all servers, again at a restarted server, and lets it leave.

    bind    introduce ─▶ (the server owns the weights: standing)                the settings and the pieces
    begin   enrol ─▶ (replicas: standing)                                       the first step of an epoch

The arguments of each call are kept, so that it can be repeated: a server may restart without any state between two
calls, so each call carries all that its meaning depends on.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from ropewalk.errors import ExchangeAborted, ExchangeError, ExchangeInvalid, ExchangeStalled, MemberLost
from ropewalk.exchange.groups.group import Group
from ropewalk.exchange.parameter_server.outcomes import Behind, Enrolled, Outdated, ServerSettings
from ropewalk.exchange.parameter_server.pieced_model import PiecedModel

_LOOK_UP_S = 0.05
"""Seconds between two checks for an interruption while waiting for others."""


class Enrolment:
    """The membership of one worker.

    Args:
        servers: client of the shards.
        settings: the settings of the servers.
        model: the worker's model.
        group: the group of members.
        timeout_s: seconds to wait for state that other members have to bring.

    Attributes:
        group: the group of this epoch.
        step: the step from which the worker takes part; None until it does in this epoch.
        next_step: the next step of this worker that the servers expect, if they own the weights.
    """

    def __init__(
        self, servers: Any, settings: ServerSettings, model: PiecedModel, group: Group, timeout_s: float
    ) -> None:
        self.group = group
        self.step: int | None = None
        self.next_step = 0
        self.worker = group.members[group.rank]
        self._servers = servers
        self._settings = settings
        self._model = model
        self._timeout_s = timeout_s
        self._memories: list[dict[int, bytes]] = [{} for _ in model.keys]
        self._has_loaded = False
        """Whether a state was loaded, so that memories count even if all of them are zero."""
        self._ticket = ""
        self._is_interrupted = False
        self._first_weights: list[dict[int, bytes]] = [{} for _ in model.keys]
        self._first_step: int | None = None
        """The step that these weights belong to."""

    def introduce(self) -> None:
        """Send every server its settings and pieces; take over its weights, if it owns them."""
        if self._settings.optimizer is not None and self.group.rank == 0:
            self._first_weights = [self._model.weights_of(at) for at in range(len(self._model.keys))]
        for at, lacking in enumerate(self._ask_all("introduce", self._introduction)):
            self._provide(at, lacking)
        if self._settings.optimizer is None:
            return
        # Others may be members already, whose rounds wait for this worker's memory.
        self._take_over(with_memory=False)
        self._model.write_weights()

    def enrol(self, step: int) -> None:
        """Become a member of this epoch, from this step on."""
        self.step = step
        if self._first_step is None:
            self._first_step = step
        self._ticket = uuid.uuid4().hex
        if self._settings.compressor.keeps_memory:
            self._memories = [self._model.memories_of(at) for at in range(len(self._model.keys))]
        for at, outcome in enumerate(self._ask_all("enrol", self._words)):
            self._begin(at, outcome)
        if self._settings.sparse_answers:
            self._take_over(with_memory=True)

    def loaded(self) -> None:
        """A state was loaded: with the next step the servers must be given the sum of all members' loaded memories."""
        self._has_loaded = self._settings.compressor.keeps_memory
        self.step = None

    def enrol_again(self, at: int) -> None:
        """Enrol at a restarted server that does not know this epoch, or not that this worker is a member."""
        self._begin(at, self._servers[at].enrol(*self._words(at)))

    def interrupt(self) -> None:
        """End a wait for other members, which then raises `ExchangeAborted`; may be called from any thread."""
        self._is_interrupted = True

    def listen(self) -> None:
        """Clear the interruption flag: from now on an interruption counts."""
        self._is_interrupted = False

    def check(self) -> None:
        """Raise `ExchangeAborted` if there was an interruption since `listen`, once."""
        if self._is_interrupted:
            self._is_interrupted = False
            epoch = self.group.epoch
            raise ExchangeAborted(f"members of epoch {epoch} did not all enrol; regroup", epoch=epoch)

    def leave(self, step: int) -> None:
        """Stop taking part from this step on.

        Raises:
            ExchangeInvalid: with sparse answers the residual kept here would reach no member.
        """
        if self._settings.sparse_answers:
            raise ExchangeInvalid(
                "servers that answer with sparse sums cannot add an error; give errors() to a member that stays, for "
                "its take_errors, and let the others regroup; or use sparse_answers=False"
            )
        model = self._model
        words = self.worker, self.group.epoch, step
        self._ask_all("leave", lambda at: (*words, model.memories_of(at), model.errors_of(at)))

    def _words(self, at: int) -> tuple[Any, ...]:
        group = self.group
        # A worker that comes back without a state leaves the servers theirs, so the others need not enrol again.
        memories = self._memories[at] or ({} if self._has_loaded else None)
        words = self.worker, group.epoch, group.members, self.step, memories, self._ticket
        return (*self._introduction(at), *words)

    def _introduction(self, at: int) -> tuple[Any, ...]:
        return self._settings, self._model.on_hosts(at)

    def _provide(self, at: int, lacking: Sequence[int]) -> None:
        """Send a server the initial weights that it lacks."""
        if lacking and self._first_weights[at] and self.step in (None, self._first_step):
            self._servers[at].introduce(*self._introduction(at), self._first_weights[at])

    def _begin(self, at: int, outcome: Enrolled | Outdated | Behind) -> None:
        """Handle the answer to an enrolment, and send the server what it lacks."""
        epoch = self.group.epoch
        if isinstance(outcome, Enrolled) and outcome.lacking and self.step == self._first_step:
            self._provide(at, outcome.lacking)
            return
        if isinstance(outcome, Behind) or (isinstance(outcome, Enrolled) and outcome.lacking):
            state = f"from a state of step {outcome.step}" if isinstance(outcome, Behind) else "without any state"
            raise ExchangeError(
                f"server {at} came back {state}, and its weights up to step {self.step}, at which the members changed, "
                f"are lost; give it a shorter checkpoint_s"
            )
        if isinstance(outcome, Outdated) and outcome.epoch == epoch:
            raise MemberLost(
                f"server {at} does not count {self.worker!r} among the members of epoch {epoch}; "
                "all members name the same ones, and a worker that comes back after a change of members regroups",
                members=(self.worker,),
                epoch=epoch,
            )
        if isinstance(outcome, Outdated):
            raise ExchangeAborted(
                f"server {at} is at epoch {outcome.epoch} already, this worker at {epoch}; regroup", epoch=epoch
            )

    def _take_over(self, with_memory: bool) -> None:
        """Begin with the state of the servers, as soon as they have all of it."""
        due = time.monotonic() + self._timeout_s
        for at, keys in enumerate(self._model.keys):
            while (standing := self._servers[at].standing(keys, with_memory, _LOOK_UP_S)) is None:
                self.check()
                # The server may have restarted with nothing.
                self._provide(at, self._servers[at].introduce(*self._introduction(at)))
                if time.monotonic() > due:
                    raise ExchangeStalled(
                        f"server {at} still waits for weights or memories of other members after {self._timeout_s} s",
                        waited_s=self._timeout_s,
                    )
            for key, found in standing.items():
                self._model.pieces[key].take_over(found)
                self.next_step = max(self.next_step, found.step + 1)

    def _ask_all(self, method: str, arguments: Callable[[int], tuple[Any, ...]]) -> list[Any]:
        """Call a method of every server at the same time; `arguments(at)` are the arguments for server `at`."""
        calls = [getattr(self._servers[at], method).future(*arguments(at)) for at in range(len(self._model.keys))]
        return [self._result(call) for call in calls]

    def _result(self, call: Any) -> Any:
        while True:
            self.check()
            try:
                return call.result(_LOOK_UP_S)
            except TimeoutError:
                if call.done():
                    raise
