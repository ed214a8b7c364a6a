"""`ShardClient`: carries a worker's pieces to one shard and back.

    post(key) ─▶ outbox, the most urgent first ─▶ encode, push ··· shard     at most `in_flight_bytes` in flight:
                                                      │ taken                pieces in the outbox can be overtaken
    deliver  ◀── answers, the most urgent first ◀── pull ◀── awaited

One thread pushes and one pulls. Pushes are kept until the shard says that they are in a saved state: a shard that was
restored from an older state is sent what it lacks, in order.
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Set
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol

from ropewalk.errors import ExchangeAborted, ExchangeError, MemberLost, MessageCorrupt
from ropewalk.exchange.groups.link_emulation import EmulatedPort, LinkEmulation
from ropewalk.exchange.parameter_server.outcomes import Accepted, Behind, Outdated, PullAnswer, Pulled

WAIT_S = 1.0
"""Default timeout in seconds of a pull that waits at the shard."""
_MOST_PULLS = 4
"""Maximum number of open pulls of a step: a waiting pull must not delay a later, more urgent one."""
_AT_ONCE = -1
"""Priority of pushes that a shard lacks, before all new ones."""
_MOST_RESENDS = 1
"""Number of resends of a message that cannot be decoded: bytes are not damaged in transit twice."""


@dataclass(slots=True)
class Attempt:
    """One try at one step.

    Attributes:
        epoch: epoch of the group.
        step: number of the step.
        over: it succeeded, failed or was taken back: nothing is sent or received for it any more.
        failure: why it failed.
        resends: number of times that a piece was sent again because it could not be decoded.
    """

    epoch: int
    step: int
    over: bool = False
    failure: BaseException | None = None
    resends: dict[int, int] = field(default_factory=dict[int, int])


@dataclass(frozen=True, slots=True)
class Letter:
    """A push that is kept while it may be needed again."""

    step: int
    data: bytes
    samples: float


class ShardListener(Protocol):
    """The object that shard clients work for. They call its methods from their threads."""

    def encode(self, key: int, attempt: Attempt) -> Letter | None:
        """Return the push of a piece; None if the attempt is over."""
        ...

    def deliver(self, answer: PullAnswer, attempt: Attempt) -> None:
        """Receive an answer."""
        ...

    def failed(self, attempt: Attempt, error: BaseException) -> None:
        """Record that the attempt cannot succeed any more."""
        ...

    def enrol_again(self, shard: int) -> None:
        """Enrol at the shard again: it does not know this worker's epoch, because it was restarted."""
        ...


class SharedPort(EmulatedPort):
    """A slow link that several shard clients share; each direction serves one at a time."""

    def __init__(self, shaping: LinkEmulation) -> None:
        super().__init__(shaping)
        self._sending, self._receiving = threading.Lock(), threading.Lock()

    def sent(self, num_bytes: int) -> None:
        with self._sending:
            super().sent(num_bytes)

    def received(self, num_bytes: int, arrived_at: float) -> None:
        with self._receiving:
            super().received(num_bytes, arrived_at)


