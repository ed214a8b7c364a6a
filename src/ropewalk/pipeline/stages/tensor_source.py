"""Where the first numbers of a stage's parameters and buffers come from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from torch import Tensor

from ropewalk.errors import PlanInvalid
from ropewalk.pipeline.tracing.model_graph import ModelGraph


class TensorSource(Protocol):
    """Gives tensors by the names that operators use: those of the user's model, the first one of several."""

    def take(self, names: Sequence[str]) -> Mapping[str, Tensor]:
        """The tensors of these names, parameters and buffers alike.

        The tensors belong to the caller, who will change them. Asked twice, or in two processes, a source gives the
        same numbers, whatever else is asked for beside: the replicas of a stage begin alike, and so do all cuts.
        """
        ...


class GivenTensors:
    """Tensors that are at hand; they are copied.

    Args:
        tensors: parameters and buffers by name.
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = tensors

    def take(self, names: Sequence[str]) -> Mapping[str, Tensor]:
        """Copies of them.

        Raises:
            PlanInvalid: one is not there, or is on meta, so that it has no numbers.
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
    """Those of the model itself."""
    return GivenTensors({**graph.buffers, **graph.parameters})


def taken_like(source: TensorSource, names: Sequence[str], like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What a source gives for these names, if it is what the model has: see `like`, which may be on meta.

    Raises:
        PlanInvalid: it is not; says what is wrong with which tensor.
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
