"""The evaluators of a program: they evaluate the newest weights when it is time to, and hold nobody up."""

from __future__ import annotations

import logging
from itertools import count

import ropewalk as rw
from ropewalk.rl.actors.evaluator import EvaluationOver
from ropewalk.rl.assembly import Assembly
from ropewalk.rl.learner_node import LearnerNode
from ropewalk.rl.result import EvaluationScores
from ropewalk.rl.seeds import derived_seed
from ropewalk.rl.telling_slow_calls import slow_calls_told
from ropewalk.rl.torch_threads import one_torch_thread

logger = logging.getLogger(__name__)

_EPISODES = 20
_PAUSE_S = 0.2


class EvaluationTurns:
    """Says which weights an evaluator evaluates: those after each multiple of `every_steps`, in turn with others. Pure.

    An evaluator that was busy while several of its turns passed evaluates the newest weights once.

    Args:
        every_steps: environment steps between evaluations; None: all weights are evaluated, as fast as is possible.
        replica: index of this evaluator.
        replicas: number of evaluators.
    """

    def __init__(self, every_steps: int | None, replica: int = 0, replicas: int = 1) -> None:
        self._every_steps, self._replica, self._replicas = every_steps, replica, replicas
        self._last = self._turn(0)

    def take(self, steps: int) -> bool:
        """Return whether the weights after these steps are to be evaluated; if so, their turn is taken."""
        if self._every_steps is None:
            return True
        turn = self._turn(steps)
        is_due, self._last = turn > self._last, max(turn, self._last)
        return is_due

    def _turn(self, steps: int) -> int:
        """Number of the last turn of this evaluator, if every `replicas`-th multiple is one of its turns."""
        return (steps // (self._every_steps or 1) - self._replica) // self._replicas


def evaluate_forever(learner: LearnerNode, assembly: Assembly) -> None:
    """Evaluate until the program stops; an evaluation that fails is reported, and training goes on."""
    experiment, node = assembly.experiment, rw.current_node()
    evaluation = experiment.evaluation
    episodes = evaluation.episodes if evaluation else _EPISODES
    turns = EvaluationTurns(evaluation.every_steps if evaluation else None, node.replica, node.replicas)
    policy = assembly.policy(assembly.spec(), 0)
    version = -1
    evaluator = assembly.evaluator()
    told = slow_calls_told(learner, f"evaluator {node.replica}", lambda: {0: evaluator.call_under_way()})
    with one_torch_thread(), told:
        for number in count():
            newest = learner.newest_variables(version)
            version = newest.version if newest else version
            if newest and turns.take(steps := round(newest.progress * experiment.steps)):
                seed = derived_seed(experiment.seed, "evaluator", node.replica, number)
                try:
                    policy.load(newest)
                    # An evaluation can take minutes, and a node that is asked to end has seconds.
                    scores = evaluator.scores(policy, episodes, seed=seed, is_over=lambda: node.wait_for_stop(0))
                except EvaluationOver:
                    return
                except Exception as error:
                    logger.exception("the weights of version %d were not evaluated", version)
                    learner.report_problem(f"an evaluation failed with {type(error).__name__}: {error}")
                else:
                    evaluated = EvaluationScores(steps, version, tuple(scores.tolist()))
                    if learner.report_evaluation(evaluated):
                        learner.keep_best(evaluated, newest)
            if rw.wait_for_stop(_PAUSE_S):
                return


__all__ = ["EvaluationTurns", "evaluate_forever"]
