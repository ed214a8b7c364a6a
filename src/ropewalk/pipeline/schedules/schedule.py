"""The base class of schedules: the order of actions for each worker of a plan, and the bounds that this order keeps.

A subclass defines `order` (the computing actions alone) and `in_flight`. This class adds
versions, recomputation, transfers, reductions and steps, so that all schedules treat them
alike:

    order        F0:0 F0:1 B0:0 ...
      + versions, recomputation, update  ->  F0:0v0 F0:1v0 C0:0v0 B0:0v0 ... U0v1
      + transfers (transfers.py)         ->  F0:0v0 S0:0>1/x F0:1v0 S0:1>1/x C0:0v0 R0:0<1/x B0:0v0 ... U0v1

Sources: GPipe (1811.06965), PipeDream (SOSP'19), Megatron (2104.04473), Zero Bubble
(2401.10241); the file of each schedule names its source.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from ropewalk.errors import ScheduleInvalid
from ropewalk.pipeline.actions import Action, ActionKind
from ropewalk.pipeline.grid import draw_grid
from ropewalk.pipeline.plans import Edge, Plan, PlanWorker, Stage
from ropewalk.pipeline.schedules.streams import ActionStream, Cut, EndlessStream, StepStream
from ropewalk.pipeline.updates import update


class Task(NamedTuple):
    """A computing action without a version."""

    kind: ActionKind
    stage: int
    micro_batch: int


class Schedule(ABC):
    """A configured schedule, which keeps no state of a run.

    If the schedule flushes, micro-batches are counted from 0 in each step, else from the last time
    the pipeline was empty; so are versions in `version` and `actions`.

    Args:
        norm: whether steps wait for the global norm of the gradients.
        accumulate: number of steps for each update, which sums the gradients of all of them.

    Raises:
        ScheduleInvalid: `accumulate` is below 1, or the schedule refuses `norm` or `accumulate`.
    """

    name: str
    """The name in `SCHEDULES`, such as `one_f_one_b`."""
    flushes: bool = True
    """Whether each step ends with an empty pipeline and one update of all stages."""
    splits_backward: bool = False
    """Whether the schedule has I and W in place of B."""
    uniform_replicas: bool = False
    """Whether all stages need equally many replicas."""
    refuses_norm: bool = False
    """Whether a barrier before the step would undo the schedule (docs/theory.md, "Barriers before an update")."""

    def __init__(self, *, norm: bool = False, accumulate: int = 1) -> None:
        if norm and self.refuses_norm:
            raise ScheduleInvalid(
                f"{self.name} lets workers step at different times, and a global norm would hold them all up "
                f"before the step; leave norm out, or take one_f_one_b or another that ends its steps together"
            )
        if accumulate < 1:
            raise ScheduleInvalid(f"accumulate is the number of steps per update, at least 1, not {accumulate}")
        if accumulate > 1 and not self.flushes:
            raise ScheduleInvalid(
                f"{self.name} updates while later micro-batches are under way, at moments of its own, and not every "
                f"{accumulate} steps; take a schedule with a flush, or pipedream_2bw with more micro-batches"
            )
        self.norm = norm
        self.accumulate = accumulate

    @property
    def stages_per_worker(self) -> int:
        """The number of stages on each worker."""
        return 1

    # --- defined by each schedule -------------------------------------------------------------------------------------

    @abstractmethod
    def order(self, plan: Plan, worker: PlanWorker) -> Iterator[Task]:
        """Yield the computing actions of a worker, in order: F and B, or F, I and W.

        Without a flush the order never ends, repeats itself once the pipeline is full, and can begin again between any
        two rounds: no backward of a later round comes before the end of an earlier one, and the forwards of the later
        round until then are those that fill the pipeline.

        Args:
            plan: the plan to run.
            worker: one of its workers.
        """

    @abstractmethod
    def in_flight(self, workers_after: int, replicas: int, micro_batches: int) -> int:
        """Return the most micro-batches between their forward and their B or I at one replica of a stage.

        If workers have one stage each, the number is exact: some replica of the stage reaches it. If they have several
        stages, it is an upper bound for every stage that the arguments fit, and `in_flight_at` is exact.

        Args:
            workers_after: workers of later stages, `plan.workers_after(stage)`.
            replicas: replicas of the stage.
            micro_batches: micro-batches of a step.
        """

    def held(self, workers_after: int, replicas: int, micro_batches: int, num_stages: int) -> int:
        """Return the most micro-batches between their forward and the end of their backward, including W.

        Exact where `in_flight` is.

        Args:
            workers_after: workers of later stages, `plan.workers_after(stage)`.
            replicas: replicas of the stage.
            micro_batches: micro-batches of a step.
            num_stages: stages of the plan.
        """
        return self.in_flight(workers_after, replicas, micro_batches)

    def between_halves(self, workers_after: int, replicas: int, micro_batches: int, num_stages: int) -> int:
        """Return the most micro-batches between I and the end of W; 0 if backwards are whole.

        An upper bound; by default all that are held.

        Args:
            workers_after: workers of later stages, `plan.workers_after(stage)`.
            replicas: replicas of the stage.
            micro_batches: micro-batches of a step.
            num_stages: stages of the plan.
        """
        return self.held(workers_after, replicas, micro_batches, num_stages) if self.splits_backward else 0

    def update_size(self, replicas: int, micro_batches: int) -> int:
        """Return the number of micro-batches in one update of a stage: by default those of a step.

        Args:
            replicas: replicas of the stage.
            micro_batches: micro-batches of a step.
        """
        return micro_batches

    def extra_versions(self, workers_after: int, replicas: int, num_stages: int) -> int:
        """Return the most versions of its weights that a stage keeps in addition to the newest.

        Args:
            workers_after: workers of later stages, `plan.workers_after(stage)`.
            replicas: replicas of the stage.
            num_stages: stages of the plan.
        """
        return 0

    def lag(self, plan: Plan, stage: int) -> int:
        """Return the most versions by which the weights of a forward that has not started yet may lag the newest.

        Args:
            plan: the plan to run.
            stage: the stage of the forward.
        """
        return 0

    def group_of(self, stage: int, num_groups: int) -> int:
        """Return the group of devices that runs a stage, of `num_groups` groups."""
        return stage

    def version(self, plan: Plan, stage: int, micro_batch: int) -> int:
        """Return the version of a stage's weights that the forward and the backward of a micro-batch use.

        Args:
            plan: the plan to run.
            stage: the stage.
            micro_batch: number of the micro-batch, counted as the class describes.
        """
        return 0

    def round_size(self, plan: Plan, stage: int) -> int:
        """Return the number of micro-batches in one update of a stage.

        Update u is that of micro-batches u * round_size to (u + 1) * round_size - 1.

        Args:
            plan: the plan to run.
            stage: the stage.
        """
        return self.update_size(plan.stages[stage].replicas, plan.micro_batches)

    def check(self, plan: Plan) -> None:
        """Check that the schedule can run a plan.

        Raises:
            ScheduleInvalid: the plan breaks a rule; the message has the rule and the values.
        """
        replicas = {stage.replicas for stage in plan.stages}
        if self.uniform_replicas and len(replicas) > 1:
            raise ScheduleInvalid(
                f"{self.name} needs equally many replicas of every stage, and this plan has "
                f"{[stage.replicas for stage in plan.stages]}; one_f_one_b, gpipe and pipedream take unequal ones"
            )
        num_stages, num_groups = len(plan.stages), len(plan.groups)
        if num_stages != self.stages_per_worker * num_groups:
            raise ScheduleInvalid(
                f"{self.name} runs {self.stages_per_worker} stage(s) on each group of devices, and this plan has "
                f"{num_stages} stages on {num_groups} groups; it needs {self.stages_per_worker * num_groups}"
            )
        wanted = tuple(self.group_of(stage, num_groups) for stage in range(num_stages))
        if plan.placement != wanted:
            raise ScheduleInvalid(
                f"{self.name} places stages 0, 1, ... on groups {wanted}, and this plan on {plan.placement}"
            )

    # --- exact bounds for one plan ------------------------------------------------------------------------------------

    def in_flight_at(self, plan: Plan, stage: int) -> int:
        """Return `in_flight` for one stage of a plan; exact for every schedule."""
        return self.in_flight(plan.workers_after(stage), plan.stages[stage].replicas, plan.micro_batches)

    def held_at(self, plan: Plan, stage: int) -> int:
        """Return `held` for one stage of a plan; exact for every schedule."""
        replicas = plan.stages[stage].replicas
        return self.held(plan.workers_after(stage), replicas, plan.micro_batches, len(plan.stages))

    def held_by(self, plan: Plan, group: int) -> int:
        """Return the most micro-batches held at once at all stages of a worker together; exact for every schedule."""
        (stage,) = plan.groups[group]
        return self.held_at(plan, stage)

    # --- admission ----------------------------------------------------------------------------------------------------

    def steps_ahead(self, plan: Plan) -> int:
        """Return the number of steps to admit before the first of them is done, so that no worker waits for admission.

        With a flush this is 2: the step that runs and the following one. Without a flush the pipeline holds the pieces
        that the first stage has in flight, which are several steps if a step has few micro-batches:

            step t     the oldest that may be under way when piece k of step t + n - 1 is to enter
            k - N      the piece whose backward the first stage does before that, with N in flight; all later stages
                       are past it, so all steps that end before it are done

        So the step that ends N pieces earlier must have been done: n = 1 + ceil(N / micro-batches of a step).
        """
        if self.flushes:
            return 2
        in_flight = self.in_flight_at(plan, 0) * plan.stages[0].replicas
        return 1 + -(-in_flight // plan.micro_batches)

    # --- for users ----------------------------------------------------------------------------------------------------

    def actions(self, plan: Plan, *, num_micro_batches: int | None = None) -> dict[PlanWorker, list[Action]]:
        """Return the actions of one step; without a flush, those of some pieces, from fill to drain.

        Args:
            plan: the plan to run.
            num_micro_batches: number of micro-batches; None: those of one step. With a flush, at most that many.

        Returns:
            The actions of each worker, in order.

        Raises:
            ScheduleInvalid: the plan, or the number, is out of this schedule's range.
        """
        stream = self.stream(plan)
        num = plan.micro_batches if num_micro_batches is None else num_micro_batches
        first, rest = stream.admit(num), stream.drain()
        return {worker: first[worker] + rest[worker] for worker in plan.workers}

    def stream(self, plan: Plan, *, start: Cut | None = None, only: PlanWorker | None = None) -> ActionStream:
        """Return the actions of a run without end, which are available as micro-batches are admitted.

        Args:
            plan: the plan to run.
            start: the position of the run, which `resuming.can_cut` must allow; None: its beginning.
            only: the worker whose lists are needed, those of others stay empty; None: all workers.

        Raises:
            ScheduleInvalid: the plan is out of this schedule's range.
        """
        self.check(plan)
        if self.flushes:
            begin = partial(self._step_orders, plan)
            return StepStream(plan, begin, accumulate=self.accumulate, start=start, only=only)
        sizes = [self.round_size(plan, stage.id) for stage in plan.stages]
        version = partial(self.version, plan)
        return EndlessStream(plan, partial(self._orders, plan), sizes, version, start=start, only=only)

    def _step_orders(self, plan: Plan, num: int) -> dict[PlanWorker, Iterator[Action]]:
        if num != plan.micro_batches:
            plan = replace(plan, micro_batches=num)
            self.check(plan)
        return self._orders(plan)

    def _orders(self, plan: Plan) -> dict[PlanWorker, Iterator[Action]]:
        return {worker: self._computing(plan, worker) for worker in plan.workers}

    def _computing(self, plan: Plan, worker: PlanWorker) -> Iterator[Action]:
        """The actions of a worker without transfers."""
        finishing = ActionKind.WEIGHT_GRADIENT if self.splits_backward else ActionKind.BACKWARD
        num_rounds = 0
        for kind, stage, micro_batch in self.order(plan, worker):
            version = self.version(plan, stage, micro_batch)
            if plan.stages[stage].recompute and kind in (ActionKind.BACKWARD, ActionKind.INPUT_GRADIENT):
                yield Action(ActionKind.RECOMPUTE, stage, worker.replica, micro_batch, version)
            yield Action(kind, stage, worker.replica, micro_batch, version)
            if not self.flushes and kind is finishing and self._ends_round(plan, stage, micro_batch):
                num_rounds += 1
                yield from update(plan, worker, [num_rounds] * len(plan.stages), norm=self.norm)
        yield from update(plan, worker, [1] * len(plan.stages), norm=self.norm)

    def _ends_round(self, plan: Plan, stage: int, micro_batch: int) -> bool:
        """Whether a replica has no later micro-batch in the same round."""
        size, following = self.round_size(plan, stage), micro_batch + plan.stages[stage].replicas
        return following // size > micro_batch // size

    def grid(self, plan: Plan) -> str:
        """Draw the computing actions of a plan's workers in one step; without a flush, from fill to drain.

        Args:
            plan: the plan to draw.

        Raises:
            ScheduleInvalid: the plan is out of this schedule's range.
        """
        return draw_grid(plan, self.actions(plan))

    def __str__(self) -> str:
        """The grid of 8 micro-batches through 4 workers."""
        num_groups, num_stages = 4, 4 * self.stages_per_worker
        stages = [Stage(stage, (f"{stage}",), (self.group_of(stage, num_groups),)) for stage in range(num_stages)]
        edges = [Edge(f"{stage}", stage, (stage + 1,), 1, 1) for stage in range(num_stages - 1)]
        return self.grid(Plan(tuple(stages), tuple(edges), (), self.name, 8))

    def __repr__(self) -> str:
        return f"<schedule {self.name}>"


def turns(plan: Plan, stage: int, replica: int) -> range:
    """Return the micro-batches of a step that a replica of a stage runs."""
    return range(replica, plan.micro_batches, plan.stages[stage].replicas)
