"""Operators made from groups of calls: their ids, and the values they read.

An id consists of the operator's path in the model and the number of its call, so that it is the same in every process,
in training and in evaluation: "encoder.layers.0.linear1:0" for a module, "encoder.layers.0.add:1" for the second `add`
in the forward of that layer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from torch import fx

from ropewalk.pipeline.tracing import computing
from ropewalk.pipeline.tracing.aliasing import ObservedValue
from ropewalk.pipeline.tracing.bound_module import BoundModule, NormState
from ropewalk.pipeline.tracing.captured import Captured, PlaceholderKind
from ropewalk.pipeline.tracing.model_graph import TracedOperator
from ropewalk.pipeline.tracing.stage_program import BatchNormCall
from ropewalk.pipeline.tracing.trees import LEAF

OUTPUT = "output"
"""The operator that makes the tree that the model returns, unless a single operator's value is returned."""


def operators_of(
    captured: Captured, seen: Mapping[fx.Node, ObservedValue], groups: Sequence[Sequence[fx.Node]]
) -> tuple[tuple[TracedOperator, ...], str]:
    """Return the operators, the inputs of the model first, and the id of the one whose value the model returns."""
    ids = _function_ids(captured)
    owner: dict[fx.Node, str] = {}
    found: list[TracedOperator] = []
    for node, source in captured.sources.items():
        if source.kind is PlaceholderKind.INPUT and node.users:
            owner[node] = f"input.{source.name}"
            found.append(TracedOperator(owner[node], "input", (), is_input=True, values=(node,)))
    for nodes in groups:
        leading = _leading(captured, seen, nodes)
        id = captured.sites[leading].call or ids[leading]
        owner.update(dict.fromkeys(nodes, id))
        found.append(_operator(captured, seen, id, nodes, owner))
    return _with_output(captured, found, owner)


def _operator(
    captured: Captured,
    seen: Mapping[fx.Node, ObservedValue],
    id: str,
    nodes: Sequence[fx.Node],
    owner: Mapping[fx.Node, str],
) -> TracedOperator:
    inside = set(nodes)
    read = list(dict.fromkeys(one for node in nodes for one in node.all_input_nodes if one not in inside))
    names: dict[PlaceholderKind, dict[str, None]] = {kind: {} for kind in PlaceholderKind}
    for one in read:
        if one in captured.sources:
            names[captured.sources[one].kind][captured.sources[one].name] = None
    state = (PlaceholderKind.PARAMETER, PlaceholderKind.BUFFER)
    values = [one for one in read if one not in captured.sources or captured.sources[one].kind not in state]
    return TracedOperator(
        id,
        _description(captured, seen, nodes),
        tuple(dict.fromkeys(owner[one] for one in values)),
        tuple(names[PlaceholderKind.PARAMETER]),
        tuple(names[PlaceholderKind.BUFFER]),
        is_random=any(seen[node].is_random for node in nodes),
        nodes=tuple(nodes),
        values=tuple(node for node in nodes if any(reader not in inside for reader in node.users)),
    )


def _with_output(
    captured: Captured, operators: list[TracedOperator], owner: Mapping[fx.Node, str]
) -> tuple[tuple[TracedOperator, ...], str]:
    leaves = captured.output_leaves
    returned = tuple(dict.fromkeys(owner[leaf] for leaf in leaves if isinstance(leaf, fx.Node) and leaf in owner))
    read = {id for one in operators for id in one.inputs}
    ends = tuple(one.id for one in operators if one.id not in read and not one.is_input)
    if captured.output is LEAF and len(leaves) == 1 and ends == returned and isinstance(leaves[0], fx.Node):
        (last,) = (one for one in operators if one.id == returned[0])
        if last.values == (leaves[0],):
            return tuple(operators), last.id
    output = captured.graph.output_node()
    state = [captured.sources[leaf] for leaf in output.all_input_nodes if leaf not in owner]
    operators.append(
        TracedOperator(
            OUTPUT,
            "output",
            tuple(dict.fromkeys([*returned, *ends])),
            tuple(source.name for source in state if source.kind is PlaceholderKind.PARAMETER),
            tuple(source.name for source in state if source.kind is PlaceholderKind.BUFFER),
            nodes=(output,),
            values=(output,),
        )
    )
    return tuple(operators), OUTPUT


def batch_norms_of(captured: Captured, one: TracedOperator) -> tuple[BatchNormCall, ...]:
    """Return the batch normalisations in an operator that keep running statistics."""
    found: list[BatchNormCall] = []
    for node in one.nodes:
        if node.target is computing.batch_norm:
            name, _, _, _, mean, variance, count, _, momentum, _ = cast("tuple[Any, ...]", node.args)
            if mean in captured.sources and variance in captured.sources:
                names = [captured.sources[buffer].name for buffer in (mean, variance)]
                counter = captured.sources[count].name if count is not None else None
                found.append(BatchNormCall(name, one.id, names[0], names[1], counter, momentum))
        elif isinstance(node.target, BoundModule):
            found += [_call_of(norm, one.id) for norm in node.target.batch_norms()]
    return tuple(found)


def _call_of(norm: NormState, operator: str) -> BatchNormCall:
    return BatchNormCall(
        norm.name, operator, norm.running_mean, norm.running_var, norm.num_batches_tracked, norm.momentum
    )


# --- names ------------------------------------------------------------------------------------------------------------


def _function_ids(captured: Captured) -> dict[fx.Node, str]:
    """Return the ids of the calls outside of leaf modules."""
    calls: dict[str, int] = {}
    ids: dict[fx.Node, str] = {}
    for node in captured.calls():
        site = captured.sites[node]
        name = f"{site.scope}.{site.name}" if site.scope else site.name
        if site.call is None:
            call = calls[name] = calls.get(name, -1) + 1
            ids[node] = f"{name}:{call}"
    return ids


def _leading(captured: Captured, seen: Mapping[fx.Node, ObservedValue], nodes: Sequence[fx.Node]) -> fx.Node:
    """Return the call that names the operator: the first that computes something, preferably a module's."""
    inside = set(nodes)
    computes = [node for node in nodes if not _is_view(seen, node)] or list(nodes)
    of_modules = [node for node in computes if captured.sites[node].call]
    reading = [node for node in computes if any(one not in inside for one in node.all_input_nodes)]
    return (of_modules or reading or computes)[0]


def _description(captured: Captured, seen: Mapping[fx.Node, ObservedValue], nodes: Sequence[fx.Node]) -> str:
    computes = [node for node in nodes if not _is_view(seen, node)] or list(nodes)
    names = dict.fromkeys((captured.sites[node].call or node, captured.sites[node].name) for node in computes)
    shown = [name for _, name in names]
    return " + ".join(shown if len(shown) <= 4 else [*shown[:3], f"{len(shown) - 3} more"])


def _is_view(seen: Mapping[fx.Node, ObservedValue], node: fx.Node) -> bool:
    read = {storage for one in node.all_input_nodes for storage in seen[one].storages}
    return seen[node].storages <= read and not seen[node].written and not seen[node].is_random
