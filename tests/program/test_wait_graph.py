"""Circles of calls that wait for each other: found when and only when nothing in them can ever go on."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ropewalk.program.wait_graph import addresses, find_circle
from tests.program.waiting_world import World


def crosswise() -> World:
    """w1 ─▶ a ─▶ b, and w2 ─▶ b ─▶ a."""
    world = World(a=1, b=1)
    first, second = world.call("a"), world.call("b")
    world.call("b", first)
    world.call("a", second)
    return world


def test_calls_that_wait_crosswise_are_a_circle_which_is_drawn() -> None:
    circle = find_circle(crosswise().reports())
    assert circle and circle.labels == ("b.m3", "b.m2", "a.m4", "a.m1", "b.m3")
    assert circle.last_comer.call.label == "a.m4"
    assert [stuck.address for stuck in circle.calls] == ["b", "b", "a", "a"]
    assert circle.drawn() == (
        "  b.m3  waits for its turn, which is taken by b.m2\n"
        "  b.m2  runs, and waits for its call of a.m4\n"
        "  a.m4  waits for its turn, which is taken by a.m1\n"
        "  a.m1  runs, and waits for its call of b.m3"
    )


def test_the_processes_that_calls_wait_for_are_those_to_ask_next() -> None:
    reports = crosswise().reports()
    assert [addresses(reports[name]) for name in "ab"] == [{"b"}, {"a"}]
    assert addresses(World(a=1).reports()["a"]) == set()


def test_a_circle_may_lead_through_services_at_which_nobody_waits() -> None:
    world = World(a=1, b=1, c=1)
    first, second = world.call("a"), world.call("c")
    world.call("c", world.call("b", first))  # a ─▶ b ─▶ c, whose turn is taken
    world.call("a", second)
    circle = find_circle(world.reports())
    assert circle and [stuck.call.label[0] for stuck in circle.calls] == ["c", "c", "a", "a", "b"]


def test_a_service_that_works_is_no_part_of_a_circle() -> None:
    world = World(a=1, b=1)
    first = world.call("a")
    world.call("b")
    world.call("b", first)
    world.call("a")
    assert find_circle(world.reports()) is None


def test_a_chain_that_comes_back_to_where_it_was_is_admitted() -> None:
    world = World(a=1, b=1)
    inner = world.call("a", world.call("b", world.call("a")))
    assert inner in world.services["a"].running and find_circle(world.reports()) is None


def test_with_a_free_place_nobody_waits_and_with_one_that_works_somebody_will_go_on() -> None:
    world = World(a=2, b=1)
    first, second = world.call("a"), world.call("b")
    world.call("b", first)
    world.call("a", second)
    assert find_circle(world.reports()) is None, "the second place of a is free"
    world = World(a=2, b=1)
    first, second, works = world.call("a"), world.call("b"), world.call("a")
    world.call("b", first)
    world.call("a", second)
    assert find_circle(world.reports()) is None, "the other one of a will return"
    world.call("b", works)
    circle = find_circle(world.reports())
    assert circle and len(circle.calls) == 4, "now both of a wait for b"


MOVES = st.lists(st.tuples(st.sampled_from(["come", "call", "call", "return"]), st.integers(0, 99)), max_size=40)


def moved(world: World, move: str, choice: int) -> None:
    """Have something happen to the calls of a world."""
    names = sorted(world.services)
    active = world.active
    if move == "come":
        world.call(names[choice % len(names)])
    elif active:
        call = active[choice % len(active)]
        if move == "return":
            world.finish(call)
        else:
            world.call(names[choice // len(active) % len(names)], call)


@given(limits=st.lists(st.integers(1, 3), min_size=1, max_size=4), moves=MOVES)
def test_a_circle_is_found_if_and_only_if_something_never_goes_on(
    limits: list[int], moves: list[tuple[str, int]]
) -> None:
    world = World(**{"abcd"[index]: limit for index, limit in enumerate(limits)})
    for move, choice in moves:
        moved(world, move, choice)
    for _ in range(100):
        stuck = world.never_go_on()
        circle = find_circle(world.reports())
        assert (circle is not None) == bool(stuck)
        if circle is None:
            return
        assert {each.call.key for each in circle.calls} <= stuck
        last = circle.last_comer
        assert world.end(last.call.key, last.address), "it waits for its turn"
    raise AssertionError("each circle that is broken is one less")
