"""The check that ends every tracing: for the example inputs, the graph gives the results of the model itself.

A tracer can be silently wrong: `torch.export` ignores the backward of a user's own `autograd.Function`, and a buffer
that a module assigns. The check finds this before a plan is made.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ropewalk.errors import NotTraceable
from ropewalk.pipeline.generator_states import OtherStates, States, equal_states, set_states, states_for
from ropewalk.pipeline.tracing.aliasing import tensors_in
from ropewalk.pipeline.tracing.fake_tensors import is_fake
from ropewalk.pipeline.tracing.model_graph import ModelGraph
from ropewalk.pipeline.tracing.model_inputs import ModelInputs
from ropewalk.pipeline.tracing.named_tensors import table_of, tensors_of
from ropewalk.pipeline.tracing.refusals import first_line

_RELATIVE, _ABSOLUTE = 1e-4, 1e-6
"""Tolerances for rounding differences, which kernels without a fixed order of additions may cause."""
_ROUNDINGS = 16
"""For dtypes with a coarser rounding than these tolerances: the tolerance in units of the last bit."""

_WAY_OUT = (
    "make the module a leaf (leaf_modules=[...]), so that it is not looked into, or give the model as an "
    "nn.Sequential of such modules"
)

_BATCH = (
    "the number of samples became a constant of the graph: take it from x.shape[0], not from len(x) or int(); or say "
    "fixed_batch=True if the model is to run with one batch size only"
)


@dataclass(frozen=True, slots=True)
class ReferenceOutput:
    """The model's own results for some inputs, from one state of the generators."""

    inputs: tuple[Tensor, ...]
    states_before: States
    outputs: list[Tensor]
    gradients: dict[str, Tensor | None]
    buffers: dict[str, Tensor]
    states_after: States
    others_before: OtherStates
    others_after: OtherStates


def references(model: nn.Module, inputs: ModelInputs, *, fixed_batch: bool) -> list[ReferenceOutput]:
    """Run a forward and a backward of the model itself, for its example inputs and for one sample more.

    Raises:
        NotTraceable: the model fails.
    """
    name = type(model).__name__
    try:
        found = [_run_itself(model, inputs, inputs.example)]
    except Exception as error:
        if is_fake(inputs.example[0]):
            raise _needs_numbers(name, error) from error
        shapes = ", ".join(f"{path} {tuple(one.shape)}" for path, one in zip(inputs.names, inputs.example, strict=True))
        raise NotTraceable(
            f"{name} itself fails on the example inputs ({shapes}): {type(error).__name__}: {error}"
        ) from error
    if not fixed_batch:
        if inputs.batch < 2:
            raise NotTraceable(f"the example inputs of {name} need at least 2 samples, and have {inputs.batch}")
        try:
            found.append(_run_itself(model, inputs, inputs.one_sample_more()))
        except Exception as error:
            raise NotTraceable(
                f"{name} runs with the {inputs.batch} samples of the example inputs, but not with {inputs.batch + 1}: "
                f"{type(error).__name__}: {error}. If it is to run with {inputs.batch} only, say fixed_batch=True; if "
                f"another size of an input is {inputs.batch} too, give example inputs with another batch"
            ) from error
    return found


def _needs_numbers(name: str, error: Exception) -> NotTraceable:
    return NotTraceable(
        f"{name} has parameters on the device 'meta', and cannot be run without their numbers: "
        f"{first_line(error)}. What it does must not depend on the values of tensors (float(x), x.item(), `if x > 0`); "
        f"else give the model itself, with its parameters"
    )


def _run_itself(model: nn.Module, inputs: ModelInputs, tensors: Sequence[Tensor]) -> ReferenceOutput:
    args, kwargs = inputs.arguments([tensor.detach().clone() for tensor in tensors])
    parameters = {name: tensor for name, tensor in model.named_parameters() if tensor.requires_grad}
    everything, buffers, _ = tensors_of(model)
    drawn_for = [*everything.values(), *buffers.values(), *tensors]
    states, others = states_for(drawn_for), OtherStates.now()
    with buffers_kept(model):
        outputs = list(tensors_in(model(*args, **kwargs)))
        gradients = _gradients(outputs, parameters)
        buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    return ReferenceOutput(
        tuple(tensors), states, outputs, gradients, buffers, states_for(drawn_for), others, OtherStates.now()
    )


