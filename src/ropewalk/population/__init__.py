"""Population methods at scale: evolution strategies, genetic algorithms, novelty, PBT, quality-diversity, POET.

    algorithm = OpenAIES(np.zeros(1000), population=256, sigma=0.1)
    with rw.Pool(64, engine="slurm") as pool:
        run = evaluate(algorithm, fitness, pool, generations=100)

`fitness(x)` or `fitness(x, trial)` returns a number to maximise. Any object with `ask` and `tell` (pyribs, cma,
nevergrad, EvoTorch, DEAP) can be used in place of an algorithm. Requires numpy: `pip install 'ropewalk[population]'`.
"""

from __future__ import annotations

from ropewalk.lazy_names import LazyNames

_lazy = LazyNames(globals(), {"numpy": "population", "cmaes": "population"})

with _lazy:
    from ropewalk.population.algorithm import Algorithm as Algorithm
    from ropewalk.population.algorithm import Evaluator as Evaluator
    from ropewalk.population.algorithms.cma_es import CMAES as CMAES
    from ropewalk.population.algorithms.emitters import Gaussian as Gaussian
    from ropewalk.population.algorithms.emitters import IsoLine as IsoLine
    from ropewalk.population.algorithms.external import adapt as adapt
    from ropewalk.population.algorithms.genetic import Genetic as Genetic
    from ropewalk.population.algorithms.map_elites import MAPElites as MAPElites
    from ropewalk.population.algorithms.novelty import NoveltyES as NoveltyES
    from ropewalk.population.algorithms.openai_es import OpenAIES as OpenAIES
    from ropewalk.population.algorithms.pbt import PBT as PBT
    from ropewalk.population.algorithms.pbt_history import PBTSchedule as PBTSchedule
    from ropewalk.population.algorithms.pbt_member import PBTMember as PBTMember
    from ropewalk.population.algorithms.pbt_replay import PBTReplay as PBTReplay
    from ropewalk.population.algorithms.poet import POET as POET
    from ropewalk.population.algorithms.snes import SNES as SNES
    from ropewalk.population.archives.cvt_archive import CVTArchive as CVTArchive
    from ropewalk.population.archives.grid_archive import GridArchive as GridArchive
    from ropewalk.population.checkpoint import CheckpointConfig as CheckpointConfig
    from ropewalk.population.decisions import Decisions as Decisions
    from ropewalk.population.decisions import read_decisions as read_decisions
    from ropewalk.population.evaluating import evaluate as evaluate
    from ropewalk.population.failures import FailurePolicy as FailurePolicy
    from ropewalk.population.hyperparameters import Choice as Choice
    from ropewalk.population.hyperparameters import Integers as Integers
    from ropewalk.population.hyperparameters import LogUniform as LogUniform
    from ropewalk.population.hyperparameters import Uniform as Uniform
    from ropewalk.population.noise_table import NoiseTable as NoiseTable
    from ropewalk.population.object_ref import ObjectRef as ObjectRef
    from ropewalk.population.object_ref import put as put
    from ropewalk.population.observation_statistics import ObservationStatistics as ObservationStatistics
    from ropewalk.population.open_ended.bouts import AgentEnvPair as AgentEnvPair
    from ropewalk.population.open_ended.environment_space import EnvironmentSpace as EnvironmentSpace
    from ropewalk.population.open_ended.niche import ESConfig as ESConfig
    from ropewalk.population.open_ended.reproduction import Reproduction as Reproduction
    from ropewalk.population.outcome import Outcome as Outcome
    from ropewalk.population.pacing.modes import GenerationMode as GenerationMode
    from ropewalk.population.pacing.modes import SteadyMode as SteadyMode
    from ropewalk.population.pacing.stragglers import StragglerPolicy as StragglerPolicy
    from ropewalk.population.rows import EvalConfig as EvalConfig
    from ropewalk.population.run_result import RunResult as RunResult
    from ropewalk.population.trial import Trial as Trial
    from ropewalk.population.worker_autoscaler import WorkerAutoscaler as WorkerAutoscaler
