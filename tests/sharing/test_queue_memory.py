"""The memory of a queue: where items are, the walks over them, and the words of calls."""

from __future__ import annotations

import itertools
import random

import pytest

from ropewalk.sharing.arena import ITEM_BYTES, NUM_BERTHS, NUM_SEATS, DepotArena
from ropewalk.sharing.queue_memory import (
    CALL,
    CELL,
    COUNT_AT,
    COUNTS,
    FULL,
    GET,
    GO_ROUND,
    JOIN,
    JOINED,
    LENGTH,
    PARTS_AT,
    PUT,
    RUN,
    RUN_ITEMS,
    QueueRing,
    opened,
    sealed,
    side,
)
from ropewalk.sharing.queue_ring import MOST_BYTES, OTHER
from ropewalk.sharing.record_words import (
    AHEAD,
    BOUND,
    FINISHED,
    GETS,
    NUMBER_BITS,
    PRESENT,
    PUTS,
    PUTTERS,
    PUTTERS_RING,
    QUEUE,
    RING,
    RING_LENGTH,
    TARGET,
)

NUM_CELLS = 16
ALL_CELLS = QueueRing.num_cells


@pytest.fixture(autouse=True)
def small_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(QueueRing, "num_cells", NUM_CELLS)


def a_ring(arena: DepotArena) -> QueueRing:
    ring = QueueRing(arena, arena.take_record())
    ring.begin(7, 3)
    return ring


def written(ring: QueueRing, *contents: bytes, at: int = 0) -> list[int]:
    """Write items, each behind the other one, without counting them; returns their places and the one behind them."""
    places = [at]
    for content in contents:
        ring.write(places[-1], content, 1)
        places.append(ring.after(places[-1]))
    return places


def test_what_is_in_one_word_does_not_overlap() -> None:
    kinds = GET, PUT, JOIN, JOINED
    assert [kind.bit_count() for kind in kinds] == [1] * 4
    assert len({*kinds}) == 4
    assert all(kind > CALL and kind < 1 << OTHER for kind in kinds)
    assert CALL & CALL + 1 == 0 < CALL >> NUMBER_BITS >= NUM_SEATS
    assert NUM_BERTHS <= 1 << NUMBER_BITS
    assert CELL & CELL + 1 == 0
    assert ITEM_BYTES // 8 <= CELL < 1 << COUNT_AT, "also the place behind the last cell"
    assert COUNTS & COUNTS + 1 == 0 < CELL < COUNTS
    assert (FULL, FULL.bit_length() < 64) == (COUNTS << COUNT_AT | CELL, True)
    assert LENGTH & LENGTH + 1 == 0 < MOST_BYTES <= LENGTH < 1 << PARTS_AT
    assert 8 * ALL_CELLS == ITEM_BYTES
    assert RUN.bit_count() == 1
    assert RUN_ITEMS & RUN_ITEMS + 1 == 0
    assert RUN_ITEMS >= ITEM_BYTES // 16, "an item has two cells, unless it is empty and nothing was packed"
    assert RUN_ITEMS << COUNT_AT < RUN < 1 << 63
    assert GO_ROUND < 0, "no header is"


def test_calls_of_join_wait_beside_those_of_put() -> None:
    assert [side(what) for what in (GET, PUT, JOIN, JOINED)] == [(QUEUE, RING), *[(PUTTERS, PUTTERS_RING)] * 3]


@pytest.mark.parametrize(
    "parts",
    [[b"one"], [b""], [b"one", b"", b"three"], [b"one", b"two", b"three"], [b"", b""], [bytes(9), bytearray(5)]],
)
def test_parts_are_one_and_become_parts_again(parts: list[bytes]) -> None:
    content, num_parts = sealed(parts)
    assert num_parts == len(parts)
    assert opened(bytes(content), num_parts) == parts
    assert (content is parts[0]) == (len(parts) == 1), "one is not copied"


def test_a_part_is_measured_in_bytes() -> None:
    content, num_parts = sealed([memoryview(bytes(16)).cast("q"), b"end"])
    assert opened(bytes(content), num_parts) == [bytes(16), b"end"]


