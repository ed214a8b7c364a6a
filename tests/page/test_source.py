"""What runs is looked at by its launchers, and seen once more when it has ended."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from ropewalk.page.source import Launchers
from tests.control.pretend import Pretence, controlled


@pytest.mark.parametrize("is_found_again", [False, True])
def test_what_has_ended_is_seen_once_more_as_it_was_then(is_found_again: bool):
    target = Pretence("train")
    with controlled(target) as (server, launcher):
        found = [launcher]
        with Launchers(lambda: found) as source:
            assert [look.view for look in source.look({})] == [target.now]
            target.now = replace(target.now, state="completed")
            server.close()
            if not is_found_again:  # its file was read before it was removed
                found.clear()
            assert [look.view for look in source.look({})] == [target.now]
            assert source.look({}) == []


def test_what_ends_without_a_word_is_gone():
    target = Pretence("train")
    with controlled(target) as (server, launcher):
        found = [launcher]
        with Launchers(lambda: found) as source:
            source.look({})

            def fail() -> None:
                raise RuntimeError("it has no view any more")

            target.before_view = fail
            server.close()
            assert source.look({}) == []
