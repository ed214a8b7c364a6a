"""The evaluation loop: carries out the instructions of a pacing, between an algorithm and an executor.

    pacing ── Ask(n) ───▶ algorithm.ask ─▶ executor.submit      (workers evaluate)
           ◀─ ended ───── executor.collect ◀─────────────────────────┘
           ── Tell ─────▶ failures, NaN ─▶ algorithm.tell ─▶ row of the table ─▶ report, checkpoint, until
           ── CancelEvaluations ─▶ executor.drop

Every instruction is logged after it was carried out. A row ends when the algorithm counts another generation, in any
mode; a test of the incumbent runs concurrently with the evaluations of its row.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ropewalk.errors import EvaluationFailed
from ropewalk.population.algorithm import Algorithm, Evaluator, IncumbentEvaluator
from ropewalk.population.decisions import Decisions, Fail, unpacked_decisions
from ropewalk.population.executors.executor import EvaluationExecutor, FinishedEvaluation
from ropewalk.population.failures import MissingFitness
from ropewalk.population.moved_classes import loads_moved
from ropewalk.population.outcome import Outcome
from ropewalk.population.pacing.pacing import Ask, CancelEvaluations, Pacing, Tell, Ticket
from ropewalk.population.pacing.replay import ReplayPacing
from ropewalk.population.rows import EvalConfig, OpenRow, Row, Testing, check_names, row_of
from ropewalk.population.state_file import is_plain
from ropewalk.population.worker_autoscaler import WorkerAutoscaler
from ropewalk.transport.by_value import dumps_by_value

_MOST_WITHOUT_FITNESS = 16
"""The least number of consecutive evaluations without a fitness after which a run stops, for small populations."""
_MANY_GENERATIONS = 50
"""Number of populations after which the first generation should be complete."""
_UNKNOWN: Evaluator[Any] = Evaluator()
"""In place of an evaluator that the algorithm has not named yet."""


@dataclass(slots=True, eq=False)
class _Asked:
    """The candidates of one ask that have not been told yet."""

    evaluator: Evaluator[Any]
    candidates: dict[int, Any]
    """The candidates by position."""


class EvaluationLoop:
    """Carries out the instructions of a pacing. See the module.

    Args:
        algorithm: the algorithm that is asked and told.
        executor: the executor of the evaluations.
        pacing: decides what to do next.
        decisions: the log.
        missing: decides what is told in place of a missing fitness.
        test: when to test the incumbent; None for never.
        workers: adapts the number of workers to the number of candidates; None keeps the number.
        end_row: called with each row; returns whether to stop.
        failed: called with each evaluation that has failed.
    """

    def __init__(
        self,
        algorithm: Algorithm[Any],
        executor: EvaluationExecutor,
        pacing: Pacing,
        decisions: Decisions,
        missing: MissingFitness,
        *,
        test: EvalConfig | None,
        workers: WorkerAutoscaler | None,
        end_row: Callable[[Row], bool],
        failed: Callable[[Fail], object],
    ) -> None:
        self._algorithm = algorithm
        self._executor = executor
        self._pacing = pacing
        self._decisions = decisions
        self._missing = missing
        self._test = test
        self._workers = workers
        self._end_row = end_row
        self._tell_failed = failed
        self._asked: dict[int, _Asked] = {}
        self._outcomes: dict[Ticket, Outcome] = {}
        self._num_asks = 0
        self._num_without_fitness = 0
        """Number of consecutive evaluations without a fitness."""
        self._known_failures: dict[Ticket, Fail] = {}
        self._unwanted: set[Ticket] = set()
        if isinstance(pacing, ReplayPacing):
            self._known_failures, self._unwanted = decisions.failed, decisions.dropped
        self._replays = isinstance(pacing, ReplayPacing)
        self._row = OpenRow(0.0, 0.0, None)
        self.changing = threading.Lock()
        """Held while the algorithm, and what was asked of it, changes: other threads look in between."""
        self.rows: list[Row] = []
        self.num_evaluations = self.num_failed = self.num_dropped = 0
        self.num_steps = 0
        self.seconds = 0.0
        self.cpu_s = 0.0
        self.best_fitness = float("-inf")
        self.best_test = float("-inf")
        self.best_tested: Any = None

    def run(self) -> None:
        """Run until `end_row` returns True, the algorithm has finished, or the replayed log ends."""
        for number, asked in self._asked.items():  # candidates from a checkpoint
            tickets = [Ticket(number, position) for position in asked.candidates]
            self._submit(asked.evaluator, list(asked.candidates.values()), tickets, is_whole=False)
        self._begin_row()
        try:
            self._go_on()
        finally:  # what was not told will not be, and the algorithm may ask for these candidates again
            with self.changing:
                asked, self._asked = self._asked, {}
                self._algorithm.drop([candidate for each in asked.values() for candidate in each.candidates.values()])

    def _go_on(self) -> None:
        while self._replays or not self._algorithm.finished:
            generation = self._algorithm.generation
            instruction = self._pacing.next(time.monotonic(), self._executor.num_workers)
            match instruction:
                case Ask(n):
                    with self.changing:
                        self._ask(n)
                case Tell(tickets):
                    with self.changing:
                        self._tell(tickets)
                case CancelEvaluations(tickets):
                    with self.changing:
                        self._drop(tickets)
                case None:
                    if isinstance(self._pacing, ReplayPacing) and self._pacing.is_over:
                        break
                    if not self._pacing.under_way:
                        raise RuntimeError(self._nothing_to_do())
                    due = self._pacing.due
                    self._collect(None if due is None else max(0.0, due - time.monotonic()))
                    continue
            if not self._replays:
                self._decisions.add(instruction)
            if self._algorithm.generation != generation:
                if self._finish_row():
                    return
                self._begin_row()
        if self._row.outcomes:  # the last generation is incomplete
            self._finish_row()

    # Instructions

    def _ask(self, n: int) -> None:
        candidates = self._algorithm.ask(n)
        number, self._num_asks = self._num_asks, self._num_asks + 1
        tickets = [Ticket(number, position) for position in range(len(candidates))]
        if tickets:  # whatever is raised from here on, these are told or dropped
            self._asked[number] = _Asked(_UNKNOWN, dict(enumerate(candidates)))
        self._pacing.asked(tickets, time.monotonic())
        if not tickets:
            if not self._pacing.under_way and not self._algorithm.finished:
                raise RuntimeError(self._nothing_to_do())
            return
        evaluator = self._asked[number].evaluator = self._algorithm.evaluator()
        if self._workers is not None:
            wanted = self._workers.workers_for(len(candidates))
            if wanted != self._executor.num_workers:
                self._executor.scale_to(wanted)
        self._submit(evaluator, candidates, tickets, is_whole=True)

    def _submit(
        self, evaluator: Evaluator[Any], candidates: Sequence[Any], tickets: Sequence[Ticket], *, is_whole: bool
    ) -> None:
        """Submit candidates, except those that failed or were dropped according to a replayed log."""
        number = tickets[0].ask
        hopeless = {ticket for ticket in tickets if ticket in self._known_failures or ticket in self._unwanted}
        if is_whole and not hopeless:
            self._executor.submit(number, evaluator, candidates)
            return
        left = [(each, ticket) for each, ticket in zip(candidates, tickets, strict=True) if ticket not in hopeless]
        if left:
            self._executor.submit(number, evaluator, [each for each, _ in left], [at.position for _, at in left])
        for ticket in hopeless & self._known_failures.keys():
            self._file_failure(self._known_failures[ticket])

    def _tell(self, tickets: Sequence[Ticket]) -> None:
        told = [(ticket, self._outcomes.pop(ticket)) for ticket in tickets]
        outcomes, num_failed = self._missing.applied(told)
        self._row.num_failed += num_failed
        self.num_failed += num_failed
        self.num_evaluations += len(tickets)
        self._num_without_fitness = self._num_without_fitness + num_failed if num_failed == len(told) else 0
        if told and self._num_without_fitness >= max(self._algorithm.population, _MOST_WITHOUT_FITNESS):
            raise EvaluationFailed(
                f"the last {self._num_without_fitness} evaluations had no fitness, one like the other; the last one: "
                f"{told[-1][1].failure or 'NaN'}"
            )
        self._check_counting()
        candidates = [self._forget(ticket) for ticket in tickets]
        kept = [(each, outcome) for each, outcome in zip(candidates, outcomes, strict=True) if outcome is not None]
        if len(kept) < len(candidates):
            self._algorithm.drop([each for each, outcome in zip(candidates, outcomes, strict=True) if outcome is None])
        if kept:
            self._row.outcomes += [outcome for _, outcome in kept]
            self._algorithm.tell([each for each, _ in kept], [outcome for _, outcome in kept])

    def _check_counting(self) -> None:
        if not self.rows and self.num_evaluations > _MANY_GENERATIONS * max(self._algorithm.population, 16):
            raise RuntimeError(
                f"{type(self._algorithm).__name__} was told of {self.num_evaluations} evaluations and its `generation` "
                f"is still {self._algorithm.generation}; increment it in `tell` when a generation is complete"
            )

    def _drop(self, tickets: Sequence[Ticket]) -> None:
        self._executor.drop([ticket for ticket in tickets if ticket not in self._unwanted])
        for ticket in tickets:
            self._outcomes.pop(ticket, None)
        self._algorithm.drop([self._forget(ticket) for ticket in tickets])
        self._row.num_dropped += len(tickets)
        self.num_dropped += len(tickets)

    def _forget(self, ticket: Ticket) -> Any:
        asked = self._asked[ticket.ask]
        candidate = asked.candidates.pop(ticket.position)
        if not asked.candidates:
            del self._asked[ticket.ask]
        return candidate

    def _nothing_to_do(self) -> str:
        return (
            f"{type(self._algorithm).__name__} was asked for candidates and gave none, although it was told of all "
            "that it gave before, and it does not say that it has finished"
        )

    # Arrivals

    def _collect(self, timeout_s: float | None) -> None:
        for arrival in self._executor.collect(timeout_s):
            if arrival.is_test:
                self._file_test(arrival)
            elif not self._is_wanted(arrival.ticket):
                pass
            elif not isinstance(arrival.outcome, Outcome):
                self._failed(arrival.ticket, arrival.outcome)
            elif arrival.outcome.failure:  # reported by the evaluator, for example after the loss of a host
                self._note_failure(Fail(arrival.ticket, arrival.outcome.failure, arrival.outcome.fitness))
            else:
                self._file(arrival.ticket, arrival.outcome)

    def _is_wanted(self, ticket: Ticket) -> bool:
        """Whether the evaluation was not dropped meanwhile."""
        asked = self._asked.get(ticket.ask)
        return asked is not None and ticket.position in asked.candidates

    def _file(self, ticket: Ticket, outcome: Outcome) -> None:
        self._outcomes[ticket] = outcome
        self._pacing.ended(ticket, time.monotonic())

    def _failed(self, ticket: Ticket, error: BaseException) -> None:
        if not isinstance(error, Exception) or self._missing.policy.failures == "raise":
            error.add_note(
                f"This ended the evaluation of candidate {ticket.position} of ask {ticket.ask}. To go on without such: "
                'evaluate(..., failures="worst") or failures="drop".'
            )
            raise error
        self._note_failure(Fail(ticket, f"{type(error).__name__}: {error}"))

    def _note_failure(self, failure: Fail) -> None:
        if not self._replays:
            self._decisions.add(failure)
        self._tell_failed(failure)
        self._file_failure(failure)

    def _file_failure(self, failure: Fail) -> None:
        fitness = float("nan") if failure.fitness is None else failure.fitness
        self._file(failure.ticket, Outcome(fitness, failure=failure.why))

    def _file_test(self, arrival: FinishedEvaluation) -> None:
        testing = self._row.testing
        if testing is None or arrival.ticket.ask != len(self.rows):
            return
        testing.num_left -= 1
        outcome = arrival.outcome
        if isinstance(outcome, Outcome):
            if outcome.has_fitness:
                testing.fitness[arrival.ticket.position] = outcome.fitness
                return
            policy = self._missing.policy.nan
            error: BaseException = EvaluationFailed(
                f"the fitness of the incumbent is NaN in episode {arrival.ticket.position} of the test of generation "
                f"{self._algorithm.generation}; fix it, or choose evaluate(..., "
                'failures=FailurePolicy(nan="worst")) or nan="drop"'
            )
        else:
            policy, error = self._missing.policy.failures, outcome
            error.add_note("This ended a test of the incumbent.")
        if policy == "raise" or not isinstance(error, Exception):
            raise error
        if policy == "worst":
            testing.fitness[arrival.ticket.position] = None

    # Rows

    def _begin_row(self) -> None:
        self._row = OpenRow(time.perf_counter(), time.process_time(), None)
        test = self._test
        if test is None or len(self.rows) % test.every:
            return
        incumbent = self._algorithm.incumbent()
        if incumbent is not None:
            self._row.testing = Testing(incumbent, test.episodes)
            evaluator = IncumbentEvaluator(self._algorithm.evaluator(), incumbent)
            self._executor.submit(len(self.rows), evaluator, range(test.episodes))

    def _finish_row(self) -> bool:
        """Finish the current row; returns whether it was the last one."""
        row, testing = self._row, self._row.testing
        while testing is not None and testing.num_left:
            self._collect(None)
        values = row_of(row.outcomes)
        self.num_steps += int(values.pop("steps"))
        self.best_fitness = max(self.best_fitness, values["max"])
        seconds, cpu_s = time.perf_counter() - row.began_s, time.process_time() - row.began_cpu_s
        self.seconds += seconds
        self.cpu_s += cpu_s
        num = len(row.outcomes) + row.num_failed
        line: Row = {"generation": self._algorithm.generation, "evaluations": self.num_evaluations}
        line |= {"steps": self.num_steps, **values, "best": self.best_fitness}
        if testing is not None:
            worst = self._missing.worst  # read here and not when the episode ended, which depends on the pool
            line["test"] = mean = testing.mean(float("-inf") if worst is None else worst)
            if mean > self.best_test:
                self.best_test, self.best_tested = mean, testing.incumbent
        figures = self._algorithm.figures()
        check_names(f"{type(self._algorithm).__name__} has figures", figures)
        line |= {"failed": row.num_failed, "dropped": row.num_dropped, **figures}
        line |= {"seconds": self.seconds, "evaluations_per_s": num / seconds if seconds else 0.0}
        line["workers"] = self._executor.num_workers
        if not self._executor.shares_process:
            line["launcher_ms"] = 1e3 * cpu_s / max(1, num)
        self.rows.append(line)
        return self._end_row(line)

    @property
    def num_under_way(self) -> int:
        """Number of evaluations that were asked for and neither told nor dropped; hold `changing` to read it."""
        return sum(len(asked.candidates) for asked in self._asked.values())

    @property
    def num_workers(self) -> int:
        """Number of workers."""
        return self._executor.num_workers

    # Checkpoints

    def state_dict(self) -> dict[str, Any]:
        """Return the complete state of this run, at the end of a row."""
        asked = {number: (each.evaluator, each.candidates) for number, each in self._asked.items()}
        return {
            "algorithm": self._algorithm.state_dict(),
            "pacing": self._pacing.state_dict(),
            "decisions": self._decisions.packed(),
            "num_asks": self._num_asks,
            # Candidates and evaluators may be of any type; between generations there are usually none.
            "asked": _saved(asked),
            "best_tested": _saved(self.best_tested),
            "rows": self.rows,
            "counts": [self.num_evaluations, self.num_steps, self._num_without_fitness],
            "figures": [self.seconds, self.cpu_s, self.best_fitness, self.best_test],
            "worst": self._missing.worst,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state; call it before `run`."""
        self._algorithm.load_state_dict(state["algorithm"])
        self._pacing.load_state_dict(state["pacing"])
        if not self._replays:
            earlier = unpacked_decisions(state["decisions"])
            # Evaluated again, because the failure may not recur.
            under_way = {Ticket(*row) for row in state["pacing"]["under_way"]}
            self._decisions.begin_with([each for each in earlier if getattr(each, "ticket", None) not in under_way])
        self._num_asks = state["num_asks"]
        asked = _restored(state["asked"])
        self._asked = {number: _Asked(evaluator, candidates) for number, (evaluator, candidates) in asked.items()}
        self.best_tested = _restored(state["best_tested"])
        self.rows = state["rows"]
        self.num_failed = int(sum(row["failed"] for row in self.rows))
        self.num_dropped = int(sum(row["dropped"] for row in self.rows))
        self.num_evaluations, self.num_steps, self._num_without_fitness = state["counts"]
        self.seconds, self.cpu_s, self.best_fitness, self.best_test = state["figures"]
        self._missing.worst = state["worst"]


def _saved(value: Any) -> dict[str, Any]:
    """Return the value unchanged, or pickled if a state file could not restore it."""
    if is_plain(value):
        return {"plain": value}
    return {"pickle": dumps_by_value(value)}


def _restored(saved: dict[str, Any]) -> Any:
    # `read_state` only reads files that this user has written.
    return loads_moved(saved["pickle"]) if "pickle" in saved else saved["plain"]
