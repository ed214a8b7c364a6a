"""Which calls make one operator, so that every cut between operators is legal."""

from __future__ import annotations

from torch import fx, nn

from ropewalk.pipeline.tracing.captured import Captured, Kind
from ropewalk.pipeline.tracing.model_graph import TracedOperator
from ropewalk.pipeline.tracing.model_inputs import ModelInputs


def grouped(captured: Captured, inputs: ModelInputs, model: nn.Module) -> tuple[tuple[TracedOperator, ...], str]:
    """The operators, and the id of the one whose value the model returns."""
    operators: list[TracedOperator] = []
    for node, source in captured.sources.items():
        if source.kind is Kind.INPUT:
            operators.append(TracedOperator(f"input.{source.name}", "input", (), is_input=True, values=(node,)))
    owner = {one.values[0]: one.id for one in operators}
    for node in captured.calls():
        site = captured.sites[node]
        id = site.call or str(node)
        parameters, buffers, reads = _reads(captured, node)
        operators.append(
            TracedOperator(
                id,
                site.name,
                tuple(dict.fromkeys(owner[read] for read in reads)),
                parameters,
                buffers,
                nodes=(node,),
                values=(node,),
            )
        )
        owner[node] = id
    return tuple(operators), owner[captured.output_leaves[0]]


def _reads(captured: Captured, node: fx.Node) -> tuple[tuple[str, ...], tuple[str, ...], list[fx.Node]]:
    parameters: list[str] = []
    buffers: list[str] = []
    values: list[fx.Node] = []
    for read in node.all_input_nodes:
        source = captured.sources.get(read)
        if source is None or source.kind is Kind.INPUT:
            values.append(read)
        elif source.kind is Kind.PARAMETER:
            parameters.append(source.name)
        else:
            buffers.append(source.name)
    return tuple(dict.fromkeys(parameters)), tuple(dict.fromkeys(buffers)), values
