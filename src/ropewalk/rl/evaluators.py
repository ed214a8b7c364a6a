"""The evaluators of a program: they evaluate the newest weights, again and again, and hold nobody up."""

from __future__ import annotations

import logging
from itertools import count

import ropewalk as rw
from ropewalk.rl.assembly import Assembly
from ropewalk.rl.learner_node import LearnerNode
from ropewalk.rl.result import EvaluationScores
from ropewalk.rl.seeds import derived_seed
from ropewalk.rl.torch_threads import one_torch_thread

logger = logging.getLogger(__name__)

_EPISODES = 20
_PAUSE_S = 0.2


def evaluate_forever(learner: LearnerNode, assembly: Assembly) -> None:
    """Evaluate until the program stops; an evaluation that fails is reported, and the next weights are evaluated."""
    experiment = assembly.experiment
    episodes = experiment.evaluation.episodes if experiment.evaluation else _EPISODES
    policy = assembly.policy(assembly.spec(), 0)
    replica, version = rw.current_node().replica, -1
    with one_torch_thread():
        for number in count():
            newest = learner.newest_variables(version)
            if newest is not None:
                variables = newest
                version = variables.version
                seed = derived_seed(experiment.seed, "evaluator", replica, number)
                try:
                    scores = assembly.evaluate(policy, variables, episodes, seed)
                except Exception as error:
                    logger.exception("the weights of version %d were not evaluated", version)
                    learner.report_problem(f"an evaluation failed with {type(error).__name__}: {error}")
                else:
                    steps = round(variables.progress * experiment.steps)
                    evaluated = EvaluationScores(steps, version, tuple(scores))
                    if learner.report_evaluation(evaluated):
                        learner.keep_best(evaluated, variables)
            if rw.wait_for_stop(_PAUSE_S):
                return


__all__ = ["evaluate_forever"]
