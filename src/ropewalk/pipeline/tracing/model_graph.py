"""A model as a graph of operators that can be cut anywhere between them, and run in pieces.

    trace(model, example_inputs) ──▶ ModelGraph ──▶ stage_program(operators) ──▶ StageProgram

Running the whole graph, or its pieces one after the other, gives the results of the model itself to the bit: outputs,
gradients, buffers, in training with dropout too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import Tensor, fx, nn

from ropewalk.errors import NotTraceable
from ropewalk.near_names import did_you_mean
from ropewalk.pipeline.profiles import Operator, Profile
from ropewalk.pipeline.tracing.captured import Captured
from ropewalk.pipeline.tracing.model_inputs import ModelInputs
from ropewalk.pipeline.tracing.stage_program import BatchNormCall, StageProgram


@dataclass(frozen=True, slots=True, eq=False)
class TracedOperator:
    """One operator: a call of a module that computes, or of a function, together with cheap calls around it."""

    id: str
    """Path of the module and number of its call, "encoder.layers.0.linear1:0"; the same in every process."""
    description: str
    """In words: "Conv2d", "BatchNorm2d + relu_"."""
    inputs: tuple[str, ...]
    """Ids of the operators whose values it reads, in the order of the graph."""
    parameters: tuple[str, ...] = ()
    """Names of the parameters it reads; a tensor with several names has the first."""
    buffers: tuple[str, ...] = ()
    """Names of the buffers it reads or writes."""
    is_random: bool = False
    """Whether it draws random numbers."""
    is_input: bool = False
    """Whether it is one of the model's inputs."""
    nodes: tuple[fx.Node, ...] = ()
    """The calls, in the order they are made."""
    values: tuple[fx.Node, ...] = ()
    """The calls whose results are read outside of it. With one, its result is the operator's value; with several, a
    tuple of their results is."""


