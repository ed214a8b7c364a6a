"""The program of one stage: some operators of a model, as one function of values, parameters and buffers.

    {"conv1:0": tensor}  ──▶  StageProgram  ──▶  {"layer1.0.bn1:0": tensor, ...}
    parameters, buffers  ──▶   generated straight-line Python; a value is
                               dropped after the last call that reads it

`torch.fx` generates the code once, so that running it costs little more than its calls of torch.
"""

from __future__ import annotations

import operator
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor, fx

from ropewalk.pipeline.tracing.captured import PlaceholderKind

if TYPE_CHECKING:
    from ropewalk.pipeline.tracing.model_graph import ModelGraph, TracedOperator


@dataclass(frozen=True, slots=True)
class BatchNormCall:
    """A batch normalisation in a program: its name in `computing.batch_norm`, and the names of its buffers."""

    name: str
    """The first argument of `computing.batch_norm`: the path of the module."""
    operator: str
    running_mean: str
    running_var: str
    num_batches_tracked: str | None
    momentum: float | None


class StageProgram:
    """Some operators of a model, ready to run; made by `ModelGraph.stage_program`.

    Its results depend only on its arguments, on the state of the random generator, and on `computing.replaced`. It
    never writes to its input values, and writes to buffers in place, as the model does.
    """

    def __init__(self, graph: ModelGraph, operators: Sequence[TracedOperator]) -> None:
        self.operators: tuple[str, ...] = tuple(operator.id for operator in operators)
        """The ids of the operators, in the order they run."""
        inside = set(self.operators)
        by_id = graph.by_id
        own_inputs = {one.id for one in operators if one.is_input}
        read = {id for one in operators for id in one.inputs if id not in inside}
        self.inputs: tuple[str, ...] = tuple(one.id for one in graph.operators if one.id in read | own_inputs)
        """Ids of its input values: those of operators outside of it, and the model's inputs among its own operators."""
        self.model_inputs: tuple[str, ...] = tuple(id for id in self.inputs if id in own_inputs)
        """The ids in `inputs` that are the model's inputs, not values of other stages."""
        self.outputs: tuple[str, ...] = tuple(
            id for id in self.operators if id == graph.output or any(to not in inside for to in graph.targets[id])
        )
        """Ids of its operators whose values are read by others, or returned by the model."""
        self.parameters: tuple[str, ...] = _ordered(one.parameters for one in operators)
        """Names of the parameters it reads, as in the user's model; a tensor with several names has the first."""
        self.buffers: tuple[str, ...] = _ordered(one.buffers for one in operators)
        """Names of the buffers it reads or writes."""
        self.is_random: bool = any(one.is_random for one in operators)
        """Whether it draws random numbers."""
        self.batch_norms: tuple[BatchNormCall, ...] = tuple(
            norm for one in operators for norm in graph.batch_norms.get(one.id, ())
        )
        """The batch normalisations that keep running statistics."""
        self._run = _compiled(graph, [by_id[id] for id in self.operators], self)

    def __call__(
        self, values: Mapping[str, Any], parameters: Mapping[str, Tensor], buffers: Mapping[str, Tensor]
    ) -> dict[str, Any]:
        """Run the operators.

        Args:
            values: the value of each id in `inputs`.
            parameters: a tensor for each name in `parameters`, from any version of the weights.
            buffers: a tensor for each name in `buffers`, to read and to write in place.

        Returns:
            The values of `outputs` by id.
        """
        try:
            results = self._run(
                *[values[id] for id in self.inputs],
                *[parameters[name] for name in self.parameters],
                *[buffers[name] for name in self.buffers],
            )
        except Exception as error:
            self._name_operator(error)
            raise
        return dict(zip(self.outputs, results, strict=True))

    def _name_operator(self, error: Exception) -> None:
        """Record on an exception which operator raised it, as its attribute `ropewalk_operator`."""
        for frame, number in traceback.walk_tb(error.__traceback__):
            if frame.f_code is getattr(self.module.forward, "__code__", None):
                line = self.code.splitlines()[number - 1]
                if (id := self.owners.get(line.partition(" = ")[0].strip())) is not None:
                    error.ropewalk_operator = id  # pyright: ignore[reportAttributeAccessIssue]
                    error.add_note(f"in operator {id!r}")

    @property
    def code(self) -> str:
        """The Python code that it runs, for reading."""
        return self.module.code

    module: fx.GraphModule
    """The generated code."""
    owners: dict[str, str]
    """The id of the operator that each name in the code belongs to."""


def _ordered(groups: Any) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for group in groups for name in group))


def _compiled(graph: ModelGraph, operators: Sequence[TracedOperator], program: StageProgram) -> Callable[..., Any]:
    code = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    packed: dict[str, fx.Node] = {}
    sources = graph.captured.sources
    for position, id in enumerate(program.inputs):
        packed[id] = code.placeholder(f"value_{position}")
    for kind, names in ((PlaceholderKind.PARAMETER, program.parameters), (PlaceholderKind.BUFFER, program.buffers)):
        placeholders = {source.name: node for node, source in sources.items() if source.kind is kind}
        for position, name in enumerate(names):
            copies[placeholders[name]] = code.placeholder(f"{kind.value}_{position}")
    for id in program.inputs:
        values = graph.by_id[id].values
        if len(values) == 1:
            copies[values[0]] = packed[id]
    unpackings = {node: (id, index) for id in program.inputs for index, node in enumerate(graph.by_id[id].values)}

    def copy_of(node: fx.Node) -> fx.Node:
        if node not in copies:
            id, index = unpackings[node]
            copies[node] = code.call_function(operator.getitem, (packed[id], index))
        return copies[node]

    attributes: dict[str, Any] = {}
    for one in operators:
        for node in one.nodes:
            if node.op == "output":
                packed[one.id] = code.call_function(
                    graph.captured.output.unflatten,
                    ([fx.map_arg(leaf, copy_of) for leaf in graph.captured.output_leaves],),
                )
                continue
            if node.op == "get_attr":
                attributes[str(node.target)] = graph.captured.attributes[str(node.target)]
            copies[node] = code.node_copy(node, copy_of)
    results = tuple(packed[id] if id in packed else _value(graph.by_id[id], copy_of) for id in program.outputs)
    code.output(results)
    program.owners = {copies[node].name: one.id for one in operators for node in one.nodes if node in copies}
    program.module = fx.GraphModule(attributes, code, class_name="StageProgram")
    return program.module.forward


def _value(one: TracedOperator, copy_of: Callable[[fx.Node], fx.Node]) -> Any:
    """Return the operator's value: the result of its only call that is read, or a tuple of several results."""
    copies = tuple(copy_of(node) for node in one.values)
    return copies[0] if len(copies) == 1 else copies
