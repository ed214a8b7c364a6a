"""References to an object of a depot: handles that are held, under way, sent by the dead, and heard of too early."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from ropewalk.sharing.refcounts import LEASE_S, RefCounts


def test_an_object_is_wanted_while_any_process_holds_it() -> None:
    kept = RefCounts()
    kept.hold("a", "A")
    kept.hold("b", "B")
    kept.hold("b", "B")
    kept.drop("a")
    assert kept.is_wanted(0.0)
    kept.drop("b")
    assert not kept.is_wanted(0.0)
    assert kept.last == ["A", "B"]


def test_a_handle_under_way_keeps_it_until_it_has_arrived() -> None:
    kept = RefCounts()
    kept.hold("a", "A")
    kept.lend("a", 1)
    kept.drop("a")
    assert kept.is_wanted(1000.0), "the sender lives: it may be in a queue for days"
    kept.hold("b", "B", 1, 1000.0)
    kept.drop("b")
    assert not kept.is_wanted(1000.0)


def test_a_handle_whose_sender_has_died_has_a_minute_to_arrive() -> None:
    kept = RefCounts()
    kept.hold("a", "A")
    kept.lend("a", 1)
    kept.lend("a", 2)
    kept.gone("a", 100.0)
    assert kept.is_wanted(100.0 + LEASE_S - 1)
    kept.hold("b", "B", 1, 110.0)
    kept.gone("b", 120.0)
    assert kept.is_wanted(100.0 + LEASE_S - 1), "the second one may still come"
    assert not kept.is_wanted(100.0 + LEASE_S)
    assert kept.last == ["B, which is gone"], "A had handed it on"


def test_word_of_a_pickle_that_comes_after_the_handle_itself_keeps_nothing() -> None:
    # Over links of their own, `hold` of the receiver once overtook `lend` of the sender, and the end of a pipe that its
    # last holder had taken with it was never closed.
    kept = RefCounts()
    kept.hold("a", "A")
    kept.hold("b", "B", 1, 0.0)
    kept.lend("a", 1)
    kept.drop("a")
    kept.gone("b", 1.0)
    assert not kept.is_wanted(1.0)


def test_a_pickle_that_is_loaded_twice_does_not_stand_for_another_one() -> None:
    kept = RefCounts()
    kept.hold("a", "A")
    kept.lend("a", 1)
    kept.lend("a", 2)
    kept.drop("a")
    kept.hold("b", "B", 1, 0.0)
    kept.hold("b", "B", 1, 0.0)
    kept.drop("b")
    assert kept.is_wanted(0.0), "the pickle with ticket 2 is under way"


def test_what_came_too_early_is_not_remembered_for_ever() -> None:
    kept = RefCounts()
    kept.hold("a", "A")
    for ticket in range(1, 100):
        kept.hold("a", "A", ticket, 10.0)
    assert kept.is_wanted(10.0 + LEASE_S)
    assert not kept.early


@given(st.integers(0, 2**32), st.integers(1, 12))
def test_in_whatever_order_the_words_of_links_come_nothing_is_left_and_nothing_reaped_too_early(
    seed: int, num_pickles: int
) -> None:
    """Process 0 has the object; handles go on from process to process, and each lets go when it has sent its own."""
    chance = random.Random(seed)
    kept = RefCounts()
    kept.hold(0, "0")
    # What each process says, in its order; links do not wait for each other.
    said: dict[int, list[tuple[str, int]]] = {0: []}
    for ticket in range(1, num_pickles + 1):
        sender = chance.choice(list(said))
        said[sender].append(("lend", ticket))
        said[ticket] = [("hold", ticket)]
    for words in said.values():
        words.append((chance.choice(["drop", "gone"]), 0))
    alive, now = set(said), 0.0
    while any(said.values()):
        process = chance.choice([process for process, words in said.items() if words])
        word, ticket = said[process].pop(0)
        now += 0.01
        if word == "lend":
            kept.lend(process, ticket)
        elif word == "hold":
            kept.hold(process, str(process), ticket, now)
        elif word == "drop":
            kept.drop(process)
        else:
            kept.gone(process, now)
        if word in ("drop", "gone"):
            alive.discard(process)
        begun = {process for process in alive if process == 0 or ("hold", process) not in said[process]}
        if begun:
            assert kept.is_wanted(now), f"{begun} hold it"
    assert not kept.is_wanted(now)
    assert not kept.lent
    assert not kept.leases
