"""A model in the form that tracers need: plain tensors go in, a plain tuple of tensors comes out."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from types import NoneType
from typing import Any

import torch
from torch import Tensor, fx, nn

from ropewalk.errors import NotTraceable
from ropewalk.pipeline.tracing.model_inputs import ModelInputs
from ropewalk.pipeline.tracing.named_tensors import table_of
from ropewalk.pipeline.tracing.trees import Structure, flatten

_CONSTANTS = (str, bytes, int, float, complex, NoneType, Enum, torch.Size, torch.dtype, torch.device)
"""What a graph can return as it is."""


class FlatModel(nn.Module):
    """A wrapper of `self.model` that hides its trees of inputs and outputs from tracers."""

    def __init__(self, model: nn.Module, inputs: ModelInputs) -> None:
        super().__init__()
        self.model = model
        self.training = model.training
        self._inputs = inputs
        self.structure: Structure
        """The structure of what the model returned; set by `forward`, like the two attributes that follow."""
        self.constants: list[Any]
        """The constant leaves of what it returned; None in the places of the others."""
        self.is_computed: list[bool]
        """For each of these leaves, whether the graph computes it."""

    def forward(self, *tensors: Any) -> tuple[Any, ...]:
        """Run the model; a buffer that it assigns is written in place instead, because tracers miss assignments.

        Raises:
            NotTraceable: the model returns an object of which nobody can tell where its tensors are.
        """
        tables = [table_of(module, "_buffers") for module in self.model.modules()]
        before = [(table, dict(table)) for table in tables]
        args, kwargs = self._inputs.arguments(tensors)
        result = self.model(*args, **kwargs)
        for table, old in before:
            for name, buffer in old.items():
                if (new := table[name]) is not buffer and buffer is not None and new is not None:
                    buffer.copy_(new.detach())
                    table[name] = buffer
        leaves, self.structure = flatten(result)
        self.is_computed = [isinstance(leaf, Tensor | torch.SymInt | fx.Proxy) for leaf in leaves]
        pairs = list(zip(leaves, self.is_computed, strict=True))
        self.constants = [None if computed else leaf for leaf, computed in pairs]
        for path, constant in zip(self.structure.paths(), self.constants, strict=True):
            if not isinstance(constant, _CONSTANTS):
                raise self._unknown(path, type(constant).__name__)
        return tuple(leaf for leaf, computed in pairs if computed)

    def _unknown(self, path: str, kind: str) -> NotTraceable:
        name, at = type(self.model).__name__, f" as {path!r}" if path else ""
        caches: object = getattr(getattr(self.model, "config", None), "use_cache", False)
        way_out = (
            "say model.config.use_cache = False, as the cache is for generating text"
            if caches
            else "let forward return tensors, or a tuple, list, dictionary or dataclass of them"
        )
        return NotTraceable(
            f"{name} returns an object of type {kind}{at}, whose tensors could not be sent from one stage to another; "
            f"{way_out}"
        )

    def output_leaves(self, results: Sequence[Any]) -> list[Any]:
        """Return the leaves that the model returns: the constants, and `results` in the places of the computed ones."""
        left = iter(results)
        pairs = zip(self.is_computed, self.constants, strict=True)
        return [next(left) if computed else constant for computed, constant in pairs]
