"""Arguments of a search: what they are made into, and what is wrong with them."""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from typing import Any, TypeVar

from ropewalk.argument_kinds import check_callable, check_kind, check_number
from ropewalk.engines.resources import Resources, usable_cpus
from ropewalk.errors import SearchInvalid
from ropewalk.search.book import Mode
from ropewalk.search.places import Train
from ropewalk.search.samplers import SAMPLERS
from ropewalk.search.samplers.sampler import Sampler
from ropewalk.search.space import SearchSpace

_Part = TypeVar("_Part")
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def check_kinds(
    train: Train,
    space: SearchSpace | Mapping[str, Any] | None,
    *,
    trials: int | None,
    max_concurrent: int | None,
    seed: int,
    max_restarts: int,
    time_limit_s: float | None,
    silent_s: float | None,
    **texts: str | None,
) -> None:
    """Check the arguments that have no other check.

    Raises:
        TypeError: one is of the wrong type; says which type is expected.
        SearchInvalid: a number of trials is below 1.
    """
    check_callable("train", train, "a function such as def train(run, lr): ...", required=True)
    check_kind("space", space, SearchSpace | Mapping, '{"lr": LogUniform(1e-5, 1e-1)}, or a SearchSpace')
    check_number("trials", trials, Integral, "a number of trials", least=1, error=SearchInvalid)
    check_number("max_concurrent", max_concurrent, Integral, "a number of trials", least=1, error=SearchInvalid)
    check_kind("seed", seed, Integral, "a whole number")
    check_kind("max_restarts", max_restarts, Integral, "a whole number")
    check_kind("time_limit_s", time_limit_s, Real, "a number of seconds")
    check_kind("silent_s", silent_s, Real, "a number of seconds")
    for name, text in texts.items():
        check_kind(name, text, str, "a text")


def sampler_of(wanted: str | Sampler | Any) -> Sampler:
    """Return the sampler of this name, or the given one; one of Optuna's is wrapped."""
    if isinstance(wanted, str):
        return SAMPLERS.make(wanted, {})
    if isinstance(wanted, Sampler):
        return wanted
    from ropewalk.search.samplers.by_optuna import OptunaSampler  # Optuna takes half a second to import

    given: object = wanted
    if not callable(given) and not hasattr(given, "sample_independent"):
        raise TypeError(f'sampler is of type {type(given).__name__}; give a name such as "tpe", or a sampler of Optuna')
    return OptunaSampler(wanted)


def described(part: object) -> str:
    """Return a scheduler or a sampler in words, the same in each process."""
    return _ADDRESS.sub("", repr(part))


def fresh(part: _Part) -> _Part:
    """Return a copy of a scheduler or a sampler that has not begun: a search may run several times.

    One that cannot be copied, because it holds a file or the like, is returned as it is, and serves for one run.
    """
    try:
        return copy.deepcopy(part)
    except TypeError:
        return part


def objectives(metric: str | Sequence[str], mode: Mode | Sequence[Mode]) -> tuple[tuple[str, ...], tuple[Mode, ...]]:
    """Return the names of the metrics, and for each whether it is maximised or minimised.

    Raises:
        SearchInvalid: they do not fit together.
        TypeError: they are not names.
    """
    check_kind("metric", metric, str | Sequence, '"loss", or names of several metrics')
    check_kind("mode", mode, str | Sequence, '"max" or "min", or one of these for each metric')
    metrics = (metric,) if isinstance(metric, str) else tuple(metric)
    modes = (mode,) * len(metrics) if isinstance(mode, str) else tuple(mode)
    if not metrics or len(set(metrics)) < len(metrics):
        raise SearchInvalid(f"metric is a name, or several different ones, not {metric!r}")
    if len(modes) != len(metrics) or any(each not in ("max", "min") for each in modes):
        raise SearchInvalid(
            f'mode must be "max" or "min", or one of these for each of {", ".join(metrics)}, not {mode!r}'
        )
    return metrics, modes


def places_here(resources: Resources | None) -> int:
    """Return how many trials with these resources the CPUs of this host can run at a time."""
    return max(1, int(usable_cpus() // max(1.0, resources.cpus if resources and resources.cpus else 1.0)))


def check_parameters(train: Train, space: SearchSpace) -> None:
    """Check that the function takes what the space has.

    Raises:
        SearchInvalid: it lacks a parameter, or requires one that the space lacks.
    """
    try:
        signature = inspect.signature(train)
    except (TypeError, ValueError):  # made in C
        return
    parameters = list(signature.parameters.values())[1:]
    if any(each.kind is each.VAR_KEYWORD for each in parameters):
        return
    names = {name.partition(".")[0] for name in space.parameters}
    taken = {each.name for each in parameters if each.kind in (each.KEYWORD_ONLY, each.POSITIONAL_OR_KEYWORD)}
    needed = {each.name for each in parameters if each.default is each.empty and each.name in taken}
    name = getattr(train, "__name__", "the function")
    if strange := sorted(names - taken):
        raise SearchInvalid(
            f"{name} has no parameter {strange[0]!r} for the hyperparameter of this name; it takes run, then "
            f"{', '.join(sorted(taken)) or 'nothing'}"
        )
    if missing := sorted(needed - names):
        has = f"the space has only {', '.join(sorted(names))}"
        if not names:
            has = f"there is no space; give one, or ask for it in {name}: run.suggest_float({missing[0]!r}, low, high)"
        raise SearchInvalid(f"{name} needs {missing[0]!r}, and {has}")
