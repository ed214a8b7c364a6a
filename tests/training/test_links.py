from __future__ import annotations

import gc
import multiprocessing
import os
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ropewalk.errors import PeerLost, ScheduleInvalid
from ropewalk.pipeline.plans import Edge, Plan, PlanWorker, Stage
from ropewalk.pipeline.stages.gradient_sums import Contributor, GradientContribution, SumKey
from ropewalk.pipeline.stages.in_memory_links import LinkMessage, Tag
from ropewalk.training.far_links import FarMessage
from ropewalk.training.links import Endpoint, ProcessLinks
from ropewalk.training.near_links import NearLinks
from ropewalk.training.sliced_sum import SlicedGradient, SumMessage, SumPart
from ropewalk.transport.slots import SlotMemory
from tests.forked_process import ForkedProcess
from tests.patience import PATIENCE_S
from tests.transport.claimed_slots import num_claimed

#: Stages 0 and 2 share a worker; stage 1 has two replicas.
PLAN = Plan(
    (Stage(0, ("a",), (0,)), Stage(1, ("b",), (1, 2)), Stage(2, ("c",), (0,))),
    (Edge("a", 0, (1, 2), 4, 4), Edge("b", 1, (2,), 4, 4)),
)
FIRST, LEFT, RIGHT = PLAN.workers
SUM = SumKey("replicas of stage 1", (Contributor(1, 0), Contributor(1, 1)), 3)


@contextmanager
def links_of(*workers: PlanWorker, slots: int | None = None, epoch: int = 0) -> Generator[list[ProcessLinks]]:
    """All in this process, as if they were several."""
    made = [ProcessLinks(epoch, worker, PLAN, slots=slots) for worker in workers]
    endpoints = {links.me: links.endpoint() for links in made}
    for links in made:
        links.connect(endpoints)
    try:
        yield made
    finally:
        for links in made:
            links.close()
            links.close()


def received(links: ProcessLinks, tag: Tag, timeout_s: float = PATIENCE_S) -> LinkMessage:
    """Wait for it as a stage does."""
    deadline = time.monotonic() + timeout_s
    while not links.has(tag):
        assert links.wait(deadline - time.monotonic()), f"{tag} has not come"
    return links.receive(tag)


# --- parcels ----------------------------------------------------------------------------------------------------------


def test_a_parcel_comes_to_the_worker_of_its_micro_batch() -> None:
    with links_of(*PLAN.workers) as (first, left, right):
        for number in range(4):
            first.send(Tag("a", 0, 1, number), LinkMessage(torch.full((2,), float(number))))
        assert [left.has(Tag("a", 0, 1, number)) for number in range(4)] == [True, False, True, False]
        for number in (3, 1):  # in any order
            assert torch.equal(received(right, Tag("a", 0, 1, number)).tree, torch.full((2,), float(number)))
        assert not right.has(Tag("a", 0, 1, 1))


def test_everything_of_a_parcel_comes() -> None:
    with links_of(FIRST, LEFT) as (first, left):
        there, back = Tag("a", 0, 1, 0), Tag("a", 1, 0, 0)
        state = torch.get_rng_state()
        first.send(there, LinkMessage({"x": torch.ones(2, requires_grad=True), "n": 3}, generator=state))
        found = left.receive(there) if left.has(there) else None
        assert found is not None and found.generator is not None and found.weight is None
        assert found.tree["x"].requires_grad and found.tree["n"] == 3 and torch.equal(found.generator, state)
        left.send(back, LinkMessage((None, torch.ones(3)), weight=2.5))
        gradient = received(first, back)
        assert gradient.weight == 2.5 and gradient.tree[0] is None and gradient.generator is None


def test_stages_of_one_worker_hand_the_object_itself_over() -> None:
    with links_of(FIRST) as (first,):
        parcel = LinkMessage(torch.ones(2))
        first.send(Tag("a", 0, 2, 0), parcel)
        assert first.has(Tag("a", 0, 2, 0)) and first.receive(Tag("a", 0, 2, 0)) is parcel
        assert not first.has(Tag("a", 0, 2, 0)) and not first.traffic


def test_a_tensor_may_change_once_it_was_sent() -> None:
    with links_of(FIRST, LEFT) as (first, left):
        tensor = torch.ones(5)
        first.send(Tag("a", 0, 1, 0), LinkMessage(tensor))
        tensor.zero_()
        assert torch.equal(received(left, Tag("a", 0, 1, 0)).tree, torch.ones(5))


