"""The training state of stages, by the names of the user's model: taken from stages, and given back to others.

Between the two, the cut, the numbers of replicas and the schedule may change.

    parameters   name -> tensor
    buffers      name -> tensor
    optimizer    name of a parameter -> its state, such as Adam's "step" and "exp_avg"
    options      name of a parameter -> the options of its group, such as "lr"
    rates        name of a parameter -> the state of its stage's schedule of the learning rate, if there is one

The state of exchanges between replicas is left out: a compressor's residual belongs to one replica and to the way its
gradients were packed, and means nothing under another plan. After a change of plan each exchange starts over, and
residuals are dropped. Snapshots have them, for the same plan.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ropewalk.pipeline.stages.running_stage import RunningStage

Rates = Mapping[RunningStage, torch.optim.lr_scheduler.LRScheduler]
"""The schedules of the learning rate, of the stages that have one."""

_OF_SCHEDULES = frozenset({"params", "param_names", "initial_lr", "max_lr", "min_lr", "base_momentum", "max_momentum"})
"""What the groups of an optimizer hold that is not an option of it; schedules of torch add most of it."""
_KINDS = ("parameters", "buffers", "optimizer", "options", "rates")


def held(stage: RunningStage, rates: Rates) -> dict[str, dict[str, Any]]:
    """Return what a stage holds: the tensors themselves, which further training changes."""
    found: dict[str, dict[str, Any]] = {kind: {} for kind in _KINDS}
    found["parameters"], found["buffers"] = dict(stage.versions.parameters), dict(stage.buffers)
    if (optimizer := stage.versions.optimizer) is None:
        return found
    state = optimizer.state_dict()
    rate = rates[stage].state_dict() if stage in rates else None
    for names, group in zip(_names(stage, optimizer), state["param_groups"], strict=True):
        group.pop("param_names", None)  # torch adds it if given names: each parameter's options would hold the list
        for name, index in zip(names, group.pop("params"), strict=True):
            if index in state["state"]:
                found["optimizer"][name] = state["state"][index]
            found["options"][name] = group
            if rate is not None:
                found["rates"][name] = rate
    return found


def taken(stages: Sequence[RunningStage], rates: Rates) -> dict[str, Any]:
    """Return copies of the stages' state; if several stages hold a parameter, the first one's is taken."""
    found: dict[str, dict[str, Any]] = {kind: {} for kind in _KINDS}
    for stage in reversed(stages):
        for kind, named in held(stage, rates).items():
            found[kind] |= {name: _copied(one) for name, one in named.items()}
    return found


def give_back(saved: Mapping[str, Any], stages: Sequence[RunningStage], rates: Rates) -> None:
    """Load a saved state into stages without micro-batches in flight.

    Args:
        saved: as `taken` returns it.
        stages: the stages to load it into.
        rates: their schedules of the learning rate.

    Raises:
        ValueError: the state is of another model, or was trained with another optimizer, or other groups or schedules
            of the learning rate. The stages are unchanged then, unless an optimizer or a schedule itself refuses the
            state.
    """
    parameters = {name: one for stage in stages for name, one in stage.versions.parameters.items()}
    buffers = {name: one for stage in stages for name, one in stage.buffers.items()}
    check_tensors(saved, parameters, buffers)
    if bool(saved["rates"]) != bool(rates):
        had, has = ("with", "without") if saved["rates"] else ("without", "with")
        raise ValueError(f"the state was saved {had} an lr_schedule, and this executor is {has} one; make it alike")
    optimizers = [
        (stage, optimizer, _state(saved, _names(stage, optimizer), optimizer.state_dict()))
        for stage in stages
        if (optimizer := stage.versions.optimizer) is not None
    ]
    with torch.no_grad():
        for stage in stages:
            for name, parameter in stage.versions.parameters.items():
                parameter.copy_(saved["parameters"][name])
            for name, buffer in stage.buffers.items():
                buffer.copy_(saved["buffers"][name])
    for stage, optimizer, state in optimizers:
        parts = _parts_by_group(rates[stage], optimizer) if stage in rates else []
        _load("optimizer", optimizer, state)
        if stage in rates:
            first = next(name for names in _names(stage, optimizer) for name in names)
            _load("lr_schedule", rates[stage], copy.deepcopy(saved["rates"].get(first)))
        for part in parts:  # the state has the groups of the stage that it comes from
            part.base_lrs = _first_rates(optimizer)


def check_tensors(saved: Mapping[str, Any], parameters: Mapping[str, Tensor], buffers: Mapping[str, Tensor]) -> None:
    """Check that a state is whole, and has the parameters and buffers of stages.

    Args:
        saved: as `taken` returns it.
        parameters: all parameters of the stages, by name; they may be on the device meta.
        buffers: all their buffers, by name.

    Raises:
        ValueError: a kind is missing, or a tensor is missing, too many, or of another shape or dtype; names it.
    """
    _check_has(saved, _KINDS)
    _check_fits("parameter", saved["parameters"], parameters)
    _check_fits("buffer", saved["buffers"], buffers)


def run_facts(state: Mapping[str, Any]) -> tuple[int, int]:
    """Return the number of steps and the seed of the run that a state is of.

    Raises:
        ValueError: the state lacks them, or a kind of tensors or values.
    """
    _check_has(state, (*_KINDS, "num_steps", "seed"))
    return state["num_steps"], state["seed"]


def _load(what: str, into: torch.optim.Optimizer | torch.optim.lr_scheduler.LRScheduler, state: Any) -> None:
    """Load a state dictionary with torch, which checks little of it beforehand."""
    try:
        into.load_state_dict(state)
    except (KeyError, TypeError, AttributeError, RuntimeError, ValueError) as error:
        raise ValueError(
            f"the {what} {type(into).__name__} cannot go on from the state, which may be of another one ({error!r}); "
            f"start over, with what the state was saved with"
        ) from error


def _parts_by_group(rate: Any, optimizer: torch.optim.Optimizer) -> list[Any]:
    """Return the schedules in a schedule that go through their base rates and the groups of the optimizer side by side.

    If there are more of one than of the other, torch raises; older versions leave the last groups as they are.
    """
    inner = [part for one in getattr(rate, "_schedulers", ()) for part in _parts_by_group(one, optimizer)]
    has_own = getattr(rate, "base_lrs", None) == _first_rates(optimizer)
    return [rate, *inner] if has_own else inner


def _first_rates(optimizer: torch.optim.Optimizer) -> list[Any]:
    return [group.get("initial_lr") for group in optimizer.param_groups]


def _copied(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else copy.deepcopy(value)


def _names(stage: RunningStage, optimizer: torch.optim.Optimizer) -> list[list[str]]:
    """Return the names of the parameters in each group of an optimizer."""
    name_of = {parameter: name for name, parameter in stage.versions.parameters.items()}
    return [[name_of[parameter] for parameter in group["params"]] for group in optimizer.param_groups]


def _state(saved: Mapping[str, Any], groups: Sequence[Sequence[str]], state: dict[str, Any]) -> dict[str, Any]:
    """Return a state that an optimizer can load: its own, with the saved values in place of its values."""
    state["state"] = {}
    for names, group in zip(groups, state["param_groups"], strict=True):
        for name, index in zip(names, group["params"], strict=True):
            if name not in saved["options"]:
                raise ValueError(
                    f"parameter {name!r} is trained here, and was not when the state was saved, so that its optimizer "
                    f"has no state of it. Begin anew from the weights: load_module(folder, model) of ropewalk.training "
                    f"takes those of a checkpoint, to_module() those of a trainer"
                )
            if saved["options"][name] != saved["options"][names[0]]:
                raise ValueError(
                    f"the optimizer has {names[0]!r} and {name!r} in one group here, but they were trained with "
                    f"different options: {saved['options'][names[0]]} and {saved['options'][name]}; cut the model as "
                    f"it was, or make groups like those"
                )
            if name in saved["optimizer"]:
                state["state"][index] = copy.deepcopy(saved["optimizer"][name])
        if names:  # an empty group has no parameter to find its options by, and needs none
            _check_options(saved["options"][names[0]], group)
            group |= copy.deepcopy(saved["options"][names[0]])
    return state


def _check_options(saved: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """Check that options are those of this optimizer; torch would take those of any other, the learning rate included.

    Another version of torch may have more or fewer of them, but not both.
    """
    foreign, missing = saved.keys() - own.keys() - _OF_SCHEDULES, own.keys() - saved.keys() - _OF_SCHEDULES
    if foreign and missing:
        raise ValueError(
            f"the state is of another optimizer: it has the options {', '.join(sorted(foreign))}, and the optimizer "
            f"here has {', '.join(sorted(missing))}; train with the same optimizer, or take only the weights with "
            "ropewalk.training.load_module and start over"
        )


def _check_has(state: Mapping[str, Any], names: Sequence[str]) -> None:
    if missing := [name for name in names if name not in state]:
        raise ValueError(
            f"the state has no {missing[0]!r}; give what state_dict returned; the weights of a "
            "module are loaded into the model before training begins, with its own load_state_dict"
        )


def _check_fits(kind: str, saved: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> None:
    if odd := sorted(saved.keys() ^ own.keys()):
        where = "the state, but not in the model" if odd[0] in saved else "the model, but not in the state"
        raise ValueError(f"{len(odd)} {kind}s do not fit: {odd[0]!r} is in {where}; load the state of this model")
    for name, tensor in saved.items():
        if (tensor.shape, tensor.dtype) != (own[name].shape, own[name].dtype):
            raise ValueError(
                f"{kind} {name!r} is {tensor.dtype} of shape {tuple(tensor.shape)} in the state, and "
                f"{own[name].dtype} of shape {tuple(own[name].shape)} in the model; load the state of this model"
            )
