"""Population methods at scale: evolution strategies, genetic algorithms, novelty, PBT, quality-diversity, POET.

    algorithm = OpenAIES(np.zeros(1000), population=256, sigma=0.1)
    with rw.Pool(64, engine="slurm") as pool:
        run = evaluate(algorithm, fitness, pool, generations=100)

`fitness(x)` or `fitness(x, trial)` returns a number to be made large. Any object with `ask` and `tell` (pyribs, cma,
nevergrad, EvoTorch, DEAP) can stand in place of an algorithm. Needs numpy: `pip install 'ropewalk[population]'`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ropewalk.lazy_names import lazy_names

if TYPE_CHECKING:
    from ropewalk.population.algorithm import Algorithm, Evaluator
    from ropewalk.population.algorithms.cma_es import CMAES
    from ropewalk.population.algorithms.emitters import Gaussian, IsoLine
    from ropewalk.population.algorithms.genetic import Genetic
    from ropewalk.population.algorithms.map_elites import MAPElites
    from ropewalk.population.algorithms.novelty import NoveltyES
    from ropewalk.population.algorithms.openai_es import OpenAIES
    from ropewalk.population.algorithms.outside import adapt
    from ropewalk.population.algorithms.pbt import PBT
    from ropewalk.population.algorithms.pbt_history import Schedule
    from ropewalk.population.algorithms.pbt_member import Member
    from ropewalk.population.algorithms.pbt_replay import PBTReplay
    from ropewalk.population.algorithms.poet import POET
    from ropewalk.population.algorithms.snes import SNES
    from ropewalk.population.archives.cvt_archive import CVTArchive
    from ropewalk.population.archives.grid_archive import GridArchive
    from ropewalk.population.checkpoint import Checkpoint
    from ropewalk.population.decisions import Decisions, read_decisions
    from ropewalk.population.evaluating import Run, evaluate
    from ropewalk.population.held import Held, hold
    from ropewalk.population.hyperparameters import Choice, Integers, LogUniform, Uniform
    from ropewalk.population.noise_table import NoiseTable
    from ropewalk.population.observation_statistics import ObservationStatistics
    from ropewalk.population.open_ended.bouts import Pair
    from ropewalk.population.open_ended.environment_space import EnvironmentSpace
    from ropewalk.population.open_ended.niche import Learning
    from ropewalk.population.open_ended.reproduction import Reproduction
    from ropewalk.population.outcome import Outcome
    from ropewalk.population.pacing.stragglers import Carry, Drop, Wait
    from ropewalk.population.rows import Test
    from ropewalk.population.trial import Trial
    from ropewalk.population.workers import Follow

_HOMES = {
    "Algorithm": "algorithm",
    "CMAES": "algorithms.cma_es",
    "CVTArchive": "archives.cvt_archive",
    "Carry": "pacing.stragglers",
    "Checkpoint": "checkpoint",
    "Choice": "hyperparameters",
    "Decisions": "decisions",
    "Drop": "pacing.stragglers",
    "EnvironmentSpace": "open_ended.environment_space",
    "Evaluator": "algorithm",
    "Follow": "workers",
    "Gaussian": "algorithms.emitters",
    "Genetic": "algorithms.genetic",
    "GridArchive": "archives.grid_archive",
    "Held": "held",
    "Integers": "hyperparameters",
    "IsoLine": "algorithms.emitters",
    "Learning": "open_ended.niche",
    "LogUniform": "hyperparameters",
    "MAPElites": "algorithms.map_elites",
    "Member": "algorithms.pbt_member",
    "NoiseTable": "noise_table",
    "NoveltyES": "algorithms.novelty",
    "ObservationStatistics": "observation_statistics",
    "OpenAIES": "algorithms.openai_es",
    "Outcome": "outcome",
    "PBT": "algorithms.pbt",
    "PBTReplay": "algorithms.pbt_replay",
    "POET": "algorithms.poet",
    "Pair": "open_ended.bouts",
    "Reproduction": "open_ended.reproduction",
    "Run": "evaluating",
    "SNES": "algorithms.snes",
    "Schedule": "algorithms.pbt_history",
    "Test": "rows",
    "Trial": "trial",
    "Uniform": "hyperparameters",
    "Wait": "pacing.stragglers",
    "adapt": "algorithms.outside",
    "evaluate": "evaluating",
    "hold": "held",
    "read_decisions": "decisions",
}

__all__ = [
    "CMAES",
    "PBT",
    "POET",
    "SNES",
    "Algorithm",
    "CVTArchive",
    "Carry",
    "Checkpoint",
    "Choice",
    "Decisions",
    "Drop",
    "EnvironmentSpace",
    "Evaluator",
    "Follow",
    "Gaussian",
    "Genetic",
    "GridArchive",
    "Held",
    "Integers",
    "IsoLine",
    "Learning",
    "LogUniform",
    "MAPElites",
    "Member",
    "NoiseTable",
    "NoveltyES",
    "ObservationStatistics",
    "OpenAIES",
    "Outcome",
    "PBTReplay",
    "Pair",
    "Reproduction",
    "Run",
    "Schedule",
    "Test",
    "Trial",
    "Uniform",
    "Wait",
    "adapt",
    "evaluate",
    "hold",
    "read_decisions",
]

if not TYPE_CHECKING:  # a checker that saw it would take each misspelt name for one of any type
    __getattr__, __dir__ = lazy_names(__name__, _HOMES, {"numpy": "population", "cmaes": "population"})
