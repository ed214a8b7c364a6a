"""The loop of a search with places that do as a test says: interruptions, killed threads, and users that pause."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from ropewalk.population.hyperparameters import Uniform
from ropewalk.search.book import SearchBook
from ropewalk.search.instructions import Begin
from ropewalk.search.places import AttemptBegun, AttemptReported, AttemptReturned, Places
from ropewalk.search.samplers.random import RandomSampler
from ropewalk.search.schedulers import NoScheduler
from ropewalk.search.search_keeper import SearchRequest
from ropewalk.search.search_run import GRACE_S, SearchLimits, SearchRun
from ropewalk.search.space import SearchSpace
from ropewalk.search.trial_facts import TrialState
from ropewalk.search.trial_task import Request, TrialOutcome, TrialTask
from ropewalk.tracking.checkpoints import CheckpointPolicy


class PlannedPlaces(Places):
    """One place, in which a test is the trial.

    Args:
        steps: each is called once, when the search waits.
        has_processes: whether attempts begin at once, and not never.
    """

    def __init__(self, steps: Sequence[Any], *, has_processes: bool = True) -> None:
        super().__init__()
        self._has_processes = has_processes
        self.num, self._steps = 1, list(steps)
        self.begun: list[TrialTask] = []
        self.leaving: list[TrialTask] = []
        """Attempts whose host is about to be taken away."""
        self.asked: list[Request | None] = []

    def begin(self, task: TrialTask) -> None:
        self.begun.append(task)
        if self._has_processes:
            self._tell(AttemptBegun(task.trial, task.attempt))

    def request(self, task: TrialTask, request: Request) -> None:
        self.asked.append(request)

    def kill(self, task: TrialTask) -> None:
        self.asked.append(None)

    def is_leaving(self, task: TrialTask) -> bool:
        return task in self.leaving

    def close(self) -> None: ...

    def wait(self, timeout_s: float) -> None:
        if not self._events.empty():
            return
        assert self._steps, "the search waits for ever"
        self._steps.pop(0)(self)

    def report(self, step: float, value: float) -> None:
        task = self.begun[-1]
        self._tell(AttemptReported(task.trial, task.attempt, step, (value,)))

    def end(self, outcome: Any, step: float = 0.0) -> None:
        task = self.begun[-1]
        self._tell(AttemptReturned(task.trial, task.attempt, TrialOutcome(outcome, step)))


class SilentKeeper:
    """Keeps nothing; has what a user asks for.

    Args:
        requests: what is asked for at each look.
    """

    def __init__(self, requests: Sequence[Sequence[SearchRequest]] = ()) -> None:
        self._requests = list(requests)
        self.answers: list[tuple[int, bool]] = []

    def begun(self, *args: Any, **facts: Any) -> None: ...

    def changed(self, *args: Any, **facts: Any) -> None: ...

    def died(self, *args: Any, **facts: Any) -> None: ...

    def best(self, *args: Any, **facts: Any) -> None: ...

    def excluded(self, *args: Any, **facts: Any) -> None: ...

    def labelled(self, *args: Any, **facts: Any) -> None: ...

    def requests(self) -> Sequence[SearchRequest]:
        return self._requests.pop(0) if self._requests else ()

    def answer(self, request: SearchRequest, ok: bool, text: str) -> None:
        self.answers.append((request.number, ok))


class Clock:
    """Seconds that a test lets pass."""

    now = 0.0

    def __call__(self) -> float:
        return self.now

    def forward(self, seconds: float) -> Any:
        def step(places: PlannedPlaces) -> None:
            self.now += seconds

        return step

    def forward_by_looks(self, seconds: float) -> list[Any]:
        """Steps that let this time pass while the search goes on looking."""
        return [self.forward(1.0)] * round(seconds)


def running(
    places: PlannedPlaces,
    clock: Clock,
    keeper: SilentKeeper | None = None,
    note: Callable[[str], object] = lambda text: None,
    budget: float | None = None,
    **limits: Any,
) -> SearchRun:
    """A search of one trial."""
    sampler = RandomSampler()
    sampler.begin(SearchSpace({"x": Uniform(0, 1)}), 1, 0)
    book = SearchBook(NoScheduler(), sampler, metrics=["score"], modes=["max"], max_trials=1)

    def task(begin: Begin) -> TrialTask:
        return TrialTask(
            begin.trial, "r", begin.attempt, begin.attempt, {}, ("score",), budget, None, "", "", Path(), 0,
            CheckpointPolicy(),
        )  # fmt: skip

    return SearchRun(book, places, keeper or SilentKeeper(), SearchLimits(**limits), task, note=note, clock=clock)


def interrupt(places: PlannedPlaces) -> None:
    raise KeyboardInterrupt


def test_an_event_that_has_come_when_ctrl_c_strikes_is_not_lost() -> None:
    def report_and_interrupt(places: PlannedPlaces) -> None:
        places.report(1, 0.5)
        places.end("paused", 1.0)
        raise KeyboardInterrupt

    search = running(places := PlannedPlaces([report_and_interrupt, lambda places: None, lambda places: None]), Clock())
    search.run()
    assert search.why_stopping == "Ctrl-C" and places.asked == [Request.PAUSE]
    assert search.book.trials[0].values == (0.5,)


def test_whoever_waits_after_ctrl_c_is_told_for_what() -> None:
    notes: list[str] = []
    steps = [interrupt, lambda places: places.end("paused", 1.0)]
    running(PlannedPlaces(steps), Clock(), note=notes.append).run()
    assert [note.partition(";")[0] for note in notes] == [
        "Ctrl-C: waits up to 10 s for 1 trial to reach the next step and write a checkpoint"
    ]
    running(PlannedPlaces([interrupt], has_processes=False), Clock(), note=notes.append).run()
    assert notes[1:] == ["Ctrl-C: no trial has begun, so the search ends its processes"]


def test_a_second_ctrl_c_ends_the_search_at_once() -> None:
    search = running(places := PlannedPlaces([interrupt, interrupt]), Clock())
    with pytest.raises(KeyboardInterrupt):
        search.run()
    assert places.asked == [Request.PAUSE]


def pause_at_budget(places: PlannedPlaces) -> None:
    places.report(4.0, 0.5)
    places.end("paused", 4.0)


def failing(cause: str) -> Callable[[PlannedPlaces], None]:
    def step(places: PlannedPlaces) -> None:
        task = places.begun[-1]
        places._tell(AttemptReturned(task.trial, task.attempt, TrialOutcome("failed", cause=cause)))

    return step


@pytest.mark.parametrize(
    ("steps", "state", "has_processes"),
    [
        ([pause_at_budget], TrialState.STOPPED, True),
        ([failing("ValueError: no")] * 2, TrialState.FAILED, True),
        ([interrupt, lambda places: places.end("paused", 1.0)], TrialState.STOPPED, True),
        ([interrupt], TrialState.STOPPED, False),
    ],
    ids=["at its budget", "raises", "the search is interrupted", "the search is interrupted before it begins"],
)
def test_a_trial_that_a_user_has_stopped_does_not_go_on(
    steps: list[Any], state: TrialState, has_processes: bool
) -> None:
    clock, keeper = Clock(), SilentKeeper([[SearchRequest(7, 0, "stop")]])
    places = PlannedPlaces([clock.forward(6.0), *steps], has_processes=has_processes)
    search = running(places, clock, keeper, budget=4.0)
    search.run()
    trial = search.book.trials[0]
    assert keeper.answers == [(7, True)] and trial.state is state and trial.attempts == 1


def test_a_thread_that_had_to_be_stopped_when_the_search_was_interrupted_goes_on_with_it() -> None:
    clock = Clock()
    steps = [interrupt, *clock.forward_by_looks(GRACE_S + 1), lambda places: places.end("stopped", 3.0)]
    search = running(places := PlannedPlaces(steps), clock)
    search.run()
    assert places.asked == [Request.PAUSE, None]
    assert search.book.trials[0].state is TrialState.WAITING


def test_a_silent_thread_that_had_to_be_stopped_has_failed() -> None:
    clock = Clock()
    end = [*clock.forward_by_looks(6.0), lambda places: places.end("stopped")]
    search = running(PlannedPlaces(end + end), clock, silent_s=5.0)
    search.run()
    trial = search.book.trials[0]
    assert trial.state is TrialState.FAILED and trial.attempts == 2
    assert "has not reported score for 5 s" in trial.why


def test_no_trial_is_killed_for_what_it_said_while_the_search_stood_still() -> None:
    """After Ctrl-Z and `fg`, or a long answer of the sampler, all trials were killed as silent before one was heard."""
    clock = Clock()

    def hear(places: PlannedPlaces) -> None:
        places.report(1, 0.5)
        clock.now += 1.0

    steps = [clock.forward(3600.0), clock.forward(3.0), hear, *clock.forward_by_looks(4.0)]
    search = running(places := PlannedPlaces([*steps, lambda places: places.end("done", 1.0)]), clock, silent_s=5.0)
    search.run()
    assert places.asked == [] and search.book.trials[0].state is TrialState.DONE


def test_trials_have_their_time_to_pause_though_the_search_stands_still() -> None:
    clock = Clock()
    steps = [interrupt, clock.forward(60.0), *clock.forward_by_looks(5.0), lambda places: places.end("paused", 3.0)]
    running(places := PlannedPlaces(steps), clock).run()
    assert places.asked == [Request.PAUSE]


def test_what_a_trial_raises_does_not_control_the_terminal(caplog: pytest.LogCaptureFixture) -> None:
    fails = failing("ValueError: \x1b[2J\x1b]0;mine\x07\u202e")
    search = running(PlannedPlaces([fails, fails]), Clock())
    search.run()
    assert search.book.trials[0].state is TrialState.FAILED
    assert r"attempt 1: ValueError: \x1b[2J\x1b]0;mine\x07\u202e" in caplog.text and "\x1b" not in caplog.text


def test_where_tracebacks_are_shown_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    # A trial that raises after its first report is given up; nothing led to its traceback.
    fails = failing("Traceback\n  in train\nValueError: no")
    search = running(places := PlannedPlaces([fails, fails]), Clock())
    search.run()
    pointer = f"ropewalk runs show {places.begun[0].run} shows its traceback. This is said once"
    assert caplog.messages == [
        f"trial 0, attempt 1: ValueError: no; {pointer}",
        "trial 0, attempt 2: ValueError: no",
    ]


def test_a_trial_that_does_not_pause_at_its_budget_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    # A loop without `run.steps` ran to its end under ASHA, which saved nothing, and nobody said so.
    def reports(places: PlannedPlaces) -> None:
        for step in range(1, 5):
            places.report(step, 0.5)
        places.end("done", 4.0)

    running(PlannedPlaces([reports]), Clock(), budget=1.5).run()
    (told,) = caplog.messages
    assert told.startswith("trial 0 reported step 3, and was to pause after step 1.5") and "run.steps(total)" in told


def test_a_search_with_a_trial_that_a_user_has_paused_is_not_complete() -> None:
    clock, keeper = Clock(), SilentKeeper([[SearchRequest(7, 0, "pause")]])
    steps = [clock.forward(1.0), lambda places: places.end("paused", 1.0)]
    search = running(places := PlannedPlaces(steps), clock, keeper)
    search.run()
    assert keeper.answers == [(7, True)] and places.asked == [Request.PAUSE]
    assert search.why_stopping == "a user has paused trial 0"


def test_a_trial_that_waits_for_a_process_is_not_silent() -> None:
    clock = Clock()
    steps = [clock.forward(100.0), clock.forward(100.0), interrupt]
    search = running(places := PlannedPlaces(steps, has_processes=False), clock, silent_s=5.0)
    search.run()
    assert None not in places.asked


def test_a_search_that_is_interrupted_while_it_waits_for_processes_ends_at_once() -> None:
    search = running(PlannedPlaces([interrupt], has_processes=False), Clock())
    search.run()
    assert search.why_stopping == "Ctrl-C" and search.book.trials[0].state is TrialState.WAITING


def test_a_trial_whose_host_is_taken_away_pauses_once_and_goes_on_in_another_attempt() -> None:
    clock = Clock()

    def take_away(places: PlannedPlaces) -> None:
        places.leaving.append(places.begun[0])
        clock.now += 1.0

    def finish(places: PlannedPlaces) -> None:
        places.report(9, 0.5)
        places.end("done", 9.0)

    steps = [take_away, clock.forward(1.0), lambda places: places.end("paused", 3.0), clock.forward(1.0), finish]
    search = running(places := PlannedPlaces(steps), clock)
    search.run()
    assert places.asked == [Request.PAUSE], "it was asked more than once, or its next attempt was asked as well"
    trial = search.book.trials[0]
    assert (trial.state, trial.attempts, len(places.begun)) == (TrialState.DONE, 2, 2)
    assert search.why_stopping == ""
