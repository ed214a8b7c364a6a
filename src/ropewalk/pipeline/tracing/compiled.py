"""Modules that `torch.compile` has compiled, which a graph replaces by the operators of the original ones.

    torch.compile(model)     a wrapper with the attribute `_orig_mod`; its parameters are "_orig_mod.layer.weight", ...
    model.layer.compile()    the module itself, whose calls go through `_compiled_call_impl`

Children of an `nn.Sequential`, which run untraced, stay compiled if they are wrappers; copies of the others lose it.
"""

from __future__ import annotations

import warnings
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, cast

from torch import nn

from ropewalk.pipeline.tracing.named_tensors import modules_of


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the module in a wrapper of `torch.compile`; any other as it is."""
    # Such a wrapper is recognised by its attribute: importing its class would import the whole compiler.
    return cast("Any", model)._orig_mod if _is_wrapper(model) else model


def warn_of_compiled(model: nn.Module) -> None:
    """Warn of what is compiled in a model whose operators will run one by one.

    Args:
        model: the model, as it was given.
    """
    inner = unwrapped(model)
    runs_children = type(inner) is nn.Sequential
    found = [] if inner is model else [type(inner).__name__]
    found += [
        path or type(inner).__name__
        for path, module in modules_of(inner).items()
        if _calls_compiled(module) or (_is_wrapper(module) and not runs_children)
    ]
    if found:
        warnings.warn(
            f"torch.compile has no effect on {', '.join(found[:3])}{', ...' if found[3:] else ''}: stages run the "
            f"operators of a traced model one by one. Give the model as it was before; children of an nn.Sequential "
            f"that torch.compile(child) returned stay compiled",
            stacklevel=4,
        )


@contextmanager
def uncompiled(model: nn.Module) -> Generator[None]:
    """Within the block, calls of the model's modules run as written, so that nothing is compiled for nothing."""
    compiled = [(cast("Any", module), module.__dict__["_compiled_call_impl"])
                for module in model.modules() if _calls_compiled(module)]  # fmt: skip
    try:
        for module, _ in compiled:
            module._compiled_call_impl = None
        yield
    finally:
        for module, call in compiled:
            module._compiled_call_impl = call


def _is_wrapper(module: nn.Module) -> bool:
    return "dynamo_ctx" in module.__dict__ and "_orig_mod" in module.__dict__["_modules"]


def _calls_compiled(module: nn.Module) -> bool:
    return module.__dict__.get("_compiled_call_impl") is not None


__all__ = ["uncompiled", "unwrapped", "warn_of_compiled"]