def test_a_record_begins_empty_whatever_was_there(arena: DepotArena) -> None:
    ring = a_ring(arena)
    for word in (TARGET, BOUND, PRESENT, PUTS, GETS, AHEAD, FINISHED):
        ring.words[word] = 99
    ring.begin(7, 3)
    assert [ring.words[word] for word in (TARGET, BOUND, PRESENT)] == [7, 3, 0]
    assert [ring.words[word] for word in (PUTS, GETS, AHEAD, FINISHED)] == [0] * 4
    assert (ring.length, ring.count, ring.unfinished, ring.num_ahead, ring.items()) == (0, 0, 0, 0, [])


def test_items_that_were_written_are_those_of_a_queue_that_begins_again(arena: DepotArena) -> None:
    ring = a_ring(arena)
    *_, tail = written(ring, b"a", b"", b"ccccccccc")
    ring.words[AHEAD] = ring.words[PRESENT] = 1
    ring.restart(tail, 3, 5)
    assert tail == 2 + 1 + 3
    assert ring.items() == [(b"a", 1), (b"", 1), (b"ccccccccc", 1)]
    assert (ring.length, ring.count, ring.unfinished, ring.num_ahead) == (3, 3, 5, 0)
    assert ring.words[PRESENT] == 0


def test_items_are_found_behind_the_end_and_beside_runs(arena: DepotArena) -> None:
    """Three from the place 9 on, of which the second was taken; one more at the beginning."""
    ring = a_ring(arena)
    first, second, third, behind = written(ring, b"1", b"2", b"3", at=9)
    ring.headers[behind] = GO_ROUND
    _, tail = written(ring, b"4")
    ring.words[GETS] = COUNTS - 1 << COUNT_AT | first
    ring.words[PUTS] = 2 << COUNT_AT | tail
    ring.headers[second] = RUN | 1 << COUNT_AT | third
    ring.words[AHEAD] = 0 << 1 | 1  # numbers begin again at 2**40: that of the first is 2**40 - 2
    ring.words[FINISHED] = COUNTS
    assert (ring.length, ring.num_ahead, ring.count, ring.unfinished) == (4, 1, 3, 3)
    assert ring.items() == [(b"1", 1), (b"3", 1), (b"4", 1)]
    assert [ring.placed(rank) for rank in range(3)] == [(first, -1, 0), (third, second, 2), (0, -1, 3)]
    assert ring.run_behind(first) == (third, 1)
    assert ring.run_behind(third) == (behind, 0)
    ring.headers[0] = RUN | 1 << COUNT_AT | tail
    assert ring.run_behind(third) == (tail, 1), "it goes round"
    ring.words[GETS] = 0 << COUNT_AT | third
    assert (ring.num_ahead, ring.words[AHEAD]) == (0, 0), "the head has come so far"


def test_runs_of_several_items_are_one_step(arena: DepotArena) -> None:
    ring = a_ring(arena)
    places = written(ring, b"", b"", b"", b"", b"", b"", b"last")
    ring.words[PUTS] = 7 << COUNT_AT | places[-1]
    ring.headers[places[1]] = RUN | 2 << COUNT_AT | places[3]
    ring.headers[places[3]] = RUN | 3 << COUNT_AT | places[6]
    ring.headers[places[2]] = ring.headers[places[4]] = GO_ROUND  # are not looked at
    ring.words[AHEAD] = 6 << 1 | 1
    assert (ring.num_ahead, ring.count) == (5, 2)
    assert ring.run_behind(places[0]) == (places[6], 5)
    assert [ring.placed(rank) for rank in range(2)] == [(0, -1, 0), (places[6], places[3], 6)]
    assert ring.items() == [(b"", 1), (b"last", 1)]
    # The last one is taken as well, and behind it is a header of another time.
    ring.headers[places[6]] = RUN | 1 << COUNT_AT | places[7]
    ring.headers[places[7]] = RUN | 5 << COUNT_AT | 0
    ring.words[AHEAD] = 7 << 1 | 1
    assert (ring.num_ahead, ring.count, ring.items()) == (6, 1, [(b"", 1)])
    assert ring.run_behind(places[0]) == (places[7], 6)
    assert ring.placed(1) == (places[7], places[6], 7), "behind all of them"
    ring.words[GETS] = 7 << COUNT_AT | places[7]
    assert (ring.num_ahead, ring.count, ring.items()) == (0, 0, [])


