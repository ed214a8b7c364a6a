"""Schedulers, one file each: they decide which trial gets how much budget, and which is stopped.

To use a scheduler of your own, pass the object itself, or register its class with `register_scheduler` or by an entry
point of the group `ropewalk.schedulers`.
"""

from __future__ import annotations

from typing import Any

from ropewalk.errors import SearchInvalid
from ropewalk.families import Family
from ropewalk.search.schedulers.adaptive_asha import AdaptiveASHA
from ropewalk.search.schedulers.asha import ASHA
from ropewalk.search.schedulers.hyperband import Hyperband
from ropewalk.search.schedulers.median_stopping import MedianStopping
from ropewalk.search.schedulers.no_scheduler import NoScheduler
from ropewalk.search.schedulers.population_training import PopulationTraining
from ropewalk.search.schedulers.scheduler import (
    FINISHED,
    GO_ON,
    STOP,
    WAIT,
    PromoteTrial,
    Scheduler,
    StartTrial,
    Verdict,
    Wait,
)
from ropewalk.search.schedulers.stopping_asha import StoppingASHA

SCHEDULERS: Family[type[Scheduler]] = Family(
    "scheduler",
    {
        "none": NoScheduler,
        "asha": ASHA,
        "stopping_asha": StoppingASHA,
        "adaptive_asha": AdaptiveASHA,
        "hyperband": Hyperband,
        "median_stopping": MedianStopping,
    },
    group="ropewalk.schedulers",
    unknown=SearchInvalid,
    added_by="register_scheduler",
)
"""Every scheduler by its name; the conformance suite tests all of them."""


_POPULATION = "pbt"
_POPULATIONS: Family[type[PopulationTraining]] = Family(
    "scheduler", {_POPULATION: PopulationTraining}, group="", unknown=SearchInvalid
)
"""Apart from `SCHEDULERS`, because a population decides on more than budgets."""


def make_scheduler(wanted: str | Scheduler | PopulationTraining, **options: Any) -> Scheduler | PopulationTraining:
    """Make a scheduler from its name and options; a scheduler object is returned unchanged.

    Args:
        wanted: a name, a scheduler, or the settings of a population.
        options: arguments of the scheduler; only with a name.

    Raises:
        SearchInvalid: no scheduler has this name, the scheduler has no such option, or options come with an object;
            the message lists the valid names or options.
    """
    family = _POPULATIONS if wanted == _POPULATION else SCHEDULERS
    return family.of(wanted, options, Scheduler | PopulationTraining)


def register_scheduler(name: str, kind: type[Scheduler]) -> None:
    """Register a scheduler class under a name for `Search` and the command line.

    Args:
        name: the name.
        kind: the class.

    Raises:
        SearchInvalid: the name is taken, or the class has another one.
    """
    SCHEDULERS.add(name, kind)


__all__ = [
    "ASHA",
    "FINISHED",
    "GO_ON",
    "SCHEDULERS",
    "STOP",
    "WAIT",
    "AdaptiveASHA",
    "Hyperband",
    "MedianStopping",
    "NoScheduler",
    "PopulationTraining",
    "PromoteTrial",
    "Scheduler",
    "StartTrial",
    "StoppingASHA",
    "Verdict",
    "Wait",
    "make_scheduler",
    "register_scheduler",
]
