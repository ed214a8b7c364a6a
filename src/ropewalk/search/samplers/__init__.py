"""Samplers: which configuration a new trial gets. One file per sampler; those of Optuna share one.

    sampler = SAMPLERS.make("tpe", {"n_startup_trials": 20})

Installed packages add samplers by entry points of the group `ropewalk.samplers`.
"""

from __future__ import annotations

from ropewalk.errors import SearchInvalid
from ropewalk.families import Family

_HERE = "ropewalk.search.samplers"

SAMPLERS: Family[str] = Family(
    "sampler",
    {
        "random": f"{_HERE}.random:RandomSampler",
        "grid": f"{_HERE}.grid:GridSampler",
        "sobol": f"{_HERE}.sobol:SobolSampler",
        "tpe": f"{_HERE}.by_optuna:tpe",
        "cmaes": f"{_HERE}.by_optuna:cmaes",
        "gp": f"{_HERE}.by_optuna:gp",
        "qmc": f"{_HERE}.by_optuna:qmc",
        "nsga2": f"{_HERE}.by_optuna:nsga2",
        "nsga3": f"{_HERE}.by_optuna:nsga3",
    },
    group="ropewalk.samplers",
    unknown=SearchInvalid,
)
"""What makes each sampler, by name."""
