"""Whether training stands still, because an environment hangs, and which actor it waits for.

    counts of a learner, once a second ──▶ TrainingStandstill ──▶ a sentence, once for each standstill ──▶ log, events

`TrainingStandstill` decides and is pure. `watched` lets a thread look where the main thread itself may be what hangs.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass

from ropewalk.quantities import shown_duration
from ropewalk.rl.slow_calls import SlowCall, slow_in_words

_PATIENCE_S = 30.0
"""Seconds without any step or update that are told."""
_TIMES_AS_LONG = 5.0
"""It is told only if it lasts this much longer than any other pause so far: a block may take minutes."""
_STILL_S = 5.0
"""Seconds without any step or update after which a verdict on who limits whom is of the past."""
_LOOK_S = 1.0
_REMEDY = (
    "An environment may hang in step or reset: `ropewalk stack` shows where each process is, and "
    "rl.Isolated(factory, step_timeout_s=60) ends an environment that hangs, and goes on"
)


@dataclass(slots=True)
class _Seen:
    count: int
    since: float
    slowest_s: float = 0.0
    is_told: bool = False


class TrainingStandstill:
    """Notices when neither steps nor updates are made, and when one group of environments delivers nothing.

    Args:
        block_steps: environment steps that arrive together; 0: each is counted when it is done.
        patience_s: seconds after which a standstill is told.
    """

    def __init__(self, block_steps: int = 0, patience_s: float = _PATIENCE_S) -> None:
        self._block_steps, self._patience_s = block_steps, patience_s
        self._whole: _Seen | None = None
        self._groups: dict[int, _Seen] = {}

    def look(
        self,
        now: float,
        steps: int,
        updates: int,
        *,
        blocks: Mapping[int, int] | None = None,
        waits_for: str = "",
        slow: Sequence[SlowCall] = (),
    ) -> list[str]:
        """Return what is to be told now.

        Args:
            now: time in seconds.
            steps: environment steps so far.
            updates: updates of the learner so far.
            blocks: by group of environments, the blocks that it has delivered, where groups do not wait for each other.
            waits_for: the actors that the learner waits for, if that is known.
            slow: calls of environments that have not returned.
        """
        self._whole, said = _moved(self._whole, steps + updates, now), list[str]()
        still_s = now - self._whole.since
        if still_s >= self._patience_s:
            if not self._whole.is_told and still_s >= _TIMES_AS_LONG * self._whole.slowest_s:
                self._whole.is_told = True
                said.append(self._in_words(still_s, waits_for, slow))
            return said  # all groups stand still
        return self._silent_groups(now, blocks or {})

    def limit(self, now: float, verdict: str, waits_for: str = "", slow: Sequence[SlowCall] = ()) -> str:
        """Return what holds training up at the time of the last look, in words.

        Args:
            now: time in seconds.
            verdict: who limits whom, by the times of all steps; dropped when none are made.
            waits_for: see `look`.
            slow: see `look`.
        """
        whole, said = self._whole, slow_in_words(slow)
        if whole is None or now - whole.since < max(_STILL_S, 2 * whole.slowest_s):
            return "; ".join(filter(None, (said, verdict)))
        if said:
            return said
        waits = f", the learner waits for {waits_for}" if waits_for else ""
        return f"no steps for {shown_duration(round(now - whole.since))}{waits}"

    def _in_words(self, still_s: float, waits_for: str, slow: Sequence[SlowCall]) -> str:
        blocks = f" (they come in blocks of {self._block_steps:,})" if self._block_steps else ""
        waits = f", and the learner waits for {waits_for}" if waits_for else ""
        waits += f"; {slow_in_words(slow)}" if slow else ""
        return f"no environment steps have been made for {shown_duration(round(still_s))}{blocks}{waits}. {_REMEDY}"

    def _silent_groups(self, now: float, blocks: Mapping[int, int]) -> list[str]:
        said: list[str] = []
        for group, count in blocks.items():
            self._groups[group] = _moved(self._groups.get(group), count, now)
        usual_s = max((seen.slowest_s for seen in self._groups.values()), default=0.0)
        for group, seen in self._groups.items():
            silent_s = now - seen.since
            if not seen.is_told and silent_s >= max(self._patience_s, _TIMES_AS_LONG * usual_s):
                seen.is_told = True
                what = f"the actor of group {group} has delivered nothing for {shown_duration(round(silent_s))}"
                said.append(f"{what}, while others did. {_REMEDY}")
        return said


def _moved(seen: _Seen | None, count: int, now: float) -> _Seen:
    """Return what is known of a count that was `count` at a time."""
    if seen is None:
        return _Seen(count, now)
    if seen.count == count:
        return seen
    return _Seen(count, now, seen.slowest_s if seen.is_told else max(seen.slowest_s, now - seen.since))


@contextlib.contextmanager
def watched(look: Callable[[], object]) -> Generator[None]:
    """Call a function once a second in a thread of its own, while the block runs."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(_LOOK_S):
            look()

    thread = threading.Thread(target=watch, name="standstill", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


__all__ = ["TrainingStandstill", "watched"]
