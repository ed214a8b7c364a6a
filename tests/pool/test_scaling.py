"""How many workers there are: counted against the number wanted, whoever comes, leaves or dies."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ropewalk.pool.scaling import Elasticity, Scaling, Seat, first_to_go
from ropewalk.supervision.restart import GiveUp, RestartPolicy, StartAgain


def running(wanted: int) -> Scaling:
    scaling = Scaling(wanted)
    for rank in scaling.missing():
        scaling.ready(rank, 0.0)
    return scaling


def test_missing_workers_are_named_once_by_the_lowest_free_ranks() -> None:
    scaling = Scaling(3)
    assert scaling.missing() == [0, 1, 2]
    assert scaling.missing() == []
    scaling.wanted = 5
    assert scaling.missing() == [3, 4]


def test_a_worker_that_died_is_replaced_at_once_under_its_rank() -> None:
    scaling = running(3)
    assert scaling.died(1, 1.0, "signal 9") == StartAgain(0.0)
    assert scaling.missing() == [1]


def test_surplus_is_taken_in_the_order_given_and_no_more_than_needed() -> None:
    scaling = running(4)
    scaling.wanted = 2
    assert scaling.surplus([3, 1, 0, 2]) == [3, 1]
    assert scaling.surplus([3, 1, 0, 2]) == []
    assert scaling.missing() == []


def test_a_leaving_worker_keeps_its_rank_until_it_is_gone() -> None:
    # The ranks of workers that drained were given out again at once. When the old 2 ended, the new 2 was forgotten,
    # and one more was started: a pool that was made smaller and larger while busy had too many workers for ever.
    scaling = running(4)
    scaling.wanted = 2
    assert scaling.surplus([2, 3]) == [2, 3]
    scaling.wanted = 4
    assert scaling.missing() == [4, 5]
    scaling.leaving(2)  # said twice: when it is drained, and when it is stopped
    assert scaling.missing() == []
    scaling.gone(2)
    assert scaling.missing() == []
    scaling.wanted = 5
    assert scaling.missing() == [2]


def test_the_death_of_a_leaving_worker_is_no_news() -> None:
    scaling = running(2)
    scaling.leaving(0)
    assert scaling.missing() == [2]
    assert scaling.died(0, 1.0, "killed") is None
    assert scaling.missing() == []
    assert scaling.died(99, 1.0, "never heard of") is None


def test_a_place_is_kept_while_a_failed_start_waits() -> None:
    scaling = Scaling(2)
    scaling.missing()
    decision = scaling.died(0, 1.0, "no such module")
    assert isinstance(decision, StartAgain) and decision.delay_s > 0
    assert scaling.missing() == []
    scaling.delay_over()
    assert scaling.missing() == [0]


def test_starts_that_always_fail_are_given_up() -> None:
    scaling = Scaling(1)
    for number in range(RestartPolicy().max_restarts):
        scaling.missing()
        assert isinstance(scaling.died(0, number * 1.0, f"failure {number}"), StartAgain)
        scaling.delay_over()
    scaling.missing()
    decision = scaling.died(0, 9.0, "last failure")
    assert isinstance(decision, GiveUp)
    assert decision.deaths[0] == "failure 0" and decision.deaths[-1] == "last failure"


def test_workers_that_went_with_their_host_are_replaced_and_count_for_nothing() -> None:
    scaling = Scaling(1)
    for _ in range(50):  # more often than any budget allows, and never ready
        assert len(scaling.missing()) == 1
        scaling.gone(0)
    scaling.missing()
    assert isinstance(scaling.died(0, 1.0, "its own death"), StartAgain)


class ScalingAgainstModel(RuleBasedStateMachine):
    """Whatever happens, as many workers are there or on their way as are wanted, and no rank is there twice."""

    @initialize(wanted=st.integers(1, 6))
    def begin(self, wanted: int) -> None:
        self.scaling = Scaling(wanted)
        self.workers: dict[int, str] = {}
        """Rank to state: starting, ready, leaving."""
        self.num_delayed = 0
        self.now = 0.0
        self.given_up = False
        self.fill_up()

    def fill_up(self) -> None:
        for rank in self.scaling.missing():
            assert rank not in self.workers, "two workers of one rank"
            self.workers[rank] = "starting"

    def pick(self, number: int) -> int:
        return sorted(self.workers)[number % len(self.workers)]

    @rule(wanted=st.integers(1, 6), order=st.randoms(use_true_random=False))
    def resize(self, wanted: int, order: object) -> None:
        self.scaling.wanted = wanted
        self.fill_up()
        ranks = sorted(self.workers)
        order.shuffle(ranks)  # type: ignore[attr-defined]
        for rank in self.scaling.surplus(ranks):
            assert self.workers[rank] != "leaving"
            self.workers[rank] = "leaving"

    @precondition(lambda self: self.workers)
    @rule(number=st.integers(0, 20))
    def ready(self, number: int) -> None:
        rank = self.pick(number)
        self.scaling.ready(rank, self.now)
        if self.workers[rank] == "starting":
            self.workers[rank] = "ready"

    @precondition(lambda self: self.workers)
    @rule(number=st.integers(0, 20))
    def leave(self, number: int) -> None:
        rank = self.pick(number)
        self.scaling.leaving(rank)
        self.workers[rank] = "leaving"
        self.fill_up()

    @precondition(lambda self: self.workers)
    @rule(number=st.integers(0, 20), passed_s=st.sampled_from([0.0, 1.0, 100.0]))
    def die(self, number: int, passed_s: float) -> None:
        self.now += passed_s
        rank = self.pick(number)
        state = self.workers.pop(rank)
        decision = self.scaling.died(rank, self.now, "cause")
        if state == "leaving":
            assert decision is None
        elif isinstance(decision, GiveUp):
            self.given_up = True
        else:
            assert isinstance(decision, StartAgain)
            assert self.given_up or (decision.delay_s > 0) == (state == "starting")
            self.num_delayed += decision.delay_s > 0
        self.fill_up()

    @precondition(lambda self: self.workers)
    @rule(number=st.integers(0, 20))
    def go(self, number: int) -> None:
        rank = self.pick(number)
        del self.workers[rank]
        self.scaling.gone(rank)
        self.fill_up()

    @precondition(lambda self: self.num_delayed)
    @rule()
    def delay_over(self) -> None:
        self.num_delayed -= 1
        self.scaling.delay_over()
        self.fill_up()

    @invariant()
    def there_are_as_many_as_wanted(self) -> None:
        if hasattr(self, "scaling"):
            num_staying = sum(state != "leaving" for state in self.workers.values())
            assert num_staying + self.num_delayed >= self.scaling.wanted
            if not self.num_delayed:
                assert num_staying == self.scaling.wanted


TestScalingAgainstModel = ScalingAgainstModel.TestCase
TestScalingAgainstModel.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)


# How many a pool wants that grows and shrinks with its work

IDLE_S = 10.0


class Clock:
    """An elastic pool whose time the test moves."""

    def __init__(self, least: int, most: int, wanted: int, per_agent: int = 1) -> None:
        self.elasticity = Elasticity(least, most, IDLE_S)
        self.wanted = wanted
        self.per_agent = per_agent
        self.now = 100.0

    def look(self, needed: int, *after: float) -> list[int]:
        """Look after each of these times, while `needed` workers have something to do."""
        sizes: list[int] = []
        for passed_s in after:
            self.now += passed_s
            self.wanted = self.elasticity.look(self.now, self.wanted, needed, self.per_agent)
            sizes.append(self.wanted)
        return sizes


def test_a_pool_grows_to_what_could_be_at_work_when_its_workers_do_not_keep_up() -> None:
    pool = Clock(1, 8, wanted=2)
    assert pool.look(5, 0.0, 0.1, 0.15) == [2, 2, 5]
    assert pool.look(50, 0.0, 0.25) == [5, 8]


def test_a_burst_that_is_soon_over_starts_nobody() -> None:
    pool = Clock(1, 8, wanted=2)
    for _ in range(20):
        assert pool.look(5, 0.05, 0.1) == [2, 2]
        assert pool.look(1, 0.05) == [2]


def test_a_pool_without_workers_does_not_wait_to_grow() -> None:
    assert Clock(0, 8, wanted=0).look(1, 0.0) == [1]


def test_a_pool_asks_for_whole_agents_and_not_for_more_than_it_may() -> None:
    assert Clock(1, 32, wanted=1, per_agent=4).look(3, 0.0, 0.2) == [1, 5]
    assert Clock(1, 6, wanted=1, per_agent=4).look(9, 0.0, 0.2) == [1, 6]


def test_a_pool_shrinks_to_what_was_at_work_at_once_while_it_was_too_large() -> None:
    pool = Clock(1, 8, wanted=8)
    assert pool.look(2, 0.0, 4.0) == [8, 8]
    assert pool.look(5, 1.0) == [8]
    assert pool.look(0, 4.0, 1.1) == [8, 5]
    assert pool.look(0, 0.0, IDLE_S) == [5, 1]


def test_a_pool_that_is_busy_now_and_then_keeps_its_workers() -> None:
    pool = Clock(1, 4, wanted=4)
    for _ in range(10):
        assert pool.look(0, 0.0, IDLE_S - 1) == [4, 4]
        assert pool.look(4, 0.5) == [4]


@given(
    least=st.integers(0, 4),
    more=st.integers(0, 12),
    begin=st.integers(0, 12),
    per_agent=st.integers(1, 5),
    steps=st.lists(st.tuples(st.integers(0, 30), st.sampled_from([0.0, 0.05, 0.3, 3.0, 11.0]))),
    last=st.integers(0, 30),
)
def test_a_pool_stays_within_its_bounds_and_comes_to_rest(
    least: int, more: int, begin: int, per_agent: int, steps: list[tuple[int, float]], last: int
) -> None:
    most = max(1, least + more)
    pool = Clock(least, most, min(most, least + begin), per_agent)
    for needed, passed_s in steps:
        before = pool.wanted
        (after,) = pool.look(needed, passed_s)
        assert least <= after <= most
        assert before <= after if needed > before else needed <= after <= before or after == least
    for _ in range(3):
        pool.look(last, 0.0, 0.5, IDLE_S + 1)
    assert pool.look(last, 0.0, 0.5, IDLE_S + 1) == [pool.wanted] * 3
    assert min(most, last) <= pool.wanted or pool.wanted == most
    assert not pool.elasticity.rests(pool.wanted, last) or pool.wanted == least >= last


def test_workers_without_a_host_go_first_then_those_of_the_agent_with_the_fewest() -> None:
    seats = [
        Seat(0, "agent-1", 0),
        Seat(1, "agent-1", 1),
        Seat(2, "agent-1", 0),
        Seat(3, "agent-2", 5),
        Seat(4, "agent-2", 0),
        Seat(5, "", 0),
    ]
    assert first_to_go(seats) == [5, 4, 3, 0, 2, 1]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3)), max_size=12), st.integers(0, 12))
def test_no_other_choice_of_workers_frees_more_agents(held: list[tuple[str, int]], num: int) -> None:
    seats = [Seat(rank, agent, items) for rank, (agent, items) in enumerate(held)]
    gone = set(first_to_go(seats)[:num])
    left = {seat.agent for seat in seats if seat.rank not in gone}
    sizes = sorted(Counter(seat.agent for seat in seats).values())
    most_free = sum(sum(sizes[: index + 1]) <= num for index in range(len(sizes)))
    assert len(sizes) - len(left) == most_free


def test_starts_that_succeed_make_up_for_those_that_fail() -> None:
    scaling = Scaling(1)
    for number in range(3 * RestartPolicy().max_restarts):
        for is_ready in (False, True):
            scaling.missing()
            if is_ready:
                scaling.ready(0, number * 0.1)
            decision = scaling.died(0, number * 0.1, "killed by chance")
            assert isinstance(decision, StartAgain)
            if decision.delay_s:
                scaling.delay_over()


def test_a_pool_rests_at_its_least_with_no_more_to_do_than_that() -> None:
    elasticity = Elasticity(least=2, most=8, idle_s=10.0)
    rests = {(wanted, needed): elasticity.rests(wanted, needed) for wanted in (1, 2, 3) for needed in (0, 2, 3)}
    assert [at for at, is_so in rests.items() if is_so] == [(1, 0), (2, 0), (2, 2)]
    assert set(rests.values()) == {True, False}


def test_work_for_just_those_that_are_there_is_no_shortage() -> None:
    elasticity = Elasticity(least=0, most=8, idle_s=10.0)
    assert elasticity.look(0.0, 2, 2, 1) == 2
    assert elasticity.look(0.3, 2, 3, 1) == 2, "short since now, and not since 0"
    assert elasticity.look(0.3 + Elasticity.PATIENCE_S, 2, 3, 1) == 3


def test_patience_ends_with_its_last_moment() -> None:
    elasticity = Elasticity(least=0, most=8, idle_s=10.0)
    assert elasticity.look(0.0, 1, 2, 1) == 1
    assert elasticity.look(Elasticity.PATIENCE_S, 1, 2, 1) == 2


def test_it_is_idle_only_since_it_was_last_at_work_with_all() -> None:
    for busy in (5, 4):  # more than there are, and just as many
        elasticity = Elasticity(least=0, most=4, idle_s=10.0)
        assert elasticity.look(0.0, 4, 2, 1) == 4
        assert elasticity.look(5.0, 4, busy, 1) == 4
        assert elasticity.look(10.5, 4, 2, 1) == 4
        assert elasticity.look(20.4, 4, 2, 1) == 4
        assert elasticity.look(20.5, 4, 2, 1) == 2


def test_an_idle_time_begins_with_the_first_look_that_finds_less_to_do() -> None:
    elasticity = Elasticity(least=0, most=4, idle_s=10.0)
    assert elasticity.look(0.0, 4, 4, 1) == 4
    assert [elasticity.look(now, 4, 2, 1) for now in (5.0, 10.5, 14.9)] == [4, 4, 4]
    assert elasticity.look(15.0, 4, 2, 1) == 2


def test_what_was_never_at_work_is_not_kept() -> None:
    elasticity = Elasticity(least=0, most=4, idle_s=10.0)
    assert [elasticity.look(now, 4, 0, 1) for now in (0.0, 10.0)] == [4, 0]
    elasticity = Elasticity(least=0, most=4, idle_s=10.0)
    assert [elasticity.look(now, 4, needed, 1) for now, needed in ((0.0, 1), (5.0, 3), (6.0, 0), (10.0, 0))][-1] == 3
    assert [elasticity.look(now, 3, 0, 1) for now in (11.0, 21.0)] == [3, 0], "a new idle time, a new peak"
