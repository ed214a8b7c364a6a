"""One stage on one replica: forwards, backwards and steps on real tensors.

    arrive()  ──▶ values ──▶ forward ──▶ outgoing        (values for later stages)
                              │ in flight: inputs, version of the weights, graph
    arrive()  ──▶ gradients ─▶ backward ──▶ outgoing     (gradients for earlier stages)
                              ▼
                   sums of gradients ──▶ contribution ──▶ step ──▶ next version

With recomputation a forward keeps only its inputs and the random state at its entry, and `recompute` makes the graph.
With a split backward (`queue`) the gradients of weights are computed later, by `weight_gradients`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from ropewalk.errors import PlanInvalid
from ropewalk.pipeline.plans import Edge
from ropewalk.pipeline.stages.batch_norm import DeferredBatchNorm
from ropewalk.pipeline.stages.entrances import Entrance
from ropewalk.pipeline.stages.entry_buffers import EntryBuffers
from ropewalk.pipeline.stages.gradient_sums import GradientContribution
from ropewalk.pipeline.stages.in_memory_links import LinkMessage
from ropewalk.pipeline.stages.losses import Loss
from ropewalk.pipeline.stages.micro_batches import MicroBatchPiece
from ropewalk.pipeline.stages.randomness import SeededBlock, micro_batch_seed, seeded_state
from ropewalk.pipeline.stages.summed_gradients import SummedGradients
from ropewalk.pipeline.stages.training_options import TrainingOptions
from ropewalk.pipeline.stages.weight_versions import WeightVersions
from ropewalk.pipeline.tracing import computing
from ropewalk.pipeline.tracing.split_backward import WeightQueue, deferred_weights
from ropewalk.pipeline.tracing.stage_program import StageProgram
from ropewalk.pipeline.tracing.trees import map_tensors, tensors_of

End = tuple[str, int]
"""The id of an edge's tensor, and the stage at its other end."""


@dataclass(frozen=True, slots=True)
class StageSetup:
    """The facts about a stage besides its program and its tensors."""

    id: int
    replica: int
    recompute: bool
    splits_backward: bool
    outputs: tuple[Edge, ...]
    """Edges that begin at this stage, and those that end at it."""
    inputs: tuple[Edge, ...]
    state_comes_on: str | None = None
    """The id of the edge that brings the random generator's state, and of the one that it leaves on; None if there is
    none."""
    state_goes_on: End | None = None
    seed: int = 0
    """The seed of all random numbers of a run."""
    options: TrainingOptions = field(default_factory=TrainingOptions)
    positions: Mapping[str, int] = field(default_factory=dict[str, int])
    """Positions of all parameters in the model; the norm of all gradients is taken in this order."""


@dataclass(slots=True)
class InFlight:
    """A micro-batch between its forward and the end of its backward."""

    version: int
    values: dict[str, Any]
    """Values by operator; tensors that came from other stages are leaves."""
    state: Tensor | None
    """The random state at the stage's entry."""
    piece: MicroBatchPiece | None
    buffers: Mapping[str, Tensor] | None = None
    """Copies of buffers at the entry, if forwards change them and this forward will run again."""
    outputs: dict[str, Any] = field(default_factory=dict[str, Any])
    """The program's outputs, with their graph; empty before a recomputation."""
    root: Tensor | None = None
    weight: float | None = None
    queue: WeightQueue | None = None
    entrances: dict[str, Entrance] = field(default_factory=dict[str, Entrance])
    """By operator: the entrances that collect the gradients of received values."""


