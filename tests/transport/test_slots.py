from __future__ import annotations

import ctypes
import mmap
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ropewalk.errors import PeerLost
from ropewalk.transport.slots import ALIGN, Announced, Doorbell, DoorbellHandle, OpenFile, PeerSlots, SlotMemory
from tests.forked_process import ForkedProcess
from tests.transport.claimed_slots import num_claimed


class Pair:
    """Both ends of the way from a sender to a receiver, in one process."""

    def __init__(self) -> None:
        self.memory, self.bell = SlotMemory(), Doorbell()
        self.rope, self.peer = DoorbellHandle(self.bell.place, 7), PeerSlots(self.memory.place)

    def send(self, content: bytes) -> None:
        slot = self.memory.claim(len(content))
        ctypes.memmove(slot.address, content, len(content))
        self.rope.announce(slot, len(content))

    def receive(self) -> list[memoryview]:
        return [self.peer.open(message) for message in self.bell.heard()[0]]

    def close(self) -> None:
        for end in (self.memory, self.bell, self.rope, self.peer):
            end.close()


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    made.close()


# --- messages ---------------------------------------------------------------------------------------------------------


def test_a_message_is_read_where_it_was_written(pair: Pair) -> None:
    slot = pair.memory.claim(5)
    ctypes.memmove(slot.address, b"hello", 5)
    pair.rope.announce(slot, 5)
    (message,), was_rung = pair.bell.heard()
    assert was_rung and message.sender == 7
    memory = pair.peer.open(message)
    assert bytes(memory) == b"hello"
    ctypes.memmove(slot.address, b"j", 1)
    assert bytes(memory) == b"jello"
    memory[4:] = b"y"
    assert ctypes.string_at(slot.address, 5) == b"jelly"


def test_messages_begin_at_multiples_of_what_tensors_are_aligned_to(pair: Pair) -> None:
    sizes = [1, 1023, 1024, 1025, 5000, 70_000, 1 << 20]
    assert all(pair.memory.claim(size).address % ALIGN == 0 for size in sizes for _ in range(3))


def test_nothing_is_heard_where_nothing_was_said(pair: Pair) -> None:
    assert pair.bell.heard() == ([], False)
    pair.bell.ring()
    assert pair.bell.heard() == ([], True)


def test_a_slot_is_claimed_again_when_nobody_refers_to_its_message(pair: Pair) -> None:
    pair.send(b"a" * 2000)
    (memory,) = pair.receive()
    part = memory[:10]
    assert num_claimed(pair.memory) == 1
    del memory
    assert num_claimed(pair.memory) == 0, "a part of a view is another view; tensors hold the one that `open` gave"
    del part
    address = pair.memory.claim(2000).address
    assert ctypes.string_at(address, 1) == b"a"  # the same memory


def test_slots_become_free_in_any_order(pair: Pair) -> None:
    for number in range(40):
        pair.send(bytes([number]) * 3000)
    held = dict(enumerate(pair.receive()))
    size = pair.memory.size_bytes
    for number in [*range(0, 40, 3), *range(2, 40, 3)]:
        del held[number]
    for number in range(len(range(0, 40, 3)) + len(range(2, 40, 3))):
        pair.send(bytes([100 + number]) * 3000)
    assert pair.memory.size_bytes == size
    assert all(bytes(memory) == bytes([number]) * 3000 for number, memory in held.items())
    assert len(pair.receive()) == 27


def test_slabs_double_so_that_there_are_few_of_them(pair: Pair) -> None:
    descriptors = len(os.listdir("/proc/self/fd"))
    for _ in range(500):
        pair.send(b"x" * 100_000)
    held = pair.receive()
    assert len(held) == 500
    # A mapping takes a descriptor at each end. 0.1 MB, 0.1, 0.2, 0.4, ... 12.8, and then 16 MB each.
    assert len(os.listdir("/proc/self/fd")) - descriptors <= 2 * 11


