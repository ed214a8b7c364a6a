"""The graph of a model from `torch.export`: calls of ATen, with the modules they come from.

    model ──▶ torch.export (training, any batch size) ──▶ simplified:
        add_(num_batches_tracked, 1), batch_norm(...)   ──▶ one computing.batch_norm(...)
        copy_(buffer, buffer.add_(1))                   ──▶ dropped: it copies a tensor to itself
        checks of shapes, `cut_here`                    ──▶ dropped; a call that does nothing
        sizes of the batch                              ──▶ read where they are used (`sizes`)

The calls are those above autograd, so that running them gives the model's own results to the bit. Python's control flow
that depends on data cannot be traced.
"""

from __future__ import annotations

import io
import logging
import operator
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from typing import Any, cast

import torch
from torch import fx, nn
from torch.export import Dim, ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec

from ropewalk.pipeline.tracing import computing, marks
from ropewalk.pipeline.tracing.aten_calls import aten, function_name, writes
from ropewalk.pipeline.tracing.captured import Captured, PlaceholderKind, PlaceholderSource, Site
from ropewalk.pipeline.tracing.flat_model import FlatModel
from ropewalk.pipeline.tracing.leaves import Leaves
from ropewalk.pipeline.tracing.model_inputs import ModelInputs
from ropewalk.pipeline.tracing.sizes import read_sizes_where_used


class PinnedBatch(Exception):
    """The graph holds for one batch size only: its forward has a number in place of the size of its input."""


def capture_exported(
    model: nn.Module, inputs: ModelInputs, leaves: Leaves, canonical: Mapping[str, str], *, fixed_batch: bool
) -> Captured:
    """Trace a model with `torch.export`.

    Raises:
        PinnedBatch: the graph holds for the example's batch size only, and `fixed_batch` is False.
        Exception: whatever `torch.export` raises if it fails.
    """
    flat = FlatModel(model, inputs)
    batch: dict[int, Any] | None = None if fixed_batch else {0: Dim.AUTO}
    shapes = {"tensors": tuple(batch if tensor.dim() else None for tensor in inputs.example)}
    with marks.visible(), _quiet():
        program = torch.export.export(flat, inputs.example, dynamic_shapes=shapes, strict=False)
    graph = program.graph
    captured = Captured(graph, {}, {}, flat.structure)
    _read_placeholders(program, inputs, canonical, captured)
    if not fixed_batch:
        _check_batch(captured, inputs, cast(Any, program).range_constraints)
    _read_attributes(program, captured)
    for node in captured.calls():
        captured.sites[node] = _site(node, leaves)
    _drop_checks(captured)
    _drop_copies_to_itself(captured)
    _gather_batch_norms(captured)
    _read_marks(captured)
    output = graph.output_node()
    output.args = (flat.output_leaves(cast("Sequence[Any]", output.args[0])),)
    read_sizes_where_used(captured)
    return captured


@contextmanager
def _quiet() -> Generator[None]:
    """Suppress what `torch.export` prints besides its exception: half a graph, and warnings about its own RNNs.

    The exception has all that a user can act on; the rest would hide it.
    """
    logger = logging.getLogger("torch.fx.experimental.symbolic_shapes")
    level = logger.level
    with warnings.catch_warnings(), redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        logger.setLevel(logging.CRITICAL)
        try:
            yield
        finally:
            logger.setLevel(level)


# --- placeholders and constants ---------------------------------------------------------------------------------------


def _settled(size: Any) -> int | None:
    """Return the size of an input's dimension if the model runs with that size only, else None."""
    return size if isinstance(size, int) else size.node.maybe_as_int()


def _read_placeholders(
    program: ExportedProgram, inputs: ModelInputs, canonical: Mapping[str, str], captured: Captured
) -> None:
    placeholders = {node.name: node for node in captured.graph.nodes if node.op == "placeholder"}
    names = iter(inputs.names)
    for spec in program.graph_signature.input_specs:
        node = placeholders[spec.arg.name]  # pyright: ignore[reportAttributeAccessIssue]
        target = str(spec.target).removeprefix("model.")
        if spec.kind is InputKind.USER_INPUT:
            captured.sources[node] = source = PlaceholderSource(PlaceholderKind.INPUT, next(names))
            shape = node.meta["val"].shape
            captured.sizes[source.name] = tuple(map(_settled, shape))
        elif spec.kind is InputKind.PARAMETER:
            captured.sources[node] = PlaceholderSource(PlaceholderKind.PARAMETER, canonical[target])
        elif spec.kind is InputKind.BUFFER:
            captured.sources[node] = PlaceholderSource(PlaceholderKind.BUFFER, canonical[target])
        else:
            _inline_constant(program, spec, node, captured)


def _inline_constant(program: ExportedProgram, spec: InputSpec, node: fx.Node, captured: Captured) -> None:
    name = f"constant_{len(captured.attributes)}"
    captured.attributes[name] = program.constants[str(spec.target)]
    for reader in list(node.users):  # a copy for each reader, as the constant is there at every stage
        with captured.graph.inserting_before(reader):
            copy = captured.graph.create_node("get_attr", name)
        copy.meta = {**reader.meta, "val": node.meta.get("val")}
        reader.replace_input_with(node, copy)
    captured.graph.erase_node(node)


