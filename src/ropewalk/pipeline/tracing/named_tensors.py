"""The modules, parameters and buffers of a model by name, with types that `torch.nn` leaves open."""

from __future__ import annotations

from typing import Any, cast

from torch import Tensor, nn


def modules_of(model: nn.Module, prefix: str = "", *, all_names: bool = False) -> dict[str, nn.Module]:
    """Return the modules by path; one with several paths has the first, or with `all_names` all of them."""
    untyped = cast(Any, model)
    return cast("dict[str, nn.Module]", dict(untyped.named_modules(prefix=prefix, remove_duplicate=not all_names)))


def table_of(module: nn.Module, table: str) -> dict[str, Tensor | None]:
    """Return the dictionary `_parameters` or `_buffers` of a module, in which other tensors can be put."""
    return cast("dict[str, Tensor | None]", module.__dict__[table])


def tensors_of(model: nn.Module) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, str]]:
    """Return parameters and buffers of a model by their first names, and the first name for every name."""
    canonical: dict[str, str] = {}
    first: dict[int, str] = {}
    parameters: dict[str, Tensor] = {}
    buffers: dict[str, Tensor] = {}
    for found, named in (
        (parameters, model.named_parameters(remove_duplicate=False)),
        (buffers, model.named_buffers(remove_duplicate=False)),
    ):
        for name, tensor in named:
            canonical[name] = first.setdefault(id(tensor), name)
            found.setdefault(canonical[name], tensor)
    return parameters, buffers, canonical


def ties_of(canonical: dict[str, str]) -> dict[str, tuple[str, ...]]:
    """Return the other names of tensors with several names, by the first name."""
    ties: dict[str, list[str]] = {}
    for name, first in canonical.items():
        if name != first:
            ties.setdefault(first, []).append(name)
    return {first: tuple(others) for first, others in ties.items()}
