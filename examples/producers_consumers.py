"""Producers and consumers around a bounded queue: the quick ones wait for the slow ones, and no item is lost.

    python examples/producers_consumers.py

    3 producers ── put ──▶ queue (at most 4 items) ◀── get, done ── 2 consumers

The queue is an ordinary object with a deque and a condition inside.
A producer that finds it full waits in its call: that is all there is to back-pressure.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from typing import Any

import ropewalk as rw

PRODUCERS, ITEMS_EACH, CONSUMERS, CAPACITY = 3, 60, 2, 4
WORK_S = 0.002  # what a consumer needs for an item; a producer needs nothing

Item = tuple[int, int]  # (producer, number)


class BoundedQueue:
    """At most `capacity` items: a full queue makes its producers wait, an empty one its consumers."""

    def __init__(self, capacity: int) -> None:
        self._items: deque[Item] = deque()
        self._capacity, self._changed = capacity, threading.Condition()
        self._num_done, self._deepest, self._waited_s = 0, 0, 0.0

    # Without the mark, calls run one at a time: a `put` that waits would keep out the `get` that ends its waiting.
    @rw.concurrent(PRODUCERS)
    def put(self, item: Item) -> None:
        started = time.monotonic()
        with self._changed:
            # As `self._changed.wait_for`, but it also ends when the producer is gone, who would keep his place here.
            rw.wait_for(self._changed, lambda: len(self._items) < self._capacity)
            self._items.append(item)
            self._changed.notify_all()
            self._waited_s += time.monotonic() - started
            self._deepest = max(self._deepest, len(self._items))

    @rw.concurrent(CONSUMERS)
    def get(self, wait_s: float) -> Item | None:
        """The oldest item, or None if there was none for `wait_s`."""
        with self._changed:
            if not rw.wait_for(self._changed, lambda: self._items, wait_s):
                return None
            self._changed.notify_all()
            return self._items.popleft()

    def done(self) -> None:
        """Say that an item has been worked on: one that is only taken may still be lost with its consumer."""
        with self._changed:
            self._num_done += 1
            self._changed.notify_all()

    @rw.concurrent(2)
    def wait_until_done(self, num_items: int) -> tuple[int, float]:
        """Wait for a number of items; returns the most that ever lay here, and the seconds that producers waited."""
        with self._changed:
            rw.wait_for(self._changed, lambda: self._num_done >= num_items)
            return self._deepest, self._waited_s


def produce(items: BoundedQueue, count: int) -> None:
    producer = rw.current_node().replica
    for number in range(count):
        items.put((producer, number))


class Consumer:
    """Works until the program is stopped, and can be asked meanwhile what it has done: a service with a `run`."""

    def __init__(self, items: BoundedQueue) -> None:
        self._queue, self._consumed = items, list[Item]()

    def run(self) -> None:
        while not rw.stopping():
            item = self._queue.get(wait_s=0.1)
            if item is not None:
                time.sleep(WORK_S)
                self._consumed.append(item)
                self._queue.done()

    def consumed(self) -> list[Item]:
        return self._consumed


def main(mode: rw.Mode | None = None) -> dict[str, Any]:
    program = rw.Program("producers-consumers")
    items = program.add(rw.Service(BoundedQueue, CAPACITY), name="queue")
    program.add(rw.Worker(produce, items, ITEMS_EACH), name="producers", replicas=PRODUCERS)
    program.add(rw.Service(Consumer, items), name="consumers", replicas=CONSUMERS)

    # Leaving the block stops the consumers, which would go on for ever.
    with program.launch(mode=mode) as running:
        deepest, waited_s = running.client("queue").wait_until_done(PRODUCERS * ITEMS_EACH)
        consumed: list[list[Item]] = running.client("consumers").all.consumed()  # one answer per replica

    times = Counter(item for share in consumed for item in share)
    expected = {(producer, number) for producer in range(PRODUCERS) for number in range(ITEMS_EACH)}
    assert set(times) == expected and set(times.values()) == {1}, "an item was lost or consumed twice"
    print(f"{len(times)} items, each consumed exactly once; per consumer: {[len(share) for share in consumed]}")
    print(f"the queue never held more than {deepest} (capacity {CAPACITY}); producers waited {waited_s:.2f} s for it")
    return {"consumed": consumed, "deepest": deepest, "waited_s": waited_s}


if __name__ == "__main__":
    main()
