"""The panel "lineage": which member of a population has copied which other one, and whose descendants are left."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ropewalk.control.columns import finite
from ropewalk.population.algorithms.pbt_history import History
from ropewalk.population.algorithms.pbt_standing import MemberStanding
from ropewalk.population.panels.schedules import shown

_MOST_COPIES = 5000
"""Copies in one answer; the next one goes on after them."""


class PBTLineagePanel:
    """Makes the data of one history.

    Args:
        history: of the run; it must not change during a call.
    """

    def __init__(self, history: History) -> None:
        self._history = history
        self._origins: list[int] = []
        """Of each interval, the member with which its state began."""

    def data(self, members: Sequence[MemberStanding], best: int, cursor: int = 0) -> dict[str, Any]:
        """Return the copies after a cursor, and all members as they are now.

        The form is `{"cursor": number of copies so far, "left": number of copies after those, "copies": [{"member",
        "interval", "step", "score", "donor", "donor_step", "donor_score", "reason", "why", "after"}], "members":
        {number: {"step", "score", "intervals", "origin"}}, "best": {"path": [[member, first step, step after the
        last]]}}`. A copy replaces the state of `member` after `step` steps, before its interval number `interval`, by
        that of `donor`, which has `donor_step`; `donor` is -1 if the member starts over. `reason` is "exploit", "lost"
        or "restart"; `after` has the new hyperparameters. Numbers of members are texts there, as JSON has keys.
        `origin` is the member with whose first interval the state of a member began. `path` is the way of the best
        state through the members.

        Args:
            members: the members, by number.
            best: index in the history of the interval after which the best one's state is; -1 for none.
            cursor: that of the last answer, or 0.
        """
        self._follow()
        copies = self._history.mutations
        chosen = copies[max(0, cursor) : max(0, cursor) + _MOST_COPIES]
        end = max(0, cursor) + len(chosen)
        return {
            "cursor": end,
            "left": max(0, len(copies) - end),
            "copies": [
                {
                    "member": copy.member,
                    "interval": copy.number,
                    "step": copy.steps,
                    "score": finite(copy.score),
                    "donor": copy.donor,
                    "donor_step": copy.donor_steps,
                    "donor_score": finite(copy.donor_score),
                    "reason": copy.reason,
                    "why": copy.why,
                    "after": {name: shown(value) for name, value in copy.after.items()},
                }
                for copy in chosen
            ],
            "members": {
                str(number): {
                    "step": each.steps,
                    "score": finite(each.score),
                    "intervals": each.number,
                    "origin": self._origins[each.last] if each.last >= 0 else number,
                }
                for number, each in enumerate(members)
            },
            "best": {"path": self._history.path(best)},
        }

    def _follow(self) -> None:
        """Take the intervals that are new."""
        for place in range(len(self._origins), len(self._history)):
            parent = self._history.parent(place)
            self._origins.append(self._origins[parent] if parent >= 0 else self._history.member(place))


__all__ = ["PBTLineagePanel"]
