"""The task page: what a worker wrote is read as it was, and a task that was taken back is not run."""

from __future__ import annotations

import bisect
import math
import mmap
import os
import random
import time
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ropewalk.processes.page import (
    BOOL,
    COUNT,
    CURRENT,
    ERROR,
    FENCE_FROM,
    FENCE_TO,
    FLOAT,
    IDLE,
    INT,
    NONE,
    OPEN,
    PICKLED,
    SLOTS,
    SPILL_BYTES,
    SPILL_USED,
    STARTED_NS,
    VERSION,
    TaskPage,
    create_page,
    results_of,
)
from ropewalk.transport.barriers import can_fence, join_barriers

INT64 = st.integers(-(2**63), 2**63 - 1)
ENTRIES = st.one_of(
    st.just((NONE, None)),
    st.tuples(st.just(INT), st.one_of(INT64, st.sampled_from([-(2**63), 2**63 - 1, 0, -1]))),
    st.tuples(st.just(FLOAT), st.one_of(st.floats(), st.sampled_from([math.inf, -math.inf, math.nan, -0.0, 5e-324]))),
    st.tuples(st.just(BOOL), st.booleans()),
    st.tuples(st.sampled_from([PICKLED, ERROR]), st.binary(max_size=300)),
)


@pytest.fixture(scope="module")
def descriptor() -> Iterator[int]:
    fd = create_page()
    yield fd
    os.close(fd)


@pytest.fixture
def page() -> Iterator[TaskPage]:
    fd = create_page()
    page = TaskPage(fd)
    os.close(fd)
    yield page
    page.close()
    page.close()  # may be called twice


def write(page: TaskPage, slot: int, kind: int, value: object) -> None:
    """Write a result as a worker does."""
    if kind == FLOAT:
        page.floats[slot] = value  # type: ignore[call-overload]
    elif kind in (INT, BOOL):
        page.values[slot] = value  # type: ignore[call-overload]
    elif kind in (PICKLED, ERROR):
        assert isinstance(value, bytes)
        used = page.words[SPILL_USED]
        page.spill[used : used + len(value)] = value
        page.values[slot] = used << 32 | len(value)
        page.words[SPILL_USED] = used + len(value)
    if kind != NONE:
        page.codes[slot] = kind


def same(one: object, other: object) -> bool:
    """Equal in type and in every bit."""
    if isinstance(one, float) and isinstance(other, float):
        return (math.isnan(one) and math.isnan(other)) or (
            one == other and math.copysign(1, one) == math.copysign(1, other)
        )
    return type(one) is type(other) and one == other


# The journal of results


def test_a_new_page_says_that_nothing_is_going_on(page: TaskPage) -> None:
    report = page.report()
    assert (report.current, report.running_s, report.base, report.codes) == (IDLE, 0.0, 0, b"")
    assert results_of(report) == []


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(entries=st.lists(ENTRIES, max_size=60), base=st.integers(0, 2**40), idle=st.booleans())
def test_results_are_read_as_they_were_written(
    descriptor: int, entries: list[tuple[int, object]], base: int, idle: bool
) -> None:
    writer, reader = TaskPage(descriptor), TaskPage(descriptor)  # as in two processes
    try:
        writer.clear(SLOTS, base)
        for slot, (kind, value) in enumerate(entries):
            writer.words[CURRENT] = base + slot
            write(writer, slot, kind, value)
        writer.words[COUNT] = len(entries)
        writer.words[CURRENT] = IDLE if idle else base + len(entries)
        report = reader.report()
        assert report.base == base and report.current == writer.words[CURRENT]
        results = results_of(report)
        assert [kind for kind, _ in results] == [kind for kind, _ in entries]
        assert all(same(read, written) for (_, read), (_, written) in zip(results, entries, strict=True))
        writer.clear(len(entries), base + len(entries))
        assert results_of(reader.report()) == []
        assert bytes(reader.codes) == bytes(SLOTS)
    finally:
        writer.close()
        reader.close()


def test_a_full_page_is_read_to_its_last_slot(page: TaskPage) -> None:
    for slot in range(SLOTS):
        page.words[CURRENT] = slot
        write(page, slot, INT, slot)
    page.words[CURRENT] = SLOTS
    assert [value for _, value in results_of(page.report())] == list(range(SLOTS))
    page.words[SPILL_USED] = SPILL_BYTES + 999  # a page that user code wrote over is no reason to fail
    page.words[CURRENT] = SLOTS + 99
    assert len(page.report().codes) == SLOTS and len(page.report().spill) == SPILL_BYTES