def test_the_same_message_twice_is_refused() -> None:
    with links_of(FIRST, LEFT) as (first, left):
        for _ in range(2):
            first.send(Tag("a", 0, 1, 0), LinkMessage(None))
        with pytest.raises(ScheduleInvalid, match="a of micro-batch 0 from stage 0 to stage 1 is sent a second time"):
            left.wait()


def test_what_comes_before_the_ways_are_made_waits() -> None:
    first, left = ProcessLinks(0, FIRST, PLAN), ProcessLinks(0, LEFT, PLAN)
    first.connect({LEFT: left.endpoint()})
    first.send(Tag("a", 0, 1, 0), LinkMessage(torch.ones(2)))
    assert not left.has(Tag("a", 0, 1, 0))
    left.connect({FIRST: first.endpoint(), LEFT: left.endpoint()})
    assert left.has(Tag("a", 0, 1, 0))
    assert left.wait(0)
    left.close()
    first.close()


def test_traffic_is_counted_where_it_is_sent() -> None:
    with links_of(*PLAN.workers) as (first, left, _):
        for number in (0, 2):
            first.send(Tag("a", 0, 1, number), LinkMessage(torch.zeros(1000)))
        assert first.traffic[LEFT].messages == 2 and 8000 < first.traffic[LEFT].size_bytes < 10_000
        assert first.traffic[RIGHT].messages == left.traffic[FIRST].messages == 0


def test_received_tensors_outlive_the_links() -> None:
    with links_of(FIRST, LEFT) as (first, left):
        first.send(Tag("a", 0, 1, 0), LinkMessage(torch.arange(1000)))
        tensor = received(left, Tag("a", 0, 1, 0)).tree
    assert torch.equal(tensor, torch.arange(1000))


# --- waiting ----------------------------------------------------------------------------------------------------------


def test_a_wait_ends_when_something_came_and_when_it_was_long_enough() -> None:
    with links_of(FIRST, LEFT) as (first, left):
        assert not left.wait(0.01)
        first.send(Tag("a", 0, 1, 0), LinkMessage(None))
        assert left.wait(120)
        assert not left.wait(0.01)


def test_what_came_while_something_else_was_asked_for_ends_the_next_wait() -> None:
    with links_of(FIRST, LEFT) as (first, left):
        assert not left.has(Tag("a", 0, 1, 0))
        first.send(Tag("a", 0, 1, 0), LinkMessage(None))
        assert not left.has(Tag("a", 0, 1, 2))
        assert left.wait(0)


def test_ringing_ends_a_wait_that_is_under_way_and_else_the_next() -> None:
    with links_of(FIRST) as (first,):
        ringing = threading.Timer(0.05, first.ring)
        ringing.start()
        assert first.wait(120)
        ringing.join()
        first.ring()
        first.ring()
        assert first.wait(120)
        assert not first.wait(0)


# --- bounds -----------------------------------------------------------------------------------------------------------


def test_a_bounded_link_has_room_again_when_something_was_received() -> None:
    with links_of(*PLAN.workers, slots=2) as (first, left, _):
        tags = [Tag("a", 0, 1, number) for number in range(0, 6, 2)]
        for tag in tags[:2]:
            assert first.has_room(tag)
            first.send(tag, LinkMessage(torch.ones(3)))
        assert not first.has_room(tags[2])
        assert first.has_room(Tag("a", 0, 1, 1)), "to another worker"
        assert first.has_room(Tag("a", 0, 2, 0)), "to another stage"
        kept = received(left, tags[1])
        assert first.wait(120) and first.has_room(tags[2])
        assert torch.equal(kept.tree, torch.ones(3)), "it is received, though still in use"


def test_a_bounded_link_within_a_worker_has_room_when_its_value_was_received() -> None:
    with links_of(FIRST, slots=1) as (first,):
        first.send(Tag("a", 0, 2, 0), LinkMessage(None))
        assert not first.has_room(Tag("a", 0, 2, 1))
        first.receive(Tag("a", 0, 2, 0))
        assert first.has_room(Tag("a", 0, 2, 1))


def test_an_unbounded_link_never_waits_for_its_receiver() -> None:
    with links_of(FIRST, LEFT) as (first, left):
        for number in range(0, 8000, 2):
            assert first.has_room(Tag("a", 0, 1, number))
            first.send(Tag("a", 0, 1, number), LinkMessage(number))
        # More records than the pipe holds: the rest is on its way whenever the sender has a look.
        for number in range(0, 8000, 2):
            while not left.has(Tag("a", 0, 1, number)):
                assert not first.wait(0)
        assert left.receive(Tag("a", 0, 1, 7998)).tree == 7998


