"""What the names of Optuna and Ray Tune are called here: for messages about methods and arguments that do not exist."""

from __future__ import annotations

_PAGE = "the page 'Coming from Optuna' of the documentation has the other names"
_HERE = {
    "report": "`for step in run.steps(total): ... run.log(loss=value)`",
    "should_prune": "nothing: `for step in run.steps(total)` ends the trial when the scheduler stops it",
    "set_user_attr": "run.log(name=number), or run.config.update({name: value})",
    "user_attrs": "run.config",
    "params": "run.config",
    "number": "run.trial",
    "suggest_uniform": "run.suggest_float(name, low, high)",
    "suggest_loguniform": "run.suggest_float(name, low, high, log=True)",
    "suggest_discrete_uniform": "run.suggest_float(name, low, high, step=q)",
}
ARGUMENTS = {
    "trials=": ("n_trials", "num_samples", "max_trials", "num_trials"),
    'mode="max" or mode="min"': ("direction", "directions"),
    "max_concurrent=": ("n_jobs", "max_concurrent_trials", "num_workers", "workers"),
    "time_limit_s=": ("timeout", "time_budget_s"),
    "scheduler=": ("pruner",),
    "sampler=": ("search_alg",),
    "space=": ("param_space", "config", "search_space"),
    "store=": ("storage",),
    "name=": ("study_name",),
    "resume=": ("load_if_exists",),
    "start_with=[...]": ("points_to_evaluate",),
}
"""Arguments of `Search` by what to write in place of them."""
_OF_SEARCH = {"metric= of Search": ("metric",), "mode= of Search": ("mode",)}
OF_HYPERBAND = {
    "R=": ("max_t", "max_resource", "max_iter"),
    "r=": ("grace_period", "min_resource"),
    "eta=": ("reduction_factor",),
    **_OF_SEARCH,
}
"""Arguments of a scheduler that halves, by what to write in place of them."""
OF_ASHA = {**OF_HYPERBAND, "s=": ("min_early_stopping_rate",), "max_brackets=": ("brackets",)}
OF_MEDIAN_STOPPING = {
    "grace=": ("grace_period", "n_warmup_steps"),
    "min_others=": ("min_samples_required", "n_min_trials", "n_startup_trials"),
    **_OF_SEARCH,
}
OF_RESULTS = {
    "results.best.best": ("best_value",),
    "results.best.hyperparameters": ("best_params", "best_config"),
    "results.best": ("best_trial", "best_result", "get_best_result"),
    "results.pareto_front": ("best_trials",),
    "results itself, a sequence of trials": ("trials",),
    "results.to_pandas()": ("trials_dataframe", "get_dataframe", "dataframe"),
}
"""Attributes of results by what to write in place of them."""
OF_RESULT = {
    "trial.hyperparameters": ("params", "config"),
    "trial.best, or trial.values[name] for the last one": ("value", "metrics", "score"),
    "trial.scores, which are to be maximised": ("intermediate_values",),
    "trial.restore()": ("checkpoint", "best_checkpoints", "get_best_checkpoint"),
    "trial.folder": ("path",),
    "trial.why": ("error",),
}
"""Attributes of one result by what to write in place of them."""


def missing_attribute(name: str) -> AttributeError:
    """Return the error for an attribute that the run of a trial does not have."""
    words = f", as Optuna's trial has it; write {_HERE[name]} ({_PAGE})" if name in _HERE else ""
    return AttributeError(f"the run of a trial has no attribute {name!r}{words}")


__all__ = [
    "ARGUMENTS",
    "OF_ASHA",
    "OF_HYPERBAND",
    "OF_MEDIAN_STOPPING",
    "OF_RESULT",
    "OF_RESULTS",
    "missing_attribute",
]
