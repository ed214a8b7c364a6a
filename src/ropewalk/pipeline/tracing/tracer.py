"""`trace`: gets the graph of a model with the first tracer that can follow it.

nn.Sequential   its children, untraced
torch.export    calls of ATen, with the modules they come from
torch.fx        calls of modules and functions
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, fx, nn

from ropewalk.errors import NotTraceable
from ropewalk.pipeline.generator_states import OtherStates
from ropewalk.pipeline.tracing.aliasing import ObservedValue, observe
from ropewalk.pipeline.tracing.captured import Captured, PlaceholderKind
from ropewalk.pipeline.tracing.checking import check, references
from ropewalk.pipeline.tracing.compiled import uncompiled, unwrapped, warn_of_compiled
from ropewalk.pipeline.tracing.exporting import capture_exported
from ropewalk.pipeline.tracing.fake_tensors import check_constants, is_numberless, stand_ins
from ropewalk.pipeline.tracing.fx_tracing import capture_fx
from ropewalk.pipeline.tracing.grouping import group
from ropewalk.pipeline.tracing.leaves import LeafModule, Leaves
from ropewalk.pipeline.tracing.marks import CUT_HERE
from ropewalk.pipeline.tracing.model_graph import ModelGraph
from ropewalk.pipeline.tracing.model_inputs import Example, ModelInputs
from ropewalk.pipeline.tracing.named_tensors import modules_of, tensors_of, ties_of
from ropewalk.pipeline.tracing.operators import batch_norms_of, operators_of
from ropewalk.pipeline.tracing.refusals import refusal
from ropewalk.pipeline.tracing.sequential import capture_sequential
from ropewalk.user_frames import user_frames_only


@user_frames_only
def trace(
    model: nn.Module, example_inputs: Example, *, leaf_modules: Sequence[LeafModule] = (), fixed_batch: bool = False
) -> ModelGraph:
    """Trace a model into a graph that can be cut into stages.

    A planner and a trainer trace by themselves. Do it here to name modules that no tracer can follow, and give them the
    graph in place of the model.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> import ropewalk as rw
        >>> class Flip(nn.Module):
        ...     def forward(self, x):
        ...         return x if x.sum() > 0 else -x  # depends on the values
        >>> class Net(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.first, self.flip, self.last = nn.Linear(3, 8), Flip(), nn.Linear(8, 1)
        ...     def forward(self, x):
        ...         return self.last(self.flip(self.first(x)))
        >>> x = torch.randn(8, 3)
        >>> graph = rw.pipeline.trace(Net(), x, leaf_modules=[Flip])
        >>> sgd = lambda parameters: torch.optim.SGD(parameters, 0.1)
        >>> with rw.Trainer(graph, nn.MSELoss(), sgd, plan=1, micro_batches=2, inline=True) as trainer:
        ...     step = trainer.step(x, x.sum(1, keepdim=True))
        >>> bool(step.metrics().loss > 0)
        True

    Args:
        model: the model; not changed. If the whole model is in evaluation mode, it is traced as if `train()` had been
            called; otherwise each module keeps its mode. If some of its parameters are on meta, nothing is computed and
            no memory is used; the graph is then checked by its shapes only. What `torch.compile` returned is traced as
            the module in it, with a warning: the operators of a graph run one by one.
        example_inputs: the model's inputs: a tuple of positional arguments, a dictionary of keyword arguments, or
            one tensor, with a batch of at least 2 samples in the first dimension. The graph is for inputs like these,
            of any batch size; values other than tensors become its constants.
        leaf_modules: modules that are not traced into, so that each call of them is one operator: types, paths, or the
            modules themselves.
        fixed_batch: whether the model runs with the batch size of the example only.

    Returns:
        The graph.

    Raises:
        NotTraceable: no tracer could follow the model; the message names the module or line, and what to do.
    """
    warn_of_compiled(model)
    model = unwrapped(model)
    inputs, leaves = ModelInputs(model, example_inputs), Leaves(model, leaf_modules)
    whole = _Tracing(model, inputs, leaves, fixed_batch)
    training = {path: module.training or not model.training for path, module in whole.modules.items()}

    def in_training(task: _Tracing) -> ModelGraph:
        return task.traced(training, lambda: with_few_samples(in_evaluation))

    def in_evaluation(task: _Tracing) -> ModelGraph:
        return task.traced(dict.fromkeys(training, False), None)

    def with_few_samples(trace_it: Callable[[_Tracing], ModelGraph]) -> ModelGraph:
        """Return a graph that was found, and checked, with as few samples as that takes: checking computes it all."""
        few = None if fixed_batch else inputs.with_few_samples()
        if few is not None:
            with suppress(NotTraceable):  # a model that wants more samples may run with all of them
                return trace_it(dataclasses.replace(whole, inputs=few))
        return trace_it(whole)

    return with_few_samples(in_training)


@dataclass(frozen=True)
class _Tracing:
    """The tracing of one model."""

    model: nn.Module
    inputs: ModelInputs
    leaves: Leaves
    fixed_batch: bool

    @functools.cached_property
    def modules(self) -> dict[str, nn.Module]:
        """All modules of the model by their paths."""
        return modules_of(self.model)

    def traced(self, modes: Mapping[str, bool], trace_for_eval: Callable[[], ModelGraph] | None) -> ModelGraph:
        """Return the graph, with each module in the mode (training or evaluation) given for its path."""
        errors: dict[str, Exception] = {}
        with self._in_modes(modes), torch.enable_grad(), self._stand_ins() as faking:
            with faking:
                expected = references(self.model, self.inputs, fixed_batch=self.fixed_batch)
            for name, capture in self._ways().items():
                try:
                    captured = capture()
                except NotTraceable:  # another tracer would find the same
                    raise
                except Exception as error:  # torch's tracers raise anything; all of it is reported if none succeeds
                    errors[name] = error
                    continue
                with faking:
                    graph = self._graph(captured, trace_for_eval)
                    try:
                        for reference in expected:
                            check(graph, reference)
                        return graph
                    except NotTraceable as error:
                        errors[name] = error
        raise refusal(self.model, errors) from next(iter(errors.values()))

    def _stand_ins(self) -> AbstractContextManager[AbstractContextManager[object]]:
        """For a model on meta, replace its tensors by fake ones; yields the context for computing with them."""
        if is_numberless(self.model):
            return stand_ins(self.model, self.inputs)
        return nullcontext(nullcontext())

    def _ways(self) -> dict[str, Callable[[], Captured]]:
        """Return the tracers by name, the preferred ones first."""
        model, inputs = self.model, self.inputs
        if type(model) is nn.Sequential and inputs.is_one_tensor and not _has_parametrizations(model):
            return {"nn.Sequential": lambda: capture_sequential(model, inputs, self.leaves)}
        _, _, canonical = tensors_of(model)
        return {
            "torch.export": lambda: capture_exported(
                model, inputs, self.leaves, canonical, fixed_batch=self.fixed_batch
            ),
            "torch.fx": lambda: capture_fx(model, inputs, self.leaves, canonical),
        }

    def _graph(self, captured: Captured, trace_for_eval: Callable[[], ModelGraph] | None) -> ModelGraph:
        if not any(True for _ in captured.calls()):
            raise NotTraceable(f"{type(self.model).__name__} computes nothing: there is nothing to run, or to cut")
        check_constants(self.model, captured)
        seen = self._observed(captured)
        operators, output = operators_of(captured, seen, group(captured, seen))
        for one in operators:
            for node in one.nodes:
                if node.op != "output" and captured.sites[node].name == CUT_HERE != one.description:
                    raise NotTraceable(
                        f"cut_here stands where no cut is legal, within operator {one.id!r} ({one.description}): its "
                        f"value is written in place afterwards ({captured.sites[node].line}); move the mark after the "
                        "last write, or do not write in place"
                    )
        _, _, canonical = tensors_of(self.model)
        return ModelGraph(
            self.model,
            captured,
            operators,
            self.inputs,
            output=output,
            marks=tuple(one.id for one in operators if one.description == CUT_HERE),
            ties=ties_of(canonical),
            batch_norms={one.id: batch_norms_of(captured, one) for one in operators},
            trace_for_eval=trace_for_eval,
        )

    def _observed(self, captured: Captured) -> dict[fx.Node, ObservedValue]:
        """Return what each call does; drop calls without effect, and copy inputs first that are written to."""
        seen = observe(captured, self._example_values(captured))
        for node in reversed(list(captured.calls())):
            if not node.users and not seen[node].written and not seen[node].is_random and node in captured.sites:
                captured.sites.pop(node)
                captured.graph.erase_node(node)
        written = frozenset(storage for one in seen.values() for storage in one.written)
        changed = [
            node
            for node, source in captured.sources.items()
            if source.kind is PlaceholderKind.INPUT and seen[node].storages & written
        ]
        if not changed:
            return seen
        for node in changed:
            _copy_first(captured, node)
        return observe(captured, self._example_values(captured))

    def _example_values(self, captured: Captured) -> dict[fx.Node, Tensor]:
        parameters, buffers, _ = tensors_of(self.model)
        examples = dict(zip(self.inputs.names, self.inputs.example, strict=True))
        values: dict[fx.Node, Tensor] = {}
        for node, source in captured.sources.items():
            if source.kind is PlaceholderKind.PARAMETER:
                values[node] = parameters[source.name]
            else:
                tensors = buffers if source.kind is PlaceholderKind.BUFFER else examples
                values[node] = tensors[source.name].detach().clone()
        return values

    @contextmanager
    def _in_modes(self, modes: Mapping[str, bool]) -> Generator[None]:
        """Set each module to the given mode (training or evaluation) within the block."""
        before, others = {path: module.training for path, module in self.modules.items()}, OtherStates.now()
        try:
            for path, module in self.modules.items():
                module.training = modes[path]
            with cast(Any, torch.random).fork_rng(), uncompiled(self.model):
                yield
        finally:
            for path, module in self.modules.items():
                module.training = before[path]
            others.set()


def _has_parametrizations(model: nn.Module) -> bool:
    """Whether a weight of the model is computed from others; torch lets no module with such a weight be sent."""
    return any("parametrizations" in module.__dict__["_modules"] for module in model.modules())


def _copy_first(captured: Captured, placeholder: fx.Node) -> None:
    """Copy an input that the model writes to, because values of operators are never written to."""
    readers = list(placeholder.users)
    first = next(node for node in captured.graph.nodes if node in placeholder.users)
    with captured.graph.inserting_before(first):
        copy = captured.graph.call_function(cast(Any, torch.ops.aten.clone.default), (placeholder,))
    copy.meta = dict(placeholder.meta)
    captured.sites[copy] = captured.sites[first]
    for reader in readers:
        reader.replace_input_with(placeholder, copy)
