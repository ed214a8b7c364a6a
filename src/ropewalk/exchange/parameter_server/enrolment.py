"""`Enrolment`: how a worker becomes a member at all servers, again at one that came back without it, and leaves.

    bind    introduce ─▶ (the server owns the weights: standing)                what there is
    begin   enrol ─▶ (replicas: standing)                                       the first step of an epoch

What was said is kept, so that it can be said again: a server may come back without any of it between two words, so
each word says all that its meaning depends on.
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

#: Who waits for others looks so often whether it was interrupted.
_LOOK_UP_S = 0.05


class Enrolment:
    """One worker's membership.

    Args:
        servers: client of the shards.
        settings: how they are to work.
        model: the worker's.
        group: who takes part.
        timeout_s: how long to wait for what other members have to bring.

    Attributes:
        group: of this epoch.
        step: from which on the worker takes part; None until it does in this epoch.
        next_step: the step that the servers expect next of it, as far as they own the weights.
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
        self._ticket = ""
        self._is_interrupted = False
        self._first_weights: list[dict[int, bytes]] = [{} for _ in model.keys]
        #: The step that these weights are from.
        self._first_step: int | None = None

    def introduce(self) -> None:
        """Tell every server what it has; take its weights over, if it is to own them."""
        if self._settings.optimizer is not None and self.group.rank == 0:
            self._first_weights = [self._model.weights_of(at) for at in range(len(self._model.keys))]
        for at, lacking in enumerate(self._ask_all("introduce", self._introduction)):
            self._provide(at, lacking)
        if self._settings.optimizer is None:
            return
        # Others may be members already, whose rounds wait for our memory.
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

    def enrol_again(self, at: int) -> None:
        """A server came back and does not know this epoch, or not that this worker is in it."""
        self._begin(at, self._servers[at].enrol(*self._words(at)))

    def interrupt(self) -> None:
        """End a wait for other members, from any thread: it raises `ExchangeAborted`."""
        self._is_interrupted = True

    def listen(self) -> None:
        """From now on an interruption counts."""
        self._is_interrupted = False

    def check(self) -> None:
        """Raise `ExchangeAborted` if there was an interruption since then, once."""
        if self._is_interrupted:
            self._is_interrupted = False
            epoch = self.group.epoch
            raise ExchangeAborted(f"members of epoch {epoch} did not all enrol; regroup", epoch=epoch)

    def leave(self, step: int) -> None:
        """Take part no more from this step on.

        Raises:
            ExchangeInvalid: with sparse answers nobody would hear of the error that is kept here.
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
        words = self.worker, group.epoch, group.members, self.step, self._memories[at] or None, self._ticket
        return (*self._introduction(at), *words)

    def _introduction(self, at: int) -> tuple[Any, ...]:
        return self._settings, self._model.on_hosts(at)

    def _provide(self, at: int, lacking: Sequence[int]) -> None:
        """Give a server that lacks them the weights to begin with."""
        if lacking and self._first_weights[at] and self.step in (None, self._first_step):
            self._servers[at].introduce(*self._introduction(at), self._first_weights[at])

    def _begin(self, at: int, outcome: Enrolled | Outdated | Behind) -> None:
        """Hear what became of an enrolment, and give the server what it lacks."""
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
                "all members name the same ones, and who comes back after a change of members regroups",
                members=(self.worker,),
                epoch=epoch,
            )
        if isinstance(outcome, Outdated):
            raise ExchangeAborted(
                f"server {at} is at epoch {outcome.epoch} already, this worker at {epoch}; regroup", epoch=epoch
            )

    def _take_over(self, with_memory: bool) -> None:
        """Begin with what the servers have, as soon as they have all of it."""
        due = time.monotonic() + self._timeout_s
        for at, keys in enumerate(self._model.keys):
            while (standing := self._servers[at].standing(keys, with_memory, _LOOK_UP_S)) is None:
                self.check()
                # It may have come back with nothing.
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
        """Call a method of every server at the same time; `arguments(at)` are those for server `at`."""
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
