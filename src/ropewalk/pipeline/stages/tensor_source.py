"""The sources of the initial values of a stage's parameters and buffers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from torch import Tensor

from ropewalk.errors import PlanInvalid
from ropewalk.pipeline.tracing.model_graph import ModelGraph


class TensorSource(Protocol):
    """Gives tensors by the names that operators use: those of the model (the first, if a tensor has several)."""

    def take(self, names: Sequence[str]) -> Mapping[str, Tensor]:
        """Return the tensors of these names, parameters and buffers alike.

        The tensors belong to the caller, who may change them. A source gives the same numbers when asked twice, or in
        two processes, whatever else is asked for: the replicas of a stage begin alike, and so do all cuts of a model.
        """
        ...


class GivenTensors:
    """A source with tensors in memory; they are copied."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = tensors

    def take(self, names: Sequence[str]) -> Mapping[str, Tensor]:
        """Return copies of the tensors of these names.

        Raises:
            PlanInvalid: a tensor is missing, or is on the meta device, where it has no values.
        """
        for name in names:
            if name not in self._tensors:
                raise PlanInvalid(f"the stage needs {name!r}, and was given {list(self._tensors)[:8]}")
            if self._tensors[name].is_meta:
                raise PlanInvalid(
                    f"{name!r} is on the device 'meta' and so has no numbers; say where they come from: "
                    f"ropewalk.training has Initialised(factory), which makes them again, and SafetensorsFiles"
                )
        return {name: self._tensors[name].detach().clone() for name in names}


def own_tensors(graph: ModelGraph) -> GivenTensors:
    """Return a source with the model's own tensors."""
    return GivenTensors({**graph.buffers, **graph.parameters})


def taken_like(source: TensorSource, names: Sequence[str], like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a source's tensors for these names, checked against those of the model in `like`, which may be on meta.

    Raises:
        PlanInvalid: a tensor does not match; the message names it and the difference.
    """
    given = source.take(names)
    for name in names:
        if name not in given:
            raise PlanInvalid(f"{type(source).__name__} gave no tensor for {name!r}")
        found, wanted = given[name], like[name]
        if (found.shape, found.dtype) != (wanted.shape, wanted.dtype):
            raise PlanInvalid(
                f"{name!r} is {wanted.dtype} of shape {tuple(wanted.shape)} in the model, and {found.dtype} of shape "
                f"{tuple(found.shape)} from {type(source).__name__}; give the tensors of this model"
            )
    return {name: given[name] for name in names}
