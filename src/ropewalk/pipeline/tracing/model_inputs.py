"""The inputs of a model: arguments by name, flattened to the tensors that enter the graph; later inputs are checked.

model(ids, mask=None, extra={"scale": s})
  input.ids, input.extra.scale    one input operator per tensor
  mask=None                       a constant of the graph: another value needs another graph
"""

from __future__ import annotations

import copy
import inspect
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ropewalk.errors import NotTraceable
from ropewalk.pipeline.tracing.trees import flatten

Example = tuple[Any, ...] | list[Any] | Mapping[str, Any] | Tensor
"""Example inputs: positional arguments, keyword arguments, or one tensor."""


class ModelInputs:
    """The inputs of one model, in the form of its example inputs.

    Raises:
        NotTraceable: the model does not take such arguments, or there is no tensor among them.
    """

    def __init__(self, model: nn.Module, example: Example) -> None:
        self._model = type(model).__name__
        self._signature = _signature(model)
        args, kwargs = as_arguments(example)
        leaves, self._structure = flatten(self._named(args, kwargs))
        paths = list(self._structure.paths())
        self.constants: dict[str, Any] = {
            path: leaf for path, leaf in zip(paths, leaves, strict=True) if not is_tensor(leaf)
        }
        """The leaves that are not tensors, by path."""
        self.names: tuple[str, ...] = tuple(path for path, leaf in zip(paths, leaves, strict=True) if is_tensor(leaf))
        """The paths of the tensors: "ids", "extra.scale"."""
        self.example: tuple[Tensor, ...] = tuple(leaf for leaf in leaves if is_tensor(leaf))
        self.most_samples: int = self.batch + 1
        """The graph must hold for this number of samples, however few are in `example`."""
        if not self.names:
            raise NotTraceable(f"the example inputs of {self._model} have no tensor; give what its forward takes")

    def __getstate__(self) -> dict[str, Any]:
        """Leave out annotations, whose types other processes may lack, and the values of tensors."""
        parameters = [one.replace(annotation=inspect.Parameter.empty) for one in self._signature.parameters.values()]
        example = tuple(torch.empty_like(tensor, device="meta") for tensor in self.example)
        return {**self.__dict__, "_signature": inspect.Signature(parameters), "example": example}

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of the input operators."""
        return tuple(f"input.{name}" for name in self.names)

    @property
    def is_one_tensor(self) -> bool:
        """Whether the model takes one tensor and nothing else."""
        return len(self.names) == 1 and not self.constants and "." not in self.names[0]

    @property
    def batch(self) -> int:
        """The number of samples in the example inputs: the first size of the first tensor."""
        return self.example[0].shape[0] if self.example and self.example[0].dim() else 1

    def with_few_samples(self) -> ModelInputs | None:
        """Return the same with the first few of the samples; None: there are no more.

        Their number is not another size of an input, by which the two could be taken for each other.
        """
        sizes = [tensor.shape[1:] if self._counts_samples(tensor) else tensor.shape for tensor in self.example]
        others = set(itertools.chain.from_iterable(sizes))
        num = next(num for num in itertools.count(2) if not others & {num, num + 1})
        if num >= self.batch:
            return None
        few = copy.copy(self)
        few.example = tuple(tensor[:num] if self._counts_samples(tensor) else tensor for tensor in self.example)
        return few

    def one_sample_more(self) -> tuple[Tensor, ...]:
        """Return the example tensors with one sample more; those with another first size are unchanged."""
        return tuple(
            torch.cat([tensor, tensor[:1]]) if self._counts_samples(tensor) else tensor for tensor in self.example
        )

    def _counts_samples(self, tensor: Tensor) -> bool:
        return bool(tensor.dim()) and tensor.shape[0] == self.batch

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values of the input operators for other arguments.

        Raises:
            NotTraceable: the arguments have another structure, or other values where the example has no tensor.
        """
        leaves, structure = flatten(self._named(args, kwargs))
        paths = list(self._structure.paths())
        if not structure.same_shape_as(self._structure):
            raise NotTraceable(
                f"{self._model} was traced with the inputs {paths} and is given {list(structure.paths())}; "
                f"trace it with example inputs like those it gets"
            )
        values: dict[str, Any] = {}
        for path, leaf in zip(paths, leaves, strict=True):
            if path in self.constants:
                expected = self.constants[path]
                if is_tensor(leaf) or (leaf is not expected and leaf != expected):
                    raise NotTraceable(
                        f"{self._model} was traced with {path}={expected!r}, which is a constant of its graph, and is "
                        f"given {_short(leaf)}; trace it with example inputs like those it gets"
                    )
            elif not is_tensor(leaf):
                advice = "trace it with example inputs like those it gets"
                if hasattr(leaf, "__array__"):
                    advice = "give it a tensor, as torch.from_numpy makes of an array"
                raise NotTraceable(
                    f"{self._model} was traced with a tensor as {path!r}, and is given {_short(leaf)}; {advice}"
                )
            else:
                values[f"input.{path}"] = leaf
        return values

    def arguments(self, tensors: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return positional and keyword arguments for the model, with these values in place of its tensors."""
        left = iter(tensors)
        leaves = [self.constants[path] if path in self.constants else next(left) for path in self._structure.paths()]
        bound = inspect.BoundArguments(self._signature, self._structure.unflatten(leaves))  # pyright: ignore[reportArgumentType]
        return bound.args, bound.kwargs

    def _named(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return dict(self._signature.bind(*args, **kwargs).arguments)
        except TypeError as error:
            given = [*(_short(arg) for arg in args), *(f"{name}={_short(arg)}" for name, arg in kwargs.items())]
            raise NotTraceable(
                f"{self._model} takes {self._signature} and is given ({', '.join(given)}): {error}"
            ) from error


def as_arguments(example: Example) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return example inputs as positional and keyword arguments."""
    if isinstance(example, Mapping):
        return (), dict(example)
    if isinstance(example, tuple | list):
        return tuple(example), {}
    return (example,), {}


def is_tensor(value: object) -> bool:
    """Return whether a value is a tensor."""
    return isinstance(value, Tensor)


def _signature(model: nn.Module) -> inspect.Signature:
    forward: Callable[..., Any] = model.forward
    return inspect.signature(forward)


def _short(value: object) -> str:
    if isinstance(value, Tensor):
        return f"a tensor {tuple(value.shape)}"
    text = " ".join(repr(value).split())
    return text if len(text) <= 40 else f"{text[:37]}..."