# --- memory -----------------------------------------------------------------------------------------------------------

SHAPES = [(), (0,), (3,), (40, 40), (300, 300)]
steps = st.one_of(
    st.tuples(st.just("send"), st.integers(0, 2), st.sampled_from(SHAPES)),
    st.tuples(st.just("receive"), st.integers(0, 2), st.integers(0, 5)),
    st.tuples(st.just("forget"), st.integers(0, 8), st.none()),
)


def fuzz(actions: Sequence[tuple[str, int, Any]]) -> None:
    """Send, receive in any order, hold and forget between three workers; contents are looked at all the time."""
    ways = [(0, 1), (1, 0), (0, 2)]
    with links_of(*PLAN.workers) as ends:
        sent: list[deque[tuple[Tag, Tensor]]] = [deque(), deque(), deque()]
        held: list[tuple[Tensor, Tensor]] = []
        for number, (what, which, how) in enumerate(actions):
            if what == "send":
                source, target = ways[which]
                tag = Tag("a", min(source, 1), min(target, 1), 2 * number + (2 in ways[which]))
                tensor = torch.full(how, float(number))
                ends[source].send(tag, LinkMessage((tensor, None)))
                sent[which].append((tag, tensor))
            elif what == "receive" and sent[which]:
                sent[which].rotate(how)
                tag, expected = sent[which].pop()
                held.append((received(ends[ways[which][1]], tag).tree[0], expected))
            elif what == "forget" and held:
                del held[which % len(held)]
            assert all(torch.equal(found, expected) for found, expected in held[-4:])
        assert all(torch.equal(found, expected) for found, expected in held)
        held.clear()
        for which, tags in enumerate(sent):
            for tag, expected in tags:
                assert torch.equal(received(ends[ways[which][1]], tag).tree[0], expected)
        assert not any(num_claimed_by(end) for end in ends), "every slot is free again"


def memory(links: ProcessLinks) -> SlotMemory:
    near = links._transports["memory"]
    assert isinstance(near, NearLinks)
    return near.memory


def num_claimed_by(links: ProcessLinks) -> int:
    return num_claimed(memory(links))


@settings(max_examples=50, deadline=None)
@given(st.lists(steps, max_size=60))
def test_whatever_is_sent_held_and_forgotten_comes_as_it_was(actions: list[tuple[str, int, Any]]) -> None:
    fuzz(actions)


def random_actions(seed: int, num: int) -> list[tuple[str, int, Any]]:
    draw = random.Random(seed)
    kinds: list[Callable[[], tuple[str, int, Any]]] = [
        lambda: ("send", draw.randrange(3), draw.choice(SHAPES)),
        lambda: ("receive", draw.randrange(3), draw.randrange(6)),
        lambda: ("forget", draw.randrange(50), None),
    ]
    return [draw.choice(kinds)() for _ in range(num)]


def test_thousands_of_messages_come_as_they_were() -> None:
    fuzz(random_actions(0, 6000))


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(1, 7))
def test_many_thousands_of_messages_come_as_they_were(seed: int) -> None:
    fuzz(random_actions(seed, 60_000))


def test_memory_is_used_again_from_step_to_step() -> None:
    with links_of(FIRST, LEFT) as (first, left):
        sizes: list[int] = []
        for _ in range(30):
            tags = [Tag("a", 0, 1, number) for number in range(0, 16, 2)]
            for tag in tags:
                first.send(tag, LinkMessage(torch.ones(50_000)))
            held = [received(left, tag) for tag in tags]
            assert len(held) == 8
            del held
            sizes.append(memory(first).size_bytes)
        assert len(set(sizes)) == 1


def test_nothing_is_left_open_after_closing() -> None:
    gc.collect()  # what earlier tests have left may have descriptors
    before = len(os.listdir("/proc/self/fd"))
    with links_of(*PLAN.workers) as (first, left, _):
        for number in range(0, 40, 2):
            first.send(Tag("a", 0, 1, number), LinkMessage(torch.ones(10_000)))
        left.wait()
    assert len(os.listdir("/proc/self/fd")) == before


# --- sums -------------------------------------------------------------------------------------------------------------


