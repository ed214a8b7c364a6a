"""The graph of an `nn.Sequential`: its children one after the other, untraced.

The code of a child does not matter, so a child may contain any code. Tensors are bound through lists that are prepared
once (see `bound_module`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from torch import fx, nn

from ropewalk.errors import NotTraceable
from ropewalk.pipeline.tracing.bound_module import BoundModule
from ropewalk.pipeline.tracing.captured import Captured, PlaceholderKind, PlaceholderSource, Site
from ropewalk.pipeline.tracing.leaves import Leaves
from ropewalk.pipeline.tracing.marks import CUT_HERE, CutHere
from ropewalk.pipeline.tracing.model_inputs import ModelInputs
from ropewalk.pipeline.tracing.named_tensors import tensors_of
from ropewalk.pipeline.tracing.trees import LEAF


def capture_sequential(model: nn.Sequential, inputs: ModelInputs, leaves: Leaves) -> Captured:
    """Return the children as calls, including those of a Sequential within a Sequential.

    Raises:
        NotTraceable: there are no children.
    """
    graph = fx.Graph()
    captured = Captured(graph, {}, {}, LEAF, keeps_modules=True)
    (name,) = inputs.names
    value = graph.placeholder("input_value")
    captured.sources[value] = PlaceholderSource(PlaceholderKind.INPUT, name)
    parameters, buffers, canonical = tensors_of(model)
    placeholders: dict[str, fx.Node] = {}
    for kind, names in ((PlaceholderKind.PARAMETER, parameters), (PlaceholderKind.BUFFER, buffers)):
        for index, tensor in enumerate(names):
            placeholders[tensor] = node = graph.placeholder(f"{kind.value}_{index}")
            captured.sources[node] = PlaceholderSource(kind, tensor)
    calls: dict[int, tuple[str, int]] = {}
    for path, child in children_of(model, leaves):
        bound = BoundModule(path, child, canonical)
        value = graph.call_function(
            bound, ([placeholders[at] for at in bound.parameters], [placeholders[at] for at in bound.buffers], value)
        )
        name = CUT_HERE if type(child) is CutHere else type(child).__name__
        first, call = calls.get(id(child), (path, -1))
        calls[id(child)] = (first, call + 1)
        captured.sites[value] = Site(first, f"{first}:{call + 1}", name)
    if not calls:
        raise NotTraceable("this nn.Sequential is empty: there is nothing to run, and nothing to cut")
    graph.output([value])
    return captured


def children_of(model: nn.Sequential, leaves: Leaves, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    """Yield the children that run one after the other, with their paths; named leaf modules are not opened."""
    for name, child in cast("dict[str, nn.Module]", model.__dict__["_modules"]).items():
        if type(child) is nn.Sequential and not leaves.is_named(f"{prefix}{name}"):
            yield from children_of(child, leaves, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", child
