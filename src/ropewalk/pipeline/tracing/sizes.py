"""Sizes that depend on the batch, read from a tensor that the call using them has as an input.

    n = sym_size(x, 0)                              n' = sym_size(y, 0)
    ...                              ──▶            z = view(y, [n', 8])
    z = view(y, [n, 8])                             the view needs y alone, not x

Otherwise every `view` would tie its operator to the model's input. Constants and tensors made only of numbers (`zeros`,
`arange`) are moved to their readers in the same way.
"""

from __future__ import annotations

import operator
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, fx

from ropewalk.pipeline.tracing.aten_calls import draws, writes
from ropewalk.pipeline.tracing.captured import Captured, Site

_size: Any = torch.ops.aten.sym_size.int


def _divided(number: int, by: int) -> int:
    return number // by


def read_sizes_where_used(captured: Captured) -> None:
    """Copy numbers that depend on the batch, and tensors made only of them, to the calls that read them."""
    light = _light_nodes(captured)
    for node in list(captured.graph.nodes):
        if node in light or node.op == "placeholder":
            continue
        if any(read in light for read in node.all_input_nodes):
            _bring(captured, node, light)
    for node in reversed(list(light)):
        if not node.users:
            captured.sites.pop(node, None)
            captured.graph.erase_node(node)


def _light_nodes(captured: Captured) -> dict[fx.Node, None]:
    light: dict[fx.Node, None] = {}
    written = {read for node in captured.calls() if writes(node) for read in node.all_input_nodes}
    for node in captured.calls():
        if node.op != "call_function" or "val" not in node.meta:
            continue
        is_number = not _has_tensor(node.meta["val"])
        depends = any(read in light for read in node.all_input_nodes)
        is_made_of_numbers = depends and all(read in light for read in node.all_input_nodes)
        if is_number or (is_made_of_numbers and node not in written and not writes(node) and not draws(node)):
            light[node] = None
    return light


def _has_tensor(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(_has_tensor(one) for one in cast("list[Any]", value))
    return isinstance(value, Tensor)


def _bring(captured: Captured, reader: fx.Node, light: dict[fx.Node, None]) -> None:
    at_hand = [
        read for read in reader.all_input_nodes if read not in light and isinstance(read.meta.get("val"), Tensor)
    ]
    copies: dict[fx.Node, fx.Node] = {}

    def called(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], like: fx.Node) -> fx.Node:
        with captured.graph.inserting_before(reader):
            node = captured.graph.call_function(function, args, kwargs)
        node.meta = dict(like.meta)
        old = captured.sites[like]
        there = captured.sites.get(reader, old)
        captured.sites[node] = Site(there.scope, there.call, there.name if there.call else old.name, there.line)
        return node

    def copy_of(node: fx.Node) -> fx.Node:
        if node not in light:
            return node
        if node not in copies:
            near = _in_proportion(node.meta["val"], at_hand)
            if near is None:
                args, kwargs = fx.map_arg(node.args, copy_of), fx.map_arg(node.kwargs, copy_of)
                copies[node] = called(node.target, cast(Any, args), cast(Any, kwargs), node)
            else:
                size = called(_size, (near.tensor, near.dimension), {}, node)
                times = size if near.times == 1 else called(operator.mul, (size, near.times), {}, node)
                copies[node] = times if near.by == 1 else called(_divided, (times, near.by), {}, node)
        return copies[node]

    reader.args = cast(Any, fx.map_arg(reader.args, copy_of))
    reader.kwargs = cast(Any, fx.map_arg(reader.kwargs, copy_of))


class _Proportion(NamedTuple):
    """A number as a size of a tensor times one number, divided by another (12 rows of heads are 3 samples of 4)."""

    tensor: fx.Node
    dimension: int
    times: int
    by: int


def _in_proportion(wanted: Any, at_hand: list[fx.Node]) -> _Proportion | None:
    """Return one of these tensors, and its size from which the wanted number follows for every batch."""
    if not isinstance(wanted, torch.SymInt):
        return None
    found: list[_Proportion] = []
    for tensor in at_hand:
        for dimension, size in enumerate(tensor.meta["val"].shape):
            if isinstance(size, torch.SymInt):
                ratio: Any = cast(Any, wanted).node.expr / cast(Any, size).node.expr  # expressions of sympy
                if ratio.is_Rational:
                    found.append(_Proportion(tensor, dimension, int(ratio.p), int(ratio.q)))
    return min(found, key=lambda one: (one.times, one.by), default=None)