def test_pages_of_slabs_that_are_not_used_any_more_are_given_back(pair: Pair) -> None:
    def resident() -> int:
        return os.stat(f"/proc/self/fd/{pair.memory.place.fd}").st_blocks * 512

    for _ in range(8):
        pair.send(b"x" * (1 << 20))
    pair.receive().clear()
    assert resident() >= 8 << 20
    pair.send(b"y" * (3 << 20))
    (memory,) = pair.receive()
    assert resident() < 5 << 20
    pair.send(b"z" * (1 << 20))  # and may be used again
    (again,) = pair.receive()
    assert bytes(again[:2]) == b"zz" and bytes(memory[-2:]) == b"yy"


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([1, 900, 1024, 1100, 4096, 40_000]), st.integers(0, 5)), max_size=60))
def test_messages_in_use_never_overlap(steps: list[tuple[int, int]]) -> None:
    pair = Pair()
    held: list[tuple[int, int, memoryview]] = []
    for number, (size, forget) in enumerate(steps):
        pair.send(bytes([number]) * size)
        held += [(number, size, memory) for memory in pair.receive()]
        if forget < len(held):
            del held[forget]
        assert all(bytes(memory) == bytes([number]) * size for number, size, memory in held)
        assert num_claimed(pair.memory) == len(pair.peer._in_use) == len(held)
    pair.close()
    assert all(bytes(memory) == bytes([number]) * size for number, size, memory in held), "also after closing"


def claim_many(memory: SlotMemory, num: int) -> None:
    for _ in range(num):
        memory.claim(1 << 20)


def test_where_memory_is_short_a_slab_has_fewer_slots() -> None:
    def claim() -> None:
        memory = SlotMemory()
        claim_many(memory, 12)
        used = int(Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE
        resource.setrlimit(resource.RLIMIT_AS, (used + (6 << 20), resource.RLIM_INFINITY))
        claim_many(memory, 5)  # the 17th would make a slab of 16
        with pytest.raises(OSError, match="memory"):
            claim_many(memory, 20)

    with ForkedProcess(claim) as child:
        child.wait_until_done()


# --- the bell ---------------------------------------------------------------------------------------------------------


def test_records_that_the_pipe_has_no_room_for_are_kept_and_come_in_order(pair: Pair) -> None:
    slot = pair.memory.claim(1)
    for number in range(5000):
        pair.rope.announce(slot, number)
    assert pair.rope.is_behind
    heard: list[Announced] = []
    while len(heard) < 5000:
        heard += pair.bell.heard()[0]
        pair.rope.flush()
    assert not pair.rope.is_behind
    assert [message.size_bytes for message in heard] == list(range(5000))


def test_ringing_a_full_bell_does_not_wait(pair: Pair) -> None:
    for _ in range(5000):
        pair.bell.ring()
    while pair.bell.heard()[1]:
        pass


def test_a_bell_that_is_closed_may_still_be_rung() -> None:
    bell = Doorbell()
    bell.close()
    bell.close()
    bell.ring()


def test_who_rings_hears_that_the_other_one_is_gone(pair: Pair) -> None:
    pair.bell.close()
    assert not pair.rope.is_lost
    pair.send(b"x")
    pair.send(b"x")
    assert pair.rope.is_lost and not pair.rope.is_behind


# --- places -----------------------------------------------------------------------------------------------------------


def test_what_is_closed_is_not_found() -> None:
    memory, bell = SlotMemory(), Doorbell()
    places = [memory.place, bell.place]
    memory.close()
    bell.close()
    for open_ in (lambda: PeerSlots(places[0]), lambda: DoorbellHandle(places[1], 0)):
        with pytest.raises(PeerLost, match="is gone or has closed"):
            open_()


def test_what_is_at_the_place_of_a_closed_file_is_not_taken_for_it() -> None:
    memory = SlotMemory()
    place = memory.place
    memory.close()
    other = SlotMemory()
    assert other.place.fd == place.fd, "the lowest descriptor is given out again"
    with pytest.raises(PeerLost, match="something else is there"):
        PeerSlots(place)
    other.close()


def test_a_process_that_has_ended_is_not_found() -> None:
    with ForkedProcess(lambda: None) as child:
        child.kill()
        with pytest.raises(PeerLost, match=f"process {child.pid} is gone"):
            PeerSlots(OpenFile(child.pid, 5, (0, 0)))


# --- processes that die -----------------------------------------------------------------------------------------------


def test_what_a_process_sent_before_it_was_killed_can_be_read() -> None:
    bell = Doorbell()
    memory = SlotMemory()

    def send() -> None:
        rope = DoorbellHandle(bell.place, 3)
        for number in range(100):
            slot = memory.claim(50_000)
            ctypes.memmove(slot.address, bytes([number]) * 50_000, 50_000)
            rope.announce(slot, 50_000)

    peer = PeerSlots(memory.place)
    with ForkedProcess(send) as child:
        child.wait_until_done()
        child.kill()
        messages = [peer.open(message) for message in bell.heard()[0]]
    assert [bytes(message) for message in messages] == [bytes([number]) * 50_000 for number in range(100)]
    for end in (bell, memory, peer):
        end.close()
