"""Notices when calls of a process have been held up for a while by calls that wait for others. Pure.

Most waiting calls wait for a call that is making progress. Those are not reported to the launcher.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ropewalk.calls.waits import LaneWaits

_PATIENCE_S = 0.3
"""Seconds for which calls must be held up before they are reported as a possible cycle."""
_AGAIN_S = 0.5
"""Interval in seconds at which the report is repeated."""


class HeldUp:
    """The waiting calls of one process."""

    def __init__(self) -> None:
        self._since: dict[int, float] = {}
        """Time since when a call waits where it may be held up, by key of the call."""
        self._said = float("-inf")

    def look(self, lanes: Sequence[LaneWaits], now: float) -> bool:
        """Note which calls wait now; return whether to report held-up calls to the launcher."""
        waiting = [call.key for lane in lanes if lane.is_held_up for call in lane.waiting]
        self._since = {key: self._since.get(key, now) for key in waiting}
        if not any(now - since >= _PATIENCE_S for since in self._since.values()) or now - self._said < _AGAIN_S:
            return False
        self._said = now
        return True

    def timed(self, lanes: Sequence[LaneWaits], now: float) -> list[LaneWaits]:
        """The lanes, with the time for which their calls have waited."""

        def timed(lane: LaneWaits) -> LaneWaits:
            waiting = [
                msgspec.structs.replace(call, waited_s=now - self._since.get(call.key, now)) for call in lane.waiting
            ]
            return msgspec.structs.replace(lane, waiting=waiting)

        return [timed(lane) for lane in lanes]
