"""Sees that calls of a process have been held up for a while by calls that wait for others. Pure.

Most calls that wait for their turn wait for one that works. Those are none of the launcher's business.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ropewalk.calls.waits import LaneWaits

#: Whatever lasts less than this is no circle.
_PATIENCE_S = 0.3
#: It is said again after this long, while it lasts.
_AGAIN_S = 0.5


class HeldUp:
    """What is known of the calls of one process."""

    def __init__(self) -> None:
        self._since: dict[int, float] = {}
        """By key of a call that waits where it may be held up: since when."""
        self._said = float("-inf")

    def look(self, lanes: Sequence[LaneWaits], now: float) -> bool:
        """Note which calls wait now; returns whether to tell the launcher that calls are held up."""
        waiting = [call.key for lane in lanes if lane.is_held_up for call in lane.waiting]
        self._since = {key: self._since.get(key, now) for key in waiting}
        if not any(now - since >= _PATIENCE_S for since in self._since.values()) or now - self._said < _AGAIN_S:
            return False
        self._said = now
        return True

    def timed(self, lanes: Sequence[LaneWaits], now: float) -> list[LaneWaits]:
        """The lanes, with how long their calls have waited."""

        def timed(lane: LaneWaits) -> LaneWaits:
            waiting = [
                msgspec.structs.replace(call, waited_s=now - self._since.get(call.key, now)) for call in lane.waiting
            ]
            return msgspec.structs.replace(lane, waiting=waiting)

        return [timed(lane) for lane in lanes]