class ShardClient:
    """The connection between one worker and one shard.

    Args:
        index: index of the shard.
        shard: client of the shard.
        worker: name of this worker.
        listener: the listener, which encodes pushes and receives answers.
        in_flight_bytes: maximum number of bytes that are pushed and not answered; a single piece may be larger.
        replay_bytes: maximum number of pushed bytes that are kept; the oldest are dropped first.
        keeps_all: whether pushes of more than the last two steps are worth keeping.
        port: a slow link to emulate, if any.
        wait_s: timeout in seconds of a pull that waits at the shard; the pull is then repeated.
    """

    def __init__(
        self,
        index: int,
        shard: Any,  # a client; its methods are made at run time
        worker: str,
        listener: ShardListener,
        *,
        in_flight_bytes: int,
        replay_bytes: int,
        keeps_all: bool,
        port: EmulatedPort | None = None,
        wait_s: float = WAIT_S,
    ) -> None:
        self.index = index
        self.missing: tuple[str, ...] = ()
        """Members that the shard waits for."""
        self._shard = shard
        self._worker = worker
        self._listener = listener
        self._in_flight_limit = in_flight_bytes
        self._replay_limit = replay_bytes
        self._keeps_all = keeps_all
        self._port = port
        self._wait_s = wait_s
        self._news = threading.Condition()
        self._outbox: list[tuple[int, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._in_flight = 0
        self._awaited: set[int] = set()
        self._asked: set[int] = set()
        self._num_pulls = 0
        self._pulled: deque[tuple[Attempt, set[int], Future[Any]]] = deque()
        self._attempt = Attempt(-1, -1, over=True)
        self._returning: Attempt | None = None
        self._kept: dict[int, deque[Letter]] = {}
        self._kept_bytes = 0
        self._closed = False
        self._threads = [
            threading.Thread(target=target, name=f"ropewalk-{name}-{index}", daemon=True)
            for name, target in (("push", self._push_loop), ("pull", self._pull_loop))
        ]
        for thread in self._threads:
            thread.start()

    # Called by the worker

    def begin(self, attempt: Attempt) -> None:
        """Begin an attempt; the remains of the last one are dropped."""
        with self._news:
            self._attempt = attempt
            self._outbox.clear()
            self._awaited.clear()
            self._asked.clear()
            self._num_pulls = 0
            self.missing = ()
            for letters in self._kept.values():  # pushes of a step that was taken back
                while letters and letters[-1].step >= attempt.step:
                    self._kept_bytes -= len(letters.pop().data)

    def post(self, key: int, priority: int) -> None:
        """Push a piece as soon as no more urgent piece waits; smaller numbers are more urgent."""
        attempt = self._attempt
        self._put(priority, lambda: self._push_new(key, attempt))

    def look(self, attempt: Attempt, keys: Set[int]) -> None:
        """Ask soon whether the shard still has the pushes of pieces that were answered; those that it lacks go again.

        Nothing else asks for these pieces, while other members may wait for pushes that the shard has lost: if two
        shards are restored, each of two members may wait for what the other one pushed.
        """
        if keys:
            self._put(_AT_ONCE, lambda: self._look(attempt, sorted(keys)))

    def close(self) -> None:
        """End both threads, at once if they do not wait for the shard; may be called twice."""
        with self._news:
            self._closed = True
            self._news.notify_all()
        for thread in self._threads:
            thread.join(timeout=2 * self._wait_s)

    # Pushing

    def _put(self, priority: int, job: Callable[[], None]) -> None:
        with self._news:
            heapq.heappush(self._outbox, (priority, next(self._numbers), job))
            self._news.notify_all()

    def _push_loop(self) -> None:
        while True:
            with self._news:
                self._news.wait_for(
                    lambda: self._closed or (self._outbox and self._in_flight < max(1, self._in_flight_limit))
                )
                if self._closed:
                    return
                attempt = self._attempt
                _, _, job = heapq.heappop(self._outbox)
            try:
                job()
            except BaseException as error:  # whatever the error, the waiting worker must be told
                self._listener.failed(attempt, error)

    def _push_new(self, key: int, attempt: Attempt) -> None:
        letter = self._listener.encode(key, attempt)
        if letter is None:
            return
        if not self._keep(key, letter, attempt):
            return
        if self._port:
            self._port.sent(len(letter.data))
        self._send(key, letter, attempt)

    def _send(self, key: int, letter: Letter, attempt: Attempt) -> None:
        with self._news:
            self._in_flight += max(1, len(letter.data))
        future: Future[Any] = self._shard.push.future(
            self._worker, attempt.epoch, letter.step, key, letter.data, letter.samples
        )
        future.add_done_callback(lambda done: self._answered(key, letter, attempt, done))

    def _answered(self, key: int, letter: Letter, attempt: Attempt, done: Future[Any]) -> None:
        with self._news:
            self._in_flight -= max(1, len(letter.data))
            self._news.notify_all()
        try:
            outcome: Accepted | Behind | Outdated = done.result()
        except BaseException as error:
            self._lost(attempt, error)
            return
        if attempt.over:
            return
        if isinstance(outcome, Behind):
            self._replay(key, outcome.step, attempt)
        elif isinstance(outcome, Outdated):
            self._outdated(outcome.epoch, attempt)
        else:
            self._let_go(key, outcome.durable)
            with self._news:
                # Not for an attempt that has begun meanwhile: the shard would say that it lacks this piece.
                if letter.step == attempt.step and attempt is self._attempt:
                    self._awaited.add(key)
                    self._news.notify_all()

    def _replay(self, key: int, step: int, attempt: Attempt) -> None:
        """Push a piece again from a step on, before everything else."""
        with self._news:
            letters = [letter for letter in self._kept.get(key, ()) if letter.step >= step]
        if not letters or letters[0].step > step:
            self._listener.failed(attempt, self._too_old(step, letters))
            return
        for letter in letters:
            self._put(_AT_ONCE, lambda letter=letter: self._send(key, letter, attempt))

    def _too_old(self, step: int, letters: list[Letter]) -> ExchangeError:
        since = f"the pushes since step {letters[0].step} are kept" if letters else "no pushes are kept"
        return ExchangeError(
            f"server {self.index} came back from a state of step {step}, and of this worker {since}; give it a shorter "
            f"checkpoint_s, or ParameterServer more replay_bytes than {self._replay_limit}"
        )

    def _outdated(self, epoch: int, attempt: Attempt) -> None:
        """Handle an answer that says that the shard is in another epoch."""
        if epoch > attempt.epoch:
            error = ExchangeAborted(
                f"the members of epoch {attempt.epoch} are no more, there is an epoch {epoch}; regroup",
                epoch=attempt.epoch,
            )
            self._listener.failed(attempt, error)
        elif epoch == attempt.epoch:
            error = MemberLost(
                f"server {self.index} does not count {self._worker!r} among the members of epoch {epoch} any more",
                members=(self._worker,),
                epoch=epoch,
            )
            self._listener.failed(attempt, error)
        else:
            with self._news:
                if self._returning is attempt:  # each message in flight gets this answer
                    return
                self._returning = attempt
            self._put(_AT_ONCE, lambda: self._return(attempt))

    def _return(self, attempt: Attempt) -> None:
        """Enrol at a shard that was restarted without this worker, and send again all that it has not kept."""
        with self._news:
            if self._returning is attempt:
                self._returning = None
        if attempt.over:
            return
        self._listener.enrol_again(self.index)
        with self._news:
            pushed = [(key, letters[-1]) for key, letters in self._kept.items() if letters]
            self._awaited -= {key for key, _ in pushed}
        for key, letter in pushed:  # the shard will ask for what it lacks from earlier steps
            if letter.step == attempt.step:
                self._send(key, letter, attempt)

    def _look(self, attempt: Attempt, keys: list[int]) -> None:
        future: Future[Any] = self._shard.behind.future(self._worker, attempt.epoch, attempt.step, keys)
        future.add_done_callback(lambda done: self._looked(attempt, done))

    def _looked(self, attempt: Attempt, done: Future[Any]) -> None:
        try:
            found: dict[int, int] | Outdated = done.result()
        except BaseException as error:
            self._lost(attempt, error)
            return
        if attempt.over:
            return
        if isinstance(found, Outdated):
            self._outdated(found.epoch, attempt)
            return
        for key, step in found.items():
            self._replay(key, step, attempt)

    # Kept pushes

    def _keep(self, key: int, letter: Letter, attempt: Attempt) -> bool:
        """Keep a push, unless the step was taken back while it was encoded: a later step has its place."""
        with self._news:
            if attempt is not self._attempt:
                return False
            letters = self._kept.setdefault(key, deque())
            letters.append(letter)
            self._kept_bytes += len(letter.data)
            while len(letters) > 2 and not self._keeps_all:  # other members may be a step back
                self._kept_bytes -= len(letters.popleft().data)
            if self._kept_bytes > self._replay_limit:
                self._shed()
            return True

    def _shed(self) -> None:
        """Drop the oldest pushes, all of a step together, except the last two of each piece."""
        while self._kept_bytes > self._replay_limit:
            longest = max(self._kept.values(), key=len)
            if len(longest) <= 2:
                return
            self._kept_bytes -= len(longest.popleft().data)

    def _let_go(self, key: int, durable: int) -> None:
        with self._news:
            letters = self._kept.get(key, deque())
            while len(letters) > 2 and letters[0].step < durable:
                self._kept_bytes -= len(letters.popleft().data)

    # Pulling

    @property
    def _unasked(self) -> set[int]:
        """Pieces to ask for now: those that no open pull asks for, if one more pull is allowed."""
        return self._awaited - self._asked if self._num_pulls < _MOST_PULLS else set()

    def _pull_loop(self) -> None:
        while True:
            with self._news:
                self._news.wait_for(lambda: self._closed or self._pulled or self._unasked)
                if self._closed:
                    return
                if self._pulled:
                    attempt, keys, answered = self._pulled.popleft()
                    if attempt is self._attempt:
                        self._asked -= keys
                        self._num_pulls -= 1
                else:
                    attempt, keys, answered = self._attempt, self._unasked, None
                    self._asked |= keys
                    self._num_pulls += 1
            try:
                if answered is None:
                    self._pull(attempt, keys)
                else:
                    self._heard(answered.result(), attempt)
            except BaseException as error:  # whatever the error, the waiting worker must be told
                self._lost(attempt, error)

    def _pull(self, attempt: Attempt, keys: set[int]) -> None:
        future: Future[Any] = self._shard.pull.future(
            self._worker, attempt.epoch, attempt.step, sorted(keys), self._wait_s
        )
        future.add_done_callback(lambda done: self._pull_answered(attempt, keys, done))

    def _pull_answered(self, attempt: Attempt, keys: set[int], done: Future[Any]) -> None:
        with self._news:
            self._pulled.append((attempt, keys, done))
            self._news.notify_all()

    def _heard(self, pulled: Pulled | Outdated, attempt: Attempt) -> None:
        arrived_at = time.monotonic()
        if attempt.over:
            with self._news:
                if self._attempt is attempt:
                    self._awaited.clear()
            return
        if isinstance(pulled, Outdated):
            with self._news:
                self._awaited.clear()
            self._outdated(pulled.epoch, attempt)
            return
        self.missing = pulled.missing
        with self._news:
            if self._attempt is attempt:
                self._awaited -= {answer.key for answer in pulled.answers} | pulled.behind.keys()
        for answer in pulled.answers:
            if self._port:
                self._port.received(len(answer.data), arrived_at)
            self._listener.deliver(answer, attempt)
        for key, step in pulled.behind.items():
            why = pulled.corrupt.get(key)
            if why is not None:
                attempt.resends[key] = attempt.resends.get(key, 0) + 1
                if attempt.resends[key] > _MOST_RESENDS:
                    self._listener.failed(
                        attempt, MessageCorrupt(f"server {self.index} cannot read piece {key}: {why}")
                    )
                    return
            self._replay(key, step, attempt)

    def _lost(self, attempt: Attempt, error: BaseException) -> None:
        with self._news:
            if self._attempt is attempt:
                self._awaited.clear()
        self._listener.failed(attempt, error)
