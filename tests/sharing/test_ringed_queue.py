"""Queues that pass between the memory of their host and its depot: in order, each item once, whoever waits."""

from __future__ import annotations

import os
import queue
import signal
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

import ropewalk as rw
from ropewalk.calls.payloads import PackedValue
from ropewalk.pool.pool import Pool
from ropewalk.sharing import queue_ring, queues
from ropewalk.sharing.arena import NUM_SEATS, DepotArena
from ropewalk.sharing.queue_memory import GET, QueueRing
from ropewalk.sharing.queue_ring import WAITS, Hand, RingCall
from ropewalk.sharing.queues import JoinableQueue, Queue
from ropewalk.sharing.record_words import IN_DEPOT, PRESENT
from ropewalk.sharing.ringed_queue import QueueInRing, RingedQueue
from ropewalk.sharing.states.waiting import Party, Waiter
from ropewalk.sharing.waiting_calls import QueuedItem

LARGE = b"x" * 600_000


@pytest.fixture
def pool(session: rw.Session) -> Iterator[Pool]:
    with Pool(3, session=session) as pool:
        yield pool


def is_in_depot(items: Queue) -> bool:
    calls = items._present_calls()
    assert calls
    return calls.words[PRESENT] == IN_DEPOT


def echo(items: Queue, answers: Queue) -> int:
    num = 0
    while (item := items.get()) is not None:
        answers.put((os.getpid(), item))
        num += 1
    return num


def wait_for_one(items: Queue, told: Queue) -> object:
    told.put(os.getpid())
    return items.get()


def test_small_items_never_meet_the_depot(session: rw.Session) -> None:
    items = Queue(session=session)
    for item in (1, "two", [3], {"four": (4,)}):
        items.put(item)
    assert not is_in_depot(items)
    assert [items.get() for _ in range(4)] == [1, "two", [3], {"four": (4,)}]


def test_large_items_stay_between_the_small_ones_and_the_queue_comes_back(session: rw.Session) -> None:
    items = Queue(session=session)
    for round in range(3):
        put = [1, LARGE, 2, 3, LARGE, round]
        for item in put:
            items.put(item)
        assert is_in_depot(items)
        assert items.qsize() == len(put)
        assert [items.get() for _ in put] == put
        items.put(4)
        assert [items.get(), items.empty()] == [4, True]
        with pytest.raises(queue.Empty):
            items.get_nowait()
        assert not is_in_depot(items)


def test_items_for_which_the_memory_has_no_room_are_kept_in_order(session: rw.Session) -> None:
    items, each = Queue(session=session), 200_000
    for number in range(100):
        items.put((number, bytes(each)))
    assert is_in_depot(items)
    for number in range(100):
        found, content = items.get()
        assert (found, len(content)) == (number, each)
    assert items.empty()


def test_a_call_that_waits_here_is_served_from_the_depot(session: rw.Session, pool: Pool) -> None:
    items, told = Queue(session=session), Queue(session=session)
    waiting = [pool.apply_async(wait_for_one, (items, told)) for _ in range(3)]
    for _ in waiting:
        told.get()
    for _ in waiting:
        items.put(LARGE)
    assert [result.get(120) for result in waiting] == [LARGE] * 3


def test_readers_and_writers_go_on_while_the_queue_passes_to_and_fro(session: rw.Session, pool: Pool) -> None:
    items, answers, num = Queue(session=session), Queue(session=session), 600
    readers = [pool.apply_async(echo, (items, answers)) for _ in range(3)]
    put = [(number, LARGE if number % 50 == 49 else number) for number in range(num)]
    for item in put:
        items.put(item)
    for _ in readers:
        items.put(None)
    assert sum(reader.get(120) for reader in readers) == num
    seen = [answers.get(timeout=120) for _ in range(num)]
    assert sorted(number for _, (number, _) in seen) == list(range(num))
    for pid in {pid for pid, _ in seen}:
        mine = [number for by, (number, _) in seen if by == pid]
        assert mine == sorted(mine)