def test_the_task_it_is_in_has_no_result_yet(page: TaskPage) -> None:
    page.clear(0, 40)
    page.words[STARTED_NS] = time.monotonic_ns() - 2_000_000_000
    page.words[CURRENT] = 40
    write(page, 0, INT, 7)
    report = page.report()
    assert report.current == 40 and report.codes == b""
    assert 2.0 <= report.running_s <= (time.monotonic_ns() - page.words[STARTED_NS]) / 1e9
    page.words[CURRENT] = 41
    assert results_of(page.report()) == [(INT, 7)]


def test_a_worker_that_died_while_it_cleared_shows_no_results(page: TaskPage) -> None:
    page.words[CURRENT] = 1
    write(page, 0, INT, 7)
    page.words[VERSION] += 1  # the first step of clearing; the results have been sent
    assert results_of(page.report()) == []
    assert page.report().current == 1


def test_where_neither_the_machine_nor_a_barrier_orders_stores_results_are_told_at_the_end(
    page: TaskPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(page, 0, INT, 5)
    page.words[CURRENT] = 1
    monkeypatch.setattr("ropewalk.processes.page.STORES_ARE_ORDERED", False)
    assert len(page.report().codes) == can_fence()
    monkeypatch.setattr("ropewalk.processes.page.can_fence", lambda: False)
    assert len(page.report().codes) == 0
    assert len(page.report(ended=True).codes) == 1


# The fence


def test_what_stands_behind_the_fence_stays_there_while_the_worker_is_at_its_last_task(page: TaskPage) -> None:
    # The worker has written that it begins 9, and has not looked at the fence yet, which holds 5 to 9 back. A new
    # fence opened the old one for it: 9 was run although it had been given to another worker.
    if not can_fence():
        pytest.skip("needs membarrier(2)")
    page.words[CURRENT] = 4
    assert page.fence(10, everything=True) == 5
    page.words[CURRENT] = 9
    assert page.fence(20) >= 10
    assert page.words[FENCE_FROM] <= 9 < page.words[FENCE_TO]


#: Rounds of an empty loop, most of them none.
LINGER = [0, 0, 0, 10, 300, 3000]


def walk(page: TaskPage, fates: mmap.mmap, units: list[tuple[int, int]]) -> None:
    """What a worker does with its units: run tasks until one is fenced, then skip the rest of that unit."""
    words = page.words
    draw = random.Random(len(units))
    for start, stop in units:
        for seq in range(start, stop):
            words[CURRENT] = seq
            for _ in range(draw.choice(LINGER)):
                pass  # so that the agent often acts right here
            if words[FENCE_FROM] <= seq < words[FENCE_TO]:
                fates[seq:stop] = b"s" * (stop - seq)
                break
            fates[seq] = ord("r")
            for _ in range(draw.choice(LINGER)):
                pass
    words[CURRENT] = IDLE


@pytest.mark.skipif(not can_fence(), reason="needs membarrier(2)")
@pytest.mark.parametrize("seed", range(4))
def test_no_task_is_both_run_and_taken_back_and_none_is_neither(page: TaskPage, seed: int) -> None:
    draw = random.Random(seed)
    num_tasks = 15_000
    largest = [1, 1, 3, 20][seed]
    units: list[tuple[int, int]] = []
    while not units or units[-1][1] < num_tasks:
        start = units[-1][1] if units else 0
        units.append((start, start + draw.randint(1, largest)))
    ends = [stop for _, stop in units]
    fates = mmap.mmap(-1, ends[-1])
    pid = os.fork()
    if pid == 0:
        try:
            join_barriers()
            walk(page, fates, units)
        finally:
            os._exit(0)
    taken: set[int] = set()
    while os.waitpid(pid, os.WNOHANG)[0] == 0:
        current = page.words[CURRENT]
        if current == IDLE:
            continue
        # Only up to the end of a unit: what has been sent is whole units.
        until = ends[min(len(ends) - 1, bisect.bisect_right(ends, current) + draw.choice([0, 1, 2, 3, 30]))]
        first = page.fence(until, everything=draw.random() < 0.5)
        taken.update(range(first, until))
    said = fates[:]
    fates.close()
    run = {seq for seq, fate in enumerate(said) if fate == ord("r")}
    skipped = {seq for seq, fate in enumerate(said) if fate == ord("s")}
    assert run & taken == set(), "run here, and given to another worker"
    assert run | taken | skipped == set(range(ends[-1])), "nobody has it"
    assert run and taken and skipped  # else nothing was tested
    assert page.words[FENCE_FROM] != OPEN
