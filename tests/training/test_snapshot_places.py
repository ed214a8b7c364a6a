"""Where snapshots lie: who keeps them, where they are after deaths, and what is copied so that another may follow."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from ropewalk.pipeline.plans import Plan, PlanWorker, Stage
from ropewalk.pipeline.schedules.streams import Cut
from ropewalk.training.snapshot_places import (
    Copy,
    copies_of,
    holders_of,
    keepers_of,
    missing_groups,
    nearest,
    one_per_group,
)

CUT, LATER = Cut(0, 8, (0, 0)), Cut(0, 16, (0, 0))
FIRST, SECOND, THIRD = PlanWorker(0, 0), PlanWorker(1, 0), PlanWorker(1, 1)
#: One replica, and two.
PLAN = Plan((Stage(0, ("a",), (0,)), Stage(1, ("b",), (1, 2))), (), (), "pipedream", 4)

hosts = st.dictionaries(st.integers(0, 8), st.sampled_from("ABC"), min_size=1)


# --- keepers ----------------------------------------------------------------------------------------------------------


@given(hosts)
def test_a_keeper_is_another_process_on_another_host_if_there_is_one(hosts: dict[int, str]) -> None:
    keepers = keepers_of(hosts)
    assert keepers.keys() == hosts.keys()
    for seat, keeper in keepers.items():
        assert keeper in hosts
        assert (keeper != seat) == (len(hosts) > 1)
        assert (hosts[keeper] != hosts[seat]) == (len(set(hosts.values())) > 1)


@given(st.integers(1, 5), st.integers(2, 4))
def test_processes_that_are_spread_evenly_keep_equally_much(per_host: int, num_hosts: int) -> None:
    keepers = keepers_of({seat: f"host {seat // per_host}" for seat in range(per_host * num_hosts)})
    assert set(Counter(keepers.values()).values()) == {1}


# --- where they are ---------------------------------------------------------------------------------------------------


def test_a_snapshot_at_the_seat_of_its_worker_is_taken_there() -> None:
    holders = holders_of({1: [(3, SECOND, CUT), (3, FIRST, CUT)], 0: [(3, FIRST, CUT), (3, SECOND, CUT)]}, 3, CUT)
    assert holders == {FIRST: [0, 1], SECOND: [0, 1]}
    assert nearest(holders, {FIRST: 0, SECOND: 1}) == {FIRST: 0, SECOND: 1}
    assert nearest(holders, {FIRST: 1, SECOND: 0}) == {FIRST: 1, SECOND: 0}


def test_a_snapshot_of_a_lost_worker_is_taken_from_its_keeper() -> None:
    holders = holders_of({1: [(3, SECOND, CUT), (3, FIRST, CUT)]}, 3, CUT)
    assert nearest(holders, {FIRST: 0, SECOND: 1}) == {FIRST: 1, SECOND: 1}


def test_other_cuts_and_epochs_are_none_of_this_one() -> None:
    kept = {0: [(2, FIRST, CUT), (3, FIRST, LATER)], 1: [(4, SECOND, CUT)]}
    assert holders_of(kept, 3, CUT) == {}
    assert holders_of(kept, 4, CUT) == {SECOND: [1]}


def test_for_another_plan_one_replica_of_each_group_is_enough() -> None:
    assert one_per_group([THIRD, SECOND, FIRST]) == [SECOND, FIRST]
    assert one_per_group([THIRD, FIRST]) == [THIRD, FIRST]


def test_the_same_plan_needs_the_snapshots_of_all_replicas_and_another_one_those_of_one() -> None:
    assert missing_groups(PLAN, [FIRST, SECOND, THIRD], same_plan=True) == []
    assert missing_groups(PLAN, [FIRST, THIRD], same_plan=True) == [1]
    assert missing_groups(PLAN, [FIRST, THIRD], same_plan=False) == []
    assert missing_groups(PLAN, [THIRD], same_plan=False) == [0]
    assert missing_groups(PLAN, [], same_plan=True) == [0, 1]


# --- copies -----------------------------------------------------------------------------------------------------------

ONE_HOST = {0: "A", 1: "A", 2: "A"}
SEATS = {FIRST: 0, SECOND: 1, THIRD: 2}


def test_what_lies_with_one_process_alone_is_copied_to_the_keeper() -> None:
    holders = {FIRST: [0, 1], SECOND: [1], THIRD: [2, 0]}
    assert copies_of(PLAN, holders, ONE_HOST, SEATS, same_plan=True) == [Copy(SECOND, 1, 2)]


def test_what_only_the_keeper_has_is_copied_to_another_process() -> None:
    # Worker 1.0 sat at seat 1, which is gone.
    assert copies_of(PLAN, {FIRST: [0, 2], SECOND: [2], THIRD: [2, 0]}, {0: "A", 2: "A"}, SEATS, same_plan=True) == [
        Copy(SECOND, 2, 0)
    ]


def test_what_lies_on_one_host_alone_is_copied_to_another_one() -> None:
    two_hosts = {0: "A", 1: "A", 2: "B"}
    assert copies_of(PLAN, {FIRST: [0, 1], SECOND: [1, 2], THIRD: [2, 0]}, two_hosts, SEATS, same_plan=True) == [
        Copy(FIRST, 0, 2)
    ]


def test_what_nobody_has_and_what_has_nowhere_to_go_is_left() -> None:
    assert copies_of(PLAN, {FIRST: [0], SECOND: []}, {0: "A"}, SEATS, same_plan=True) == []


def test_a_seat_whose_process_is_gone_holds_nothing() -> None:
    assert copies_of(PLAN, {FIRST: [0, 7]}, {0: "A", 1: "A"}, SEATS, same_plan=True) == [Copy(FIRST, 0, 1)]


def test_replicas_make_up_for_each_other_under_another_plan_alone() -> None:
    holders = {FIRST: [0, 1], SECOND: [1], THIRD: [2]}
    assert copies_of(PLAN, holders, ONE_HOST, {}, same_plan=False) == []
    assert {copy.worker for copy in copies_of(PLAN, holders, ONE_HOST, SEATS, same_plan=True)} == {SECOND, THIRD}


@given(st.data(), hosts, st.booleans())
def test_after_the_copies_any_process_or_host_may_be_lost(
    data: st.DataObject, hosts: dict[int, str], same_plan: bool
) -> None:
    places = st.lists(st.sampled_from(sorted(hosts)), min_size=1, unique=True)
    holders = data.draw(st.fixed_dictionaries(dict.fromkeys(PLAN.workers, places)))
    copies = copies_of(PLAN, holders, hosts, SEATS, same_plan=same_plan)
    assert len({copy.worker for copy in copies}) == len(copies), "one copy of each is enough"
    for worker, source, target in copies:
        assert source in holders[worker] and target not in holders[worker]
    after = {worker: {*seats, *(copy.target for copy in copies if copy.worker == worker)}
             for worker, seats in holders.items()}  # fmt: skip
    for lost in [{seat} for seat in hosts] + [{seat for seat in hosts if hosts[seat] == name} for name in "ABC"]:
        if lost < hosts.keys():
            there = [worker for worker, seats in after.items() if seats - lost]
            assert missing_groups(PLAN, there, same_plan=same_plan) == []
    copied = {worker: sorted(seats) for worker, seats in after.items()}
    assert copies_of(PLAN, copied, hosts, SEATS, same_plan=same_plan) == []


def test_of_those_that_may_keep_a_copy_the_one_that_holds_least_is_taken() -> None:
    hosts = dict.fromkeys(range(4), "A")
    # Of the two seats without one of `FIRST`, 1 holds two others and 3 one; no seat is known as the keeper.
    holders = {FIRST: [0], SECOND: [1, 2], THIRD: [1, 2, 3]}
    assert copies_of(PLAN, holders, {**hosts}, {}, same_plan=True) == [Copy(FIRST, 0, 3)]


def test_copies_count_at_their_targets_and_come_from_those_that_hold_least() -> None:
    hosts = {0: "A", 1: "B", 2: "A", 3: "B"}
    # Both lie on host A alone. Seat 1 gets the first copy, so seat 3 gets the second, from the seat that holds less.
    holders = {FIRST: [0, 2], SECOND: [0, 2], THIRD: [0, 1]}
    copies = copies_of(PLAN, holders, hosts, {}, same_plan=True)
    assert copies == [Copy(FIRST, 2, 3), Copy(SECOND, 2, 1)]


def test_a_worker_without_a_seat_has_no_keeper() -> None:
    hosts = {0: "A", 1: "A", 2: "A", 3: "A"}
    assert keepers_of(hosts)[0] == 1 and keepers_of(hosts)[1] == 2
    assert copies_of(PLAN, {FIRST: [3], SECOND: [0, 1], THIRD: [2, 3]}, hosts, {}, same_plan=True) == [
        Copy(FIRST, 3, 0)
    ]


def test_under_another_plan_the_copy_is_that_of_the_first_replica() -> None:
    assert copies_of(PLAN, {SECOND: [1], THIRD: [1]}, ONE_HOST, {}, same_plan=False) == [Copy(SECOND, 1, 0)]
