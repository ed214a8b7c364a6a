"""What a schedule is: for each worker of a plan the order of its actions, and the bounds that this order keeps.

Who writes one gives `order` (only what is computed, and when) and `in_flight`; versions,
recomputation, transfers, reductions and steps are added here, so that every schedule
treats them alike:

    order        F0:0 F0:1 B0:0 ...
      + versions, recomputation, update  ->  F0:0v0 F0:1v0 C0:0v0 B0:0v0 ... U0v1
      + transfers (transfers.py)         ->  F0:0v0 S0:0>1/x F0:1v0 S0:1>1/x C0:0v0 R0:0<1/x B0:0v0 ... U0v1

Sources: GPipe (1811.06965), PipeDream (SOSP'19), Megatron (2104.04473), Zero Bubble
(2401.10241); each schedule's file names its own.
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
    """One thing to compute, before it has a version."""

    kind: ActionKind
    stage: int
    micro_batch: int


class Schedule(ABC):
    """A configured schedule; it keeps no state of a run.

    Micro-batches are counted from 0 in each step if it flushes, else from the last time
    the pipeline was empty; so are versions in `version` and `actions`.

    Args:
        norm: Whether steps wait for the global norm of the gradients.
        accumulate: An update ends only every so many steps, and sums the gradients of all of them.
    """

    #: How it is asked for, `one_f_one_b`.
    name: str
    #: Whether each step ends with an empty pipeline and one update of all stages.
    flushes: bool = True
    #: Whether it has I and W in place of B.
    splits_backward: bool = False
    #: Whether all stages need equally many replicas.
    uniform_replicas: bool = False
    #: Whether a barrier before the step would undo the schedule (docs/theory.md, "Barriers before an update").
    refuses_norm: bool = False

    def __init__(self, *, norm: bool = False, accumulate: int = 1) -> None:
        if norm and self.refuses_norm:
            raise ScheduleInvalid(
                f"{self.name} lets workers step at different times, and a global norm would hold them all up "
                f"before the step; leave norm out, or take one_f_one_b or another that ends its steps together"
            )
        if accumulate < 1:
            raise ScheduleInvalid(f"an update ends every so many steps, at least 1, not {accumulate}")
        if accumulate > 1 and not self.flushes:
            raise ScheduleInvalid(
                f"{self.name} updates while later micro-batches are under way, at moments of its own, and not every "
                f"{accumulate} steps; take a schedule with a flush, or pipedream_2bw with more micro-batches"
            )
        self.norm = norm
        self.accumulate = accumulate

    @property
    def stages_per_worker(self) -> int:
        """How many stages share a worker."""
        return 1

    # --- what each schedule gives ------------------------------------------------------------------------------------

    @abstractmethod
    def order(self, plan: Plan, worker: PlanWorker) -> Iterator[Task]:
        """What a worker computes, in order: F and B, or F, I and W.

        Without a flush it never ends, repeats itself once the pipeline is full, and can begin again between any two
        rounds: nothing of a later round goes backward before an earlier one has ended, and what was forwarded of it
        by then is what fills the pipeline.
        """

    @abstractmethod
    def in_flight(self, workers_after: int, replicas: int, micro_batches: int) -> int:
        """At most so many micro-batches are between their forward and their B or I at one replica of a stage.

        Exact, if workers have one stage each: some replica of the stage gets there. If they have several,
        it holds for every stage that could be meant, and `in_flight_at` is exact.

        Args:
            workers_after: workers of later stages, `plan.workers_after(stage)`.
            replicas: replicas of the stage.
            micro_batches: micro-batches of a step.
        """

    def held(self, workers_after: int, replicas: int, micro_batches: int, num_stages: int) -> int:
        """At most so many are between their forward and the end of their backward, W included; as `in_flight`."""
        return self.in_flight(workers_after, replicas, micro_batches)

    def extra_versions(self, workers_after: int, replicas: int, num_stages: int) -> int:
        """How many versions of its weights a stage keeps beside the newest, at most."""
        return 0

    def lag(self, plan: Plan, stage: int) -> int:
        """How many versions behind the newest a forward that has not started yet may ask for, at most."""
        return 0

    def group_of(self, stage: int, num_groups: int) -> int:
        """On which of so many groups of devices a stage runs."""
        return stage

    def version(self, plan: Plan, stage: int, micro_batch: int) -> int:
        """The version of the weights that forward and backward of a micro-batch use."""
        return 0

    def round_size(self, plan: Plan, stage: int) -> int:
        """How many micro-batches make one update of a stage: update u is that of u * round_size and the following."""
        return plan.micro_batches

    def check(self, plan: Plan) -> None:
        """Whether this plan can run so.

        Raises:
            ScheduleInvalid: it cannot; names the rule and the values.
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
        """`in_flight` of one stage of a plan, exact for every schedule."""
        return self.in_flight(plan.workers_after(stage), plan.stages[stage].replicas, plan.micro_batches)

    def held_at(self, plan: Plan, stage: int) -> int:
        """`held` of one stage of a plan, exact for every schedule."""
        replicas = plan.stages[stage].replicas
        return self.held(plan.workers_after(stage), replicas, plan.micro_batches, len(plan.stages))

    def held_by(self, plan: Plan, group: int) -> int:
        """How many are held at once at all stages of a worker together, at most; exact for every schedule."""
        (stage,) = plan.groups[group]
        return self.held_at(plan, stage)

    # --- admission ----------------------------------------------------------------------------------------------------

    def steps_ahead(self, plan: Plan) -> int:
        """How many steps must be admitted before the first of them is done, so that no worker waits for admission.

        With a flush 2: one is run, the following one is there. Without one the pipeline holds what the first stage has
        in flight, which is several steps where a step has few micro-batches:

            step t     the oldest that may be under way when piece k of step t + n - 1 is to enter
            k - N      the piece whose backward the first stage does before that, with N in flight; all later stages
                       are past it, so all steps that end before it are done

        So the step that ends N pieces before must be the one that gave way: n = 1 + ceil(N / micro-batches of a step).
        """
        if self.flushes:
            return 2
        in_flight = self.in_flight_at(plan, 0) * plan.stages[0].replicas
        return 1 + -(-in_flight // plan.micro_batches)

    # --- what users ask for -------------------------------------------------------------------------------------------

    def actions(self, plan: Plan) -> dict[PlanWorker, list[Action]]:
        """All actions of one step; without a flush those of `plan.micro_batches` pieces, from fill to drain.

        Raises:
            ScheduleInvalid: the plan is out of this schedule's range.
        """
        stream = self.stream(plan)
        first, rest = stream.admit(plan.micro_batches), stream.drain()
        return {worker: first[worker] + rest[worker] for worker in plan.workers}

    def stream(self, plan: Plan, *, start: Cut | None = None, only: PlanWorker | None = None) -> ActionStream:
        """The same piece by piece, without end.

        Args:
            plan: what runs.
            start: where the run is; None: at its beginning. A place that `resuming.can_cut` allows.
            only: the worker whose lists are wanted, those of others stay empty; None: all.

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
        """What a worker does, but for transfers."""
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
        """Whether the replica has no later micro-batch in the same round."""
        size, following = self.round_size(plan, stage), micro_batch + plan.stages[stage].replicas
        return following // size > micro_batch // size

    def grid(self, plan: Plan) -> str:
        """Draw what the workers of a plan compute in one step; without a flush, from fill to drain.

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
    """The micro-batches of a step that a replica of a stage runs."""
    return range(replica, plan.micro_batches, plan.stages[stage].replicas)
