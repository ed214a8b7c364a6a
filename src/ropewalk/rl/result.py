"""`ExperimentResult`: what came of an experiment."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ropewalk.control.view import View
from ropewalk.html_table import html_box, html_headline, html_table
from ropewalk.rl.counters import Counters
from ropewalk.rl.policies.policy import Policy
from ropewalk.rl.saved_policies import save_policy
from ropewalk.rl.seeds import derived_seed
from ropewalk.rl.variables import Variables
from ropewalk.rl.view import (
    RATES_S,
    NumberedEvaluation,
    NumberedRow,
    environment_name,
    facts_of,
    returns_panel,
    spaced,
    throughput_panel,
)

_SHOWN_EVALUATIONS = 10

if TYPE_CHECKING:
    from ropewalk.rl.assembly import Assembly


@dataclass(frozen=True)
class EvaluationScores:
    """The scores of one evaluation.

    Attributes:
        steps: environment steps of training before it.
        version: version of the weights.
        scores: undiscounted, one for each episode.
    """

    steps: int
    version: int
    scores: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Mean score."""
        return sum(self.scores) / len(self.scores)


@dataclass(frozen=True)
class TrainingOutcome:
    """What the learner has at the end; travels from a learner's process to the script.

    Attributes:
        variables: the last weights.
        counters: what was done.
        digests: digests of the weights, one for every `Experiment.digest_every` updates.
        evaluations: in their order.
        best: the weights of the evaluation with the best mean score; None without evaluations.
    """

    variables: Variables
    counters: Counters
    digests: tuple[str, ...] = ()
    evaluations: tuple[EvaluationScores, ...] = ()
    best: Variables | None = None


@dataclass(frozen=True)
class ExperimentResult:
    """The result of an experiment.

    Attributes:
        outcome: weights, counters, digests and evaluations.
        timeline: rows of progress: steps, seconds, score and the learner's metrics; of long runs, about 10,000 rows at
            equal distances, and the last.
        seconds: wall time of this run.
    """

    outcome: TrainingOutcome
    timeline: tuple[Mapping[str, float | int | str | None], ...]
    seconds: float
    assembly: Assembly

    @property
    def counters(self) -> Counters:
        """Steps, episodes and updates that were done."""
        return self.outcome.counters

    @property
    def score(self) -> float | None:
        """Mean score of the last 100 episodes of training, with exploration; None if none has ended."""
        return self.outcome.counters.score

    @property
    def digests(self) -> tuple[str, ...]:
        """Of the weights, one for every `Experiment.digest_every` updates: equal for equal bits."""
        return self.outcome.digests

    @property
    def variables(self) -> Variables:
        """The last weights by name."""
        return self.outcome.variables

    @property
    def evaluations(self) -> tuple[EvaluationScores, ...]:
        """Evaluations during the run."""
        return self.outcome.evaluations

    def policy(self, *, best: bool = False) -> Policy:
        """Return the trained policy.

        Args:
            best: whether to take the weights of the best evaluation instead of the last ones.

        Raises:
            ValueError: there were no evaluations, of which one could be the best.
        """
        policy = self.assembly.policy(self.assembly.spec(), 0)
        policy.load(self._weights(best))
        return policy

    def save(self, path: Path | str, *, best: bool = False) -> None:
        """Write the trained policy to a file, which `rl.load_policy` reads and which nothing is unpickled from.

        Args:
            path: path of the file, such as "walker.safetensors".
            best: whether to take the weights of the best evaluation instead of the last ones.

        Raises:
            OSError: the file cannot be written.
            ValueError: there were no evaluations, of which one could be the best.
        """
        experiment = self.assembly.experiment
        save_policy(path, experiment.agent, self.assembly.spec(), experiment.network, self._weights(best))

    def _weights(self, best: bool) -> Variables:
        if not best:
            return self.variables
        if self.outcome.best is None:
            raise ValueError(
                "no evaluation says which weights are the best; give the experiment an evaluation (and a program "
                "evaluators), or take the last weights with best=False"
            )
        return self.outcome.best

    def evaluate(self, episodes: int = 20, seed: int = 0) -> tuple[float, ...]:
        """Return the scores of new episodes of the greedy policy; equal for equal seeds.

        Args:
            episodes: how many.
            seed: seed of the environments.
        """
        derived = derived_seed(seed, "evaluate the result")
        return tuple(self.assembly.evaluator().scores(self.policy(), episodes, seed=derived).tolist())

    def view(self, panels: dict[str, int] | None = None) -> View:
        """Return what the page and reports show about the experiment, now that it has ended.

        Args:
            panels: names of the panels whose data is wanted, with cursors; see `ropewalk.control.view.Observable`.
                None: all of them.
        """
        experiment = self.assembly.experiment
        rows = [NumberedRow(number, row) for number, row in enumerate(self.timeline)]
        evaluations = [NumberedEvaluation(0, scores) for scores in self.evaluations]
        chosen = spaced(rows, None, is_over=True)
        stop_at = experiment.evaluation.stop_at if experiment.evaluation else None
        made = {
            "returns": partial(
                returns_panel, chosen, evaluations, 0, {"total_steps": experiment.steps, "stop_at": stop_at}
            ),
            "throughput": partial(
                throughput_panel, spaced(rows, None, least_s=RATES_S), None, 0, self.assembly.batch_size
            ),
        }
        settings: dict[str, float | int | str] = {"environment": environment_name(experiment.environment)}
        now = time.time()
        return View(
            kind="experiment",
            name=type(experiment.agent).__name__,
            id="ended",
            pid=os.getpid(),
            state="completed",
            started=now - self.seconds,
            at=now,
            progress=min(1.0, self.counters.steps / experiment.steps),
            left_s=0.0,
            facts=facts_of([*rows[:1], *rows[-1:]], evaluations, settings),
            panels={name: make() for name, make in made.items() if panels is None or name in panels},
            offers=tuple(made),
        )

    def _repr_html_(self) -> str:
        counters = self.counters
        facts = [("", f"{counters.steps:,} steps"), ("", f"{counters.episodes:,} episodes")]
        facts += [("", f"{counters.updates:,} updates"), ("", f"{self.seconds:.0f} s")]
        facts += [] if self.score is None else [("score", f"{self.score:.5g}")]
        head = ("evaluation at step", "mean", "worst", "best")
        rows = [
            [f"{each.steps:,}", f"{each.mean:.5g}", f"{min(each.scores):.5g}", f"{max(each.scores):.5g}"]
            for each in self.evaluations[-_SHOWN_EVALUATIONS:]
        ]
        table = html_table(head, rows, right=range(len(head))) if rows else ""
        return html_box(html_headline(type(self.assembly.experiment.agent).__name__, "", facts), table)

    def __repr__(self) -> str:
        score = "no episode has ended" if self.score is None else f"score {self.score:.1f}"
        counters = self.counters
        return (
            f"<experiment after {counters.steps:,} steps, {counters.episodes:,} episodes, {counters.updates:,} updates "
            f"in {self.seconds:.0f} s: {score}>"
        )


__all__ = ["EvaluationScores", "ExperimentResult", "TrainingOutcome"]