def test_an_item_may_end_where_the_memory_ends(arena: DepotArena) -> None:
    ring = a_ring(arena)
    first, end = written(ring, bytes(8), at=NUM_CELLS - 2)
    assert end == NUM_CELLS
    ring.headers[end] = RUN  # no header is there
    written(ring, b"next")
    ring.words[GETS], ring.words[PUTS] = first, 2 << COUNT_AT | 2
    assert ring.item_at(end) == 0
    assert [content for content, _ in ring.items()] == [bytes(8), b"next"]
    assert ring.placed(1) == (0, -1, 1)
    assert ring.run_behind(first) == (end, 0)


def test_calls_are_in_their_turn_and_of_one_kind(arena: DepotArena) -> None:
    ring = a_ring(arena)
    assert ring.calls(GET) == []
    first = RING_LENGTH - 2
    for index, word in enumerate([PUT | 1, 0, JOIN | 2, JOINED | 3, PUT | 4]):
        ring.words[PUTTERS_RING + (first + index) % RING_LENGTH] = word
    ring.words[PUTTERS] = first | (first + 5) << 20
    assert ring.calls(PUT) == [PUT | 1, PUT | 4]
    assert ring.calls(JOIN | JOINED) == [JOIN | 2, JOINED | 3]
    assert ring.calls(PUT | JOIN, first + 4) == [PUT | 1, JOIN | 2]
    assert ring.calls(PUT, first) == []
    first = (1 << 20) - 1
    ring.words[PUTTERS] = first | 1 << 20
    ring.words[PUTTERS_RING + first % RING_LENGTH], ring.words[PUTTERS_RING] = PUT | 5, PUT | 6
    assert ring.calls(PUT) == [PUT | 5, PUT | 6]
    assert ring.calls(PUT, 0) == [PUT | 5]


def test_a_look_without_the_mutex_asks_for_an_item_or_for_room(arena: DepotArena) -> None:
    ring = a_ring(arena)
    seen = list[tuple[bool, bool]]()
    for count in range(4):
        ring.words[GETS], ring.words[PUTS] = 5 << COUNT_AT | 3, 5 + count << COUNT_AT | 1
        seen.append((ring.looks_possible(GET), ring.looks_possible(PUT)))
    assert seen == [(False, True), (True, True), (True, True), (True, False)]


class Counted:
    """Headers, of which only some may be read."""

    def __init__(self, headers: list[int], most: int) -> None:
        self.headers, self.left = headers, most

    def __getitem__(self, at: int) -> int:
        self.left -= 1
        assert self.left >= 0, "the walk does not end"
        return self.headers[at]


def test_walks_end_whatever_a_handler_has_written_meanwhile(arena: DepotArena) -> None:
    """In its last turn, a walk over items may find headers of another time; what it returns is dropped."""
    ring = a_ring(arena)
    choose = random.Random(0)
    kinds = [
        lambda: GO_ROUND,
        lambda: 0,
        lambda: 1 << PARTS_AT | choose.randrange(60),
        lambda: RUN | choose.randrange(3) << COUNT_AT | choose.randrange(NUM_CELLS),
    ]
    for _, num, first in itertools.product(range(12), range(5), range(NUM_CELLS)):
        headers = [choose.choice(kinds)() for _ in range(2 * NUM_CELLS)]
        ring.words[GETS], ring.words[PUTS] = first, num << COUNT_AT | choose.randrange(NUM_CELLS)
        for walk in (
            lambda: ring.placed(choose.randrange(5)),
            lambda: ring.run_behind(choose.randrange(NUM_CELLS)),
            lambda: ring.num_ahead,
        ):
            ring.words[AHEAD] = choose.randrange(5) << 1 | 1
            ring.headers = Counted(headers, 40)  # type: ignore[assignment]
            walk()