def test_a_part_of_a_sum_is_given_once() -> None:
    with links_of(LEFT, RIGHT) as (left, right):
        whole = GradientContribution({"w": torch.ones(3), "b": None}, 2.0)
        slices = {SlicedGradient("v", (2, 2), (2, 1)): torch.zeros(2)}
        left.send_part(RIGHT, SUM, SumPart(Contributor(1, 0), False), SumMessage(whole, slices))
        left.send_part(RIGHT, SUM, SumPart(Contributor(1, 0), True), SumMessage(None, slices))
        found = right.parts(SUM)
        assert list(found) == [SumPart(Contributor(1, 0), False), SumPart(Contributor(1, 0), True)]
        part, total = found.values()
        assert part.whole is not None and part.whole.weight == 2.0 and part.whole.gradients["b"] is None
        assert (w := part.whole.gradients["w"]) is not None and torch.equal(w, torch.ones(3))
        assert total.whole is None and list(total.slices) == list(part.slices) == list(slices)
        assert not right.parts(SUM)


# --- epochs and peers -------------------------------------------------------------------------------------------------


def test_endpoints_of_another_epoch_are_refused() -> None:
    with links_of(FIRST, epoch=1) as (first,), links_of(LEFT, epoch=2) as (left,):
        with pytest.raises(
            ValueError, match=r"worker 1.0 has links of epoch 2, and those of worker 0.0 are of epoch 1"
        ):
            first.connect({LEFT: left.endpoint()})


def test_a_worker_of_another_host_needs_a_client() -> None:
    with links_of(FIRST) as (first,), links_of(LEFT) as (left,):
        with pytest.raises(ValueError, match=r"worker 1.0 \(host 'mars'\).* share no memory, and there is no client"):
            first.connect({LEFT: replace(left.endpoint(), host="mars")})


def test_a_peer_that_has_closed_already_is_found_when_it_is_met() -> None:
    with links_of(LEFT) as (left,):
        endpoint = left.endpoint()
    with links_of(FIRST) as (first,):
        with pytest.raises(PeerLost):
            first.connect({LEFT: endpoint})


def test_sending_to_a_peer_that_is_gone_says_so_and_takes_no_memory() -> None:
    with links_of(FIRST, LEFT) as (first, left):
        left.close()
        for number in range(0, 2000, 2):
            first.send(Tag("a", 0, 1, number), LinkMessage(torch.ones(10_000)))
        assert first.lost == {LEFT: "its process is gone"}
        assert num_claimed_by(first) <= 1
        assert not first.wait(0.01)


def peer(pipe: Any, me: PlanWorker, other: PlanWorker, work: Callable[[ProcessLinks], object]) -> None:
    torch.set_num_threads(1)
    links = ProcessLinks(0, me, PLAN)
    pipe.send(links.endpoint())
    links.connect({other: pipe.recv()})
    pipe.send("connected")
    work(links)


@contextmanager
def peer_process(work: Callable[[ProcessLinks], object]) -> Generator[tuple[ProcessLinks, ForkedProcess]]:
    """The first worker here, and LEFT in a process of its own that does some work."""
    ours, theirs = multiprocessing.Pipe()
    with ours, theirs, links_of(FIRST) as (first,):
        with ForkedProcess(lambda: peer(theirs, LEFT, FIRST, work)) as process:
            endpoint: Endpoint = ours.recv()
            ours.send(first.endpoint())
            first.connect({LEFT: endpoint})
            assert ours.recv() == "connected"
            yield first, process


def echo(links: ProcessLinks) -> None:
    for number in range(0, 1 << 30, 2):
        links.send(Tag("a", 1, 0, number), LinkMessage((received(links, Tag("a", 0, 1, number)).tree,)))


def test_processes_send_each_other_what_they_have() -> None:
    with peer_process(echo) as (first, _):
        for number, size in enumerate([1, 1000, 10, 1 << 20, 0, 1] * 30):
            tensor = torch.rand(size)
            first.send(Tag("a", 0, 1, 2 * number), LinkMessage(tensor))
            assert torch.equal(received(first, Tag("a", 1, 0, 2 * number)).tree[0], tensor)
        assert num_claimed_by(first) <= 1, "all but the last were given back"


def pour(links: ProcessLinks) -> None:
    for number in range(0, 1 << 30, 2):
        links.send(Tag("a", 1, 0, number), LinkMessage(torch.full((number % 7 * 5000,), number)))


@pytest.mark.parametrize("after", [1, 10, 200, *(pytest.param(num, marks=pytest.mark.soak) for num in (3, 40))])
def test_a_sender_that_is_killed_leaves_only_whole_messages(after: int) -> None:
    with peer_process(pour) as (first, process):
        for number in range(0, 2 * after, 2):
            received(first, Tag("a", 1, 0, number))
        process.kill()
        number = 2 * after
        while first.has(tag := Tag("a", 1, 0, number)):
            found = first.receive(tag).tree
            assert torch.equal(found, torch.full((number % 7 * 5000,), number))
            number += 2
        while first.wait(0):
            pass
        assert not first.wait(0.01), "nobody comes any more, and whoever rings ends the wait"