def test_a_handle_that_cannot_reach_the_memory_shares_the_queue(
    session: rw.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    items = JoinableQueue(3, session=session)
    items.put(1)
    here = items._present_calls()
    with monkeypatch.context() as patch:
        patch.setattr(queues, "depot_client_of", lambda *_: None)
        items._calls = None
        items.put(2)
        items.put(3)
        assert items.full()
        with pytest.raises(queue.Full):
            items.put(4, timeout=0.05)
    items._calls = here
    assert items.full()
    with pytest.raises(queue.Full):
        items.put(4, timeout=0.05)
    assert [items.get() for _ in range(3)] == [1, 2, 3]
    joining = threading.Thread(target=items.join)
    joining.start()
    for _ in range(3):
        assert joining.is_alive()
        items.task_done()
    joining.join(120)
    assert not joining.is_alive()
    with pytest.raises(ValueError, match="too many times"):
        items.task_done()


def test_a_join_that_waited_ends_although_more_is_put_at_once(session: rw.Session) -> None:
    items = JoinableQueue(session=session)
    for _ in range(20):
        items.put(1)
        joining = threading.Thread(target=items.join)
        joining.start()
        items.get()
        items.task_done()
        items.put(2)
        if not joining.is_alive():
            joining.join()
        items.get()
        items.task_done()
        joining.join(120)
        assert not joining.is_alive()


class Interrupts:
    """Interrupts the process that unpickles it, the first time."""

    def __reduce__(self) -> Any:
        return interrupt_once, ()


is_interrupted = False


def interrupt_once() -> str:
    global is_interrupted
    if not is_interrupted:
        is_interrupted = True
        signal.raise_signal(signal.SIGINT)
    return "there"


def test_an_item_that_ctrl_c_kept_from_being_used_is_taken_next(session: rw.Session) -> None:
    global is_interrupted
    is_interrupted = False
    items = Queue(session=session)
    items.put(Interrupts())
    items.put("later")
    with pytest.raises(KeyboardInterrupt):
        items.get()
    assert [items.get(), items.get()] == ["there", "later"]


class Caller(Waiter):
    """A call that has a caller, as the depot knows it."""

    def __init__(self, process: str) -> None:
        super().__init__(Party(process, process))
        object.__setattr__(self, "caller", SimpleNamespace(party=self.party))


def depot_of(arena: DepotArena) -> tuple[RingedQueue, QueueRing]:
    numbers = {"near": 1, "other": 2, "far": NUM_SEATS + 1}
    names = {number: name for name, number in numbers.items()}
    desk: Any = SimpleNamespace(
        process_of=names.get, arena=arena, number=lambda caller: numbers[caller.party.process], number_of=numbers.get
    )
    slot = arena.take_record()
    state = RingedQueue(desk, slot)
    state.begin(1)
    return state, QueueRing(arena, slot)


def called(state: RingedQueue, method: str, *args: Any) -> Any:
    return getattr(state, method)(*args)


def an_item(content: bytes) -> QueuedItem:
    return QueuedItem(PackedValue((content,)), len(content))


def test_the_queue_stays_at_the_depot_while_another_host_takes_part(arena: DepotArena) -> None:
    state, ring = depot_of(arena)
    assert queue_ring.put(ring, b"1", 1) == 0
    far = Caller("far")
    (outcome,) = called(state, "get", far)
    assert (outcome.waiter, outcome.value.packed.parts, outcome.lent) == (far, [b"1"], True)
    state.taken(far)
    near = Caller("near")
    assert state.get_or_leave(near) == [], "it waits there"
    outcomes = called(state, "put", Caller("far"), an_item(b"2"))
    assert [outcome.waiter for outcome in outcomes][1] is near
    state.taken(near)
    state.party_gone("far", "it")
    (outcome,) = state.get_or_leave(Caller("near"))
    assert isinstance(outcome.error, QueueInRing)
    assert queue_ring.sizes(ring) == (0, 0)


def test_what_a_dead_process_of_another_host_was_lent_is_given_back_in_its_old_place(arena: DepotArena) -> None:
    state, ring = depot_of(arena)
    for content in (b"1", b"2", b"3"):
        queue_ring.put(ring, content, 1)
    called(state, "get", Caller("far"))
    state.party_gone("far", "it")
    (outcome,) = state.get_or_leave(Caller("near"))
    assert isinstance(outcome.error, QueueInRing)
    hand: Hand = [None]
    assert [(queue_ring.get(ring, hand), hand[0]) for _ in range(3)] == [(0, (b"%d" % n, 1)) for n in (1, 2, 3)]


def test_a_backlog_that_lasts_is_given_back_once_the_depot_has_made_as_many_calls(arena: DepotArena) -> None:
    state, ring = depot_of(arena)
    for number in range(500):
        queue_ring.put(ring, b"%d" % number, 1)
    called(state, "qsize", Caller("near"))  # which seizes them
    taken = list[bytes]()
    while True:
        near = Caller("near")
        (outcome,) = state.get_or_leave(near)
        if outcome.error:
            break
        taken += outcome.value.packed.parts
        state.taken(near)
    assert isinstance(outcome.error, QueueInRing)
    assert 200 < len(taken) < 300, "not earlier, as the items would pass to and fro, and not once all are taken"
    hand: Hand = [None]
    while queue_ring.get(ring, hand) == 0:
        assert hand[0]
        taken.append(hand[0][0])
    assert taken == [b"%d" % number for number in range(500)]


def test_calls_that_wait_at_the_depot_leave_with_the_queue(arena: DepotArena) -> None:
    state, ring = depot_of(arena)
    called(state, "qsize", Caller("near"))
    waiting, near = Caller("other"), Caller("near")
    called(state, "put", Caller("near"), an_item(b"1"))
    assert [outcome.waiter for outcome in called(state, "get", waiting)] == [waiting]
    assert state.get_or_leave(near) == [], "not while an item is lent"
    state.taken(waiting)
    again = Caller("other")
    left = state.get_or_leave(again)
    assert [outcome.waiter for outcome in left] == [near, again]
    assert all(isinstance(outcome.error, QueueInRing) for outcome in left)
    assert queue_ring.put(ring, b"2", 1) == 0


def test_the_calls_of_a_dead_process_leave_their_items_to_the_next(arena: DepotArena) -> None:
    state, ring = depot_of(arena)
    first, second = RingCall(1, 0, GET), RingCall(2, 0, GET)
    hand: Hand = [None]
    assert [queue_ring.get(ring, hand, call) for call in (first, second)] == [WAITS, WAITS]
    assert queue_ring.put(ring, b"1", 1) == first.word
    assert queue_ring.get(ring, hand, second) == WAITS
    arena.take_seat()
    state.party_gone("near", "it")
    assert queue_ring.get(ring, hand, second) == 0
    assert hand == [(b"1", 1)]


def test_the_memory_of_a_queue_goes_with_it(arena: DepotArena) -> None:
    state, ring = depot_of(arena)
    for _ in range(100):
        queue_ring.put(ring, bytes(100_000), 1)
    fd = arena._fd
    before = os.fstat(fd).st_blocks
    state.close()
    assert before - os.fstat(fd).st_blocks > 100 * 100_000 // 512


def test_a_reader_that_is_stopped_keeps_its_turn_and_its_item(arena: DepotArena) -> None:
    state, ring = depot_of(arena)
    stopped, later = RingCall(1, 0, GET), RingCall(2, 0, GET)
    hand: Hand = [None]
    assert [queue_ring.get(ring, hand, call) for call in (stopped, later)] == [WAITS, WAITS]
    assert queue_ring.put(ring, b"1", 1) == stopped.word
    far = Caller("far")
    assert [outcome.waiter for outcome in called(state, "put", far, an_item(b"2"))] == [far], "the others are claims"
    assert called(state, "get", Caller("far")) == []
    own, others = Caller("near"), Caller("other")
    (outcome,) = state.get_or_leave(others)
    assert (outcome.waiter, outcome.value.packed.parts) == (others, (b"2",))
    (outcome,) = state.get_or_leave(own)
    assert (outcome.waiter, outcome.value.packed.parts) == (own, [b"1"])


@pytest.mark.parametrize("is_dead", [False, True])
def test_the_claim_of_a_call_that_is_not_made_any_more_goes_to_the_next(arena: DepotArena, is_dead: bool) -> None:
    state, ring = depot_of(arena)
    assert queue_ring.get(ring, [None], RingCall(1, 0, GET)) == WAITS
    queue_ring.put(ring, b"1", 1)
    far = Caller("far")
    assert called(state, "get", far) == []
    outcomes = state.party_gone("near", "it") if is_dead else state.unclaim("near")
    assert [(outcome.waiter, outcome.value.packed.parts) for outcome in outcomes] == [(far, [b"1"])]
