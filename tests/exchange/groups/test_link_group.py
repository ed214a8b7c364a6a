"""Collectives over one-way calls: right, the same bits everywhere, and never a wait for who is gone."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ropewalk.errors import ExchangeAborted, ExchangeInvalid, ExchangeStalled, MemberLost
from ropewalk.exchange.groups.inbox import Inbox, Packet
from ropewalk.exchange.groups.link_emulation import LinkEmulation
from ropewalk.exchange.groups.link_group import LinkGroup
from tests.patience import PATIENCE_S

T = TypeVar("T")


def groups_of(size: int, *, epoch: int = 0, inboxes: list[Inbox] | None = None, **options: Any) -> list[LinkGroup]:
    inboxes = inboxes or [Inbox() for _ in range(size)]
    names = [f"worker.{rank}" for rank in range(size)]
    options.setdefault("timeout_s", PATIENCE_S)
    return [
        LinkGroup(rank, names, epoch, [inbox.deliver for inbox in inboxes], inboxes[rank], **options)
        for rank in range(size)
    ]


def on_all(groups: list[LinkGroup], do: Callable[[LinkGroup], T]) -> list[T]:
    with ThreadPoolExecutor(len(groups)) as threads:
        return list(threads.map(do, groups))


@settings(deadline=None, max_examples=30)
@given(
    st.integers(1, 5),
    st.sampled_from([1, 3, 1000, 4096, 20_001]),
    st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
    st.integers(0, 1000),
)
def test_a_sum_has_the_bits_of_one_process_everywhere(size: int, numel: int, dtype: torch.dtype, seed: int) -> None:
    terms = [torch.randn(numel, generator=torch.Generator().manual_seed(seed + rank)).to(dtype) for rank in range(size)]
    groups = groups_of(size)
    buffers = [term.clone() for term in terms]

    def reduce(group: LinkGroup) -> None:
        for _ in range(2):  # the second one follows at once, over buffers that the caller has changed
            group.all_reduce(buffers[group.rank], "bucket 0").wait()
            buffers[group.rank].mul_(0.5)

    on_all(groups, reduce)
    expected = in_order([in_order(terms) * 0.5] * size) * 0.5
    assert all(torch.equal(buffer, expected) for buffer in buffers)


def in_order(terms: Sequence[Tensor]) -> Tensor:
    """The sum as one process adds it up."""
    return functools.reduce(torch.add, terms)


def test_who_does_not_come_to_a_sum_is_named_by_all() -> None:
    # In a ring a member knows only that the one before it has not sent.
    first, *_ = groups_of(4, timeout_s=0.2, inboxes=(inboxes := [Inbox() for _ in range(4)]))
    for rank in (1, 3):
        inboxes[0].deliver(Packet(0, rank, 0, 0, "bucket 0", (), bytes(10_000)))
    with pytest.raises(ExchangeStalled, match="rank 2 did not come to 'bucket 0' within") as caught:
        first.all_reduce(torch.ones(10_000), "bucket 0")
    assert caught.value.ranks == (2,)


def test_a_sum_sends_twice_the_buffer_less_the_own_share() -> None:
    groups = groups_of(4)
    on_all(groups, lambda group: group.all_reduce(torch.ones(100_000), "bucket 0"))
    for group in groups:
        assert group.traffic.sent_bytes == group.traffic.received_bytes == 2 * 3 * 100_000
        assert group.traffic.headers_sent == 6 * 8


def test_messages_of_any_length_are_gathered_with_their_facts() -> None:
    groups = groups_of(3)
    messages = [b"", b"abc", bytes(200_000)]
    found = on_all(groups, lambda group: group.all_gather(memoryview(messages[group.rank]), [group.rank, 7], "sizes"))
    for gathered in found:
        assert [bytes(message) for message, _ in gathered] == messages
        assert [facts for _, facts in gathered] == [(0, 7), (1, 7), (2, 7)]
    assert groups[0].traffic.sent_bytes == 0 and groups[0].traffic.headers_sent == 2 * 3 * 8


def test_a_message_is_ones_own_again_as_soon_as_the_call_returns() -> None:
    held: list[Packet] = []
    inboxes = [Inbox(), Inbox()]
    sender = LinkGroup(0, ["a", "b"], 0, [inboxes[0].deliver, held.append], inboxes[0])
    reader = threading.Thread(target=lambda: inboxes[0].deliver(Packet(0, 1, 0, 0, "x", (), None)))
    reader.start()
    message = bytearray(b"first")
    sender.all_gather(memoryview(message), (), "x")
    message[:] = b"again"
    assert bytes(held[0].payload) == b"first"
    reader.join()


def test_what_one_member_has_all_get() -> None:
    groups = groups_of(3)
    buffers = [torch.full((2, 3), float(rank)) for rank in range(3)]
    on_all(groups, lambda group: group.broadcast(buffers[group.rank], 1, "weights"))
    assert all(torch.equal(buffer, torch.ones(2, 3)) for buffer in buffers)


def test_a_member_that_dies_ends_the_wait_of_all_others() -> None:
    groups = groups_of(3, timeout_s=3600.0)

    def wait(group: LinkGroup) -> Any:
        if group.rank == 2:
            for other in groups[:2]:
                other.lose(2)
            return None
        with pytest.raises(MemberLost, match=r"rank 2 \(worker.2\)") as caught:
            group.all_reduce(torch.ones(10_000), "bucket 0")
        return caught.value

    lost = on_all(groups, wait)[:2]
    assert all(error.ranks == (2,) and error.members == ("worker.2",) and error.epoch == 0 for error in lost)
    with pytest.raises(MemberLost):
        groups[0].all_gather(memoryview(b""), (), "later")


def test_who_does_not_come_is_named() -> None:
    groups = groups_of(3, timeout_s=0.2)
    with pytest.raises(ExchangeStalled, match=r"ranks 1, 2 did not come to 'bucket 3' within 0.2 s") as caught:
        groups[0].all_gather(memoryview(b"x"), (), "bucket 3")
    assert caught.value.ranks == (1, 2)


def test_packets_are_taken_in_the_order_of_their_arrival() -> None:
    # Emulated links count what arrives in this order: another one made a sum look slower than it was.
    inbox = Inbox()
    for source in (2, 0, 1):
        inbox.deliver(Packet(0, source, 0, 0, "x", (), None))
    sources = {0, 1, 2}
    found: list[int] = []
    while sources:
        packet, _ = inbox.take(0, 0, 0, "x", sources, 0.0)
        found.append(packet.source)
        sources.remove(packet.source)
    assert found == [2, 0, 1]


def test_members_in_different_collectives_are_told_both() -> None:
    groups = groups_of(2)

    def exchange(group: LinkGroup) -> str:
        with pytest.raises(ExchangeStalled) as caught:
            group.all_gather(memoryview(b"x"), (), f"bucket {group.rank}")
        return str(caught.value)

    words = on_all(groups, exchange)
    assert "rank 1 is at 'bucket 1' where this member is at 'bucket 0'" in words[0]


def test_an_abort_wakes_who_waits() -> None:
    groups = groups_of(2)
    threading.Timer(0.1, groups[0].abort).start()
    with pytest.raises(ExchangeAborted):
        groups[0].all_reduce(torch.ones(5), "bucket 0")


def test_late_packets_of_an_old_epoch_are_dropped_and_early_ones_of_the_next_wait() -> None:
    inboxes = [Inbox(), Inbox()]
    old = groups_of(2, inboxes=inboxes)
    # Member 1 is in the next epoch already, and member 0 not yet.
    new_1 = LinkGroup(1, ["a", "b"], 1, [inbox.deliver for inbox in inboxes], inboxes[1], timeout_s=PATIENCE_S)
    with ThreadPoolExecutor(1) as threads:
        early = threads.submit(new_1.all_gather, memoryview(b"new"), (), "x")
        new_0 = LinkGroup(0, ["a", "b"], 1, [inbox.deliver for inbox in inboxes], inboxes[0], timeout_s=PATIENCE_S)
        inboxes[0].deliver(Packet(0, 1, 0, 0, "x", (), b"late"))
        found = new_0.all_gather(memoryview(b"mine"), (), "x")
        assert [bytes(message) for message, _ in found] == [b"mine", b"new"]
        assert [bytes(message) for message, _ in early.result()] == [b"mine", b"new"]
    with pytest.raises(ExchangeAborted):
        old[0].all_gather(memoryview(b""), (), "x")


def test_the_last_note_of_each_member_is_on_every_board() -> None:
    groups = groups_of(3)
    boards = [group.board for group in groups if group.board]
    assert boards[0].read() == [None, None, None]
    boards[1].post(b"step 1")
    boards[1].post(b"step 2")
    boards[2].post(b"step 7")
    assert all(board.read() == [None, b"step 2", b"step 7"] for board in boards)
    on_all(groups, lambda group: group.all_reduce(torch.ones(3), "bucket 0"))  # notes are in nobody's way


def test_a_shaped_link_takes_the_time_of_its_rate() -> None:
    groups = groups_of(2, shaping=LinkEmulation("8Mbit/s"))
    started = time.monotonic()
    on_all(groups, lambda group: group.all_reduce(torch.ones(50_000), "bucket 0"))  # 200 kB each way
    assert time.monotonic() - started >= 0.19


def test_ranks_that_cannot_be_are_refused() -> None:
    with pytest.raises(ExchangeInvalid, match="rank 2 of 2 members"):
        LinkGroup(2, ["a", "b"], 0, [print, print], Inbox())
