"""The local executor: carries out a plan's actions for all workers, in one process and one thread.

It defines what a pipeline computes: processes that run the same stage workers over real
links must give equal results. It is also the place to debug a model: a breakpoint stops
all workers, and every exception has its whole traceback.

    step(x, y) ──▶ micro-batches ──▶ schedule's stream ──▶ a queue of actions per worker
                                                               │ in turn, each worker that can
                                                               ▼ perform its next action does so
                                       stage workers, links and sums, all in memory
"""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from torch import Tensor, nn

from ropewalk.errors import LocalExecutorFailed, PlanInvalid, ScheduleInvalid
from ropewalk.exchange.exchange_maker import MakesExchange
from ropewalk.misplaced_options import tells_places
from ropewalk.pipeline.actions import Action
from ropewalk.pipeline.local_evaluation import evaluated
from ropewalk.pipeline.plans import Plan, PlanWorker
from ropewalk.pipeline.schedules import Schedule
from ropewalk.pipeline.schedules.streams import ActionStream
from ropewalk.pipeline.stages.evaluation import StageEvaluation
from ropewalk.pipeline.stages.exchange_sums import ExchangeSums, ReplicaExchange, exchanges_in_one_process
from ropewalk.pipeline.stages.gradient_sums import Contributor, InMemorySums, Sums
from ropewalk.pipeline.stages.in_memory_links import InMemoryLinks
from ropewalk.pipeline.stages.losses import Loss
from ropewalk.pipeline.stages.micro_batches import MicroBatchPiece, split
from ropewalk.pipeline.stages.optimizer_maker import OptimizerMaker, StageOptimizer
from ropewalk.pipeline.stages.randomness import seed_of_run
from ropewalk.pipeline.stages.running_stage import RunningStage
from ropewalk.pipeline.stages.saved_training import give_back, run_facts, taken
from ropewalk.pipeline.stages.stage_maker import StageMaker
from ropewalk.pipeline.stages.stage_worker import StageWorker
from ropewalk.pipeline.stages.training_options import TrainingOptions
from ropewalk.pipeline.stages.wiring import wire
from ropewalk.pipeline.step_metrics import StepMetrics
from ropewalk.pipeline.taking_turns import take_turns
from ropewalk.pipeline.tracing.filling import filled
from ropewalk.pipeline.tracing.model_graph import ModelGraph
from ropewalk.pipeline.tracing.model_inputs import as_arguments
from ropewalk.pipeline.tracing.tracer import trace
from ropewalk.user_frames import user_frames_only


@dataclass(frozen=True, slots=True)
class Performed:
    """An action that was carried out, with its start and end in seconds of `time.perf_counter`."""

    worker: PlanWorker
    action: Action
    start_s: float
    end_s: float


PLACES = {
    "loss_fn=ropewalk.pipeline.Loss(loss_fn, {}=...)": Loss,
    "optimizer=ropewalk.pipeline.OptimizerMaker(optimizer, {}=...)": OptimizerMaker,
    "options=ropewalk.pipeline.TrainingOptions({}=...)": TrainingOptions,
}
"""Where options that are given to an executor itself belong."""


