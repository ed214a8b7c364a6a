"""A bounded queue between quick producers and slow consumers: nothing lost, nothing twice, and the quick ones wait."""

from __future__ import annotations

import threading
import types
from collections.abc import Callable

LoadExample = Callable[[str], types.ModuleType]


def test_a_full_queue_makes_its_producer_wait_until_an_item_is_taken(load_example: LoadExample) -> None:
    items = load_example("producers_consumers").BoundedQueue(1)
    items.put((0, 0))
    producer = threading.Thread(target=items.put, args=((0, 1),))
    producer.start()
    producer.join(0.05)
    assert producer.is_alive()
    assert items.get(wait_s=5) == (0, 0)
    producer.join(120)
    assert items.get(wait_s=5) == (0, 1) and items.get(wait_s=0) is None


def test_items_count_as_done_only_when_their_consumer_says_so(load_example: LoadExample) -> None:
    items = load_example("producers_consumers").BoundedQueue(2)
    items.put((0, 0))
    items.get(wait_s=5)
    waiter = threading.Thread(target=items.wait_until_done, args=(1,))
    waiter.start()
    waiter.join(0.05)
    assert waiter.is_alive()
    items.done()
    waiter.join(120)
    assert not waiter.is_alive()


def test_every_item_is_consumed_exactly_once_and_producers_are_held_back(load_example: LoadExample, mode: str) -> None:
    example = load_example("producers_consumers")
    result = example.main(mode=mode)
    consumed = [item for share in result["consumed"] for item in share]
    assert sorted(consumed) == [(i, n) for i in range(example.PRODUCERS) for n in range(example.ITEMS_EACH)]
    assert len(result["consumed"]) == example.CONSUMERS  # one that starts late may find nothing left
    assert 1 <= result["deepest"] <= example.CAPACITY
