"""Who fetches a blob from whom: in simulated time, without a socket."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from ropewalk.processes.fan_out import (
    LAUNCHER_SOURCE,
    MOST_COPIES,
    MOST_READERS,
    STALL_S,
    FanOut,
    Fetch,
    FetchProblem,
    HostRoutes,
)
from tests.processes.simulated_hosts import GIGABIT, SimulatedHost, SimulatedHosts, hosts_of

SIZE = 100_000_000
ONE_LINK_S = SIZE / GIGABIT


def fan_out(num_pieces: int = 4, routes: HostRoutes | None = None) -> FanOut:
    return FanOut(10 * num_pieces, routes or HostRoutes(), piece_bytes=10)


def want(tree: FanOut, *hosts: str, serves: bool = True, reaches_others: bool = True) -> dict[str, str]:
    """The sources that hosts are given which need it now."""
    found: dict[str, str] = {}
    for host in hosts:
        for fetch in tree.want(host, 0.0, serves=serves, reaches_others=reaches_others):
            found[fetch.host] = fetch.source
    return found


# --- without accidents ------------------------------------------------------------------------------------------------


def test_few_hosts_are_two_chains() -> None:
    tree = fan_out(num_pieces=16)
    assert want(tree, *"abcdefgh") == dict(zip("abcdefgh", ["", "", *"abcdef"], strict=True))
    assert tree.num_copies == MOST_COPIES


def test_of_few_pieces_hosts_send_two_copies_each() -> None:
    tree = fan_out()
    sources = want(tree, *"abcdefghijklmn")
    assert sources["a"] == sources["b"] == LAUNCHER_SOURCE and tree.num_copies == 2
    assert Counter(sources.values()) == {LAUNCHER_SOURCE: 2, **dict.fromkeys("abcdef", MOST_READERS)}


def test_who_needs_it_twice_is_told_once() -> None:
    tree = fan_out()
    assert want(tree, "a") == {"a": LAUNCHER_SOURCE}
    assert want(tree, "a") == {} and list(tree.hosts) == ["a"] and not tree.is_settled
    assert tree.arrived("a", 1.0) == [] and want(tree, "a") == {} and tree.is_settled


# --- sources that are lost --------------------------------------------------------------------------------------------


def test_readers_of_a_lost_source_go_on_where_they_are_and_never_below_themselves() -> None:
    tree = fan_out()
    want(tree, *"abcdefgh")  # a: c e, b: d f, c: g, d: h
    moved = {fetch.host: fetch.source for fetch in tree.gone("a", 1.0)}
    assert moved.keys() == {"c", "e"}
    assert moved["c"] not in "aceg" and moved["e"] not in "ae", "e had no source itself when c got one"
    assert tree.num_copies == 2


# --- sources that cannot be used --------------------------------------------------------------------------------------


def test_who_does_not_reach_one_host_gets_it_from_the_launcher_at_once_and_tries_another_one_next_time() -> None:
    routes = HostRoutes()
    first = fan_out(routes=routes)
    assert want(first, *"abc")["c"] == "a"
    assert first.failed("c", FetchProblem.UNREACHABLE, 3.0) == [Fetch("c", LAUNCHER_SOURCE)]
    second = fan_out(routes=routes)
    assert want(second, *"abc")["c"] == "b"
    second.arrived("c", 1.0)
    third = fan_out(routes=routes)
    assert want(third, *"abc")["c"] == "b"
    assert third.failed("c", FetchProblem.LOST, 3.0) == [Fetch("c", LAUNCHER_SOURCE)]


def test_hosts_that_only_the_launcher_reaches_are_served_by_it_at_once() -> None:
    tree = fan_out()
    assert set(want(tree, *"abcd", serves=False, reaches_others=False).values()) == {LAUNCHER_SOURCE}
    assert want(tree, "e") == {"e": LAUNCHER_SOURCE}, "none of them serves others"
    assert want(tree, "f") == {"f": "e"}
    assert want(tree, "g", reaches_others=False) == {"g": LAUNCHER_SOURCE}


def test_bytes_that_are_wrong_come_from_the_launcher_next_and_nobody_reads_from_that_source_again() -> None:
    tree = fan_out()
    assert want(tree, *"abc")["c"] == "a"
    tree.progressed("c", 50, 1.0)
    assert tree.failed("c", FetchProblem.CORRUPT, 2.0) == [Fetch("c", LAUNCHER_SOURCE)]
    assert set(want(tree, *"defg").values()).isdisjoint("a")


def test_a_host_without_memory_is_asked_again_at_the_next_look() -> None:
    tree = fan_out()
    want(tree, *"abc")
    assert tree.failed("c", FetchProblem.NO_MEMORY, 1.0) == []
    assert [fetch.host for fetch in tree.look(2.0)] == ["c"]


def test_a_host_without_memory_begins_anew_and_one_that_lost_the_launcher_does_not() -> None:
    tree = fan_out()
    want(tree, *"abc")
    tree.progressed("c", 30, 1.0)
    tree.failed("c", FetchProblem.NO_MEMORY, 2.0)
    assert sources(tree.look(3.0)) == {"c": "a"}
    for host in "abc":
        tree.progressed(host, 10, 10.0)
    assert tree.look(3.5 + 2 * STALL_S) == [], "its first ten bytes are progress"
    tree = chains()
    for host, num_bytes in zip("abcdefgh", (90, 50, 80, 40, 70, 30, 20, 20), strict=True):
        tree.progressed(host, num_bytes, 1.0)
    assert tree.failed("b", FetchProblem.LOST, 2.0) == []
    assert sources(tree.look(3.0)) == {"b": "a"}, "g has nothing that is new to it"


def test_a_host_that_got_wrong_bytes_is_a_source_again_and_has_none_of_the_blob() -> None:
    tree = chains()
    tree.progressed("g", 50, 1.0)
    assert sources(tree.failed("g", FetchProblem.CORRUPT, 2.0)) == {"g": LAUNCHER_SOURCE}
    for host in "ah":
        tree.progressed(host, 1, 3.0)
    assert sources(tree.failed("h", FetchProblem.LOST, 4.0)) == {"h": "a"}, "not g, which has less than h"
    assert want(tree, "i") == {"i": "g"}, "it is next to the launcher"


def test_what_is_told_of_hosts_that_are_not_there_changes_nothing() -> None:
    tree = fan_out()
    want(tree, *"abc")
    tree.failed("c", FetchProblem.NO_MEMORY, 1.0)
    tree.progressed("stranger", 10, 1.0)
    assert tree.arrived("stranger", 1.0) == tree.gone("stranger", 1.0) == []
    assert tree.failed("stranger", FetchProblem.LOST, 1.0) == tree.failed("c", FetchProblem.LOST, 1.0) == []
    assert list(tree.hosts) == list("abc")
    assert tree.arrived("a", 1.0) == [Fetch("c", "a")]
    tree.failed("c", FetchProblem.NO_MEMORY, 2.0)
    assert tree.arrived("a", 2.0) == [], "it is told twice"


def test_a_host_waits_for_room_and_not_for_hosts_that_wait() -> None:
    tree = fan_out()
    want(tree, "a")
    want(tree, *"bcd", serves=False)  # one from the launcher, two from a
    assert want(tree, "e") == {}, "a is full, and will have room"
    assert tree.arrived("c", 1.0) == [Fetch("e", "a")]
    want(tree, "f")
    assert {fetch.host for fetch in tree.gone("a", 2.0)} >= {"d", "e"}
    assert all(tree.arrived(host, 3.0) == [] for host in "bdef") and tree.is_settled


# --- sources that are slow --------------------------------------------------------------------------------------------


def test_what_is_known_of_a_host_is_forgotten_with_it() -> None:
    routes = HostRoutes()
    for source in "bcd":
        routes.note("a", source, works=False)
    assert not routes.may_work("a", "e")
    for source in "bcd":
        routes.forget(source)
    assert routes.may_work("a", "e") and not routes.works("a", "e")
    routes.note("a", "b", works=True)
    assert routes.works("a", "b")
    routes.forget("b")
    assert not routes.works("a", "b")


def test_a_route_is_as_it_was_seen_last_and_two_failures_cut_a_host_off() -> None:
    routes = HostRoutes()
    routes.note("a", "b", works=True)
    routes.note("a", "b", works=False)
    assert not routes.works("a", "b") and not routes.may_work("a", "b")
    assert routes.may_work("a", "c") and routes.may_work("d", "b"), "one failure is no proof"
    routes.note("a", "c", works=False)
    assert not routes.may_work("a", "d") and not routes.may_work("d", "a")
    routes.note("a", "b", works=True)
    assert routes.works("a", "b") and routes.may_work("a", "b") and routes.may_work("a", "d")
    assert not routes.may_work("a", "c")


# --- which source -----------------------------------------------------------------------------------------------------


def chains(num_pieces: int = 100) -> FanOut:
    """Eight hosts in two chains, a c e g and b d f h, none with a byte yet."""
    tree = fan_out(num_pieces)
    want(tree, *"abcdefgh")
    return tree


def sources(fetches: list[Fetch]) -> dict[str, str]:
    return {fetch.host: fetch.source for fetch in fetches}


def test_a_host_that_has_begun_goes_on_at_a_host_that_serves_another_one_and_is_ahead_of_it() -> None:
    tree = chains()
    for host, num_bytes in zip("abcdefgh", (90, 40, 80, 30, 70, 20, 60, 10), strict=True):
        tree.progressed(host, num_bytes, 1.0)
    # h has nobody below it, and less than g; c and what is above it has room for one more.
    assert sources(tree.failed("g", FetchProblem.LOST, 2.0)) == {"g": "a"}


def test_a_host_that_has_nothing_yet_does_not_make_a_chain_fork() -> None:
    tree = chains()
    assert sources(tree.failed("g", FetchProblem.LOST, 2.0)) == {"g": "h"}


def test_those_that_have_all_of_it_are_asked_first_and_those_that_others_gave_up_last() -> None:
    tree = chains()
    for host in "ac":
        tree.arrived(host, 1.0)
    assert want(tree, "i") == {"i": "a"}
    assert sources(tree.failed("i", FetchProblem.LOST, 2.0)) == {"i": "g"}, "c is full, and a was given up"
    tree.arrived("e", 3.0)
    assert want(tree, "j") == {"j": "c"}, "not a, although nobody fetches from it"


def test_a_host_that_sent_wrong_bytes_serves_nobody_else() -> None:
    alone = fan_out()
    want(alone, "a")
    want(alone, "b", "c", serves=False)
    assert sources(alone.failed("c", FetchProblem.CORRUPT, 2.0)) == {"c": LAUNCHER_SOURCE}
    assert want(alone, "d") == {"d": LAUNCHER_SOURCE}
    tree = chains()
    tree.arrived("a", 1.0)
    tree.arrived("c", 1.0)
    assert sources(tree.failed("e", FetchProblem.CORRUPT, 2.0)) == {"e": LAUNCHER_SOURCE}
    assert want(tree, *"ijk") == {"i": "a", "j": "g", "k": "i"}, "and not c"


def test_in_trees_hosts_near_the_launcher_are_asked_first() -> None:
    tree = fan_out(num_pieces=2)
    assert want(tree, *"abcdef")["f"] == "b"
    tree.gone("e", 1.0)
    assert want(tree, "g") == {"g": "a"}


def test_a_source_that_has_no_more_itself_is_left_after_a_longer_time() -> None:
    tree = chains()
    for host in "aceg":
        tree.progressed(host, 50, 1.0)
    assert tree.look(1.0 + 1.5 * STALL_S) == [], "c has no more than e: they wait for a"
    assert {"c", "e", "g"} <= sources(tree.look(1.1 + 2 * STALL_S)).keys()


def test_a_source_that_has_more_and_gives_nothing_is_left_sooner() -> None:
    tree = chains()
    for host in "abcdefgh":
        tree.progressed(host, 50, 1.0)
    tree.progressed("a", 95, 2.0)
    assert tree.look(1.0 + STALL_S) == []
    for host in "abcdefgh":
        tree.progressed(host, 50, 3.0)  # again: no progress
    assert sources(tree.look(1.1 + STALL_S)).keys() == {"c"}


@pytest.mark.parametrize(("num_bytes", "moved"), [(90, set[str]()), (91, {"c"})])
def test_a_source_has_more_if_it_is_four_pieces_ahead(num_bytes: int, moved: set[str]) -> None:
    tree = chains()
    for host in "abcdefgh":
        tree.progressed(host, 50, 1.0)
    tree.progressed("a", num_bytes, 1.0)
    assert sources(tree.look(1.1 + STALL_S)).keys() == moved


def test_a_host_that_does_not_reach_another_one_goes_back_to_one_that_it_has_reached() -> None:
    routes = HostRoutes()
    first = fan_out(num_pieces=100, routes=routes)
    want(first, "a", "b", "c")
    first.arrived("c", 1.0)
    second = fan_out(num_pieces=100, routes=routes)
    assert want(second, "d", "a", "c")["c"] == "d"
    assert sources(second.failed("c", FetchProblem.UNREACHABLE, 2.0)) == {"c": "a"}


def test_rates_are_compared_over_two_seconds_and_moves_are_counted() -> None:
    tree = chains()
    tree.look(10.0)
    moved: list[Fetch] = []
    for second in range(1, 9):
        for host in "abdfhceg":
            tree.progressed(host, second * (2 if host in "ceg" else 100), 10.0 + second)
        moved += tree.look(10.0 + second)
        if second == 1:
            assert not moved
        if second == 2:
            assert [fetch.host for fetch in moved] == ["c"], "those below it are slow because it is"
    assert Counter(fetch.host for fetch in moved)["c"] == 2 and moved[0].source != "a"
    assert {"e", "g"} <= {fetch.host for fetch in moved}


@pytest.mark.parametrize(("best", "gain", "moved"), [(120, 30, set[str]()), (121, 30, {"c"})])
def test_a_host_is_slow_below_a_fourth_of_the_best_rate(best: int, gain: int, moved: set[str]) -> None:
    tree = chains()
    for host in "abdfhceg":
        tree.progressed(host, gain if host in "ceg" else best, 2.0)
    assert sources(tree.look(2.0)).keys() == moved


@pytest.mark.parametrize(("num_bytes", "moved"), [(82, {"c"}), (81, set[str]())])
def test_a_host_is_moved_to_a_source_that_is_eight_pieces_ahead(num_bytes: int, moved: set[str]) -> None:
    tree = chains()
    tree.look(2.0)
    for host in "abdfhceg":
        tree.progressed(host, 2 if host in "ceg" else num_bytes, 4.0)
    assert sources(tree.look(4.0)).keys() == moved


def test_a_host_is_slow_by_what_it_gets_now_and_not_by_what_it_has() -> None:
    tree = chains()
    tree.look(10.0)
    for at, slow in ((12.0, 100), (14.0, 102)):
        for host in "abdfhceg":
            tree.progressed(host, slow if host in "ceg" else 50 * int(at - 10.0), at)
        assert sources(tree.look(at)).keys() == ({"c"} if at == 14.0 else set[str]())


def test_two_slow_hosts_of_two_chains_are_moved_at_once() -> None:
    tree = chains()
    tree.look(10.0)
    for host in "abdfhceg":
        tree.progressed(host, 2 if host in "cegh" else 100, 12.0)
    assert sources(tree.look(12.0)).keys() == {"c", "h"}, "e and g are slow because c is"


def test_a_host_is_not_moved_to_one_that_has_as_little() -> None:
    tree = chains()
    tree.look(10.0)
    for host in "bdfhceg":
        tree.progressed(host, 2, 12.0)
    tree.progressed("a", 90, 12.0)
    assert sources(tree.look(12.0)).keys() <= {"d"}, "only a is ahead, and has room for one more"


@pytest.mark.parametrize("just_as_far", [96, 60])
def test_a_host_that_has_begun_prefers_a_source_that_serves_nobody(just_as_far: int) -> None:
    tree = chains()
    for host, num_bytes in zip("abcdefgh", (90, 99, 80, 98, 70, 97, 60, just_as_far), strict=True):
        tree.progressed(host, num_bytes, 1.0)
    assert sources(tree.failed("g", FetchProblem.LOST, 2.0)) == {"g": "h"}


def test_a_slow_host_is_not_moved_below_itself_whatever_is_reported() -> None:
    tree = chains()
    tree.look(10.0)
    for host in "abdfh":
        tree.progressed(host, 60, 12.0)
    for host in "ce":
        tree.progressed(host, 2, 11.0)
    tree.progressed("g", 100, 12.0)  # as if it had been told late whom it fetches from
    assert tree.look(12.0) == [], "only g is ahead by enough, and gets its bytes from c"


def test_a_host_that_has_just_begun_is_not_slow() -> None:
    tree = chains()
    tree.look(10.0)
    for host in "abcdefgh":
        tree.progressed(host, 500, 11.9)
    (first,) = tree.want("i", 11.9, serves=True, reaches_others=True)
    assert tree.look(12.0) == []
    for host in "abcdefgh":
        tree.arrived(host, 13.0)
    assert sources(tree.look(14.1)).keys() == {"i"}
    assert sources(tree.look(16.2)).keys() == {"i"}, "it is as slow when all others have it"
    assert first.host == "i"


def test_a_host_that_others_have_reached_is_not_cut_off_by_some_that_do_not() -> None:
    routes = HostRoutes()
    for host in "abc":
        routes.note(host, "x", works=False)
    assert not routes.may_work("d", "x")
    routes.note("e", "x", works=True)
    assert routes.may_work("d", "x") and not routes.may_work("a", "x")
    routes.note("a", "x", works=True)
    assert routes.may_work("a", "x")


# --- in simulated time ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("num_hosts", "size_bytes", "most"),
    [(1, SIZE, 1.1), (2, SIZE, 2.1), (64, SIZE, 2.2), (200, SIZE, 2.4), (64, SIZE // 10, 2.8), (200, SIZE // 10, 2.8)],
)
def test_a_blob_is_everywhere_after_a_small_multiple_of_the_time_of_one_link(
    num_hosts: int, size_bytes: int, most: float
) -> None:
    hosts = SimulatedHosts(hosts_of(num_hosts), size_bytes)
    assert hosts.run() < most * size_bytes / GIGABIT
    assert hosts.sent_by_launcher <= 2.0001 * size_bytes


def test_hosts_that_need_it_later_get_it_from_those_that_have_it() -> None:
    few = hosts_of(8)
    for number, host in enumerate(few.values()):
        host.wants_at_s = 10.0 * number
    hosts = SimulatedHosts(few, SIZE)
    hosts.run()
    assert hosts.fan_out.num_copies == 2 and hosts.fan_out.is_settled
    assert all((host.came_at_s or 0) - host.wants_at_s < 1.1 * ONE_LINK_S for host in few.values())


def test_when_all_sources_die_one_after_the_other_the_last_host_still_gets_it() -> None:
    hosts = SimulatedHosts(hosts_of(20), SIZE)
    for _ in range(19):
        for _ in range(7):
            hosts.step()
        hosts.kill(next(iter(hosts.hosts)))
    (last,) = hosts.hosts.values()
    before = last.num_bytes
    assert before > 0
    start = hosts.now
    assert hosts.run() - start < 1.05 * (SIZE - before) / GIGABIT, "it began again"


def test_a_blob_that_loses_a_quarter_of_its_hosts_still_takes_less_than_three_times_one_link() -> None:
    hosts = SimulatedHosts(hosts_of(64), SIZE)
    dice = random.Random(1)
    for _ in range(16):
        for _ in range(10):
            hosts.step()
        hosts.kill(dice.choice(list(hosts.hosts)))
    assert hosts.run() < 3 * ONE_LINK_S
    assert hosts.fan_out.num_copies <= 4


def test_a_source_that_hangs_is_given_up_and_holds_up_only_its_own_readers() -> None:
    hosts = SimulatedHosts(hosts_of(64), SIZE)
    for _ in range(50):
        hosts.step()
    hung = hosts.hosts["agent-1"]
    hung.is_hung = True
    readers = [name for name, host in hosts.hosts.items() if host.source == "agent-1"]
    assert readers
    assert hosts.run() < STALL_S + 5 * ONE_LINK_S
    assert all(hosts.hosts[name].orders[-1] != "agent-1" for name in readers)


@pytest.mark.parametrize("seed", range(40))
def test_whatever_happens_in_between_every_host_that_is_left_gets_it(seed: int) -> None:
    dice = random.Random(seed)
    hosts = hosts_of(dice.randint(1, 25))
    for host in hosts.values():
        host.serves = dice.random() < 0.8
        host.rate = GIGABIT * dice.choice([0.02, 0.5, 1.0, 1.0])
        host.wants_at_s = dice.random()
        unreached = {name for name in hosts if dice.random() < 0.2}
        host.reaches = lambda source, unreached=unreached: source not in unreached
    run = SimulatedHosts(hosts, 20_000_000, routes=HostRoutes())
    for _ in range(40):
        for _ in range(dice.randint(1, 20)):
            run.step()
        if not run.hosts:
            break
        name = dice.choice(list(run.hosts))
        happens = dice.random()
        if happens < 0.2:
            run.kill(name)
        elif happens < 0.3:
            run.hosts[name].is_hung = True
        elif happens < 0.7:
            run.fail(name, dice.choice(list(FetchProblem)))
        assert_sound(run)
    for host in run.hosts.values():
        host.is_hung = False
    run.run(until_s=run.now + 200)


def assert_sound(run: SimulatedHosts) -> None:
    """No circle, and no host without a source unless it waits for room, or for the next look."""
    for name, host in run.hosts.items():
        seen, at = {name}, host.source
        while at:
            assert at not in seen, f"{name} fetches from itself"
            seen.add(at)
            at = run.hosts[at].source
    peers = run.readers()
    del peers[LAUNCHER_SOURCE]
    assert max(peers.values(), default=0) <= MOST_READERS


def test_where_hosts_do_not_reach_each_other_the_launcher_serves_all_and_soon_nobody_tries() -> None:
    routes = HostRoutes()
    tries: list[int] = []
    for _ in range(4):
        hosts = hosts_of(12)
        for host in hosts.values():
            host.reaches = lambda _: False
        run = SimulatedHosts(hosts, 1_000_000, routes=routes)
        run.run()
        tries.append(sum(source != LAUNCHER_SOURCE for host in hosts.values() for source in host.orders))
        assert run.fan_out.num_copies == 12
    assert tries[0] <= 10 and tries[-1] == 0


def test_hosts_leave_a_slow_source_and_the_slow_host_is_not_moved_for_ever() -> None:
    hosts = hosts_of(16)
    slow = hosts["agent-1"]
    slow.rate = GIGABIT / 50
    run = SimulatedHosts(hosts, 4 * SIZE)
    run.run()
    others = [host.came_at_s or 0.0 for name, host in hosts.items() if name != "agent-1"]
    assert max(others) < 3 * 4 * ONE_LINK_S
    assert len(slow.orders) <= 3


def test_equal_hosts_are_never_moved() -> None:
    hosts = hosts_of(16)
    SimulatedHosts(hosts, 10 * SIZE).run()
    assert all(len(host.orders) == 1 for host in hosts.values())


def test_a_simulated_star_takes_as_many_times_one_link_as_there_are_hosts() -> None:
    """So the model's figure for the tree is one of the tree."""
    hosts = {name: SimulatedHost(serves=False) for name in hosts_of(16)}
    assert SimulatedHosts(hosts, SIZE).run() == pytest.approx(16 * ONE_LINK_S, rel=0.01)
