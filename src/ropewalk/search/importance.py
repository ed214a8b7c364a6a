"""Which hyperparameters matter: the share of each in what distinguishes the best trials from all others.

By Optuna's PED-ANOVA (Watanabe, Bansal, Hutter 2023, https://arxiv.org/abs/2304.10255), which compares, for each
hyperparameter by itself, the distribution of the best tenth of the trials with that of all.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ropewalk.search.trial_result import TrialResult

if TYPE_CHECKING:  # `results.py` imports this module
    from ropewalk.search.results import SearchResults

FEWEST_TRIALS = 8
"""With fewer finished trials the shares are chance."""


def importances(results: SearchResults) -> dict[str, float]:
    """Return the share of each hyperparameter that varies, from the largest on; empty if too few trials say anything.

    Args:
        results: the trials of a search; hyperparameters that only some trials have are left out.
    """
    trials = [trial for trial in results if trial.best is not None and math.isfinite(trial.best)]
    names = [name for name in _common(trials) if len({str(trial.hyperparameters[name]) for trial in trials}) > 1]
    if len(trials) < FEWEST_TRIALS or not names:
        return {}
    import optuna  # takes half a second to import

    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        return _shares(optuna, results.modes[0], trials, names)
    finally:
        optuna.logging.set_verbosity(verbosity)


def _shares(optuna: Any, mode: str, trials: list[TrialResult], names: list[str]) -> dict[str, float]:
    columns = {name: [trial.hyperparameters[name] for trial in trials] for name in names}
    kinds = {name: _distribution(optuna, values) for name, values in columns.items()}
    study = optuna.create_study(direction="maximize" if mode == "max" else "minimize")
    study.add_trials(
        [
            optuna.trial.create_trial(
                params={name: _value(columns[name][at], kinds[name]) for name in names},
                distributions=kinds,
                value=trial.best,
            )
            for at, trial in enumerate(trials)
        ]
    )
    evaluator = optuna.importance.PedAnovaImportanceEvaluator()
    found = optuna.importance.get_param_importances(study, evaluator=evaluator)
    return {name: float(share) for name, share in sorted(found.items(), key=lambda pair: -pair[1])}


def _common(trials: list[TrialResult]) -> list[str]:
    if not trials:
        return []
    return [name for name in trials[0].hyperparameters if all(name in trial.hyperparameters for trial in trials)]


def _distribution(optuna: Any, values: list[Any]) -> Any:
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        least, most = float(min(values)), float(max(values))
        return optuna.distributions.FloatDistribution(least, most, log=least > 0 and most > 20 * least)
    return optuna.distributions.CategoricalDistribution(sorted({str(value) for value in values}))


def _value(value: Any, kind: Any) -> Any:
    return str(value) if hasattr(kind, "choices") else float(value)
