"""The rounds of one piece at a server: which pushes have come, which answers are ready, which steps count. Pure.

    pushes of step k ──▶ inbox ──all here──▶ open: answered, can be taken back ──first push of k+1──▶ settled
                                                └── new members begin at step k: dropped

One rule covers all modes, with staleness s: a push of step k is applied when every member has pushed step k - s, and a
member that has pushed step c continues when every member has pushed step c - s. So with s = 0 a round is applied as a
whole, for all members in the order of ranks; without a bound each push is applied as it comes. (Ho et al., "More
Effective Distributed ML via a Stale Synchronous Parallel Parameter Server", NIPS 2013, delivers updates earlier if it
can; here s = 0 is exactly the synchronous server.)

Synchronous rounds are settled late, because a step is atomic: when a member dies, another shard may not have completed
the step yet. A push for the next step says that the step is done on all shards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ropewalk.errors import MessageCorrupt
from ropewalk.exchange.buckets import Layout
from ropewalk.exchange.compressors.compressor import Decoder
from ropewalk.exchange.compressors.memoryless import state_dtype
from ropewalk.exchange.parameter_server.outcomes import Accepted, Behind, PieceStanding, PullAnswer, ServerSettings
from ropewalk.exchange.parameter_server.pieces import bytes_of, tensor_of
from ropewalk.exchange.parameter_server.sparse_sum import sparse_sum


@dataclass(frozen=True, slots=True)
class PushedGradient:
    """One worker's push for one step of one piece."""

    data: bytes
    samples: float


@dataclass(slots=True)
class _Open:
    """A synchronous round that is complete, and may still be taken back."""

    step: int
    weights: Tensor | None
    velocity: Tensor | None


