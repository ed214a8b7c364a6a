"""Messages are found by their tags, and a link with slots fills up."""

from __future__ import annotations

import pytest

from ropewalk.errors import ScheduleInvalid
from ropewalk.pipeline.plans import Plan, Stage
from ropewalk.pipeline.stages.in_memory_links import InMemoryLinks, LinkMessage, Tag

PLAN = Plan((Stage(0, ("a",), (0, 1)), Stage(1, ("b",), (2,))))


def test_messages_are_matched_by_tag_and_not_by_position() -> None:
    links = InMemoryLinks(PLAN)
    tags = [Tag("a", 0, 1, number) for number in range(3)]
    for tag in tags:
        links.send(tag, LinkMessage(tag.micro_batch))
    assert [links.receive(tag).tree for tag in reversed(tags)] == [2, 1, 0]
    assert not links.has(tags[0]) and not links.waiting


def test_each_pair_of_workers_and_direction_has_slots_of_its_own() -> None:
    links = InMemoryLinks(PLAN, slots=1)
    links.send(Tag("a", 0, 1, 0), LinkMessage(None))
    assert not links.has_room(Tag("a", 0, 1, 2)), "the same replica sends both"
    assert links.has_room(Tag("a", 0, 1, 1)), "the other replica sends this one"
    assert links.has_room(Tag("a", 1, 0, 2)), "a gradient goes the other way"
    links.receive(Tag("a", 0, 1, 0))
    assert links.has_room(Tag("a", 0, 1, 2))


def test_a_message_that_is_sent_twice_is_an_error() -> None:
    links = InMemoryLinks(PLAN)
    links.send(Tag("a", 1, 0, 4), LinkMessage(None))
    with pytest.raises(
        ScheduleInvalid, match="gradient of a of micro-batch 4 from stage 1 to stage 0 is sent a second"
    ):
        links.send(Tag("a", 1, 0, 4), LinkMessage(None))