class RunningStage:
    """A stage that holds weights and computes.

    Args:
        setup: the facts about the stage.
        program: its operators.
        versions: its weights.
        buffers: its buffers by name; they are changed in place.
        loss: the loss, at the stage that makes the model's output.
        output: id of that output.
        on_loss: called with micro-batch, loss and weight after each forward of that stage.
        on_step: called after each step, for schedules of the learning rate.
        device: the device it computes on; None for the device of its tensors.
    """

    def __init__(
        self,
        setup: StageSetup,
        program: StageProgram,
        versions: WeightVersions,
        buffers: dict[str, Tensor],
        *,
        loss: Loss | None = None,
        output: str = "",
        on_loss: Callable[[int, Tensor, float | None], None] | None = None,
        on_step: Callable[[], None] | None = None,
        device: torch.device | None = None,
    ) -> None:
        self.setup = setup
        self.program = program
        self.versions = versions
        self.buffers = buffers
        self._loss = loss
        self._output = output
        self._on_loss = on_loss
        self._on_step = on_step
        self._norm = DeferredBatchNorm(program.batch_norms)
        self._entry_buffers = EntryBuffers(program, buffers)
        self.can_be_resumed = False
        """Whether forwards keep the state that is needed to run them again in another process, from a snapshot."""
        self.again: dict[int, Mapping[str, Tensor]] = {}
        """Micro-batches forwarded before a cut, with the buffers at their entry: their repeated forwards do not count
        again."""
        tensors = [*versions.parameters.values(), *buffers.values()]
        self.device = device or (tensors[0].device if tensors else torch.device("cpu"))
        self._is_plain = not (
            program.is_random or program.batch_norms or setup.splits_backward or setup.options.autocast
        )
        """Whether a forward consists of the program alone."""
        self._sends = tuple(
            (edge, target, setup.state_goes_on == (edge.tensor, target))
            for edge in setup.outputs
            for target in edge.targets
        )
        """The values that a forward sends: edge, target, and whether the random state goes with it."""
        self._pieces: dict[int, MicroBatchPiece] = {}
        self._values: dict[int, dict[str, LinkMessage]] = {}
        self._gradients: dict[int, dict[End, LinkMessage]] = {}
        self.outgoing: dict[tuple[int, End], LinkMessage] = {}
        """Messages for other stages, by micro-batch."""
        self.in_flight: dict[int, InFlight] = {}
        self._sums = SummedGradients(versions.trainable)
        self._weight: float | None = None

    # --- input --------------------------------------------------------------------------------------------------------

    def admit(self, micro_batch: int, piece: MicroBatchPiece) -> None:
        """Take in the caller's part of a micro-batch."""
        self._pieces[micro_batch] = piece

    def arrive(self, micro_batch: int, end: End, parcel: LinkMessage) -> None:
        """Take in a value from an earlier stage, or a gradient from a later one."""
        tensor, peer = end
        if peer < self.setup.id:
            self._values.setdefault(micro_batch, {})[tensor] = parcel
        else:
            self._gradients.setdefault(micro_batch, {})[end] = parcel

    # --- computing ----------------------------------------------------------------------------------------------------

    def forward(self, micro_batch: int, version: int | None) -> None:
        """F: run the operators, and the loss at the end of the model."""
        if micro_batch not in self.again:
            self._forward(micro_batch, version)
            return
        self._norm.is_collecting = False
        try:
            self._forward(micro_batch, version, self.again.pop(micro_batch))
        finally:
            self._norm.is_collecting = True

    def _forward(self, micro_batch: int, version: int | None, entry: Mapping[str, Tensor] | None = None) -> None:
        piece = self._pieces.pop(micro_batch, None)
        arrived = self._values.pop(micro_batch, {})
        values = {tensor: parcel.tree for tensor, parcel in arrived.items()}
        for id in self.program.model_inputs:
            assert piece is not None, f"micro-batch {micro_batch} was not admitted"
            values[id] = piece.inputs[id]
        flight = InFlight(self.versions.hold(version), values, self._entry_state(piece, arrived), piece)
        if entry is not None:
            flight.buffers = {name: buffer.clone() for name, buffer in entry.items()}
        elif self.setup.recompute:
            flight.buffers = self._entry_buffers.copies()
        elif self.can_be_resumed:
            flight.buffers = self._entry_buffers.read_only()
        if self.setup.recompute:
            with torch.no_grad():
                outputs, state, loss_value = self._run(flight)
            flight.outputs, flight.entrances, flight.root = {}, {}, None
        else:
            outputs, state, loss_value = self._run(flight)
        if entry is not None:
            flight.buffers = entry
        self.in_flight[micro_batch] = flight
        for edge, target, carries_state in self._sends:
            value = self._detached(edge, outputs[edge.tensor], flight) if edge.tensor in outputs else None
            self.outgoing[micro_batch, (edge.tensor, target)] = LinkMessage(value, state if carries_state else None)
        if loss_value is not None and self._on_loss is not None:
            self._on_loss(micro_batch, loss_value, flight.weight)

    def recompute(self, micro_batch: int) -> None:
        """C: run the forward again, with the same version of the weights and the same random numbers, for its graph."""
        flight = self.in_flight[micro_batch]
        self._norm.is_collecting = False
        try:
            self._run(flight)
        finally:
            self._norm.is_collecting = True

    def backward(self, micro_batch: int) -> None:
        """B, or I if the backward is split: compute gradients of received values, and add up those of the weights."""
        flight = self.in_flight[micro_batch]
        arrived = self._gradients.pop(micro_batch, {})
        if self._loss is None:
            flight.weight = next((parcel.weight for parcel in arrived.values() if parcel.weight is not None), None)
        roots, gradients = self._roots(flight, arrived)
        if roots:
            self._sums.move_to(self.versions.leaves(flight.version))
            torch.autograd.backward(roots, gradients)
        for edge in self.setup.inputs:
            if edge.gradient_bytes:
                tree = flight.entrances[edge.tensor].gradients()
                self.outgoing[micro_batch, (edge.tensor, edge.source)] = LinkMessage(tree, weight=flight.weight)
        if flight.weight is not None:
            self._weight = (self._weight or 0.0) + flight.weight
        # The graph is freed; a queue keeps what the gradients of the weights need.
        flight.values, flight.outputs, flight.entrances, flight.root, flight.piece = {}, {}, {}, None, None
        if flight.queue is None:
            self._finish(micro_batch)

    def weight_gradients(self, micro_batch: int) -> None:
        """W: compute the gradients of the weights that I has left."""
        flight = self.in_flight[micro_batch]
        assert flight.queue is not None
        self._sums.move_to(self.versions.leaves(flight.version))
        flight.queue.run()
        self._finish(micro_batch)

    # --- updating -----------------------------------------------------------------------------------------------------

    def contribution(self, names: Sequence[str]) -> GradientContribution:
        """Take the sums of these parameters' gradients."""
        return GradientContribution(self._sums.take(names))

    def whole_contribution(self, names: Sequence[str]) -> GradientContribution:
        """Take the sums of these parameters' gradients, with the weight and the moments of the micro-batches."""
        weight, self._weight = self._weight, None
        return GradientContribution(self._sums.take(names), weight, self._norm.take())

    def averaged(self, total: GradientContribution) -> GradientContribution:
        """Return the mean over micro-batches, in the same memory; for a loss that is a sum, the sum."""
        if total.weight:  # 0: no label counted, and the sums are of nothing; divided they would be NaN
            for name, gradient in total.gradients.items():
                if gradient is not None and name not in total.means:
                    gradient.div_(total.weight)
        return GradientContribution(total.gradients, None, total.moments)

    def step(self, mean: GradientContribution, factor: Tensor | None = None) -> None:
        """U: make the next version from the result of `averaged`, with gradients multiplied by `factor` if given."""
        gradients = {name: one for name, one in mean.gradients.items() if one is not None}
        if factor is not None:
            for gradient in gradients.values():
                gradient.mul_(factor.to(gradient.device))
        self.versions.step(gradients)
        with torch.no_grad():
            self._norm.commit(mean.moments, self.buffers)
        if self._on_step is not None:
            self._on_step()

    def skip(self) -> None:
        """U of an update that is left out: the next version has the newest weights, and nothing else changes."""
        self.versions.skip()

    # --- private ------------------------------------------------------------------------------------------------------

    def _run(self, flight: InFlight) -> tuple[dict[str, Any], Tensor | None, Tensor | None]:
        """Run the program and the loss; return the outputs, the random state after them, and the loss's value."""
        for edge in self.setup.inputs:
            flight.entrances[edge.tensor] = Entrance(flight.values[edge.tensor])
        if self._is_plain:
            return self._compute(flight), None, self._loss_of(flight)
        with ExitStack() as around:
            stretch = around.enter_context(SeededBlock(flight.state, self.device))
            if self.setup.options.autocast is not None:
                around.enter_context(torch.autocast(self.device.type, self.setup.options.autocast))
            if self.program.batch_norms:
                around.enter_context(computing.replaced(batch_norm=self._norm))
            if self.setup.splits_backward and torch.is_grad_enabled():
                flight.queue = WeightQueue()
                around.enter_context(deferred_weights(flight.queue))
            outputs, value = self._compute(flight), self._loss_of(flight)
        return outputs, stretch.state, value

    def _compute(self, flight: InFlight) -> dict[str, Any]:
        buffers = self.buffers
        if flight.buffers is not None and not self._norm.is_collecting:
            buffers = {**buffers, **flight.buffers}
        flight.outputs = self.program(flight.values, self.versions.leaves(flight.version), buffers)
        return flight.outputs

    def _loss_of(self, flight: InFlight) -> Tensor | None:
        if self._loss is None:
            return None
        piece = flight.piece
        assert piece is not None
        labels = piece.labels
        if not torch.is_grad_enabled():  # it comes again, when the forward is recomputed, and may write to its labels
            labels = map_tensors(Tensor.clone, labels)
        with SeededBlock(self._state_of_loss(self._loss, piece), self.device):
            loss = self._loss(flight.outputs[self._output], labels, piece.num_samples)
        flight.root, flight.weight = loss.root, loss.weight
        if torch.is_grad_enabled() and not loss.root.requires_grad and self._leads_back(flight):
            raise ValueError(
                f"the loss {float(loss.value.detach()):.6g} has no gradient, so nothing would be trained; compute "
                f"it from the model's outputs without detach(), item() and torch.no_grad(), and see that the model "
                f"does not do so either"
            )
        return loss.value.detach()

    def _entry_state(self, piece: MicroBatchPiece | None, arrived: Mapping[str, LinkMessage]) -> Tensor | None:
        if not self.program.is_random:
            return None
        if self.setup.state_comes_on is not None:
            return arrived[self.setup.state_comes_on].generator
        assert piece is not None
        return seeded_state(micro_batch_seed(self.setup.seed, piece.step, piece.index), self.device)

    def _state_of_loss(self, loss: Loss, piece: MicroBatchPiece) -> Tensor | None:
        if not loss.may_draw:
            return None
        return seeded_state(micro_batch_seed(self.setup.seed, piece.step, piece.index, "loss"), self.device)

    def _leads_back(self, flight: InFlight) -> bool:
        """Return whether anything before its outputs needs a gradient."""
        return bool(self.versions.trainable) or any(tensor.requires_grad for tensor in tensors_of(flight.values))

    def _detached(self, edge: Edge, value: Any, flight: InFlight) -> Any:
        """Return a value for another stage: its tensors are leaves of a graph of their own."""
        if self.setup.recompute:  # there is no graph yet that could tell
            leads_back = self._leads_back(flight)

            def needs_gradient(tensor: Tensor) -> bool:
                return leads_back and bool(edge.gradient_bytes) and tensor.is_floating_point()
        else:

            def needs_gradient(tensor: Tensor) -> bool:
                if tensor.requires_grad and not edge.gradient_bytes:
                    raise PlanInvalid(
                        f"the plan says that {edge.tensor!r} has no gradient, but stage {self.setup.id} made a value "
                        f"that needs one; give the edge its gradient_bytes (profile the model in train mode)"
                    )
                return tensor.requires_grad

        return map_tensors(lambda tensor: tensor.detach().requires_grad_(needs_gradient(tensor)), value)

    def _roots(self, flight: InFlight, arrived: Mapping[End, LinkMessage]) -> tuple[list[Tensor], list[Tensor | None]]:
        """Return the tensors from which the backward begins, and their gradients."""
        roots: list[Tensor] = []
        gradients: list[Tensor | None] = []
        if flight.root is not None and flight.root.requires_grad:
            roots.append(flight.root)
            gradients.append(None)
        for edge in self.setup.outputs:
            # Later readers first, in the order in which autograd adds gradients when one process runs the whole model.
            trees = [arrived[edge.tensor, target].tree for target in sorted(edge.targets, reverse=True)
                     if (edge.tensor, target) in arrived]  # fmt: skip
            if not trees:
                continue
            for position, tensor in enumerate(tensors_of(flight.outputs[edge.tensor])):
                given = [tree[position] for tree in trees if tree[position] is not None]
                if given and tensor.requires_grad:
                    roots.append(tensor)
                    gradients.append(reduce(torch.add, given))
        return roots, gradients

    def _finish(self, micro_batch: int) -> None:
        self.versions.release(self.in_flight.pop(micro_batch).version)
