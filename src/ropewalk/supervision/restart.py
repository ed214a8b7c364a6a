"""When to start a process again, how long to wait first, and when to give up.

Pure: deaths and processes that became ready come in, each with its time, and an instruction comes out. Nothing is
started here and no clock is read.

`RestartIntensity` is Erlang's restart intensity (OTP design principles, "Supervisor Behaviour"): every failure of a
node of a program counts.

    first failure in `window_s` ─▶ StartAgain(0)
    further ones in `window_s`  ─▶ StartAgain(backoff) ... the same, longer ... ─▶ GiveUp

`RestartBudget` is the same idea with one difference, for the workers of a pool. A worker that had been ready and was
killed by its task is not a sign that starting is broken: it is replaced at once, and the task's own count of deaths
sets the limit (`TaskPoisoned`). Only deaths before readiness are counted, each a start that failed.

    died, had been ready     ─▶ StartAgain(0)
    died before it was ready ─▶ StartAgain(backoff) ... the same, longer ... ─▶ GiveUp
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections import deque

import msgspec

from ropewalk.quantities import counted


@dataclasses.dataclass(frozen=True, slots=True)
class RestartPolicy:
    """How many failed starts are tolerated, and how fast they may follow each other.

    Raises:
        ValueError: a value is out of its range.
    """

    max_restarts: int = 5
    """Restarts after failed starts within `window_s`; one more failure gives up. With 0 nothing is started again."""
    window_s: float = 60.0
    """Seconds after which a failed start no longer counts, provided a process has become ready since; `math.inf`: all
    count."""
    backoff_s: float = 0.1
    """Seconds to wait after the first failed start; each further failure doubles the wait, until a start succeeds."""
    backoff_max_s: float = 10.0
    """The longest wait, in seconds."""
    jitter: float = 0.5
    """Largest fraction of a wait that may be left out, 0 to 1, so that processes do not all restart at once."""

    def __post_init__(self) -> None:
        if self.max_restarts < 0:
            raise ValueError(f"max_restarts must be 0 or more, not {self.max_restarts}")
        if not self.window_s > 0:
            raise ValueError(f"window_s must be a number of seconds above 0, not {self.window_s}")
        if not 0 <= self.backoff_s <= self.backoff_max_s < math.inf:
            raise ValueError(
                f"backoff_s and backoff_max_s must be 0 or more and in this order, "
                f"not {self.backoff_s} and {self.backoff_max_s}"
            )
        if not 0 <= self.jitter <= 1:
            raise ValueError(f"jitter must be between 0 and 1, not {self.jitter}")

    @property
    def allowance(self) -> str:
        """The number of restarts that are allowed, in words: "max_restarts=3 allows 3 restarts in 60 s"."""
        if not self.max_restarts:
            return "max_restarts=0 allows no restart"
        return f"max_restarts={self.max_restarts} allows {counted(self.max_restarts, 'restart')}{self.span}"

    @property
    def span(self) -> str:
        """The time in which failures count, in words: " in 60 s"; empty if they always do."""
        return f" in {self.window_s:g} s" if math.isfinite(self.window_s) else ""

    def wait_s(self, doublings: int, chance: random.Random) -> float:
        """Return the first wait doubled `doublings` times, capped at `backoff_max_s`, less the jitter; in seconds."""
        # The exponent is bounded because 2.0 ** 1024 is an error, and `max_restarts` may be large.
        wait_s = min(self.backoff_max_s, self.backoff_s * 2.0 ** min(doublings, 64))
        return wait_s * (1 - self.jitter * chance.random())


class StartAgain(msgspec.Struct, frozen=True):
    """An instruction to start the process again."""

    delay_s: float
    """Seconds to wait first; 0 means at once."""


class GiveUp(msgspec.Struct, frozen=True):
    """An instruction to start nothing more: starting fails, and more attempts would not help."""

    reason: str
    """One sentence with the numbers that led to the decision."""
    deaths: tuple[str, ...]
    """Causes of the failed starts, oldest first; the first is usually the one to read."""


class RestartBudget:
    """Counts the failed starts of one group of processes, such as the workers of a pool.

    Giving up is final; each further death gets the same answer.
    """

    def __init__(self, policy: RestartPolicy | None = None, *, seed: int = 0) -> None:
        self.policy = policy or RestartPolicy()
        self._random = random.Random(seed)
        self._failed: deque[tuple[float, str]] = deque()  # starts that still count
        self._none_ready_since_failure = False
        self._num_in_a_row = 0  # failed starts since a process was last ready
        self._given_up: GiveUp | None = None

    def ready(self, now: float) -> None:
        """Note that a process became ready: starting works, which offsets one failed start.

        So a loop in which most starts fail ends, while workers that are killed at random, some of them before they were
        ready, are replaced without limit.
        """
        self._starting_works(now)
        self._num_in_a_row = 0
        if self._failed:
            self._failed.popleft()

    def died(self, now: float, healthy: bool, cause: str = "") -> StartAgain | GiveUp:
        """Decide what follows the death of one process.

        Args:
            now: monotonic time in seconds.
            healthy: whether it had become ready before it died.
            cause: one line, such as `DeathRecord.describe()`; kept as evidence.
        """
        if self._given_up is not None:
            return self._given_up
        if healthy:
            self._starting_works(now)
            return StartAgain(0.0)
        # Starts that take long before they fail would never lie in one window together: while no process becomes ready
        # in between, no failure is forgotten. This is what makes every crash loop end.
        if not self._none_ready_since_failure:
            self._forget(now)
        self._none_ready_since_failure = True
        self._failed.append((now, cause))
        self._num_in_a_row += 1
        if len(self._failed) > self.policy.max_restarts:
            self._given_up = GiveUp(self._reason(now), tuple(cause for _, cause in self._failed))
            return self._given_up
        return StartAgain(self.policy.wait_s(self._num_in_a_row - 1, self._random))

    def _starting_works(self, now: float) -> None:
        self._none_ready_since_failure = False
        self._forget(now)

    def _forget(self, now: float) -> None:
        while self._failed and self._failed[0][0] <= now - self.policy.window_s:
            self._failed.popleft()

    def _reason(self, now: float) -> str:
        num_failed = len(self._failed)
        starts = counted(num_failed, "start")
        span_s = now - self._failed[0][0]
        return f"{starts} failed before the process was ready, within {span_s:.1f} s; {self.policy.allowance}"


class RestartIntensity:
    """Counts every failure of one thing that is restarted as a whole, such as a node or a gang of nodes."""

    def __init__(self, policy: RestartPolicy, *, seed: int | str = 0) -> None:
        self.policy = policy
        self._random = random.Random(seed)
        self._failures: list[tuple[float, str]] = []  # failures that still count, oldest first
        self._was_ready = True

    @property
    def num_failures(self) -> int:
        """Number of failures that counted in the last decision."""
        return len(self._failures)

    def ready(self) -> None:
        """Note that it became ready: older failures may be forgotten once they have left the window."""
        self._was_ready = True

    def failed(self, now: float, cause: str = "") -> StartAgain | GiveUp:
        """Decide what follows a failure.

        Args:
            now: monotonic time in seconds.
            cause: one line, such as `DeathRecord.describe()`; kept as evidence.
        """
        policy = self.policy
        # Otherwise a start that takes longer than the window before it fails would be tried for ever.
        if self._was_ready:
            self._failures = [failure for failure in self._failures if failure[0] > now - policy.window_s]
        self._was_ready = False
        self._failures.append((now, cause))
        num_failures = len(self._failures)
        if num_failures > policy.max_restarts:
            times = "once" if num_failures == 1 else f"{num_failures} times within {now - self._failures[0][0]:.1f} s"
            reason = f"it failed {times}; {policy.allowance}"
            return GiveUp(reason, tuple(cause for _, cause in self._failures))
        if num_failures == 1:
            return StartAgain(0.0)  # in the usual case, one kill after a long life, clients need not wait
        return StartAgain(policy.wait_s(num_failures - 2, self._random))
