"""`CallCount`: how many calls a node has made to a service, counted by the node: several callers are told apart."""

from __future__ import annotations


class CallCount:
    """A number of calls.

    It is for rates: a call adds one without a lock, so of two threads that call at the same moment one may not count.

    Attributes:
        num: number of calls that were made.
    """

    __slots__ = ("num",)

    def __init__(self) -> None:
        self.num: int = 0


__all__ = ["CallCount"]
