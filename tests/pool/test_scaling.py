"""How many workers there are: counted against the number wanted, whoever comes, leaves or dies."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ropewalk.pool.scaling import Scaling
from ropewalk.supervision.restart import GiveUp, Restart, RestartPolicy


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
    assert scaling.died(1, 1.0, "signal 9") == Restart(0.0)
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
    assert isinstance(decision, Restart) and decision.delay_s > 0
    assert scaling.missing() == []
    scaling.delay_over()
    assert scaling.missing() == [0]


def test_starts_that_always_fail_are_given_up() -> None:
    scaling = Scaling(1)
    for number in range(RestartPolicy().max_restarts):
        scaling.missing()
        assert isinstance(scaling.died(0, number * 1.0, f"failure {number}"), Restart)
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
    assert isinstance(scaling.died(0, 1.0, "its own death"), Restart)


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
            assert isinstance(decision, Restart)
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