class LocalExecutor:
    """Trains a model by a plan, in this process.

    The model itself is not changed; `to_module` returns a trained copy.

    Args:
        model: the model in train mode, or its graph if it was traced already. Submodules may be in evaluation mode,
            and stay so.
        loss_fn: computes the loss, a mean over the samples, from the model's outputs and the labels of a micro-batch;
            a `Loss` says that a function returns a sum, or a total with its weight.
        optimizer: makes the optimizer of a stage (and replica) from its parameters or, if the first parameter of
            `optimizer` is called `named_parameters`, from pairs of name and parameter; an `OptimizerMaker` has a
            schedule of the learning rate besides.
        plan: stages and devices; here devices only decide which stages share a worker.
        schedule: name of a schedule, or a schedule; None: the plan's.
        example_inputs: inputs for tracing the model; not needed for a graph.
        seed: seed of all random numbers of the run.
        exchange: makes the exchange that averages the gradients of one replica of a stage with those of the others,
            or the name of a compressor; None: gradients are summed uncompressed.
        options: gradient clipping, the NaN policy and autocast; None: none of these.
        slots: the largest number of values that a link between two workers holds; None: no limit.

    Raises:
        PlanInvalid: the plan's stages are not those of this model.
        ScheduleInvalid: the schedule cannot run this plan.
        ValueError: the whole model is in evaluation mode, or one of its parameters has a hook; the optimizer couples
            parameters of different stages, or steps parameters that it was not given.
        TypeError: `loss_fn` is not callable, or `optimizer` does not make an optimizer.
    """

    @user_frames_only
    @tells_places(PLACES)
    def __init__(
        self,
        model: nn.Module | ModelGraph,
        loss_fn: Callable[[Any, Any], Any] | Loss,
        optimizer: StageOptimizer | OptimizerMaker,
        plan: Plan,
        *,
        schedule: str | Schedule | None = None,
        example_inputs: Any = None,
        seed: int = 0,
        exchange: MakesExchange | None = None,
        options: TrainingOptions | None = None,
        slots: int | None = None,
    ) -> None:
        if isinstance(model, ModelGraph):
            self.graph: ModelGraph = model
        elif example_inputs is None:
            raise PlanInvalid("to trace the model, give example_inputs: what its forward takes, as a tuple")
        else:
            self.graph = trace(model, example_inputs)
        if not self.graph.model.training:
            raise ValueError(
                f"{type(self.graph.model).__name__} is in evaluation mode as a whole, and an executor trains; call "
                f"model.train() first, and then eval() on those of its modules that should stay in evaluation"
            )
        make = OptimizerMaker.of(optimizer)
        options = TrainingOptions() if options is None else options
        self.schedule: Schedule = options.schedule(plan.schedule if schedule is None else schedule)
        self._loss = Loss.of(loss_fn)
        check_hooks(self.graph)
        check_plan(self.graph, plan)
        programs = [self.graph.stage_program(stage.operators) for stage in plan.stages]
        wiring = wire(plan, [id for id, program in enumerate(programs) if program.is_random])
        self.plan: Plan = wiring.plan
        """The plan with all edges that are carried out."""
        self.schedule.check(self.plan)
        self.stream: ActionStream = self.schedule.stream(self.plan)
        """The actions of all workers, and the position of the run."""
        self.links: InMemoryLinks = InMemoryLinks(self.plan, slots)
        self.workers: dict[PlanWorker, StageWorker] = {}
        self._seed = seed = seed_of_run(seed)
        maker = StageMaker(self.graph, wiring, self.schedule, self._loss, self._put_loss, make, seed, options=options)
        stages = {
            worker: {id: maker.stage(id, worker.replica, programs[id]) for id in self.plan.groups[worker.group]}
            for worker in self.plan.workers
        }
        self.exchanges: Mapping[Contributor, ReplicaExchange] = {}
        """The exchanges of stages that have replicas."""
        self._end_exchanges: Callable[[], object] = lambda: None
        sums = self._sums([one for own in stages.values() for one in own.values()], exchange)
        for worker, own in stages.items():
            self.workers[worker] = StageWorker(worker, self.plan, own, self.links, sums)
        self._rates = maker.rates
        self.recorded: deque[Performed] = deque(maxlen=1 << 16)
        """The newest 65,536 actions that were carried out, oldest first."""
        self.num_steps: int = 0
        """Steps of the whole run, including those before a state that was loaded."""
        self.on_performed: Callable[[PlanWorker, Action], object] = lambda worker, action: None
        """Called after each action, with its worker."""
        self._failure: tuple[str, BaseException] | None = None
        """Where and why a step or a drain failed."""
        self._queues: dict[PlanWorker, deque[Action]] = {worker: deque() for worker in self.plan.workers}
        self._metrics: dict[int, tuple[StepMetrics, int]] = {}

    def __repr__(self) -> str:
        model, num_stages = type(self.graph.model).__name__, len(self.plan.stages)
        return f"<LocalExecutor of {model} in {num_stages} stages, {self.schedule.name}>"

    def _sums(self, stages: list[RunningStage], exchange: MakesExchange | None) -> Sums:
        """How gradients of replicas are summed: in memory, or by exchanges, which are closed with this executor."""
        sums = InMemorySums()
        if exchange is None:
            return sums
        self.exchanges = exchanges_in_one_process(self.plan, stages, exchange)
        exchanged = ExchangeSums(sums, self.exchanges)
        self._end_exchanges = weakref.finalize(self, exchanged.close)
        return exchanged

    # --- training -----------------------------------------------------------------------------------------------------

    @user_frames_only
    def step(self, x: Any, y: Any) -> StepMetrics:
        """Train on one mini-batch.

        A schedule with a flush updates once. A schedule without a flush carries out the actions that are possible so
        far, which may finish earlier mini-batches and leave parts of this one for later steps.

        Args:
            x: the model's inputs: one tensor, a tuple of arguments, or a dictionary of keyword arguments. The first
                dimension of the first tensor counts the samples; tensors of another length go whole to each
                micro-batch.
            y: labels, any tree of tensors; cut into micro-batches like the inputs.

        Returns:
            The losses of the step, as far as they are known.

        Raises:
            StageFailed: the model, the loss or the optimizer raised.
            ScheduleInvalid: workers wait for each other (the message says which worker waits for what), or the
                mini-batch has fewer samples than the plan has micro-batches and the schedule needs them all.
            LocalExecutorFailed: an earlier step raised one of these.
        """
        self._check_usable()
        args, kwargs = as_arguments(x)
        graph = self.graph
        inputs = graph.bind(*args, **kwargs)
        pieces = split(inputs, y, self.plan.micro_batches, step=self.num_steps, whole=graph.whole_inputs)
        before = self.stream.position
        actions = self._actions(len(pieces))  # raises before anything is begun if the schedule cannot run this number
        with self._whole(f"at step {self.num_steps} (the first is 0)"):
            for worker in self.workers.values():
                worker.update.run_step = self.num_steps
            metrics = self._admit(before.next_micro_batch, pieces)
            self._enqueue(actions)
            self._play()
            if self.schedule.flushes:
                self._check_all_done()
                verdict = self.workers[self.plan.workers[0]].update.take_verdict()
                if verdict is not None and self.stream.position.versions != before.versions:
                    metrics.gradient_norm, metrics.is_skipped = verdict.norm, verdict.skips
        self.num_steps += 1
        return metrics

    @user_frames_only
    def finish(self, metrics: StepMetrics) -> None:
        """Continue until the metrics of a step are complete; drain the pipeline only if necessary.

        Args:
            metrics: what `step` returned.

        Raises:
            LocalExecutorFailed: an earlier step failed.
        """
        self._check_usable()
        if not metrics.done and not self.schedule.flushes:
            with self._whole(f"after {self.num_steps} steps"):
                self._enqueue(self.stream.admit(0))
                self._play()
        if not metrics.done:
            self.drain()

    @user_frames_only
    def drain(self) -> None:
        """Finish all micro-batches that were admitted, with updates for partial rounds and accumulated gradients.

        Raises:
            LocalExecutorFailed: an earlier step failed.
        """
        self._check_usable()
        with self._whole(f"in a drain after {self.num_steps} steps"):
            self._enqueue(self.stream.drain())
            self._play()
            self._check_all_done()

    @user_frames_only
    def evaluate(self, batches: Iterable[tuple[Any, Any]]) -> float:
        """Compute the loss over mini-batches in evaluation mode; drains the pipeline first.

        A mini-batch is not cut into micro-batches; several mini-batches are in different stages at once.

        Args:
            batches: pairs (x, y), as `step` takes them.

        Returns:
            The loss over all batches.

        Raises:
            TypeError: a mini-batch is not a pair.
            StageFailed: the model or the loss raised.
            ValueError: `batches` is empty.
        """
        self.drain()
        results = evaluated(self.evaluation, self.workers, self._loss, batches, wants_loss=True)
        found = [(one.value, one.weight) for one in results if one.value is not None]
        if not found:
            raise ValueError("there are no batches to evaluate on")
        return float(self._loss.over(found))

    @user_frames_only
    def predict(self, x: Any) -> Any:
        """Compute the model's outputs in evaluation mode, without an autograd graph; drains the pipeline first.

        Args:
            x: the model's inputs, as `step` takes them.

        Raises:
            StageFailed: the model raised.
        """
        self.drain()
        (result,) = evaluated(self.evaluation, self.workers, self._loss, [(x, None)], wants_loss=False)
        return result.outputs

    @cached_property
    def evaluation(self) -> StageEvaluation:
        """The stages in evaluation mode; their graph is traced at the first access."""
        return StageEvaluation(self.graph, self.plan)

    # --- what was learnt ----------------------------------------------------------------------------------------------

    @user_frames_only
    def to_module(self) -> nn.Module:
        """Return a copy of the model with the newest weights and buffers; drains the pipeline first."""
        state = self.state_dict()
        return filled(self.graph.model, {**state["parameters"], **state["buffers"]})

    def state_dict(self) -> dict[str, Any]:
        """Return all that a new executor needs to continue from here; drains the pipeline first.

        Returns:
            The newest "parameters" and "buffers", the state of the "optimizer" with its "options" and, if there is an
            `lr_schedule`, that of the "rates", by the names of the user's model; and "num_steps" and "seed", from
            which the random numbers of later steps follow. A buffer that several stages or replicas hold is taken
            from the first of them.
        """
        self.drain()
        return {**taken(self.stages(), self._rates), "num_steps": self.num_steps, "seed": self._seed}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from the state that `state_dict` returned, here or in another executor; drains the pipeline first.

        The plan and the schedule may differ from those of the state. As in PyTorch, the options of the optimizer are
        taken from the state, and so is the seed.

        Args:
            state: what `state_dict` returned, for the same model.

        Raises:
            ValueError: the state is of another model, or of an optimizer with other parameter groups.
            LocalExecutorFailed: an earlier step failed; make a new executor for the state.
        """
        num_steps, seed = run_facts(state)
        self.drain()
        give_back(state, self.stages(), self._rates)
        self.num_steps, self._seed = num_steps, seed
        for stage in self.stages():
            stage.setup = replace(stage.setup, seed=self._seed)

    def close(self) -> None:
        """End the threads of the exchanges; may be called twice."""
        self._end_exchanges()

    def stages(self) -> list[RunningStage]:
        """Return all stages on all replicas, ordered by stage and replica."""
        found = [stage for worker in self.workers.values() for stage in worker.stages.values()]
        return sorted(found, key=lambda stage: (stage.setup.id, stage.setup.replica))

    # --- carrying out actions -----------------------------------------------------------------------------------------

    @contextmanager
    def _whole(self, where: str) -> Generator[None]:
        """An exception in this context leaves micro-batches half done, so that no later result can be right."""
        try:
            yield
        except BaseException as error:
            self._failure = where, error
            raise

    def _check_usable(self) -> None:
        if self._failure is None:
            return
        where, error = self._failure
        raise LocalExecutorFailed(
            f"this executor failed {where} with {type(error).__name__}: {error}. Its micro-batches are half done, and "
            f"some stages may have updated; make a new LocalExecutor, and load what its state_dict returned before",
            step=self.num_steps,
        ) from error

    def _admit(self, first: int, pieces: Sequence[MicroBatchPiece]) -> StepMetrics:
        metrics = StepMetrics(len(pieces), self._loss)
        for index, piece in enumerate(pieces):
            number = first + index
            self._metrics[number] = metrics, index
            for stage in self.plan.stages:
                worker = self.plan.worker_of(stage.id, number)
                self.workers[worker].admit(stage.id, number, piece)
        return metrics

    def _actions(self, num: int) -> Mapping[PlanWorker, Sequence[Action]]:
        found = self.stream.admit(num)
        if num == self.plan.micro_batches or self.schedule.flushes:
            return found
        rest = self.stream.drain()  # a short mini-batch must not share its update with the next one's pieces
        return {worker: [*actions, *rest[worker]] for worker, actions in found.items()}

    def _enqueue(self, actions: Mapping[PlanWorker, Sequence[Action]]) -> None:
        for worker, found in actions.items():
            self._queues[worker].extend(found)

    def _play(self) -> None:
        """Perform one action of each worker in turn, until no worker can."""
        take_turns(self._queues, self.workers, self._perform)

    def _check_all_done(self) -> None:
        # Without a flush, queues are empty only after a drain: an update may wait for replicas whose pieces come later.
        if any(self._queues.values()):
            self._explain_stall()

    def _perform(self, worker: PlanWorker, action: Action) -> None:
        start_s = time.perf_counter()
        self.workers[worker].perform(action)
        self.recorded.append(Performed(worker, action, start_s, time.perf_counter()))
        self.on_performed(worker, action)

    def _explain_stall(self) -> None:
        waiting = [(worker, queue[0]) for worker, queue in self._queues.items() if queue]
        lines = [f"worker {worker} at {action} waits for {self.workers[worker].waits_for(action)}"
                 for worker, action in waiting]  # fmt: skip
        worker, action = waiting[0]
        raise ScheduleInvalid(
            f"no worker can continue: {'; '.join(lines)}. The schedule's actions do not fit together; "
            f"`ropewalk.pipeline.verify` finds the first that breaks a rule",
            action=str(action),
            worker=str(worker),
        )

    def _put_loss(self, micro_batch: int, value: Tensor, weight: float | None) -> None:
        metrics, index = self._metrics.pop(micro_batch)
        metrics.put(index, value, weight)


def check_hooks(graph: ModelGraph) -> None:
    """Check that nothing is hooked to the parameters of a model: stages train copies of them, without their hooks.

    Args:
        graph: the traced model.

    Raises:
        ValueError: a parameter has a hook.
    """
    for name, parameter in graph.parameters.items():
        tensor: Any = parameter
        if tensor._backward_hooks or tensor._post_accumulate_grad_hooks:
            raise ValueError(
                f"parameter {name!r} of {type(graph.model).__name__} has a hook on its gradient, and stages train "
                f"copies of the parameters, whose gradients no hook would see; let the forward or the optimizer do "
                f"what it does (detach() what is to stay, multiply by a mask, step less), and remove it"
            )


def check_plan(graph: ModelGraph, plan: Plan) -> None:
    """Check that a plan is for this model.

    Args:
        graph: the traced model.
        plan: the plan to check.

    Raises:
        PlanInvalid: the plan lacks operators or edges of the model, or has operators that the model does not have.
    """
    stage_of = {id: stage.id for stage in plan.stages for id in stage.operators}
    if strange := [id for id in stage_of if id not in graph.by_id]:
        raise PlanInvalid(
            f"{len(strange)} operators of the plan are not in {type(graph.model).__name__}, the first is "
            f"{strange[0]!r}; make the plan from this model's profile"
        )
    if missing := [one.id for one in graph.operators if one.id not in stage_of]:
        raise PlanInvalid(
            f"{len(missing)} operators of the model are in no stage, the first is {missing[0]!r}; make the plan from "
            f"this model's profile"
        )
    known = {(edge.tensor, target) for edge in plan.edges for target in edge.targets}
    for source, target in graph.edges:
        if stage_of[source] != stage_of[target] and (source, stage_of[target]) not in known:
            raise PlanInvalid(
                f"{target!r} in stage {stage_of[target]} reads {source!r} of stage {stage_of[source]}, and "
                f"the plan has no edge for it; make the plan from this model's profile"
            )
