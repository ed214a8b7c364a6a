"""What follows from the events of a search: who begins, what is tried again, what ends it, and the log."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import pytest

from ropewalk.population.hyperparameters import Uniform
from ropewalk.search.book import Line, SearchBook
from ropewalk.search.endings import words_at_the_end
from ropewalk.search.instructions import Begin, Broken, StopTrial, TrialGivenUp
from ropewalk.search.samplers.sampler import Observed, Sampler
from ropewalk.search.schedulers.no_scheduler import NoScheduler
from ropewalk.search.schedulers.scheduler import GO_ON, STOP, WAIT, PromoteTrial, Scheduler, StartTrial, Verdict, Wait
from ropewalk.search.space_text import described_distribution
from ropewalk.search.trial_facts import Retries, TrialState
from ropewalk.tracking import records

DONE, FAILED, PAUSED = TrialState.DONE, TrialState.FAILED, TrialState.PAUSED
RUNNING, STOPPED, WAITING = TrialState.RUNNING, TrialState.STOPPED, TrialState.WAITING


class Whole(Scheduler):
    """Every trial runs to its end, unless its score falls below -10."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def next(self) -> StartTrial | PromoteTrial | Wait:
        return StartTrial(None)

    def started(self, trial: int, start: StartTrial) -> None:
        self.calls.append(("started", trial))

    def reported(self, trial: int, step: float, score: float) -> Verdict:
        self.calls.append(("reported", trial, step, score))
        return STOP if score < -10 else GO_ON

    def ended(self, trial: int) -> None:
        self.calls.append(("ended", trial))

    def failed(self, trial: int) -> None:
        self.calls.append(("failed", trial))


