"""What the methods of a trial of Optuna are called here: for the message about one that does not exist."""

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


def missing_attribute(name: str) -> AttributeError:
    """Return the error for an attribute that the run of a trial does not have."""
    words = f", as Optuna's trial has it; write {_HERE[name]} ({_PAGE})" if name in _HERE else ""
    return AttributeError(f"the run of a trial has no attribute {name!r}{words}")


__all__ = ["missing_attribute"]
