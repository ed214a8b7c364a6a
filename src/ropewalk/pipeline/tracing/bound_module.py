"""A module that runs untraced, as one function of its parameters, its buffers and its inputs.

    BoundModule ──▶ copy of the module's shell
                      │ its _parameters and _buffers are
                      ▼ written before every call
                    the tensors of one version of the weights

`torch.func.functional_call` does the same at a hundred times the cost (it walks the whole module at every call). Only
the shells are copied: the user's own module is not touched, and two stages in one process do not see each other's
tensors.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

from torch import Tensor, nn

from ropewalk.pipeline.tracing import computing
from ropewalk.pipeline.tracing.named_tensors import modules_of, table_of

_Place = tuple[dict[str, Tensor | None], str, int]
"""A dictionary of parameters or buffers of one shell, the name in it, and the index of the bound tensor for it."""


_RANKS: dict[type[nn.Module], tuple[int, ...]] = {nn.BatchNorm1d: (2, 3), nn.BatchNorm2d: (4,), nn.BatchNorm3d: (5,)}
"""Batch normalisations, and the numbers of dimensions that the input of each may have."""
_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


class NormState(NamedTuple):
    """A batch normalisation within a module: its path, the names of its buffers, its momentum."""

    name: str
    running_mean: str
    running_var: str
    num_batches_tracked: str | None
    momentum: float | None


class BoundModule:
    """One untraced module.

    Args:
        path: its path in the user's model, such as "encoder.layers.0".
        module: the user's module; only its shell is copied.
        canonical: for each name of a parameter or buffer, the first name of the same tensor in the model.
    """

    def __init__(self, path: str, module: nn.Module, canonical: Mapping[str, str]) -> None:
        self.path = path
        self._canonical = canonical
        self.__name__ = f"module_{path.replace('.', '_')}" if path else "model"
        """The name in the printed code of programs."""
        self.__module__ = __name__
        self.shell = _copied_shell(module, path, {})
        self.parameters: tuple[str, ...]
        self.buffers: tuple[str, ...]
        self.parameters, self._parameter_places = _places(self.shell, "_parameters", path, canonical)
        self.buffers, self._buffer_places = _places(self.shell, "_buffers", path, canonical)
        self._recurrent: list[Any] = [part for part in self.shell.modules() if isinstance(part, nn.RNNBase)]

    def __call__(self, parameters: Sequence[Tensor], buffers: Sequence[Tensor], *args: Any, **kwargs: Any) -> Any:
        """Bind tensors, in the order of `self.parameters` and `self.buffers`, and run the module."""
        self.bind(parameters, buffers)
        result = self.shell(*args, **kwargs)
        for table, name, index in self._buffer_places:
            if (new := table[name]) is not buffers[
                index
            ] and new is not None:  # such as `self.average = 0.9 * self.average + ...`
                buffers[index].copy_(new.detach())
        return result

    def bind(self, parameters: Sequence[Tensor], buffers: Sequence[Tensor]) -> None:
        """Put tensors into the shell, where they stay until others are bound."""
        for table, name, index in self._parameter_places:
            table[name] = parameters[index]
        for table, name, index in self._buffer_places:
            table[name] = buffers[index]
        for recurrent in self._recurrent:  # these also keep a list of their weights
            recurrent._flat_weights = [getattr(recurrent, name) for name in recurrent._flat_weights_names]

    def bound_tensors(self) -> Iterator[Tensor]:
        """Yield the parameters and buffers that its shell holds now: the model's own, or those of the last call."""
        for table, name, _ in (*self._parameter_places, *self._buffer_places):
            if (tensor := table[name]) is not None:
                yield tensor

    def batch_norms(self) -> Iterator[NormState]:
        """Yield the batch normalisations in it that keep running statistics."""
        for path, module in modules_of(self.shell, self.path).items():
            if type(module) in _RANKS and table_of(module, "_buffers")["running_mean"] is not None:
                norm = cast(nn.BatchNorm2d, module)
                mean, variance, count = (f"{path}.{name}" if path else name for name in _STATISTICS)
                counted = self._canonical.get(count) if norm.num_batches_tracked is not None else None
                yield NormState(path, self._canonical[mean], self._canonical[variance], counted, norm.momentum)


def _copied_shell(module: nn.Module, path: str, copies: dict[int, nn.Module]) -> nn.Module:
    """Copy a module with dictionaries of its own; the tensors in them and all else stay shared."""
    if id(module) in copies:
        return copies[id(module)]
    shell = copies[id(module)] = copy.copy(module)
    for table in ("_parameters", "_buffers", "_modules"):
        shell.__dict__[table] = dict(module.__dict__[table])
    children = cast("dict[str, nn.Module | None]", module.__dict__["_modules"])
    for name, child in children.items():
        if child is None:
            continue
        shell.__dict__["_modules"][name] = _copied_shell(child, f"{path}.{name}" if path else name, copies)
    if forward := _forward_through_computing(shell, path):
        shell.__dict__["forward"] = forward
    elif "dynamo_ctx" in shell.__dict__:  # of torch.compile: its forward is bound to the module that was copied
        cast(Any, shell).__setstate__(cast(Any, shell).__getstate__())
    return shell


def _places(
    shell: nn.Module, table: str, path: str, canonical: Mapping[str, str]
) -> tuple[tuple[str, ...], list[_Place]]:
    names: dict[str, int] = {}
    places: list[_Place] = []
    for prefix, module in modules_of(shell, path).items():
        tensors = table_of(module, table)
        for name, tensor in tensors.items():
            if tensor is not None:
                full = canonical[f"{prefix}.{name}" if prefix else name]
                places.append((tensors, name, names.setdefault(full, len(names))))
    return tuple(names), places


def _forward_through_computing(module: nn.Module, path: str) -> Callable[..., Any] | None:
    """Return a forward that calls `computing`, for the modules whose results it reproduces to the bit."""
    if "forward" in module.__dict__:  # replaced by the user
        return None
    if type(module) in _RANKS:
        return _BatchNormForward(cast(nn.BatchNorm2d, module), path)
    return None


@dataclass(frozen=True, slots=True)
class _BatchNormForward:
    """An object, not a closure, because shells are sent to other processes."""

    norm: nn.BatchNorm2d
    path: str

    def __call__(self, input: Tensor) -> Tensor:
        norm, ranks = self.norm, _RANKS[type(self.norm)]
        if input.dim() not in ranks:
            raise ValueError(f"{self.path!r} normalises inputs of {ranks} dimensions, not {input.dim()}")
        uses_batch = norm.training or norm.running_mean is None
        tracks = norm.training and norm.track_running_stats
        keeps = not norm.training or norm.track_running_stats
        return computing.batch_norm(
            self.path,
            input,
            norm.weight,
            norm.bias,
            norm.running_mean if keeps else None,
            norm.running_var if keeps else None,
            norm.num_batches_tracked if tracks else None,
            uses_batch,
            norm.momentum if tracks or norm.momentum is not None else 0.0,
            norm.eps,
        )
