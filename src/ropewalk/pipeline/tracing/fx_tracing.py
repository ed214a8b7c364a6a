"""The graph of a model from `torch.fx`: calls of leaf modules, untraced, and of functions between them.

For models that `torch.export` cannot follow: control flow on data may be inside a leaf module, which runs untraced.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any, cast

from torch import fx, nn

from ropewalk.pipeline.tracing.bound_module import BoundModule
from ropewalk.pipeline.tracing.captured import Captured, PlaceholderKind, PlaceholderSource, Site
from ropewalk.pipeline.tracing.flat_model import FlatModel
from ropewalk.pipeline.tracing.leaves import Leaves
from ropewalk.pipeline.tracing.marks import cut_here, passed
from ropewalk.pipeline.tracing.model_inputs import ModelInputs
from ropewalk.pipeline.tracing.named_tensors import modules_of, tensors_of


class _Packed(nn.Module):
    """A flat model with one argument for all tensors: `torch.fx` needs a fixed number of arguments."""

    def __init__(self, flat: FlatModel, num_tensors: int) -> None:
        super().__init__()
        self.flat = flat
        self._num_tensors = num_tensors

    def forward(self, tensors: Any) -> tuple[Any, ...]:
        return self.flat(*[tensors[index] for index in range(self._num_tensors)])


_PREFIX = "flat.model"


class _Tracer(fx.Tracer):
    """Records the position of every call in the model."""

    record_stack_traces = True

    def __init__(self, leaves: Leaves) -> None:
        super().__init__()
        self.sites: dict[fx.Node, Site] = {}
        self._leaves = leaves
        self._scopes = [""]
        self._calls: dict[str, int] = {}

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        path = _path(module_qualified_name)
        if path is None:
            return False
        arranges = isinstance(m, nn.Sequential | nn.ModuleList | nn.ModuleDict)
        return self._leaves.is_named(path) or (type(m).__module__.startswith("torch.nn") and not arranges)

    def call_module(
        self, m: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        path = _path(self.path_of_module(m))
        if path is None:
            return super().call_module(m, forward, args, kwargs)
        call = self._calls[path] = self._calls.get(path, -1) + 1
        if self.is_leaf_module(m, f"{_PREFIX}.{path}" if path else _PREFIX):
            proxy = super().call_module(m, forward, args, kwargs)
            self.sites[proxy.node] = Site(self._scopes[-1], f"{path or 'model'}:{call}", type(m).__name__)
            return proxy
        self._scopes.append(f"{path}@{call}" if call else path)
        try:
            return super().call_module(m, forward, args, kwargs)
        finally:
            self._scopes.pop()

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        node = super().create_node(*args, **kwargs)
        target = node.target
        name = target if isinstance(target, str) else str(getattr(target, "__name__", type(target).__name__))
        self.sites[node] = Site(self._scopes[-1], None, name, str(node.meta.get("stack_trace") or ""))
        return node


def capture_fx(model: nn.Module, inputs: ModelInputs, leaves: Leaves, canonical: Mapping[str, str]) -> Captured:
    """Trace a model with `torch.fx`.

    Raises:
        Exception: whatever `torch.fx` raises if it fails.
    """
    flat = FlatModel(model, inputs)
    tracer = _Tracer(leaves)
    graph = tracer.trace(_Packed(flat, len(inputs.names)))
    captured = Captured(graph, {}, tracer.sites, flat.structure)
    _place_inputs(captured, inputs)
    output = graph.output_node()
    output.args = (flat.output_leaves(cast("tuple[Any, ...]", output.args[0])),)
    state = _StatePlaceholders(captured, model, canonical)
    for node in list(graph.nodes):
        if node.op == "get_attr":
            state.place(node)
        elif node.op == "call_module":
            state.bind(node)
        elif node.target is cut_here:
            node.target = passed
    return captured


def _path(qualified: str) -> str | None:
    """Return the path in the user's model; None for a module around it."""
    if qualified == _PREFIX or qualified.startswith(f"{_PREFIX}."):
        return qualified.removeprefix(_PREFIX).removeprefix(".")
    return None


def _place_inputs(captured: Captured, inputs: ModelInputs) -> None:
    packed = next(node for node in captured.graph.nodes if node.op == "placeholder")
    with captured.graph.inserting_before(packed):
        tensors = [captured.graph.placeholder(f"input_{index}") for index in range(len(inputs.names))]
    captured.sources.update(
        {node: PlaceholderSource(PlaceholderKind.INPUT, name) for node, name in zip(tensors, inputs.names, strict=True)}
    )
    for node in list(packed.users):
        assert node.target is operator.getitem
        node.replace_all_uses_with(tensors[cast(int, node.args[1])])
        captured.graph.erase_node(node)
    captured.graph.erase_node(packed)


class _StatePlaceholders:
    """Turns parameters and buffers into placeholders, and modules into functions of them."""

    def __init__(self, captured: Captured, model: nn.Module, canonical: Mapping[str, str]) -> None:
        self._captured = captured
        self._canonical = canonical
        self._modules = modules_of(model, all_names=True)
        self._model = model
        self._parameters, self._buffers, _ = tensors_of(model)
        self._first = next(iter(captured.graph.nodes))
        self._placeholders: dict[str, fx.Node] = {}

    def _placeholder(self, name: str) -> fx.Node:
        if name not in self._placeholders:
            kind = PlaceholderKind.PARAMETER if name in self._parameters else PlaceholderKind.BUFFER
            with self._captured.graph.inserting_before(self._first):
                node = self._captured.graph.placeholder(f"{kind.value}_{len(self._placeholders)}")
            self._captured.sources[node] = PlaceholderSource(kind, name)
            self._placeholders[name] = node
        return self._placeholders[name]

    def place(self, node: fx.Node) -> None:
        """Replace the read of a parameter or a buffer by its placeholder, and of any other attribute by a constant."""
        path = str(node.target).removeprefix(f"{_PREFIX}.")
        if path in self._canonical:
            node.replace_all_uses_with(self._placeholder(self._canonical[path]))
            self._captured.sites.pop(node)
            self._captured.graph.erase_node(node)
            return
        value: Any = self._model
        for name in path.split("."):
            value = getattr(value, name)
        target = f"constant_{len(self._captured.attributes)}"
        self._captured.attributes[target] = value
        node.target = target

    def bind(self, node: fx.Node) -> None:
        """Replace the call of a module by the call of a function of its tensors."""
        path = _path(str(node.target)) or ""
        bound = BoundModule(path, self._modules[path], self._canonical)
        parameters = [self._placeholder(name) for name in bound.parameters]
        buffers = [self._placeholder(name) for name in bound.buffers]
        with self._captured.graph.inserting_before(node):
            call = self._captured.graph.call_function(bound, (parameters, buffers, *node.args), dict(node.kwargs))
        self._captured.sites[call] = self._captured.sites.pop(node)
        node.replace_all_uses_with(call)
        self._captured.graph.erase_node(node)
