"""`trace`: see the graph of a model, in the first way that can.

nn.Sequential   its children, untraced
torch.export    calls of ATen, with the modules they come from
torch.fx        calls of modules and functions
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from torch import nn

from ropewalk.errors import NotTraceable
from ropewalk.pipeline.tracing.bound_module import tensors_of
from ropewalk.pipeline.tracing.captured import Captured
from ropewalk.pipeline.tracing.grouping import grouped
from ropewalk.pipeline.tracing.model_graph import ModelGraph
from ropewalk.pipeline.tracing.model_inputs import Example, ModelInputs
from ropewalk.pipeline.tracing.sequential import capture_sequential


def trace(model: nn.Module, example_inputs: Example) -> ModelGraph:
    """The graph of a model, for cutting it into stages.

    Args:
        model: is not changed. If it is in evaluation as a whole, it is traced as if `train()` had been called;
            otherwise each module keeps its mode.
        example_inputs: what the model takes: a tuple of positional arguments, a dictionary of keyword arguments, or
            one tensor. Tensors in them may be of any batch size of at least 2.

    Raises:
        NotTraceable: says which module or line is in the way, and what to do.
    """
    inputs = ModelInputs(model, example_inputs)
    training = {path: module.training or not model.training for path, module in model.named_modules()}
    evaluating = dict.fromkeys(training, False)
    return _traced(model, inputs, training, lambda: _traced(model, inputs, evaluating, None))


def _traced(
    model: nn.Module,
    inputs: ModelInputs,
    modes: Mapping[str, bool],
    trace_for_eval: Callable[[], ModelGraph] | None,
) -> ModelGraph:
    with _in_modes(model, modes):
        captured = _captured(model, inputs)
        operators, output = grouped(captured, inputs, model)
    _, _, canonical = tensors_of(model)
    ties = {
        first: tuple(n for n, to in canonical.items() if to == first and n != first) for first in canonical.values()
    }
    return ModelGraph(
        model,
        captured,
        operators,
        inputs,
        output=output,
        ties={first: others for first, others in ties.items() if others},
        trace_for_eval=trace_for_eval,
    )


def _captured(model: nn.Module, inputs: ModelInputs) -> Captured:
    if type(model) is nn.Sequential:
        return capture_sequential(model, inputs)
    raise NotTraceable("only nn.Sequential so far")


@contextmanager
def _in_modes(model: nn.Module, modes: Mapping[str, bool]) -> Iterator[None]:
    """The modules in training or evaluation, each as it is said; as they were afterwards."""
    modules = dict(model.named_modules())
    before = {path: module.training for path, module in modules.items()}
    try:
        for path, module in modules.items():
            module.training = modes[path]
        yield
    finally:
        for path, module in modules.items():
            module.training = before[path]
