"""How each stage gets an optimizer of its own, for its parameters.

    lambda parameters: SGD(parameters, 0.1)      a list of the stage's parameters
    def optimizer(named_parameters): ...         by this name, a list [("layer1.weight", parameter), ...]

An optimizer sees one stage. An optimizer whose update of a parameter depends on all others would train another model
than in one process, and is refused.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from torch import nn

from ropewalk.pipeline.stages.weight_versions import OptimizerFactory
from ropewalk.quantities import listed

StageOptimizer = OptimizerFactory | Callable[[list[tuple[str, nn.Parameter]]], torch.optim.Optimizer]
"""Makes the optimizer of a stage from its trainable parameters, or from pairs of name and parameter."""
RateSchedule = Callable[[torch.optim.Optimizer], torch.optim.lr_scheduler.LRScheduler]
"""Makes a schedule of the learning rate for a stage's optimizer; it is stepped after each update of the stage."""

_NAMED = "named_parameters"
"""The parameter name by which a function asks for pairs of name and parameter."""
_AN_OPTIMIZER = "lambda parameters: torch.optim.SGD(parameters, lr=0.1)"
_GROUPS = (
    "a function def optimizer(named_parameters): ... that sorts pairs of name and parameter into groups, and returns "
    'torch.optim.AdamW([{"params": decaying, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}], lr=3e-4)'
)
_A_SCHEDULE = "lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 30)"

_COUPLED = {
    "LBFGS": "searches along one line through all parameters",
    "Prodigy": "estimates one distance for all parameters",
    "SAM": "climbs along the normalised gradient of all parameters",
    **dict.fromkeys(
        ("DAdaptAdam", "DAdaptSGD", "DAdaptAdaGrad", "DAdaptLion", "DAdaptAdan"),
        "estimates one distance for all parameters",
    ),
}
"""Optimizers whose update of one parameter needs the gradients of all, and what each does with them. All optimizers of
torch.optim but LBFGS treat each parameter separately, Adafactor and Muon too; the others here are of well-known
libraries."""