class Halving(Whole):
    """Trials pause at step 1; the best of each two that have paused is promoted to step 4."""

    def __init__(self) -> None:
        super().__init__()
        self.paused_ones: dict[int, float] = {}
        self.scores: dict[int, float] = {}
        self.promoted_ones: list[int] = []
        self.is_exhausted = False

    def next(self) -> StartTrial | PromoteTrial | Wait:
        best = sorted(self.paused_ones, key=lambda trial: (-self.scores[trial], trial))[: len(self.paused_ones) // 2]
        for trial in best:
            if trial not in self.promoted_ones:
                return PromoteTrial(trial, 4.0)
        return WAIT if self.is_exhausted else StartTrial(1.0)

    def reported(self, trial: int, step: float, score: float) -> Verdict:
        self.scores[trial] = score
        return super().reported(trial, step, score)

    def paused(self, trial: int, step: float) -> None:
        self.paused_ones[trial] = step

    def promoted(self, promote: PromoteTrial) -> None:
        self.promoted_ones.append(promote.trial)

    def exhausted(self) -> None:
        self.is_exhausted = True


class Numbers(Sampler):
    """Gives each trial its number, up to a limit."""

    def __init__(self, limit: int = 1000) -> None:
        self.limit = limit
        self.told: list[Observed] = []
        self.asked: list[tuple[int, list[Observed]]] = []

    def begin(self, space: Any, objectives: int, seed: int) -> None: ...

    def ask(self, number: int, trials: Sequence[Observed]) -> dict[str, Any] | None:
        self.asked.append((number, list(trials)))
        return {"x": number} if number < self.limit else None

    def tell(self, trial: Observed) -> None:
        self.told.append(trial)


def made(scheduler: Scheduler | None = None, sampler: Sampler | None = None, **settings: Any) -> SearchBook:
    settings = {"metrics": ["score"], "modes": ["max"], "max_trials": 4} | settings
    return SearchBook(scheduler or Whole(), sampler or Numbers(), **settings)


def test_trials_begin_until_their_number_is_reached() -> None:
    book = made(max_trials=2)
    assert [book.begin_next() for _ in range(4)] == [Begin(0, 1, None), Begin(1, 1, None), None, None]
    assert book.num_running == 2


def test_trials_that_have_not_begun_are_left_too() -> None:
    # A search of twelve trials that was interrupted while three waited for a process said that three were left.
    book = made(max_trials=12)
    for _ in range(3):
        book.begin_next()
    assert book.num_left == 12
    assert words_at_the_end(book, records.PAUSED, "Ctrl-C").startswith("paused (Ctrl-C); 12 trials left")
    book.stopped(0, "by hand")
    assert book.num_left == 11
    exhausted, endless = made(sampler=Numbers(2), max_trials=12), made(max_trials=None)
    while exhausted.begin_next():
        pass
    endless.begin_next()
    assert (exhausted.num_left, endless.num_left) == (2, 1)


def test_a_sampler_without_a_further_configuration_ends_the_search() -> None:
    book = made(sampler=Numbers(limit=1), max_trials=None)
    assert book.begin_next() == Begin(0, 1, None) and book.begin_next() is None
    assert book.begin_next() is None
    assert len(book.sampler.asked) == 2  # type: ignore[attr-defined]  # it is not asked again once it had none


def test_a_search_that_is_extended_starts_further_trials_and_so_does_its_log() -> None:
    lines: list[Line] = []
    scheduler, sampler = Halving(), Numbers(limit=1)
    book = made(scheduler, sampler, max_trials=None, log=lines.append)
    book.begin_next()
    book.extended()
    assert [line[0] for line in lines] == ["start"], "it was not at its end"
    assert book.begin_next() is None
    assert scheduler.is_exhausted
    sampler.limit = 2
    assert book.begin_next() is None
    book.extended()
    assert not scheduler.is_exhausted
    assert book.begin_next() == Begin(1, 1, 1.0)
    assert [line[0] for line in lines] == ["start", "exhausted", "extend", "start"]
    other = made(Halving(), Numbers(limit=3), max_trials=None)
    other.replay(lines)
    assert other.trials == book.trials
    assert other.begin_next() == Begin(2, 1, 1.0)


def test_hosts_that_a_trial_keeps_off_are_kept_once_and_come_from_the_log() -> None:
    lines: list[Line] = []
    book, other = made(log=lines.append), made()
    for _ in range(2):
        book.begin_next()
    for host in ("a", "b", "a"):
        book.exclude_host(1, host)
    other.replay(lines)
    for each in (book, other):
        assert [trial.excluded_hosts for trial in each.trials] == [[], ["a", "b"]]


def test_given_configurations_come_before_those_of_the_sampler() -> None:
    book = made(first=[{"x": -1}], max_trials=2)
    book.begin_next()
    book.begin_next()
    assert [trial.hyperparameters for trial in book.trials] == [{"x": -1}, {"x": 1}]


def test_a_metric_that_is_minimised_is_negated_for_the_scheduler_and_nan_is_the_worst() -> None:
    book = made(modes=["min"])
    book.begin_next()
    book.reported(0, 1, [0.25])
    book.reported(0, 2, [math.nan])
    assert book.scheduler.calls[1:] == [("reported", 0, 1.0, -0.25), ("reported", 0, 2.0, -math.inf)]  # type: ignore[attr-defined]


def test_the_best_trial_is_that_with_the_best_report_at_any_step_and_the_first_of_equal_ones() -> None:
    book = made(modes=["min"])
    for trial, values in enumerate(([3.0, 9.0], [2.0, 8.0], [4.0, 2.0], [5.0])):
        book.begin_next()
        for step, value in enumerate(values, 1):
            book.reported(trial, step, [value])
    best = book.best
    assert best is not None and best is book.trials[1] and best.best == 2.0 == book.trials[2].best


def test_a_report_of_an_attempt_that_was_repeated_changes_nothing() -> None:
    book = made()
    book.begin_next()
    book.reported(0, 3, [1.0])
    assert book.reported(0, 3, [7.0]) == book.reported(0, 2, [8.0]) == []
    assert book.trials[0].values == (1.0,) and book.trials[0].step == 3


def test_the_scheduler_stops_a_trial_which_then_ends() -> None:
    book = made()
    book.begin_next()
    assert book.reported(0, 1, [-11.0]) == [StopTrial(0)]
    assert book.reported(0, 2, [5.0]) == []  # it may report once more before it hears of it
    assert book.trials[0].state is RUNNING
    book.ended(0)
    assert book.trials[0].state is STOPPED and book.scheduler.calls[-1] == ("ended", 0)  # type: ignore[attr-defined]


def test_a_trial_that_dies_after_it_was_asked_to_stop_counts_as_stopped() -> None:
    book = made()
    book.begin_next()
    book.reported(0, 1, [-11.0])
    assert book.failed(0, "SIGKILL", "SIGKILL", Retries.ALWAYS) == []
    assert book.trials[0].state is STOPPED and book.scheduler.calls[-1] == ("ended", 0)  # type: ignore[attr-defined]


def test_paused_trials_are_promoted_by_their_scores() -> None:
    book = made(Halving())
    for trial, score in enumerate((1.0, 2.0)):
        assert book.begin_next() == Begin(trial, 1, 1.0)
        book.reported(trial, 1, [score])
        book.paused(trial, 1)
    assert [trial.state for trial in book.trials] == [PAUSED, PAUSED]
    assert book.begin_next() == Begin(1, 2, 4.0)
    assert book.begin_next() == Begin(2, 1, 1.0)


def test_when_no_further_trial_can_start_the_paused_ones_are_still_promoted() -> None:
    book = made(Halving(), max_trials=2)
    book.begin_next()
    book.begin_next()
    for trial in (0, 1):
        book.reported(trial, 1, [float(trial)])
    assert book.begin_next() is None
    for trial in (0, 1):
        book.paused(trial, 1)
    assert book.begin_next() == Begin(1, 2, 4.0) and book.begin_next() is None


def test_a_trial_that_pauses_before_its_budget_waits_to_be_begun_again() -> None:
    book = made(Halving())
    book.begin_next()
    book.paused(0, 0.5)
    assert book.trials[0].state is WAITING
    assert book.begin_next() == Begin(0, 2, 1.0)


def test_a_trial_that_pauses_at_its_budget_counts_with_its_last_report() -> None:
    book = made(Halving())
    book.begin_next()
    book.reported(0, 0.5, [3.0])
    book.paused(0, 1)
    assert book.trials[0].state is PAUSED and book.scheduler.paused_ones == {0: 1}  # type: ignore[attr-defined]


def test_an_attempt_that_fails_is_followed_by_another_one() -> None:
    book = made()
    book.begin_next()
    book.reported(0, 1, [1.0])
    assert book.failed(0, "it broke", "ValueError") == []
    assert book.begin_next() == Begin(0, 2, None)


def test_what_fails_twice_in_the_same_way_before_its_first_report_is_given_up() -> None:
    book = made()
    book.begin_next()
    assert book.failed(0, "no such file", "OSError") == [] and book.begin_next() == Begin(0, 2, None)
    assert book.failed(0, "no such file", "OSError") == [TrialGivenUp(0, "no such file")]
    assert book.trials[0].state is FAILED and book.scheduler.calls[-1] == ("failed", 0)  # type: ignore[attr-defined]


def test_a_failure_of_another_kind_before_the_first_report_is_tried_again() -> None:
    book = made()
    book.begin_next()
    for failure in ("OSError", "ImportError", "MemoryError"):
        assert book.failed(0, failure, failure) == []
        book.begin_next()
    assert book.trials[0].attempts == 4


def test_deaths_before_the_first_report_use_all_restarts() -> None:
    book = made(max_restarts=3)
    book.begin_next()
    for attempt in (2, 3, 4):
        assert book.failed(0, "killed", "SIGKILL", Retries.ALWAYS) == []
        assert book.begin_next() == Begin(0, attempt, None)
    assert book.failed(0, "killed", "SIGKILL", Retries.ALWAYS) == [TrialGivenUp(0, "killed")]


def test_restarts_are_counted_anew_once_a_trial_gets_further() -> None:
    book = made(max_restarts=1)
    book.begin_next()
    for step in range(1, 6):
        book.reported(0, step, [1.0])
        assert book.failed(0, "killed", "SIGKILL", Retries.ALWAYS) == []
        book.begin_next()
    assert book.failed(0, "killed", "SIGKILL", Retries.ALWAYS) == [TrialGivenUp(0, "killed")]


def test_a_failure_that_cannot_go_away_is_not_tried_again() -> None:
    book = made()
    book.begin_next()
    book.reported(0, 1, [1.0])
    assert book.failed(0, "no", "x", Retries.NEVER) == [TrialGivenUp(0, "no")]


def test_a_search_whose_first_three_trials_fail_in_the_same_way_is_broken() -> None:
    book = made()
    told = []
    for trial in range(3):
        for _ in range(2):
            book.begin_next()
            told = book.failed(trial, "no module named torhc", "ImportError")
        assert trial == 2 or told == [TrialGivenUp(trial, "no module named torhc")]
    assert told[0] == TrialGivenUp(2, "no module named torhc") and isinstance(told[1], Broken)
    assert "3 trials have failed in the same way" in told[1].why and "torhc" in told[1].why


def test_a_search_in_which_something_was_reported_goes_on_whatever_fails() -> None:
    book = made()
    book.begin_next()
    book.reported(0, 1, [1.0])
    for trial in range(1, 4):
        book.begin_next()
        assert book.failed(trial, "x", "x", Retries.NEVER) == [TrialGivenUp(trial, "x")]


def test_a_trial_that_ends_without_its_metric_has_failed() -> None:
    book = made()
    book.begin_next()
    assert book.ended(0) == [TrialGivenUp(0, "it ended without a value of its metric")]
    assert book.trials[0].state is FAILED


def test_a_user_ends_a_trial_in_any_state_but_a_final_one() -> None:
    book = made(Halving())
    book.begin_next()
    book.reported(0, 1, [1.0])
    book.paused(0, 1)
    book.stopped(0, "by a user")
    assert book.trials[0].state is STOPPED and book.trials[0].why == "by a user"
    assert book.scheduler.calls[-1] == ("ended", 0)  # type: ignore[attr-defined]
    book.stopped(0, "again")
    assert book.trials[0].why == "by a user"


def test_events_of_trials_that_do_not_run_change_nothing() -> None:
    book = made()
    book.begin_next()
    book.stopped(0, "by a user")
    lines: list[Line] = []
    book._log = lines.append
    book.reported(0, 1, [1.0])
    book.paused(0, 1)
    book.ended(0)
    book.failed(0, "x", "x")
    assert not lines


def test_a_search_that_is_stopping_begins_nothing() -> None:
    book = made()
    book.is_stopping = True
    assert book.begin_next() is None and not book.trials


def test_a_sampler_sees_all_earlier_trials_and_is_told_of_each_end_once() -> None:
    sampler = Numbers()
    book = made(sampler=sampler, metrics=["a", "b"], modes=["max", "min"])
    book.begin_next()
    book.reported(0, 2, [1.0, 3.0])
    book.begin_next()
    assert sampler.asked[1] == (1, [Observed(0, {"x": 0}, (1.0, -3.0), 2.0, True, False, {2.0: 1.0})])
    book.ended(0)
    book.failed(1, "x", "x", Retries.NEVER)
    assert [(one.number, one.is_under_way, one.has_failed, one.scores) for one in sampler.told] == [
        (0, False, False, (1.0, -3.0)),
        (1, False, True, None),
    ]


def test_a_trial_that_begins_has_no_step_and_its_first_report_may_be_of_step_0() -> None:
    book = made()
    book.begin_next()
    assert book.trials[0].step == 0 and book.observed == (Observed(0, {"x": 0}, None, 0.0, True),)
    book.reported(0, -1, [0.0])
    assert book.trials[0].values is None
    book.reported(0, 0, [1.0])
    assert book.reported(0, 0, [2.0]) == [] and book.trials[0].values == (1.0,)
    book.reported(0, 1, [3.0])
    assert book.observed[0].scores == (3.0,)


def test_only_the_first_of_several_metrics_decides() -> None:
    book = made(metrics=["a", "b"], modes=["max", "max"])
    book.begin_next()
    assert book.reported(0, 1, [1.0, -50.0]) == []
    assert book.trials[0].best == 1.0
    book.reported(0, 2, [0.0, 9.0])
    assert book.trials[0].best == 1.0


def test_a_failure_is_kept_and_five_restarts_are_the_default() -> None:
    book = made()
    book.begin_next()
    for attempt in range(2, 7):
        assert book.failed(0, "killed", "SIGKILL", Retries.ALWAYS) == [] and book.trials[0].why == "killed"
        assert book.begin_next() == Begin(0, attempt, None)
    assert book.failed(0, "killed", "SIGKILL", Retries.ALWAYS) == [TrialGivenUp(0, "killed")]


def test_failures_of_several_kinds_or_of_trials_that_go_on_break_no_search() -> None:
    book = made()
    for _ in range(4):
        book.begin_next()
    assert book.failed(0, "x", "x", Retries.NEVER) == [TrialGivenUp(0, "x")]
    assert book.failed(1, "y", "y", Retries.NEVER) == [TrialGivenUp(1, "y")]
    assert book.failed(2, "x", "x") == []
    assert book.failed(3, "x", "x", Retries.NEVER) == [TrialGivenUp(3, "x")]


class CutShort(Halving):
    """When no further trial can start, the best one is promoted, however few there are; trials end at step 4."""

    max_steps = 4.0

    def next(self) -> StartTrial | PromoteTrial | Wait:
        if self.is_exhausted and self.paused_ones and not self.promoted_ones:
            return PromoteTrial(min(self.paused_ones), 4.0)
        return super().next()

    def reported(self, trial: int, step: float, score: float) -> Verdict:
        return STOP if step >= 4 else super().reported(trial, step, score)


def test_a_scheduler_that_hears_that_no_further_trial_can_start_may_promote_at_once() -> None:
    book = made(CutShort(), max_trials=1)
    book.begin_next()
    book.reported(0, 1, [1.0])
    book.paused(0, 1)
    assert book.begin_next() == Begin(0, 2, 4.0)


@pytest.mark.parametrize(
    ("step", "score", "state"), [(4, 1.0, DONE), (3, -11.0, STOPPED), (3, 1.0, DONE), (5, 1.0, DONE)]
)
def test_a_trial_that_is_stopped_at_the_last_step_is_complete(step: int, score: float, state: TrialState) -> None:
    book = made(CutShort())
    book.begin_next()
    book.reported(0, step, [score])
    assert book.ended(0) == [] and book.trials[0].state is state


def test_a_trial_that_pauses_although_it_was_asked_to_stop_has_stopped() -> None:
    book = made(Halving())
    book.begin_next()
    book.reported(0, 1, [-11.0])
    book.paused(0, 1)
    assert book.trials[0].state is STOPPED and book.scheduler.calls[-1] == ("ended", 0)  # type: ignore[attr-defined]


def test_hyperparameters_that_a_function_asks_for_are_those_of_its_trial() -> None:
    lines: list[Line] = []
    book = made(log=lines.append)
    book.begin_next()
    data = {"y": described_distribution(Uniform(0, 1)), "z": described_distribution(Uniform(2, 3))}
    book.suggested(0, {"y": 0.5}, data)
    book.suggested(0, {"y": 0.5}, data)  # a later attempt asks again
    book.suggested(0, {"y": 0.5, "z": 2.5}, data)
    assert [line[2] for line in lines if line[0] == "suggest"] == [{"y": 0.5}, {"z": 2.5}]
    assert book.trials[0].hyperparameters == {"x": 0, "y": 0.5, "z": 2.5} == book.observed[0].hyperparameters
    assert book.trials[0].suggested == {"y": Uniform(0, 1), "z": Uniform(2, 3)} == book.observed[0].suggested
    book.stopped(0, "by a user")
    book.suggested(0, {"w": 0.5}, {"w": data["y"]})
    assert "w" not in book.trials[0].hyperparameters


def test_a_log_can_be_read_without_its_scheduler() -> None:
    lines: list[Line] = []
    book = made(log=lines.append)
    book.begin_next()
    book.reported(0, 1, [-11.0])
    book.ended(0)
    other = made(NoScheduler())
    other.replay(lines, checks=False)
    assert other.trials == book.trials and other.trials[0].state is STOPPED


def played(book: SearchBook) -> None:
    """A search with everything in it."""
    for _ in range(3):
        book.begin_next()
    book.reported(0, 1, [1.0])
    book.paused(0, 1)
    book.failed(1, "killed", "SIGKILL", Retries.ALWAYS)
    book.reported(2, 1, [3.0])
    book.paused(2, 1)
    book.begin_next()  # the retry of 1
    book.begin_next()  # the promotion of 2
    book.reported(1, 1, [-20.0])
    book.ended(1)
    book.reported(2, 4, [4.0])
    book.ended(2)
    book.begin_next()
    book.begin_next()
    book.stopped(3, "by a user")


def test_a_log_that_went_through_json_makes_the_same_book_again() -> None:
    lines: list[Line] = []
    book = made(Halving(), log=lines.append)
    played(book)
    assert [line[0] for line in lines].count("start") == 4
    again: list[Line] = []
    other = made(Halving(), log=again.append)
    other.replay(json.loads(json.dumps(lines)))
    assert other.trials == book.trials and not again
    assert other.scheduler.calls == book.scheduler.calls  # type: ignore[attr-defined]
    assert other.begin_next() == book.begin_next()
    assert not other.sampler.asked  # type: ignore[attr-defined]  # configurations come from the log
    other.suspended()
    assert again == [["suspend"]]  # what is new is logged


def test_a_log_goes_on_from_any_of_its_lines() -> None:
    lines: list[Line] = []
    played(made(Halving(), log=lines.append))
    for end in range(len(lines)):
        book = made(Halving())
        book.replay(lines[:end])
        before = {trial.number for trial in book.trials if trial.state is RUNNING}
        book.suspended()
        assert {trial.number for trial in book.trials if trial.state is WAITING} >= before and book.num_running == 0


def test_a_scheduler_that_decides_otherwise_than_the_log_is_an_error() -> None:
    lines: list[Line] = []
    played(made(Halving(), log=lines.append))
    with pytest.raises(ValueError, match=r"line 1 of the search's log.*the scheduler says StartTrial\(budget=None"):
        made(Whole()).replay(lines)


def test_a_scheduler_that_stops_other_trials_than_in_the_log_is_an_error() -> None:
    lines: list[Line] = [["start", 0, {}, None, 0], ["report", 0, 1, [-11.0], "stop"]]
    made().replay(lines)
    with pytest.raises(ValueError, match=r"line 2 .*the scheduler stops trial 0 now"):
        made().replay([lines[0], ["report", 0, 1, [-11.0]]])
    with pytest.raises(ValueError, match=r"line 2 .*the scheduler does not stop trial 0 now"):
        made().replay([lines[0], ["report", 0, 1, [11.0], "stop"]])


@pytest.mark.parametrize(
    "line",
    [
        ["nothing"],
        ["promote", 7, 1.0],
        ["start", 5, {}, None, 0],
        ["start", 0, {}, None, 0],
        ["report", 3, 1, [1.0]],
        [],
        ["retry", 0],
    ],
)
def test_a_line_that_fits_nothing_is_an_error_that_names_it(line: Line) -> None:
    book = made()
    with pytest.raises(ValueError, match="line 2 of the search's log"):
        book.replay([["start", 0, {"x": 0}, None, 0], line])