class PieceRounds:
    """The rounds of one piece at its server.

    Attributes:
        clocks: the next step that is expected of each member, in the order of ranks.
        corrupt: members whose last push could not be decoded, with the error, until they push again.
        settled: the last step that counts; -1 before the first.
        num_changes: counts changes that pulls may wait for.
    """

    def __init__(self, key: int, layout: Layout, settings: ServerSettings) -> None:
        self.layout = layout
        self._key = key
        self.clocks: dict[str, int] = {}
        self.corrupt: dict[str, str] = {}
        self.settled = -1
        self.num_changes = 0
        self._settings = settings
        self._decoder = settings.compressor.decoder(layout)
        self._decoders: dict[str, Decoder] = {}
        self._inbox: dict[int, dict[str, PushedGradient]] = {}
        self._samples: dict[str, float] = {}
        self._weights: Tensor | None = None
        self._velocity: Tensor | None = None
        self._open: _Open | None = None
        self._result: PullAnswer | None = None
        self._memories: dict[str, Tensor | None] | None = None
        self._inherited: Tensor | None = None

    # Members

    def form(self, members: Sequence[str], step: int) -> Behind | None:
        """Continue with other members, from this step; rounds from there on are taken back.

        If rounds are not synchronous, remaining members keep their clocks, and the others leave or join.
        """
        settings = self._settings
        if not settings.synchronous:
            for worker in set(self.clocks) - set(members):
                self.drop(worker)
            for worker in members:
                self.clocks.setdefault(worker, step)
            return None
        self.settle_before(step)
        self._reopen()
        if self.settled >= 0 and self.settled + 1 < step and settings.optimizer is not None:
            return Behind(self.settled + 1)  # the weights of these rounds are lost here
        self.settled = step - 1
        self._inbox.clear()
        self.corrupt.clear()
        self.clocks = dict.fromkeys(members, step)
        if settings.compressor.keeps_memory:
            self._memories = {}
        return None

    def add(self, worker: str, step: int) -> None:
        """Let one more member take part, if rounds are not synchronous."""
        self.clocks.setdefault(worker, step)

    def settle_before(self, step: int) -> None:
        """Settle the open round if it is of an earlier step than a member's next one: that member has its result."""
        if self._open and self._open.step < step:
            self._settle()

    def remember(self, worker: str, memory: Tensor | None) -> None:
        """Take a member's memory; after the last member's, the decoder's memory is their sum. None counts as zero."""
        if not self._settings.synchronous:
            if memory is None:
                memory = torch.zeros(self.layout.numel, dtype=state_dtype(self.layout))
            self._decoder_of(worker).remember(memory)
            return
        memories = self._memories = {} if self._memories is None else self._memories
        memories[worker] = memory
        if memories.keys() >= self.clocks.keys():
            total = torch.zeros(self.layout.numel, dtype=state_dtype(self.layout))
            for found in (memories[member] for member in self.clocks):
                if found is not None:
                    total += found
            self._reopen()
            self._decoder.remember(total)
            self._memories = None
            self._advance()

    def leave(self, worker: str, step: int, memory: Tensor | None, error: Tensor | None) -> None:
        """Remove a member whose next step would be `step`.

        Args:
            worker: name of the member.
            step: the member took part in all steps before this one.
            memory: its memory, flat, which the decoder subtracts.
            error: its residual, flat, which is added to the sum of the next round, once.
        """
        if worker not in self.clocks:
            return
        if self._open and self._open.step < step:
            self._settle()
        if memory is not None and self._settings.synchronous:
            self._decoder.remember(self._remembered() - memory)
        if error is not None:
            self._inherited = error.clone() if self._inherited is None else self._inherited + error
        if not self._settings.synchronous:
            for pushed_at in sorted(step for step, pushed in self._inbox.items() if worker in pushed):
                self._apply(pushed_at, {worker: self._inbox[pushed_at].pop(worker)})
        self.drop(worker)

    def drop(self, worker: str) -> None:
        """Forget a member and its pushes for rounds that are not complete."""
        self._reopen()
        for state in (self.clocks, self.corrupt, self._decoders, self._samples, self._memories or {}):
            state.pop(worker, None)
        for pushed in self._inbox.values():
            pushed.pop(worker, None)
        self._advance()

    # Rounds

    def push(self, worker: str, step: int, pushed: PushedGradient) -> Accepted | Behind:
        """Take a member's push for a step; a push that was taken already is accepted and dropped."""
        clock = self.clocks[worker]
        if step > clock + 1 and self._settings.owns_nothing:
            # Nothing is missed, but another member may be one step back, and needs that round once more.
            clock = self.clocks[worker] = step - 1
        if step > clock:
            return Behind(clock)
        if step < clock:
            return Accepted()
        self.corrupt.pop(worker, None)
        self._settle()  # an open round is that of the step before
        self._inbox.setdefault(step, {})[worker] = pushed
        self._samples[worker] = pushed.samples
        self.clocks[worker] = step + 1
        if not self._settings.synchronous:
            self.num_changes += 1  # the slowest member may have caught up
        self._advance()
        return Accepted()

    def pull(self, step: int) -> PullAnswer | None:
        """Return the answer for a member that has pushed this step; None if it is not ready yet."""
        settings = self._settings
        if settings.synchronous:
            return self._result if self._result and self._result.step == step else None
        if self._weights is None or (settings.staleness is not None and self.missing(step)):
            return None
        return PullAnswer(self._key, self.settled, self._total_samples, len(self.clocks), _portable(self._weights))

    def missing(self, step: int) -> list[str]:
        """Return the members that a pull of this step waits for."""
        needed = step + 1 - (self._settings.staleness or 0)
        return [worker for worker, clock in self.clocks.items() if clock < needed]

    @property
    def floor(self) -> int:
        """The step of the slowest member; pushes of earlier steps have been applied or are in the inbox."""
        return min(self.clocks.values(), default=self.settled + 1)

    def _advance(self) -> None:
        """Apply the pushes that can be applied."""
        settings = self._settings
        if not self.clocks or self._memories is not None or (settings.optimizer and self._weights is None):
            return
        if settings.synchronous:
            step = self.floor - 1  # no round is open: whatever comes here has settled or reopened it
            if self.clocks.keys() <= self._inbox.get(step, {}).keys():
                self._complete(step)
            return
        for step in sorted(self._inbox):
            if settings.staleness is None or self.floor >= step + 1 - settings.staleness:
                self._apply(step, self._inbox.pop(step))

    def _complete(self, step: int) -> None:
        pushed = self._inbox[step]
        try:
            said, total = self._sum(pushed)
        except MessageCorrupt as error:
            self._decoder.abort()
            self._refuse(step, list(self.clocks)[error.rank], error)
            return
        if self._inherited is not None:
            total = (total + self._inherited).to(total.dtype)
        samples = sum(one.samples for one in pushed.values())
        weights = velocity = None
        if self._settings.optimizer:
            assert self._weights is not None
            weights, velocity = self._settings.optimizer.step(self._weights, self._velocity, total, samples)
        self._open = _Open(step, weights, velocity)
        answer = said if said is not None else _portable(total if weights is None else weights)
        self._result = PullAnswer(self._key, step, samples, len(pushed), answer)
        self.num_changes += 1

    def _sum(self, pushed: Mapping[str, PushedGradient]) -> tuple[bytes | None, Tensor]:
        """Return the sum of the pushes as one message, if that travels back, and the dense sum including the memory."""
        ranks = {worker: rank for rank, worker in enumerate(self.clocks)}
        messages = {ranks[worker]: memoryview(one.data) for worker, one in pushed.items()}
        total = torch.empty(self.layout.numel, dtype=self.layout.dtype)
        if not self._settings.sparse_answers:
            self._decoder.decode(messages, total)
            return None, total
        # Decoded from the message that travels back, so that server and workers compute the same bits.
        said = sparse_sum(self.layout, messages)
        self._decoder.decode({0: memoryview(said)}, total)
        return said, total

    def _settle(self) -> None:
        """Settle the open round: it counts."""
        if self._open is None:
            return
        self._decoder.commit()
        self.settled = self._open.step
        if self._settings.optimizer:
            self._weights, self._velocity = self._open.weights, self._open.velocity
        self._open = self._inherited = None
        self._inbox = {step: pushed for step, pushed in self._inbox.items() if step > self.settled}

    def _reopen(self) -> None:
        """Take the open round back; `_advance` makes it again from the pushes."""
        if self._open:
            self._decoder.abort()
            self._open = self._result = None

    def _refuse(self, step: int, worker: str, error: MessageCorrupt) -> None:
        """Drop a message that cannot be decoded, and wait for this worker to push again."""
        for later, pushed in self._inbox.items():
            if later >= step:
                pushed.pop(worker, None)
        self.clocks[worker] = step
        self.corrupt[worker] = str(error)
        self.num_changes += 1

    def _apply(self, step: int, pushed: dict[str, PushedGradient]) -> None:
        """Update the weights with the pushes of some members for a step."""
        optimizer = self._settings.optimizer
        assert optimizer and self._weights is not None
        total = torch.zeros(self.layout.numel, dtype=self.layout.dtype)
        heard = 0
        for rank, worker in enumerate(self.clocks):
            if worker not in pushed:
                continue
            decoder = self._decoder_of(worker)
            part = torch.empty_like(total)
            try:
                decoder.decode({rank: memoryview(pushed[worker].data)}, part)
            except MessageCorrupt as error:
                decoder.abort()
                self._refuse(step, worker, error)
                continue
            decoder.commit()
            total += part
            heard += 1
        if not heard:
            return
        if self._inherited is not None:
            total, self._inherited = (total + self._inherited).to(total.dtype), None
        self._weights, self._velocity = optimizer.step(self._weights, self._velocity, total, self._total_samples)
        self.settled = max(self.settled, step)

    @property
    def _total_samples(self) -> float:
        """Sum the last known samples of all members; a member that has not pushed yet counts as the others' mean."""
        known = [self._samples[worker] for worker in self.clocks if worker in self._samples]
        return sum(known) * len(self.clocks) / len(known) if known else 0.0

    def _decoder_of(self, worker: str) -> Decoder:
        """Return a worker's decoder: with a memory, if rounds are not whole, each worker's push needs its own h_m."""
        if not self._settings.compressor.keeps_memory:
            return self._decoder
        if worker not in self._decoders:
            self._decoders[worker] = self._settings.compressor.decoder(self.layout)
        return self._decoders[worker]

    def _remembered(self) -> Tensor:
        """Return the decoder's memory, flat: the decoded sum when no member sends anything."""
        self._reopen()
        memory = torch.empty(self.layout.numel, dtype=state_dtype(self.layout))
        self._decoder.decode({}, memory)
        self._decoder.abort()
        return memory

    # Weights and states

    @property
    def awaits_memory(self) -> bool:
        """Whether members' memories must come before a round can be complete."""
        return self._memories is not None

    @property
    def lacks_weights(self) -> bool:
        return self._settings.optimizer is not None and self._weights is None

    def provide(self, weights: Tensor) -> None:
        """Take the initial weights, if there are none yet."""
        if self.lacks_weights:
            self._weights = weights
            self._advance()

    def standing(self, with_memory: bool) -> PieceStanding | None:
        """Return all state that counts; None if weights, or requested memories, are incomplete."""
        if self.lacks_weights or (with_memory and self._memories is not None):
            return None
        memory = None
        if with_memory and self._settings.compressor.keeps_memory and self._settings.synchronous:
            memory = _portable(self._remembered())
            self._advance()
        weights, velocity = (None if one is None else _portable(one) for one in (self._weights, self._velocity))
        return PieceStanding(self.settled, weights, velocity, memory)

    def state_dict(self) -> dict[str, Any]:
        """Return the state that counts, and later pushes; the open round is made again from these."""
        decoders = {"": self._decoder, **self._decoders}
        was_open = self._open is not None
        self._reopen()
        state = {
            "clocks": dict(self.clocks),
            "settled": self.settled,
            "inbox": {step: dict(pushed) for step, pushed in self._inbox.items()},
            "samples": dict(self._samples),
            "corrupt": dict(self.corrupt),
            "weights": self._weights,
            "velocity": self._velocity,
            "memories": None if self._memories is None else dict(self._memories),
            "inherited": self._inherited,
            "result": self._result,
            "decoders": {worker: decoder.state_dict() for worker, decoder in decoders.items()},
        }
        if was_open:
            self._advance()
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a state."""
        self.clocks, self.settled, self.corrupt = dict(state["clocks"]), state["settled"], dict(state["corrupt"])
        self._inbox = {step: dict(pushed) for step, pushed in state["inbox"].items()}
        self._samples, self._result = dict(state["samples"]), state["result"]
        self._weights, self._velocity = state["weights"], state["velocity"]
        self._memories, self._inherited = state["memories"], state["inherited"]
        self._open = None
        for worker, saved in state["decoders"].items():
            (self._decoder_of(worker) if worker else self._decoder).load_state_dict(saved)
        self._advance()


def _portable(tensor: Tensor) -> bytes:
    return bytes(bytes_of(tensor))


__all__ = ["PieceRounds", "PushedGradient", "tensor_of"]
