"""Restart budgets, by comparing lists of instructions."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropewalk.supervision.restart import GiveUp, RestartBudget, RestartIntensity, RestartPolicy, StartAgain

PLAIN = RestartPolicy(max_restarts=3, window_s=60, backoff_s=1, backoff_max_s=3, jitter=0)


def test_a_process_that_had_been_ready_is_replaced_at_once_however_often() -> None:
    budget = RestartBudget(PLAIN)
    assert [budget.died(now * 0.05, healthy=True) for now in range(1000)] == [StartAgain(0.0)] * 1000


def test_failed_starts_wait_longer_and_longer_and_then_end_with_the_first_cause_first() -> None:
    budget = RestartBudget(PLAIN)
    answers = [budget.died(float(now), healthy=False, cause=f"cause {now}") for now in range(4)]
    assert answers == [
        StartAgain(1.0),
        StartAgain(2.0),
        StartAgain(3.0),
        GiveUp(
            "4 starts failed before the process was ready, within 3.0 s; max_restarts=3 allows 3 restarts in 60 s",
            ("cause 0", "cause 1", "cause 2", "cause 3"),
        ),
    ]


def test_having_given_up_is_final() -> None:
    budget = RestartBudget(RestartPolicy(max_restarts=0))
    first = budget.died(0.0, healthy=False, cause="no such module")
    assert isinstance(first, GiveUp)
    assert first.reason.startswith("1 start failed")
    assert budget.died(1e6, healthy=True) == first


def test_failures_leave_the_window_once_something_was_ready() -> None:
    budget = RestartBudget(PLAIN)
    for now in (0.0, 50.0, 100.0, 150.0, 200.0, 250.0):
        assert isinstance(budget.died(now, healthy=False), StartAgain)
        budget.ready(now + 10)


def test_failures_inside_the_window_count_although_others_were_ready() -> None:
    budget = RestartBudget(PLAIN)
    answers: list[StartAgain | GiveUp] = []
    for now in range(3):
        answers += [budget.died(float(now), healthy=False), budget.died(now + 0.1, healthy=False)]
        budget.ready(now + 0.5)
        budget.died(now + 0.6, healthy=True)
    assert [type(answer) for answer in answers] == [StartAgain] * 5 + [GiveUp]


def test_each_start_that_succeeds_makes_up_for_one_that_failed() -> None:
    """Workers killed at random every 50 ms are sometimes killed before they are ready; that is no crash loop."""
    budget = RestartBudget(PLAIN)
    for now in range(1000):
        assert isinstance(budget.died(now * 0.05, healthy=False), StartAgain)
        budget.ready(now * 0.05 + 0.02)


def test_the_wait_begins_anew_once_something_was_ready_and_not_with_a_death_after_that() -> None:
    budget = RestartBudget(RestartPolicy(max_restarts=9, window_s=60, backoff_s=1, backoff_max_s=100, jitter=0))
    assert [restart_delay(budget, now) for now in range(3)] == [1, 2, 4]
    assert budget.died(3.0, healthy=True) == StartAgain(0.0)
    assert restart_delay(budget, 4) == 8
    budget.ready(5.0)
    assert restart_delay(budget, 6) == 1


@pytest.mark.parametrize(("after_s", "expected"), [(59.9, GiveUp), (60.0, StartAgain)])
def test_a_failed_start_counts_for_a_window_and_no_longer(after_s: float, expected: type) -> None:
    budget = RestartBudget(PLAIN)
    for now in range(3):
        budget.died(float(now), healthy=False)
    budget.died(3.0, healthy=True)  # starting works
    assert type(budget.died(after_s, healthy=False)) is expected


def test_a_failure_is_not_forgotten_while_nothing_has_been_ready_since() -> None:
    budget = RestartBudget(RestartPolicy(max_restarts=1, window_s=60))
    budget.died(0.0, healthy=False)
    assert isinstance(budget.died(1000.0, healthy=False), GiveUp)
    budget = RestartBudget(RestartPolicy(max_restarts=1, window_s=60))
    budget.died(0.0, healthy=False)
    budget.died(0.5, healthy=True)
    assert isinstance(budget.died(1000.0, healthy=False), StartAgain)


def test_a_crash_loop_whose_starts_are_slower_than_the_window_ends_too() -> None:
    """With a plain sliding window, a start that takes 90 s before it fails would be tried for ever."""
    budget = RestartBudget(PLAIN)
    answers = [budget.died(now * 90.0, healthy=False) for now in range(4)]
    assert [type(answer) for answer in answers] == [StartAgain, StartAgain, StartAgain, GiveUp]


def test_jitter_only_shortens_a_wait_and_repeats_under_a_seed() -> None:
    policy = RestartPolicy(max_restarts=20, backoff_s=1, backoff_max_s=8, jitter=0.5)
    first, again, other = RestartBudget(policy, seed=7), RestartBudget(policy, seed=7), RestartBudget(policy, seed=8)
    waits = [restart_delay(first, now) for now in range(20)]
    assert waits == [restart_delay(again, now) for now in range(20)]
    assert waits != [restart_delay(other, now) for now in range(20)]
    for i, wait in enumerate(waits):
        assert min(8, 2**i) * 0.5 <= wait <= min(8, 2**i)


def restart_delay(budget: RestartBudget, now: float) -> float:
    answer = budget.died(float(now), healthy=False)
    assert isinstance(answer, StartAgain)
    return answer.delay_s


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_restarts": -1},
        {"window_s": 0},
        {"window_s": float("nan")},
        {"backoff_s": -1},
        {"backoff_s": 5, "backoff_max_s": 1},
        {"backoff_max_s": float("inf")},
        {"jitter": 1.5},
    ],
)
def test_a_policy_that_makes_no_sense_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        RestartPolicy(**wrong)  # type: ignore[arg-type]


@given(
    events=st.lists(st.tuples(st.floats(0, 100), st.sampled_from(["ready", "healthy", "failed"]))),
    max_restarts=st.integers(0, 5),
)
def test_any_history_keeps_the_promises(events: list[tuple[float, str]], max_restarts: int) -> None:
    policy = RestartPolicy(max_restarts=max_restarts, window_s=60, backoff_s=0.5, backoff_max_s=4)
    budget = RestartBudget(policy)
    now, in_a_row, given_up = 0.0, 0, False
    for gap, event in events:
        now += gap
        if event == "ready":
            budget.ready(now)
            in_a_row = 0
            continue
        answer = budget.died(now, healthy=event == "healthy", cause=event)
        if given_up:
            assert isinstance(answer, GiveUp)
        elif isinstance(answer, GiveUp):
            given_up = True
            assert event == "failed"
            assert len(answer.deaths) == max_restarts + 1
        else:
            in_a_row = in_a_row + 1 if event == "failed" else 0
            assert in_a_row <= max_restarts
            assert 0 <= answer.delay_s <= 4
            assert (answer.delay_s == 0) == (event == "healthy")


def test_very_many_allowed_restarts_do_not_overflow_the_wait() -> None:
    budget = RestartBudget(RestartPolicy(max_restarts=5000, backoff_s=1, backoff_max_s=10, jitter=0))
    for now in range(3000):
        assert restart_delay(budget, now) <= 10


# --- every failure counts ---------------------------------------------------------------------------------------------


def test_one_failure_after_a_long_life_is_followed_by_a_restart_at_once() -> None:
    intensity = RestartIntensity(PLAIN)
    for now in range(0, 1000, 61):
        intensity.ready()
        assert intensity.failed(float(now)) == StartAgain(0.0)


def test_failures_close_together_wait_longer_and_end_although_each_start_succeeded() -> None:
    intensity = RestartIntensity(PLAIN)
    answers: list[StartAgain | GiveUp] = []
    for now in range(4):
        intensity.ready()
        answers.append(intensity.failed(float(now), f"cause {now}"))
    assert answers == [
        StartAgain(0.0),
        StartAgain(1.0),
        StartAgain(2.0),
        GiveUp(
            "it failed 4 times within 3.0 s; max_restarts=3 allows 3 restarts in 60 s",
            ("cause 0", "cause 1", "cause 2", "cause 3"),
        ),
    ]


@pytest.mark.parametrize(("after_s", "delay_s"), [(59.9, 1.0), (60.0, 0.0)])
def test_a_failure_counts_for_a_window_and_no_longer(after_s: float, delay_s: float) -> None:
    intensity = RestartIntensity(PLAIN)
    intensity.failed(0.0)
    assert intensity.num_failures == 1
    intensity.ready()
    assert intensity.failed(after_s) == StartAgain(delay_s)
    assert intensity.num_failures == (2 if delay_s else 1)


def test_the_wait_after_failures_grows_to_the_longest_and_says_how_many_were_forgiven() -> None:
    intensity = RestartIntensity(RestartPolicy(max_restarts=5, window_s=60, backoff_s=1, backoff_max_s=3, jitter=0))
    answers = [intensity.failed(float(now)) for now in range(5)]
    assert answers == [StartAgain(0.0), StartAgain(1.0), StartAgain(2.0), StartAgain(3.0), StartAgain(3.0)]
    assert isinstance(intensity.failed(5.0), GiveUp)


def test_without_restarts_the_first_failure_is_final() -> None:
    answer = RestartIntensity(RestartPolicy(max_restarts=0)).failed(5.0, "no such module")
    assert answer == GiveUp("it failed once; max_restarts=0 allows no restart", ("no such module",))


def test_a_loop_whose_starts_are_slower_than_the_window_ends_too() -> None:
    intensity = RestartIntensity(PLAIN)
    answers = [intensity.failed(now * 90.0) for now in range(4)]
    assert [type(answer) for answer in answers] == [StartAgain, StartAgain, StartAgain, GiveUp]


@given(gaps=st.lists(st.tuples(st.floats(0, 100), st.booleans())), max_restarts=st.integers(0, 5))
def test_any_failures_keep_the_promises(gaps: list[tuple[float, bool]], max_restarts: int) -> None:
    policy = RestartPolicy(max_restarts=max_restarts, window_s=60, backoff_s=0.5, backoff_max_s=4)
    intensity, now = RestartIntensity(policy, seed="a/0"), 0.0
    times: list[float] = []
    for gap, becomes_ready in gaps:
        now += gap
        if becomes_ready:
            intensity.ready()
        answer = intensity.failed(now)
        times.append(now)
        in_window = [time for time in times if time > now - 60]
        if isinstance(answer, GiveUp):
            assert len(answer.deaths) == max_restarts + 1
            return
        assert len(in_window) <= max_restarts
        assert 0 <= answer.delay_s <= 4
        if len(in_window) > 1:
            assert answer.delay_s >= 0.25


# --- numbers at their bounds ------------------------------------------------------------------------------------------


def test_what_a_policy_is_that_nobody_has_chosen() -> None:
    policy = RestartBudget().policy
    assert policy == RestartPolicy(max_restarts=5, window_s=60.0, backoff_s=0.1, backoff_max_s=10.0, jitter=0.5)


@pytest.mark.parametrize(
    "bound",
    [
        {"max_restarts": 0},
        {"window_s": 0.001},
        {"window_s": 1},
        {"backoff_s": 0},
        {"backoff_s": 5, "backoff_max_s": 5},
        {"backoff_s": 0, "backoff_max_s": 0},
        {"jitter": 0},
        {"jitter": 1},
    ],
)
def test_a_policy_at_its_bounds_is_taken(bound: dict[str, float]) -> None:
    RestartPolicy(**bound)  # type: ignore[arg-type]


def test_a_jitter_below_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match=r"jitter must be between 0 and 1, not -0\.5"):
        RestartPolicy(jitter=-0.5)


def test_the_wait_stops_growing_after_64_doublings() -> None:
    policy, chance = RestartPolicy(backoff_s=1, backoff_max_s=1e300, jitter=0), random.Random(0)
    assert [policy.wait_s(doublings, chance) for doublings in (0, 1, 63, 64, 65, 5000)] == [
        *(1.0, 2.0, 2.0**63),
        *(2.0**64, 2.0**64, 2.0**64),
    ]


def test_a_start_that_succeeds_forgets_what_has_left_the_window_beside_the_one_that_it_makes_up_for() -> None:
    budget = RestartBudget(PLAIN)
    for now in (0.0, 1.0, 2.0):
        budget.died(now, healthy=False)
    budget.ready(60.5)  # the first has left the window, and this makes up for the second
    answers = [budget.died(now, healthy=False) for now in (60.6, 60.7, 60.8)]
    assert [type(answer) for answer in answers] == [StartAgain, StartAgain, GiveUp]


def test_the_span_of_a_reason_is_between_the_first_failure_and_the_last() -> None:
    budget = RestartBudget(PLAIN)
    answers = [budget.died(1000.0 + now / 10, healthy=False) for now in range(4)]
    assert isinstance(answers[-1], GiveUp) and "within 0.3 s" in answers[-1].reason
    intensity = RestartIntensity(PLAIN)
    answers = [intensity.failed(1000.0 + now / 10) for now in range(4)]
    assert isinstance(answers[-1], GiveUp) and "within 0.3 s" in answers[-1].reason


def test_chance_begins_with_the_seed() -> None:
    policy = RestartPolicy(max_restarts=9, backoff_s=1)

    def waits(counts: RestartBudget | RestartIntensity) -> list[float]:
        fail = counts.failed if isinstance(counts, RestartIntensity) else lambda now: counts.died(now, healthy=False)
        answers = [fail(float(now)) for now in range(3)]
        return [answer.delay_s for answer in answers if isinstance(answer, StartAgain)]

    assert waits(RestartBudget(policy)) == waits(RestartBudget(policy, seed=0)) != waits(RestartBudget(policy, seed=1))
    assert waits(RestartIntensity(policy)) == waits(RestartIntensity(policy, seed=0))
    assert waits(RestartIntensity(policy)) != waits(RestartIntensity(policy, seed="a/0"))
