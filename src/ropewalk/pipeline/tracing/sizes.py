"""Numbers that depend on the batch, read from a tensor that is at hand where they are used.

    n = sym_size(x, 0)                              n' = sym_size(y, 0)
    ...                              ──▶            z = view(y, [n', 8])
    z = view(y, [n, 8])                             the view needs y alone, not x

Otherwise every `view` would tie its operator to the model's input. Constants and tensors
made of nothing but numbers (`zeros`, `arange`) go to their readers in the same way.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, fx

from ropewalk.pipeline.tracing.captured import Captured

_size: Any = torch.ops.aten.sym_size.int


def read_sizes_where_used(captured: Captured) -> None:
    """Copy numbers, and the tensors made of numbers alone that depend on the batch, to those who read them."""
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
    written = {read for node in captured.calls() if _writes(node) for read in node.all_input_nodes}
    for node in captured.calls():
        if node.op != "call_function" or "val" not in node.meta:
            continue
        is_number = not _has_tensor(node.meta["val"])
        depends = any(read in light for read in node.all_input_nodes)
        is_made_of_numbers = depends and all(read in light for read in node.all_input_nodes)
        if is_number or (is_made_of_numbers and node not in written and not _writes(node) and not _is_random(node)):
            light[node] = None
    return light


def _has_tensor(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(_has_tensor(one) for one in cast("list[Any]", value))
    return isinstance(value, Tensor)


def _writes(node: fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def _is_random(node: fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded in node.target.tags


def _bring(captured: Captured, reader: fx.Node, light: dict[fx.Node, None]) -> None:
    at_hand = [
        read for read in reader.all_input_nodes if read not in light and isinstance(read.meta.get("val"), Tensor)
    ]
    copies: dict[fx.Node, fx.Node] = {}

    def copy_of(node: fx.Node) -> fx.Node:
        if node not in light:
            return node
        if node not in copies:
            with captured.graph.inserting_before(reader):
                if node.target is _size and (near := _same_size(node, at_hand)):
                    copy = captured.graph.call_function(_size, near)
                else:
                    args = fx.map_arg(node.args, copy_of)
                    kwargs = fx.map_arg(node.kwargs, copy_of)
                    copy = captured.graph.call_function(cast(Any, node.target), cast(Any, args), cast(Any, kwargs))
            copy.meta = dict(node.meta)
            captured.sites[copy] = captured.sites.get(reader, captured.sites[node])
            copies[node] = copy
        return copies[node]

    reader.args = cast(Any, fx.map_arg(reader.args, copy_of))
    reader.kwargs = cast(Any, fx.map_arg(reader.kwargs, copy_of))


def _same_size(node: fx.Node, at_hand: list[fx.Node]) -> tuple[fx.Node, int] | None:
    """One of these tensors, and a dimension of it, with surely the size that the node reads."""
    wanted = node.meta["val"]
    if not isinstance(wanted, torch.SymInt):
        return None
    for tensor in at_hand:
        for dimension, size in enumerate(tensor.meta["val"].shape):
            if isinstance(size, torch.SymInt) and size.node.expr == wanted.node.expr:
                return tensor, dimension
    return None
