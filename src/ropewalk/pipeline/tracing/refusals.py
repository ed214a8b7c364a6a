"""Errors for models that cannot be traced: which module, which line, and what to do."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

import torch
from torch import nn

from ropewalk.errors import NotTraceable
from ropewalk.pipeline.tracing.named_tensors import modules_of

_TORCH = str(Path(torch.__file__).parent)
_HERE = str(Path(__file__).parent)

WAYS_OUT = (
    "Ways out: name the module as one operator, so that it is not looked into, with rw.pipeline.trace(model, "
    "example_inputs, leaf_modules=[{leaf}]), whose graph is taken in place of the model; or give the model as an "
    "nn.Sequential, whose children run untraced; or use operations of torch instead of Python's `if`, `int()` and "
    "`.item()` on data (torch.where, torch.cond)"
)
"""What to do, the cheapest remedy first."""


def refusal(model: nn.Module, errors: Mapping[str, Exception]) -> NotTraceable:
    """Return the error for a model that no tracer could follow.

    Args:
        model: the model.
        errors: the exception of each tracer, in the order in which they were tried.
    """
    name = type(model).__name__
    for said in errors.values():
        if isinstance(said, NotTraceable) and len(errors) == 1:
            return said
    path, module, line = "", name, ""
    for error in errors.values():
        path, module, line = _where(model, error.__traceback__)
        if line:
            break
    said = "; ".join(f"{tracer} says: {first_line(error)}" for tracer, error in errors.items())
    where = f"module {path!r} ({module})" if path else name
    refused = NotTraceable(
        f"the graph of {name} cannot be seen, because of {where}{f' at {line}' if line else ''}. {said}. "
        f"{WAYS_OUT.format(leaf=repr(path) if path else '...')}"
    )
    refused.operator = path
    return refused


def _where(model: nn.Module, trace: TracebackType | None) -> tuple[str, str, str]:
    """Return the path and type of the innermost module of the model, and the user's innermost line, in a traceback."""
    paths = {id(module): path for path, module in modules_of(model).items()}
    path, module, line = "", type(model).__name__, ""
    for frame, number in traceback.walk_tb(trace):
        file = frame.f_code.co_filename
        owner = frame.f_locals.get("self")
        if isinstance(owner, nn.Module) and id(owner) in paths:
            path, module = paths[id(owner)], type(owner).__name__
        if not file.startswith((_TORCH, _HERE, "<")):
            code = traceback.extract_tb(trace)
            text = next((one.line for one in reversed(code) if one.filename == file and one.lineno == number), "")
            line = f"{file}:{number} `{(text or '').strip()}`"
    return path, module, line


def first_line(error: Exception) -> str:
    """Return the message of an exception, without the lines that torch adds for its own developers."""
    if isinstance(error, NotTraceable):
        return str(error)
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[0] if lines else type(error).__name__
    return text.rstrip(".") if len(text) <= 200 else f"{text[:197]}..."
