"""Search: many trials of one training function, over pools and clusters; schedulers that stop bad ones early.

    def train(run, rate, width):
        for epoch in run.steps(81):
            run.log(accuracy=...)
            run.checkpoint(...)

    search = Search(train, {"rate": LogUniform(1e-4, 1.0), "width": Integers(8, 128, log=True)},
                    metric="accuracy", scheduler=ASHA(R=81, eta=3), trials=64)
    print(search.run())

Trials are runs in the store of `ropewalk.tracking`. Requires `pip install 'ropewalk[search]'`.
"""

from __future__ import annotations

from ropewalk.lazy_names import LazyNames

_lazy = LazyNames(
    globals(),
    {
        "numpy": "search",
        "optuna": "search",
        "sqlalchemy": "search",
        "alembic": "search",
        "safetensors": "search",
        "scipy": "search",
        "matplotlib": "search",
    },
)

with _lazy:
    from ropewalk.population.hyperparameters import Choice as Choice
    from ropewalk.population.hyperparameters import Integers as Integers
    from ropewalk.population.hyperparameters import LogUniform as LogUniform
    from ropewalk.population.hyperparameters import Uniform as Uniform
    from ropewalk.search.conditions import When as When
    from ropewalk.search.loading import load_results as load_results
    from ropewalk.search.results import SearchResults as SearchResults
    from ropewalk.search.samplers import SAMPLERS as SAMPLERS
    from ropewalk.search.samplers.sampler import Observed as Observed
    from ropewalk.search.samplers.sampler import Sampler as Sampler
    from ropewalk.search.schedulers import SCHEDULERS as SCHEDULERS
    from ropewalk.search.schedulers import make_scheduler as make_scheduler
    from ropewalk.search.schedulers import register_scheduler as register_scheduler
    from ropewalk.search.schedulers.adaptive_asha import AdaptiveASHA as AdaptiveASHA
    from ropewalk.search.schedulers.asha import ASHA as ASHA
    from ropewalk.search.schedulers.hyperband import Hyperband as Hyperband
    from ropewalk.search.schedulers.median_stopping import MedianStopping as MedianStopping
    from ropewalk.search.schedulers.no_scheduler import NoScheduler as NoScheduler
    from ropewalk.search.schedulers.population_training import PopulationTraining as PopulationTraining
    from ropewalk.search.schedulers.scheduler import FINISHED as FINISHED
    from ropewalk.search.schedulers.scheduler import GO_ON as GO_ON
    from ropewalk.search.schedulers.scheduler import STOP as STOP
    from ropewalk.search.schedulers.scheduler import WAIT as WAIT
    from ropewalk.search.schedulers.scheduler import PromoteTrial as PromoteTrial
    from ropewalk.search.schedulers.scheduler import Scheduler as Scheduler
    from ropewalk.search.schedulers.scheduler import StartTrial as StartTrial
    from ropewalk.search.schedulers.scheduler import Verdict as Verdict
    from ropewalk.search.schedulers.stopping_asha import StoppingASHA as StoppingASHA
    from ropewalk.search.search import Search as Search
    from ropewalk.search.space import SearchSpace as SearchSpace
    from ropewalk.search.trial_result import TrialResult as TrialResult
    from ropewalk.search.trial_task import TrialRun as TrialRun
