"""Which actor collects which block in lock-step."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ropewalk.rl.rounds import RoundBook, RoundTask


def test_without_lag_a_round_begins_when_the_last_one_is_learned() -> None:
    book = RoundBook(2)
    first, second = book.ask("0#0", [], 0.0), book.ask("1#0", [], 0.0)
    assert (first, second) == (RoundTask(0, 0, 0), RoundTask(1, 0, 0))
    assert book.deliver(0, 0) and book.ask("0#0", [(0, 1)], 0.0) is None
    assert book.missing == [1] and not book.round_is_complete
    assert book.deliver(1, 0) and book.round_is_complete
    assert book.ask("0#0", [(0, 1)], 0.0) is None
    book.learn()
    assert book.ask("0#0", [(0, 1)], 0.0) == RoundTask(0, 1, 1)


def test_with_lag_a_group_goes_on_while_the_last_round_is_learned() -> None:
    book = RoundBook(2, 1)
    assert book.ask("0#0", [], 0.0) == RoundTask(0, 0, 0)
    assert book.deliver(0, 0)
    assert book.ask("0#0", [(0, 1)], 0.0) == RoundTask(1, 0, 0)  # the earlier round comes first
    assert book.ask("1#0", [], 0.0) == RoundTask(0, 1, 0)
    assert book.deliver(1, 0)
    book.learn()
    assert book.ask("0#0", [], 0.0) == RoundTask(1, 1, 0)
    assert book.deliver(0, 1) and book.deliver(1, 1)
    assert book.ask("0#0", [], 0.0) == RoundTask(0, 2, 1)


def test_an_actor_keeps_the_groups_that_it_holds() -> None:
    book = RoundBook(3, learned=4)
    assert book.ask("1#0", [(2, 4)], 0.0) == RoundTask(2, 4, 4)
    assert book.ask("0#0", [(2, 4), (1, 3)], 0.0) == RoundTask(0, 4, 4)  # 2 is taken, and of 1 it has another block


def test_what_an_actor_held_when_it_died_is_given_out_again() -> None:
    book = RoundBook(1)
    assert book.ask("0#0", [], 0.0) == RoundTask(0, 0, 0)
    assert book.ask("1#0", [], 0.1) is None
    assert book.ask("0#1", [], 0.2) == RoundTask(0, 0, 0)


def test_what_is_given_out_is_said_for_the_next_block_of_each_group() -> None:
    book = RoundBook(2, 1)
    assert book.given() == {}
    for actor in ("1#0", "0#0"):
        book.ask(actor, [], 0.0)
    assert book.given() == {0: ["1#0"], 1: ["0#0"]}
    book.ask("2#0", [], 9.0)
    book.ask("0#1", [], 9.0)
    assert book.given() == {0: ["1#0", "2#0"], 1: ["0#1"]}
    book.deliver(0, 0)
    assert book.given() == {1: ["0#1"]}
    book.ask("2#0", [], 9.0)
    assert book.given() == {0: ["2#0"], 1: ["0#1"]}


def test_how_long_a_block_may_take_follows_the_slowest_of_which_half_is_forgotten_each_round() -> None:
    book = RoundBook(2)
    book.ask("0#0", [], 0.0)
    assert book.ask("1#0", [], 0.0) == RoundTask(1, 0, 0)
    other = RoundBook(2)
    other.ask("0#0", [], 0.0)
    other.ask("1#0", [], 0.0)
    other.deliver(1, 0)
    assert other.ask("1#0", [], 2.1) == RoundTask(0, 0, 0), "a block that came at once says nothing"
    assert book.ask("2#0", [], 2.0) is None
    assert book.ask("2#0", [], 2.1) == RoundTask(0, 0, 0), "nothing is known yet: after two seconds"
    book.deliver(1, 0, 8.0)
    book.deliver(0, 0, 2.1)
    book.learn()
    book.ask("0#0", [], 100.0)
    book.ask("1#0", [], 100.0)
    late = 100.0 + 3 * 8.0 / 2
    assert book.ask("2#0", [], late) is None
    assert book.ask("2#0", [], late + 0.1) == RoundTask(0, 1, 1)
    assert book.learned == 1


def test_a_block_that_does_not_come_is_collected_by_an_idle_actor_too() -> None:
    book = RoundBook(1)
    assert book.ask("0#0", [], 0.0) == RoundTask(0, 0, 0)
    assert book.ask("1#0", [], 1.9) is None
    assert book.ask("0#0", [], 9.0) is None, "it collects it already"
    assert book.ask("1#0", [], 9.0) == RoundTask(0, 0, 0)
    assert book.ask("2#0", [], 9.1) is None, "a third one waits as long again"
    assert book.deliver(0, 0) and not book.deliver(0, 0), "the first that comes counts"


def test_a_round_is_not_learned_before_all_blocks_are_there() -> None:
    book = RoundBook(2)
    book.deliver(0, 0)
    with pytest.raises(RuntimeError, match=r"round 0 .* groups \[1\]"):
        book.learn()


@given(
    groups=st.integers(1, 4),
    lag=st.integers(0, 1),
    events=st.lists(st.tuples(st.sampled_from(["ask", "deliver", "die", "learn"]), st.integers(0, 3)), max_size=120),
)
@settings(max_examples=60, deadline=None)
def test_whatever_dies_every_block_counts_once_and_in_order(
    groups: int, lag: int, events: list[tuple[str, int]]
) -> None:
    book, now = RoundBook(groups, lag), 0.0
    lives = [0] * 4
    held: dict[int, tuple[RoundTask, ...]] = dict.fromkeys(range(4), ())
    counted: list[tuple[int, int]] = []
    for event, actor in [*events, *[(kind, actor) for _ in range(6) for actor in range(4) for kind in _GOES_ON]]:
        now += 1.0
        match event:
            case "ask":
                task = book.ask(f"{actor}#{lives[actor]}", [], now)
                if task is not None:  # otherwise it still has what it collects
                    held[actor] = (task,)
                    assert task.version == max(0, task.number - lag) <= book.learned
            case "deliver":
                for task in held[actor]:
                    if book.deliver(task.group, task.number):
                        counted.append((task.group, task.number))
                held[actor] = ()
            case "die":
                lives[actor], held[actor] = lives[actor] + 1, ()
            case _:
                if book.round_is_complete:
                    book.learn()
    for group in range(groups):
        numbers = [number for each, number in counted if each == group]
        assert numbers == list(range(len(numbers)))
    assert book.learned > 0, "work went on"


_GOES_ON = "ask", "deliver", "learn"


def test_a_block_is_not_late_before_it_has_taken_longer_than_others_have() -> None:
    book = RoundBook(2)
    assert book.ask("0#0", [], 0.0) == RoundTask(0, 0, 0)
    assert book.ask("1#0", [], 0.0) == RoundTask(1, 0, 0)
    assert book.deliver(0, 0, 10.0)
    assert book.ask("0#0", [(0, 1)], 29.0) is None
    assert book.ask("0#0", [(0, 1)], 31.0) == RoundTask(1, 0, 0)
