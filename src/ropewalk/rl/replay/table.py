"""`ReplayTable`: settings of a table of replay."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass

from ropewalk.rl.environments.spec import ArraySpec
from ropewalk.rl.replay.limiters.limiter import Limiter
from ropewalk.rl.replay.limiters.queue import QueueLimiter, StackLimiter
from ropewalk.rl.replay.selectors.ordered import Fifo, Lifo
from ropewalk.rl.replay.selectors.selector import Selector


@dataclass(frozen=True, slots=True)
class ReplayTable:
    """A table: which items it keeps, how they are sampled, and when. The items themselves are in a `ReplayTables`.

    Example:
        >>> from ropewalk import rl
        >>> first_out, least_one = rl.Fifo(), rl.MinSize(1)
        >>> table = rl.ReplayTable("steps", sampler=rl.Uniform(), remover=first_out, max_size=100, limiter=least_one)
        >>> tables = rl.ReplayTables([table])
        >>> with rl.TrajectoryWriter(tables, keep=1) as writer:
        ...     for reward in (1.0, 2.0):
        ...         cells = writer.append({"reward": reward})
        ...         writer.create_item("steps", cells, priority=1.0)
        >>> tables.info()["steps"].size
        2

    Args:
        name: name of the table, unique on its server.
        sampler: chooses the items that are sampled.
        remover: chooses the items that are removed while the table has more than `max_size` items or `max_bytes`. Items
            are inserted first, so it may choose new ones.
        max_size: largest number of items.
        limiter: when inserting and sampling have to wait.
        max_times_sampled: an item that was sampled this many times is removed; 0: never.
        signature: by column of the samples, the shape and dtype of one row; checked where items are made. None: any.
        max_bytes: largest size of the rows of the table's items; rows that several of its items share count once. At
            least one item is kept. None: any size.
        seed: seed of all draws.

    Raises:
        ValueError: settings that contradict each other.
    """

    name: str
    _: KW_ONLY
    sampler: Selector
    remover: Selector
    max_size: int
    limiter: Limiter
    max_times_sampled: int = 0
    signature: Mapping[str, ArraySpec] | None = None
    max_bytes: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if "/" in self.name or not self.name:
            raise ValueError(f"a table's name is {self.name!r}; it must be a name without slashes")
        for value, least, name in (
            (self.max_size, 1, "max_size"),
            (self.max_times_sampled, 0, "max_times_sampled"),
            (1 if self.max_bytes is None else self.max_bytes, 1, "max_bytes"),
        ):
            if value < least:
                raise ValueError(f"table {self.name!r} has {name}={value}; it must be at least {least}")
        if self.max_size > 1 << 27:
            raise ValueError(f"table {self.name!r} has max_size={self.max_size}; at most {1 << 27} items are possible")
        self.check_limiter(self.limiter)

    def check_limiter(self, limiter: Limiter) -> None:
        """Check that a limiter suits the table.

        Raises:
            ValueError: with it nothing could be sampled, or it needs other settings of the table.
        """
        formula = limiter.formula()
        if formula.min_size > self.max_size:
            raise ValueError(
                f"table {self.name!r} keeps max_size={self.max_size} items and its limiter lets it be sampled from "
                f"min_size={formula.min_size} items on, which it never has; use a larger max_size or a smaller min_size"
            )
        if not isinstance(limiter, QueueLimiter | StackLimiter):
            return
        if self.max_times_sampled != 1 or self.max_size < limiter.size:
            raise ValueError(
                f"table {self.name!r} has {limiter}, max_times_sampled={self.max_times_sampled} and "
                f"max_size={self.max_size}; a queue or stack needs max_times_sampled=1, because each item leaves it "
                f"when it is sampled, and a max_size of at least {limiter.size}"
            )

    @classmethod
    def queue(cls, name: str, size: int, signature: Mapping[str, ArraySpec] | None = None) -> ReplayTable:
        """Return a table whose items are sampled once, the oldest first; inserting waits while it has `size` items."""
        return cls._sampled_once(name, Fifo(), QueueLimiter(size), signature)

    @classmethod
    def stack(cls, name: str, size: int, signature: Mapping[str, ArraySpec] | None = None) -> ReplayTable:
        """Return a table whose items are sampled once, the newest first; inserting waits while it has `size` items."""
        return cls._sampled_once(name, Lifo(), StackLimiter(size), signature)

    @classmethod
    def _sampled_once(
        cls,
        name: str,
        sampler: Selector,
        limiter: QueueLimiter | StackLimiter,
        signature: Mapping[str, ArraySpec] | None,
    ) -> ReplayTable:
        return cls(
            name,
            sampler=sampler,
            remover=Fifo(),
            max_size=limiter.size,
            limiter=limiter,
            max_times_sampled=1,
            signature=signature,
        )


__all__ = ["ReplayTable"]