@dataclass(frozen=True, slots=True)
class OptimizerMaker:
    """How the optimizers of stages are made.

    Example:
        >>> halving = lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 30, gamma=0.5)
        >>> OptimizerMaker(torch.optim.Adam, lr_schedule=halving).lr_scale is None
        True

    Args:
        make_optimizer: makes an optimizer from a list of a stage's parameters, or from pairs of name and parameter if
            its first parameter is called `named_parameters`.
        lr_schedule: makes an optimizer's schedule of the learning rate, which advances with each update of the stage;
            None for a constant rate.
        lr_scale: "pipedream" multiplies the learning rate of a stage with r replicas by r / r_0, where r_0 are the
            replicas of the first stage: in each step, after what `lr_schedule` makes of it. Saved rates are without
            this factor, and after a death or under another plan the factor is that of the new plan.

    Raises:
        TypeError: one of the functions is not callable.
        ValueError: there is no such `lr_scale`.
    """

    make_optimizer: StageOptimizer
    lr_schedule: RateSchedule | None = None
    lr_scale: Literal["pipedream"] | None = None

    def __post_init__(self) -> None:
        _check_function("optimizer", self.make_optimizer, _AN_OPTIMIZER)
        _check_takes_parameters(self.make_optimizer)
        if self.lr_scale not in (None, "pipedream"):
            raise ValueError(f"lr_scale is 'pipedream' or None, not {self.lr_scale!r}")
        if self.lr_schedule is not None:
            _check_function("lr_schedule", self.lr_schedule, _A_SCHEDULE)

    @classmethod
    def of(cls, given: StageOptimizer | OptimizerMaker) -> OptimizerMaker:
        """Return a maker as it is, and a function as one whose optimizers keep their learning rate."""
        return given if isinstance(given, OptimizerMaker) else cls(given)

    def rate_factor(self, replicas: int, of_first: int) -> float:
        """Return what multiplies the rates of a stage with `replicas` replicas when the first stage has `of_first`."""
        return 1.0 if self.lr_scale is None else replicas / of_first

    def optimizer(self, parameters: Mapping[str, nn.Parameter]) -> torch.optim.Optimizer:
        """Return the optimizer of a stage.

        Raises:
            TypeError: `make_optimizer` returned no optimizer.
            ValueError: the optimizer steps tensors that are not the stage's, or needs those of all stages at once.
        """
        make = cast("Callable[[Any], object]", self.make_optimizer)
        try:
            optimizer = make(list(parameters.items()) if _wants_names(make) else list(parameters.values()))
        except ValueError as error:
            if "empty parameter list" not in str(error):
                raise
            raise ValueError(
                f"the optimizer of a stage got an empty list: it leaves out all that the stage has, "
                f"{listed(list(parameters), 3)}. Call requires_grad_(False) on what is not to be trained, as a stage "
                f"without trained parameters has no optimizer; or give the list as a group, which may be empty: "
                f"[{{'params': parameters}}]"
            ) from error
        if not isinstance(optimizer, torch.optim.Optimizer):
            kind = type(optimizer)
            advice = f"give {_AN_OPTIMIZER}"
            if issubclass(kind, list | tuple | dict):
                advice = f"for parameters that are to be updated differently, make groups of one optimizer: {_GROUPS}"
            raise TypeError(
                f"optimizer must return the optimizer of a stage, but it returned {kind.__name__}; {advice}"
            )
        _check_own(optimizer, parameters)
        _check_uncoupled(optimizer)
        return optimizer

    def schedule(self, optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler | None:
        """Return the schedule of the learning rate of a stage's optimizer; None: the rate is constant.

        Raises:
            TypeError: `lr_schedule` returned no schedule.
            ValueError: it returned that of another optimizer, or one that needs the loss.
        """
        if self.lr_schedule is None:
            return None
        found: Any = self.lr_schedule(optimizer)
        if not callable(getattr(found, "step", None)) or not callable(getattr(found, "state_dict", None)):
            raise TypeError(
                f"lr_schedule must return a schedule, but it returned {type(found).__name__}; give {_A_SCHEDULE}"
            )
        if getattr(found, "optimizer", optimizer) is not optimizer:
            raise ValueError(
                f"lr_schedule returned a {type(found).__name__} of another optimizer, which would leave the rates of "
                f"the stage as they are; make it of the argument: {_A_SCHEDULE}"
            )
        if isinstance(found, torch.optim.lr_scheduler.ReduceLROnPlateau):
            raise ValueError(
                f"ReduceLROnPlateau needs a loss for each step, and a stage steps its schedule after each update "
                f"without one; give a schedule of the number of updates: {_A_SCHEDULE}"
            )
        return found


def _wants_names(make: Callable[..., object]) -> bool:
    try:
        names = list(inspect.signature(make).parameters)
    except (TypeError, ValueError):  # some functions written in C have no signature
        return False
    return names[:1] == [_NAMED]


def _check_own(optimizer: torch.optim.Optimizer, parameters: Mapping[str, nn.Parameter]) -> None:
    own = {id(parameter) for parameter in parameters.values()}
    strange = [one for group in optimizer.param_groups for one in group["params"] if id(one) not in own]
    if strange:
        raise ValueError(
            f"{len(strange)} tensors of the optimizer are not among the parameters that it was given, the first is of "
            f"shape {tuple(strange[0].shape)}; a stage trains copies of the model's parameters, so make the optimizer "
            f"of the argument: {_AN_OPTIMIZER}"
        )


def _check_uncoupled(optimizer: torch.optim.Optimizer) -> None:
    for kind in type(optimizer).__mro__:
        if kind.__name__ in _COUPLED:
            raise ValueError(
                f"{type(optimizer).__name__} {_COUPLED[kind.__name__]}, and an optimizer of a stage sees those of its "
                f"stage alone; use one that treats each parameter separately, such as SGD or AdamW"
            )
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise ValueError(
            f"{type(optimizer).__name__} runs the model again within its step (it needs a closure), which a stage "
            f"cannot; use one that steps with the gradients that it has, such as SGD or AdamW"
        )


def _check_takes_parameters(make: Callable[..., object]) -> None:
    """Refuse a function that cannot be called with the parameters of a stage, such as `model.configure_optimizers`."""
    try:
        signature = inspect.signature(make)
    except (TypeError, ValueError):  # some functions written in C have no signature
        return
    try:
        signature.bind([])
    except TypeError as error:
        name = getattr(make, "__qualname__", type(make).__name__)
        of_model = ""
        if isinstance(getattr(make, "__self__", None), nn.Module):
            of_model = (
                "; it makes an optimizer of the parameters of its model, and a stage trains others, which are its own"
            )
        raise TypeError(
            f"optimizer is called with one argument, the parameters of a stage, and {name}{signature} cannot be: "
            f"{error}{of_model}. Give {_AN_OPTIMIZER}; or, for groups such as those with and without weight decay, "
            f"{_GROUPS}"
        ) from None


def _check_function(name: str, given: object, example: str) -> None:
    if not callable(given):
        raise TypeError(
            f"{name} must be a function, because each stage has one of its own, but it is an object of type "
            f"{type(given).__name__}; give {example}, or the like"
        )