def _read_attributes(program: ExportedProgram, captured: Captured) -> None:
    for node in captured.graph.nodes:
        if node.op == "get_attr" and str(node.target) not in captured.attributes:
            captured.attributes[str(node.target)] = program.graph_module.get_submodule(str(node.target))


def _check_batch(captured: Captured, inputs: ModelInputs, ranges: Mapping[Any, Any]) -> None:
    """Check that the graph holds for any batch size, which is the first size of the first input.

    Args:
        captured: the graph.
        inputs: the inputs that it was traced with.
        ranges: the values of each symbol for which the branches that the forward took are the right ones.
    """
    first = next(
        node
        for node, source in captured.sources.items()
        if source == PlaceholderSource(PlaceholderKind.INPUT, inputs.names[0])
    )
    value = first.meta["val"]
    if value.dim() and isinstance(value.shape[0], int):
        raise PinnedBatch(
            f"the forward fixes the batch to {value.shape[0]} samples: it uses a number, or int(), where x.size(0) "
            f"belongs; if the model is to run with this batch size only, say fixed_batch=True"
        )
    if value.dim() and value.shape[0].node.expr in ranges:
        most = ranges[value.shape[0].node.expr].upper
        if most < inputs.most_samples:
            raise PinnedBatch(f"the forward does something else with more than {most} samples")


# --- where a call is --------------------------------------------------------------------------------------------------


def _site(node: fx.Node, leaves: Leaves) -> Site:
    scope = ""
    lines = str(node.meta.get("stack_trace") or "").strip().splitlines()
    line = " ".join(part.strip() for part in lines[-2:])
    stack = cast("dict[str, tuple[str, Any]]", node.meta.get("nn_module_stack") or {})
    for key, (full_path, _) in stack.items():
        if full_path != "model" and not full_path.startswith("model."):
            continue
        path, call = full_path.removeprefix("model").removeprefix("."), key.partition("@")[2] or "0"
        if leaf := leaves.name_of(path):
            return Site(scope, f"{path or 'model'}:{call}", leaf, line)
        scope = path if call == "0" else f"{path}@{call}"
    return Site(scope, None, function_name(node), line)


# --- simplification ---------------------------------------------------------------------------------------------------

_CHECKS = ("_assert", "_check", "sym_constrain", "_guards_fn")


def _drop_checks(captured: Captured) -> None:
    graph = captured.graph
    for node in reversed(list(graph.nodes)):
        name = function_name(node)
        is_check = node.op in ("call_function", "call_module") and name.startswith(_CHECKS)
        is_number = node.op == "call_function" and _is_number(node.meta.get("val"))
        if not node.users and (is_check or is_number or node.target is operator.getitem):
            _erase(captured, node)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | bool | torch.SymInt | torch.SymFloat | torch.SymBool)


def _erase(captured: Captured, node: fx.Node) -> None:
    captured.sites.pop(node, None)
    captured.graph.erase_node(node)


def _drop_copies_to_itself(captured: Captured) -> None:
    """Drop assignments of a buffer to itself, which follow a change in place such as `self.steps += 1`."""
    for node in list(captured.graph.nodes):
        if node.target is aten.copy_.default and _root_of_write(node.args[1]) is node.args[0]:
            node.replace_all_uses_with(cast(fx.Node, node.args[0]))
            _erase(captured, node)


def _root_of_write(node: Any) -> Any:
    while isinstance(node, fx.Node) and writes(node):
        node = node.args[0]
    return node


def _gather_batch_norms(captured: Captured) -> None:
    counters = {
        str(captured.sites[node].call): node
        for node in captured.calls()
        if node.target is aten.add_.Tensor and _source_name(captured, node.args[0]).endswith("num_batches_tracked")
    }
    for node in list(captured.calls()):
        if node.target is not aten.batch_norm.default:
            continue
        input, weight, bias, mean, variance, training, momentum, eps, _ = cast("tuple[Any, ...]", node.args)
        site = captured.sites[node]
        counter = counters.pop(str(site.call), None)
        count = counter.args[0] if counter is not None else None
        name = _source_name(captured, mean).removesuffix(".running_mean") or str(site.call or node.name)
        momentum = None if isinstance(momentum, fx.Node) else momentum  # 1 / the counter: the plain average
        node.target = computing.batch_norm
        node.args = (name, input, weight, bias, mean, variance, count, training, momentum, eps)
        if counter is not None:
            counter.replace_all_uses_with(cast(fx.Node, count))
            _erase(captured, counter)
    _drop_checks(captured)


def _source_name(captured: Captured, node: Any) -> str:
    return captured.sources[node].name if node in captured.sources else ""


def _read_marks(captured: Captured) -> None:
    mark: Callable[..., Any] = marks.mark()
    for node in captured.calls():
        if node.target is mark:
            node.target = marks.passed
            captured.sites[node] = Site(captured.sites[node].scope, None, "cut_here", captured.sites[node].line)
