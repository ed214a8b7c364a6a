"""`Adder`: decides which items of replay the steps of an actor become."""

from __future__ import annotations

from abc import ABC, abstractmethod

from ropewalk.rl.blocks import Block
from ropewalk.rl.replay.insertion import Insertion


class Adder(ABC):
    """Turns the blocks of one run id, in order, into insertions. Pure: it keeps what it needs from earlier blocks.

    Items never join steps of two run ids, and none joins two episodes.
    """

    @abstractmethod
    def add(self, block: Block) -> Insertion:
        """Return what this block adds to replay; may have no items yet.

        A block whose run id differs from that of the last block starts over: unfinished items are dropped.

        Raises:
            NotFinite: a reward or an observation is NaN or infinite; environment, step and column are named.
        """


__all__ = ["Adder"]