def check(graph: ModelGraph, reference: ReferenceOutput) -> None:
    """Compare outputs, gradients and buffers of the graph with the model's own.

    Raises:
        NotTraceable: they differ; the message says in what.
    """
    name, samples = type(graph.model).__name__, reference.inputs[0].shape[:1]
    fakes = is_fake(reference.inputs[0])
    # Not `graph.parameters` and `graph.buffers`, which the graph would keep: fake tensors are here for the check alone.
    everything, buffers, _ = tensors_of(graph.model)
    parameters = {name: tensor for name, tensor in everything.items() if tensor.requires_grad}
    buffers = {name: buffer.clone() for name, buffer in buffers.items()}
    values = dict(zip(graph.model_inputs.ids, reference.inputs, strict=True))
    set_states(reference.states_before)
    reference.others_before.set()
    try:
        outputs = list(tensors_in(graph.whole_program()(values, everything, buffers)[graph.output]))
    except Exception as error:
        raise NotTraceable(
            f"the graph of {name} fails with {samples[0]} samples, in operator "
            f"{getattr(error, 'ropewalk_operator', '')!r}: {error}; {_BATCH}"
        ) from error
    if [one.shape for one in outputs] != [one.shape for one in reference.outputs]:
        raise NotTraceable(
            f"the graph of {name} returns {[tuple(one.shape) for one in outputs]} for {samples[0]} samples, and {name} "
            f"itself {[tuple(one.shape) for one in reference.outputs]}; {_BATCH}"
        )
    if OtherStates.now() != reference.others_after:
        raise NotTraceable(
            f"{name} draws random numbers from Python or numpy, and its graph would go on with those that were drawn "
            f"when it was traced; draw them with torch, as in x * torch.bernoulli(torch.full((len(x), 1), 0.9)); or "
            f"{_WAY_OUT}"
        )
    drawn_for = [*everything.values(), *buffers.values(), *reference.inputs]
    if not fakes and not equal_states(states_for(drawn_for), reference.states_after):
        raise NotTraceable(f"the graph of {name} draws other random numbers than {name} itself; {_WAY_OUT}")
    for index, (expected, found) in enumerate(zip(reference.outputs, outputs, strict=True)):
        if not _alike(expected, found):
            raise NotTraceable(f"output {index} of the graph of {name} is not what {name} itself returns; {_WAY_OUT}")
    for tensor, found in _gradients(outputs, parameters).items():
        if not _alike(reference.gradients[tensor], found):
            raise _differs(graph, f"the gradient of {tensor!r}", tensor)
    for tensor, found in buffers.items():
        if not _alike(reference.buffers[tensor], found):
            raise _differs(graph, f"buffer {tensor!r} after a forward", tensor)


def _differs(graph: ModelGraph, what: str, tensor: str) -> NotTraceable:
    name, path = type(graph.model).__name__, tensor.rpartition(".")[0]
    error = NotTraceable(
        f"{what} is another in the graph of {name} than in {name} itself: something in or behind module {path!r} "
        f"cannot be traced, such as a buffer that is assigned (write it in place, with copy_), an "
        f"autograd.Function of your own, or torch.utils.checkpoint with use_reentrant=True (False can be); {_WAY_OUT}"
    )
    error.operator = path
    return error


def _gradients(outputs: Sequence[Tensor], parameters: Mapping[str, Tensor]) -> dict[str, Tensor | None]:
    """Return gradients for an output gradient that is the same each time, and differs between elements."""
    with_gradient = [output for output in outputs if output.requires_grad]
    if not with_gradient or not parameters:
        return dict.fromkeys(parameters)
    directions = [_direction(output) for output in with_gradient]
    gradients = torch.autograd.grad(with_gradient, list(parameters.values()), directions, allow_unused=True)
    return dict(zip(parameters, gradients, strict=True))


def _direction(output: Tensor) -> Tensor:
    steps = torch.arange(output.numel(), device=output.device, dtype=torch.float64)
    return torch.cos(steps * 1.7).reshape(output.shape).to(output.dtype)


def _alike(expected: Tensor | None, found: Tensor | None) -> bool:
    if expected is None or found is None:
        return expected is found
    if expected.shape != found.shape or expected.dtype != found.dtype:
        return False
    if is_fake(expected):
        return True
    if expected.is_sparse or found.is_sparse:  # of an embedding with sparse=True
        expected, found = expected.to_dense(), found.to_dense()
    if torch.equal(expected, found):
        return True
    if not (expected.is_floating_point() or expected.is_complex()):
        return False
    # Relative to the largest element, as small ones may be differences of large ones. On a GPU two runs of one model
    # differ like this: its kernels add in a varying order.
    finite = expected.detach()[expected.isfinite()]
    largest = float(finite.abs().max()) if finite.numel() else 0.0
    relative = max(_RELATIVE, _ROUNDINGS * torch.finfo(expected.dtype).eps)
    return torch.allclose(expected, found, relative, _ABSOLUTE + relative * largest, equal_nan=True)


@contextmanager
def buffers_kept(model: nn.Module) -> Generator[None]:
    """Restore the values of the model's buffers after the block, and buffers that modules replaced."""
    kept: list[tuple[dict[str, Tensor | None], str, Tensor, Tensor]] = []
    for module in model.modules():
        table = table_of(module, "_buffers")
        kept += [(table, name, buffer, buffer.clone()) for name, buffer in table.items() if buffer is not None]
    try:
        yield
    finally:
        with torch.no_grad():
            for table, name, buffer, content in kept:
                table[name] = buffer
                buffer.copy_(content)
