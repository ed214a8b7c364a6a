"""The coordinator, where its workers come and go faster than it hears of them."""

from __future__ import annotations

from typing import Any, cast

from ropewalk.exchange.elastic.coordinator import Coordinator, ExchangeTimeouts
from ropewalk.exchange.elastic.membership import Expel


class NoWorkers:
    """The client of a node that was scaled down meanwhile."""

    def __getitem__(self, replica: int) -> Any:
        raise IndexError(f"workers has 1 replica; there is no number {replica}")


def test_a_worker_that_was_scaled_away_before_its_word_was_heard_is_left_out() -> None:
    # It once ended the whole training: an IndexError of the coordinator.
    coordinator = Coordinator(cast(Any, NoWorkers()), 1, ExchangeTimeouts())
    coordinator.hello("workers.3#0", 3)
    coordinator.join("workers.3#0")
    heard = [instruction for _ in range(2) for instruction in coordinator._events.get()()]
    assert [type(instruction) for instruction in heard] == [Expel]
    assert not coordinator._membership.members