@pytest.mark.parametrize("after", [1, 50, pytest.param(5, marks=pytest.mark.soak)])
def test_a_receiver_that_is_killed_holds_nobody_up(after: int) -> None:
    with peer_process(echo) as (first, process):
        for number in range(3000):
            first.send(Tag("a", 0, 1, 2 * number), LinkMessage(torch.ones(5000)))
            if number == after:
                process.kill()
        assert LEFT in first.lost
        first.wait(0)


# --- other hosts ------------------------------------------------------------------------------------------------------


class Far:
    """Two workers on two hosts; calls are made by threads, in any order."""

    def __init__(
        self, pool: ThreadPoolExecutor, slots: int | None = None, hosts: tuple[str, str] = ("earth", "mars")
    ) -> None:
        self.ends = [ProcessLinks(4, worker, PLAN, slots=slots) for worker in (FIRST, LEFT)]
        endpoints = {end.me: replace(end.endpoint(), host=host) for end, host in zip(self.ends, hosts, strict=True)}
        for end, other, host in zip(self.ends, reversed(self.ends), hosts, strict=True):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("ropewalk.training.links.host_of_this_process", lambda host=host: host)
                end.connect(endpoints, {other.me: lambda message, other=other: pool.submit(other.deliver, message)})

    def close(self) -> None:
        for end in self.ends:
            end.close()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


def test_parcels_and_parts_of_sums_come_from_another_host(pool: ThreadPoolExecutor) -> None:
    far = Far(pool)
    first, left = far.ends
    tensors = [torch.rand(size) for size in (1, 100, 100_000)]
    for number, tensor in enumerate(tensors):
        first.send(Tag("a", 0, 1, 2 * number), LinkMessage((tensor.t(),), weight=1.5))
    part = SumPart(Contributor(1, 1), False)
    first.send_part(LEFT, SUM, part, SumMessage(GradientContribution({"w": tensors[0]}), {}))
    tensors_sent = [tensor.clone() for tensor in tensors]
    for tensor in tensors:
        tensor.zero_()
    for number, expected in enumerate(tensors_sent):
        found = received(left, Tag("a", 0, 1, 2 * number))
        assert torch.equal(found.tree[0], expected) and found.weight == 1.5 and found.tree[0].data_ptr() % 64 == 0
    deadline = time.monotonic() + 120
    while not (parts := left.parts(SUM)):
        assert left.wait(deadline - time.monotonic())
    assert list(parts) == [part]
    far.close()


def test_a_bounded_link_to_another_host_has_room_again_when_something_was_received(pool: ThreadPoolExecutor) -> None:
    far = Far(pool, slots=1)
    first, left = far.ends
    first.send(Tag("a", 0, 1, 0), LinkMessage(None))
    assert not first.has_room(Tag("a", 0, 1, 2))
    received(left, Tag("a", 0, 1, 0))
    assert first.wait(120) and first.has_room(Tag("a", 0, 1, 2))
    far.close()


def test_a_message_of_another_epoch_is_dropped(pool: ThreadPoolExecutor) -> None:
    far = Far(pool)
    _, left = far.ends
    blobs: list[FarMessage] = []
    left.connect(
        {FIRST: replace(far.ends[0].endpoint(), host="earth")},
        {FIRST: lambda message: blobs.append(message) or Future()},
    )
    left.send(Tag("a", 1, 0, 0), LinkMessage(None))
    (message,) = blobs
    far.ends[0].deliver(message._replace(epoch=3))
    assert not far.ends[0].wait(0)
    far.ends[0].deliver(message)
    assert far.ends[0].wait(0) and far.ends[0].has(Tag("a", 1, 0, 0))
    far.close()


def test_a_call_that_fails_marks_its_peer_as_lost_and_ends_the_wait(pool: ThreadPoolExecutor) -> None:
    with links_of(FIRST) as (first,), links_of(LEFT) as (left,):

        def fail(_: FarMessage) -> None:
            raise ConnectionError("no way there")

        first.connect({LEFT: replace(left.endpoint(), host="mars")}, {LEFT: lambda message: pool.submit(fail, message)})
        first.send(Tag("a", 0, 1, 0), LinkMessage(None))
        assert first.wait(120)
        assert first.lost == {LEFT: "ConnectionError: no way there"}