class ModelGraph:
    """The graph of one model, in training or in evaluation; made by `trace`.

    Attributes:
        model: the user's model. Its own forward is not called any more, and the model is never written to.
        captured: the graph of calls that the operators are made of.
        operators: in program order, which is topological; the inputs of the model come first.
        output: id of the operator whose value is what the model returns.
        marks: ids of the operators whose value goes through `cut_here`.
        ties: parameters and buffers with several names: the other names by the first one.
        batch_norms: by operator, the batch normalisations in it that keep running statistics.
    """

    def __init__(
        self,
        model: nn.Module,
        captured: Captured,
        operators: tuple[TracedOperator, ...],
        inputs: ModelInputs,
        *,
        output: str,
        marks: tuple[str, ...] = (),
        ties: Mapping[str, tuple[str, ...]] | None = None,
        batch_norms: Mapping[str, tuple[BatchNormCall, ...]] | None = None,
        trace_for_eval: Callable[[], ModelGraph] | None = None,
    ) -> None:
        self.model = model
        self.captured = captured
        self.operators = operators
        self.model_inputs = inputs
        self.output = output
        self.marks = marks
        self.ties: Mapping[str, tuple[str, ...]] = ties or {}
        self.batch_norms: Mapping[str, tuple[BatchNormCall, ...]] = batch_norms or {}
        self._trace_for_eval = trace_for_eval

    def __repr__(self) -> str:
        return f"<ModelGraph of {type(self.model).__name__}, {len(self.operators)} operators>"

    # --- the graph ----------------------------------------------------------------------------------------------------

    @cached_property
    def by_id(self) -> Mapping[str, TracedOperator]:
        """The operators by their ids."""
        return {operator.id: operator for operator in self.operators}

    @cached_property
    def edges(self) -> tuple[tuple[str, str], ...]:
        """Pairs of ids (source, target): the target reads the value of the source."""
        return tuple((source, operator.id) for operator in self.operators for source in operator.inputs)

    @cached_property
    def targets(self) -> Mapping[str, tuple[str, ...]]:
        """Ids of the operators that read the value of each operator."""
        found: dict[str, list[str]] = {operator.id: [] for operator in self.operators}
        for source, target in self.edges:
            found[source].append(target)
        return {id: tuple(ends) for id, ends in found.items()}

    @cached_property
    def position(self) -> Mapping[str, int]:
        """The index of each operator in program order."""
        return {operator.id: index for index, operator in enumerate(self.operators)}

    @cached_property
    def whole_inputs(self) -> frozenset[str]:
        """Ids of the inputs that are not per sample, and go whole to each micro-batch, such as a mask for all samples.

        Their first size is fixed in the graph, while that of other inputs is not.
        """
        sizes = {name: shape for name, shape in self.captured.sizes.items() if shape}
        if all(shape[0] is not None for shape in sizes.values()):
            return frozenset()
        return frozenset(f"input.{name}" for name, shape in sizes.items() if shape[0] is not None)

    def to_profile_skeleton(self) -> Profile:
        """Return the graph as a profile without times: names, parameters with their bytes, buffers, edges."""
        return Profile(
            operators=tuple(
                Operator(
                    id=one.id,
                    description=one.description,
                    parameters={name: size_bytes(self.parameters[name]) for name in one.parameters},
                    buffer_bytes=sum(size_bytes(self.buffers[name]) for name in one.buffers),
                    is_random=one.is_random,
                    is_input=one.is_input,
                )
                for one in self.operators
            ),
            edges=self.edges,
            model=type(self.model).__name__,
        )

    # --- the model's tensors ------------------------------------------------------------------------------------------

    @cached_property
    def parameters(self) -> Mapping[str, Tensor]:
        """The model's own parameters, by the names that operators use."""
        return dict(self.model.named_parameters())

    @cached_property
    def buffers(self) -> Mapping[str, Tensor]:
        """The model's own buffers, by the names that operators use."""
        return dict(self.model.named_buffers())

    # --- running it ---------------------------------------------------------------------------------------------------

    def bind(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Return the values of the input operators, from arguments as the model takes them.

        Args:
            args: positional arguments of the model.
            kwargs: keyword arguments of the model.

        Returns:
            Tensors by the ids of the input operators.

        Raises:
            NotTraceable: the arguments differ from the example inputs in structure, in shape (the batch aside), or in a
                value that is not a tensor.
        """
        values = self.model_inputs.bind(args, kwargs)
        for name, sizes in self.captured.sizes.items():
            shape = tuple(values[f"input.{name}"].shape)
            if len(shape) != len(sizes) or any(
                wanted not in (None, size) for wanted, size in zip(sizes, shape, strict=True)
            ):
                wanted = ", ".join("any" if size is None else str(size) for size in sizes)
                raise NotTraceable(
                    f"{type(self.model).__name__} was traced with {name!r} of shape ({wanted}), and is given {shape}; "
                    f"give inputs of these sizes, such as texts padded to one length, trace it with example inputs "
                    f"like those it gets, or make it an nn.Sequential, which fixes no size"
                )
        return values

    def stage_program(self, operators: Sequence[str]) -> StageProgram:
        """Return the program of some operators; the programs of all pieces, run one after the other, are the model.

        Args:
            operators: ids of operators, in any order.

        Raises:
            NotTraceable: an id is not that of an operator of this graph.
        """
        for id in operators:
            if id not in self.by_id:
                raise NotTraceable(f"{id!r} is not an operator of {type(self.model).__name__}{self._near(id)}")
        return StageProgram(self, [self.by_id[id] for id in sorted(set(operators), key=self.position.__getitem__)])

    def whole_program(self) -> StageProgram:
        """Return the program of all operators."""
        return self.stage_program([operator.id for operator in self.operators])

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run all operators on the model's own parameters and buffers, and return what the model returns."""
        return self._whole(self.bind(*args, **kwargs), self.parameters, self.buffers)[self.output]

    @cached_property
    def _whole(self) -> StageProgram:
        return self.whole_program()

    # --- evaluation ---------------------------------------------------------------------------------------------------

    @cached_property
    def for_eval(self) -> ModelGraph:
        """The graph of the same model in evaluation; traced on first use.

        Operators of modules have the same ids in both graphs; calls that only training makes are missing.
        """
        return self._trace_for_eval() if self._trace_for_eval is not None else self

    def eval_stages(self, stages: Sequence[Sequence[str]]) -> tuple[tuple[str, ...], ...]:
        """Apply the cut of the training graph to the graph of evaluation.

        Args:
            stages: the operators of each stage, the stages numbered in the direction of the data.

        Returns:
            For each stage operators of `for_eval`. An operator that training does not have goes to the latest stage of
            those that it reads from; no operator goes before one that it reads.
        """
        known = {id: number for number, stage in enumerate(stages) for id in stage}
        chosen: dict[str, int] = {}
        found: list[list[str]] = [[] for _ in stages]
        for one in self.for_eval.operators:
            least = max((chosen[id] for id in one.inputs), default=0)
            chosen[one.id] = max(known.get(one.id, least), least)
            found[chosen[one.id]].append(one.id)
        return tuple(map(tuple, found))

    def _near(self, id: str) -> str:
        return did_you_mean(id, self.by_id)


def size_bytes(tensor: Tensor) -> int:
    """Return the bytes of a tensor's elements."""
    return tensor.numel() * tensor.element_size()
