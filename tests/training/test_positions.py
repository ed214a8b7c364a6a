"""The launcher knows where a run is without making its actions: what it says is what the streams of stages say."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ropewalk.pipeline.schedules import SCHEDULES, make_schedule
from ropewalk.pipeline.schedules.streams import Cut
from ropewalk.testing.schedule_conformance import sample_plan
from ropewalk.training.positions import behind, is_empty

KINDS: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in SCHEDULES),
    ("pipedream", {"vertical_sync": True}),
    *((name, {"accumulate": 3}) for name, kind in SCHEDULES.items() if kind.flushes),
]


@pytest.mark.parametrize(("name", "options"), KINDS)
@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_a_position_is_that_of_the_stream_whatever_is_admitted_and_drained(
    name: str, options: dict[str, Any], data: st.DataObject
) -> None:
    schedule = make_schedule(name, **options)
    takes_any = not schedule.flushes and not options
    width = data.draw(st.integers(1, 2))
    replicas = data.draw(st.sampled_from([(1, 2), (3, 1)])) if takes_any else (width, width)
    plan = sample_plan(schedule, replicas, 12)
    stream, position = schedule.stream(plan), Cut.start(plan)
    sizes = st.just(12) if schedule.flushes else st.integers(1, 12)
    for num, drains in data.draw(st.lists(st.tuples(sizes, st.booleans()), max_size=6)):
        stream.admit(num)
        if drains:
            stream.drain()
        position = behind(plan, schedule, position, num, drains=drains)
        assert position == stream.position
    assert is_empty(position) == (not any(stream.drain().values()))


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_drain_alone_changes_a_position_once(name: str) -> None:
    schedule = make_schedule(name)
    plan = sample_plan(schedule, (1, 1), 8)
    full = behind(plan, schedule, Cut.start(plan), 8, drains=False)
    drained = behind(plan, schedule, full, 0, drains=True)
    assert is_empty(drained)
    assert is_empty(full) == schedule.flushes
    assert behind(plan, schedule, drained, 0, drains=True) == drained
