"""A group of threads keeps the promises of groups, faults included."""

from __future__ import annotations

import threading

import pytest
import torch

from ropewalk.errors import ExchangeAborted, ExchangeInvalid, ExchangeStalled, MemberLost
from ropewalk.exchange.groups.thread_group import ThreadGroup, run_members


def test_all_members_hold_the_same_bits_of_the_sum_in_the_order_of_ranks() -> None:
    values = [torch.randn(101, generator=torch.Generator().manual_seed(rank)) for rank in range(3)]

    def body(group: ThreadGroup) -> torch.Tensor:
        buffers = [values[group.rank].clone() for _ in range(3)]
        for work in [group.all_reduce(buffer, f"bucket {at}") for at, buffer in enumerate(buffers)]:
            work.wait()
            work.wait()
            assert work.done
        return torch.stack(buffers)

    expected = values[0] + values[1] + values[2]
    for result in run_members(ThreadGroup.make(3), body):
        assert torch.equal(result, expected.expand(3, -1))


def test_messages_of_any_length_and_facts_reach_every_member() -> None:
    groups = ThreadGroup.make(3)

    def body(group: ThreadGroup) -> list[tuple[bytes, tuple[int, ...]]]:
        gathered = group.all_gather(memoryview(b"x" * group.rank), [group.rank, -1], "b")
        return [(bytes(data), facts) for data, facts in gathered]

    assert run_members(groups, body) == [[(b"", (0, -1)), (b"x", (1, -1)), (b"xx", (2, -1))]] * 3
    assert [group.traffic.sent_bytes for group in groups] == [0, 2, 4]
    assert [group.traffic.received_bytes for group in groups] == [3, 2, 1]
    assert {group.traffic.headers_sent for group in groups} == {48}


def test_a_broadcast_gives_the_values_of_its_root() -> None:
    def body(group: ThreadGroup) -> list[float]:
        buffer = torch.full((2,), float(group.rank))
        group.broadcast(buffer, 1, "weights")
        return buffer.tolist()

    assert run_members(ThreadGroup.make(3), body) == [[1.0, 1.0]] * 3


def test_who_waits_for_a_member_that_left_is_told_its_name() -> None:
    groups = ThreadGroup.make(3, epoch=4, members=["a", "b", "c"])
    groups[1].leave()

    def body(group: ThreadGroup) -> None:
        group.all_reduce(torch.zeros(2), "bucket 0").wait()

    with pytest.raises(MemberLost, match=r"b \(of 3 members, epoch 4\) left before all_reduce") as caught:
        run_members([groups[0], groups[2]], body)
    assert (caught.value.ranks, caught.value.members, caught.value.epoch) == ((1,), ("b",), 4)


def test_an_abort_wakes_its_own_member_and_ends_its_group() -> None:
    group = ThreadGroup.make(2, epoch=3)[0]
    work = group.all_reduce(torch.zeros(2), "bucket 0")
    timer = threading.Timer(0.01, group.abort)
    timer.start()
    with pytest.raises(ExchangeAborted) as caught:
        work.wait()
    timer.join()
    assert caught.value.epoch == 3
    with pytest.raises(ExchangeAborted):
        group.all_reduce(torch.zeros(2), "bucket 1")


def test_a_member_that_does_not_come_is_named_after_the_timeout() -> None:
    group = ThreadGroup.make(3, timeout_s=0.01)[1]
    with pytest.raises(ExchangeStalled, match=r"ranks 0, 2 did not come to all_gather\(.bucket 0") as caught:
        group.all_gather(memoryview(b""), [], "bucket 0")
    assert caught.value.ranks == (0, 2)


def test_calls_in_another_order_are_refused() -> None:
    first, second = ThreadGroup.make(2)
    first.all_reduce(torch.zeros(1), "bucket 0")
    with pytest.raises(ExchangeInvalid, match=r"bucket 1.*bucket 0"):
        second.all_reduce(torch.zeros(1), "bucket 1")


def test_buffers_that_do_not_fit_are_an_error_of_every_member() -> None:
    """Only the last one to come had it, and the others waited for nobody until their timeout."""
    errors: list[ExchangeInvalid] = []

    def body(group: ThreadGroup) -> None:
        with pytest.raises(
            ExchangeInvalid, match=r"all_reduce\('bucket 0'\) of 3 members cannot be: The size"
        ) as caught:
            group.all_reduce(torch.zeros(2 + group.rank), "bucket 0").wait()
        errors.append(caught.value)

    run_members(ThreadGroup.make(3), body)
    assert len(errors) == 3
