"""The best weights are kept, and a good enough score ends an experiment, in one process and in a program."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

import ropewalk as rw
from ropewalk import rl
from ropewalk.rl.assembly import Assembly
from ropewalk.rl.counters import Counters
from ropewalk.rl.evaluation_record import EvaluationRecord
from ropewalk.rl.learner_node import LearnerLook, LearnerNode, LearnerView
from ropewalk.rl.result import EvaluationScores
from ropewalk.rl.variables import Variables

pytestmark = pytest.mark.usefixtures("shared_session")

EXPERIMENT = rl.Experiment(
    rl.A2C(unroll=8, envs=2),
    rl.Gymnasium("CartPole-v1"),
    rl.MLP((8,)),
    steps=600,
    evaluation=rl.Evaluation(every_steps=100, episodes=2),
)


def found(version: int, *scores: float) -> tuple[EvaluationScores, Variables]:
    return EvaluationScores(version * 10, version, scores), Variables(version, 0.0, {})


def test_the_weights_of_the_best_evaluation_are_kept_and_of_equal_ones_the_first() -> None:
    record = EvaluationRecord()
    for version, score in enumerate((3.0, 7.0, 7.0, 5.0)):
        scores, variables = found(version, score - 1, score + 1)
        assert record.add(scores) is (version < 2)
        record.keep(scores, variables)
    assert record.best is not None and record.best.version == 1
    assert [scores.version for scores in record.evaluations] == [0, 1, 2, 3]


def test_an_evaluation_of_the_same_weights_counts_once() -> None:
    record = EvaluationRecord()
    for _ in range(2):
        record.add(found(4, 1.0)[0])
    assert len(record.evaluations) == 1


def test_a_record_goes_on_from_its_state() -> None:
    record, other = EvaluationRecord(), EvaluationRecord(stop_at=4.0)
    scores, variables = found(2, 4.0)
    record.add(scores)
    record.keep(scores, variables)
    other.load_state_dict(record.state_dict())
    assert other.best is variables and other.is_good_enough and not record.is_good_enough
    assert not other.add(found(3, 4.0)[0]) and other.add(found(4, 4.5)[0])


def test_one_process_ends_at_a_good_enough_score() -> None:
    stopping = dataclasses.replace(EXPERIMENT, evaluation=rl.Evaluation(every_steps=100, episodes=2, stop_at=1.0))
    result = stopping.run(log="silent")
    assert 100 <= result.counters.steps < 200 and len(result.evaluations) == 1


@pytest.mark.parametrize(
    "agent",
    [EXPERIMENT.agent, pytest.param(rl.IMPALA(unroll=8, envs=2, batch_size=1), marks=pytest.mark.soak)],
    ids=["A2C", "IMPALA"],
)
def test_a_program_ends_at_a_good_enough_score(agent: rl.Agent) -> None:
    # It has no other end: a run in which nobody notices the score would not end before the test does.
    evaluation = rl.Evaluation(every_steps=1, episodes=2, stop_at=1.0)
    endless = dataclasses.replace(EXPERIMENT, agent=agent, steps=10**9, evaluation=evaluation)
    result = endless.run(1, log="silent")  # with an evaluator, as there is an evaluation
    assert result.evaluations[0].mean >= 1.0
    assert result.outcome.best is not None and result.outcome.best.version in {s.version for s in result.evaluations}


def test_a_program_that_goes_on_logs_no_evaluation_again(tmp_path: Path) -> None:
    """Loggers got those of the earlier run once more: a file had them twice, and a service got steps that went back."""
    evaluation = rl.Evaluation(every_steps=1, episodes=2, stop_at=1.0)
    endless = dataclasses.replace(EXPERIMENT, steps=10**9, evaluation=evaluation, checkpoint=tmp_path)
    first, second = rl.MemoryLogger(), rl.MemoryLogger()
    before = endless.run(1, log=first).evaluations
    after = endless.run(1, log=second).evaluations
    assert after[: len(before)] == before, "the result has those of both runs"
    logged = [[row["version"] for row in log.rows["evaluation"]] for log in (first, second)]
    assert [*logged[0], *logged[1]] == [scores.version for scores in after]


def test_the_best_weights_are_saved_and_loaded(tmp_path: Path) -> None:
    result = EXPERIMENT.run(log="silent")
    best = max(result.evaluations, key=lambda scores: scores.mean)
    assert result.outcome.best is not None and result.outcome.best.version == best.version
    result.save(tmp_path / "best.safetensors", best=True)
    loaded, kept = rl.load_policy(tmp_path / "best.safetensors"), result.policy(best=True)
    mine, its = (rl.evaluate_policy(each, EXPERIMENT.environment, 4, seed=1) for each in (loaded, kept))
    np.testing.assert_array_equal(mine, its)


def test_without_evaluations_there_are_no_best_weights(tmp_path: Path) -> None:
    result = dataclasses.replace(EXPERIMENT, evaluation=None, steps=50).run(log="silent")
    with pytest.raises(ValueError, match="no evaluation says which weights are the best; give the experiment an eval"):
        result.save(tmp_path / "best.safetensors", best=True)


def test_the_best_weights_outlive_a_checkpoint(tmp_path: Path) -> None:
    saved = dataclasses.replace(EXPERIMENT, checkpoint=tmp_path / "run")
    first = saved.run(log="silent")
    again = saved.run(log="silent")
    assert first.outcome.best is not None and again.outcome.best is not None
    assert again.outcome.best.version == first.outcome.best.version
    assert again.evaluations == first.evaluations


class _Learner(LearnerNode):
    """A learner whose training is over."""

    def train(self) -> None:
        raise AssertionError("it has ended")

    @property
    def view(self) -> LearnerView:
        raise AssertionError("nobody asks")

    def look(self) -> LearnerLook:
        raise AssertionError("nobody asks")

    @property
    def counters(self) -> Counters:
        return Counters()


def test_an_evaluation_after_a_good_enough_end_is_in_neither_the_result_nor_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was in the result alone, and the next run made it again."""
    evaluation = rl.Evaluation(every_steps=1, episodes=2, stop_at=1.0)
    experiment = dataclasses.replace(EXPERIMENT, evaluation=evaluation, checkpoint=tmp_path)
    learner = _Learner(Assembly(experiment, 1), hold=True)
    good, late = EvaluationScores(10, 1, (9.0,)), EvaluationScores(20, 2, (10.0,))
    assert learner.report_evaluation(good)
    monkeypatch.setattr(rw, "stopping", lambda: True)
    learner._end()
    assert not learner.report_evaluation(late)
    again = _Learner(Assembly(experiment, 1), hold=True)
    again.restore()
    assert learner._evaluations.evaluations == again._evaluations.evaluations == [good]
