"""`StarGroup`: members that communicate with servers, and not with each other.

  server                   for programs of a parameter server alone: a group is then only a rank, a size
 ╱  │   ╲                  and names, and needs no links between members
0   1    2
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from torch import Tensor

from ropewalk.errors import ExchangeInvalid
from ropewalk.exchange.groups.group import Group, Work
from ropewalk.exchange.traffic import MemberTraffic


class StarGroup(Group):
    """The members of a `ParameterServer`; it has no collectives.

    Args:
        rank: rank of this member.
        members: names by rank; a restarted member with the same name resumes where it was.
        epoch: epoch of the group.

    Example:
        >>> StarGroup(1, ["a", "b"]).size
        2
    """

    def __init__(self, rank: int, members: Sequence[str], epoch: int = 0) -> None:
        if not 0 <= rank < len(members):
            raise ExchangeInvalid(f"rank {rank} is none of the {len(members)} members {', '.join(members)}")
        self.rank = rank
        self.size = len(members)
        self.epoch = epoch
        self.members = tuple(members)
        self.traffic = MemberTraffic()

    def all_reduce(self, buffer: Tensor, tag: str) -> Work:
        self._refuse("all_reduce")

    def all_gather(
        self, message: memoryview, facts: Sequence[int], tag: str
    ) -> list[tuple[memoryview, tuple[int, ...]]]:
        self._refuse("all_gather")

    def broadcast(self, buffer: Tensor, root: int, tag: str) -> None:
        self._refuse("broadcast")

    def abort(self) -> None:
        return

    def close(self) -> None:
        return

    def _refuse(self, what: str) -> NoReturn:
        raise ExchangeInvalid(
            f"the members of a StarGroup talk to servers only, so there is no {what}; use a TorchGroup or a LinkGroup"
        )
