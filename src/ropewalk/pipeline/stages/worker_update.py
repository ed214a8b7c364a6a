"""How a worker ends a round: from the summed gradients of its micro-batches to the steps of its stages.

    A/tied       parts of tied parameters ──▶ sums
    A/replicas   parts of all others      ──▶ sums
    A/norm       the sums, averaged; their norms ──▶ sums ──▶ one verdict for all stages
    U            the step: with the sums, or the averages that the verdict was about

A reduction is begun by its action, and its result is taken by the next action that needs it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ropewalk.errors import ScheduleInvalid
from ropewalk.pipeline.actions import Action, ActionKind, ReduceGroup
from ropewalk.pipeline.plans import Plan, PlanWorker
from ropewalk.pipeline.stages.gradient_norm import Norms, UpdateVerdict, judge
from ropewalk.pipeline.stages.gradient_sums import Contributor, GradientContribution, SumKey, Sums
from ropewalk.pipeline.stages.running_stage import RunningStage
from ropewalk.quantities import counted


class WorkerUpdate:
    """The reductions and steps of one worker.

    Args:
        worker: the worker's place in the plan.
        plan: the plan that all workers run.
        stages: its stages by id.
        sums: the sums with the other workers.
    """

    def __init__(self, worker: PlanWorker, plan: Plan, stages: Mapping[int, RunningStage], sums: Sums) -> None:
        self._worker = worker
        self._plan = plan
        self._stages = stages
        self._sums = sums
        self._tied = {stage: tuple(tie.parameter for tie in plan.tied if stage in tie.stages) for stage in stages}
        self._me = Contributor(min(stages), worker.replica)
        self._begun: dict[int, list[SumKey]] = {stage: [] for stage in stages}
        """Sums that were begun for the next step of each stage, and the sum of the norms."""
        self._norm: SumKey | None = None
        self._averaged: dict[int, GradientContribution] = {}
        """The averages whose norm was taken, until the steps."""
        self._verdict: UpdateVerdict | None = None
        """The verdict about the update that is under way, if it waits for the norm."""
        self.verdict: UpdateVerdict | None = None
        """The verdict about the newest update, until `take_verdict` takes it; then the counts over all updates."""
        self.run_step = 0
        """The number in the run of the step that is worked on, for errors: versions count the updates since a trainer
        began."""
        self.num_skipped = 0
        self.num_clipped = 0

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know about the updates so far, in words."""
        counts = ((self.num_skipped, "left out: gradients were NaN or infinite"), (self.num_clipped, "clipped"))
        return tuple(f"{counted(num, 'update')} {what}" for num, what in counts if num)

    def take_verdict(self) -> UpdateVerdict | None:
        """Return the verdict about the newest update and clear it; None if there was no update since the last call."""
        verdict, self.verdict = self.verdict, None
        return verdict

    def lacks(self, action: Action) -> tuple[SumKey, Sequence[Contributor]] | None:
        """Return a sum that a reduction or step needs and that is not complete, with its missing members."""
        if action.kind is ActionKind.STEP:
            wanted = self._begun[action.stage] if self._norm is None else [self._norm]
        elif action.group is ReduceGroup.NORM:
            wanted = [key for begun in self._begun.values() for key in begun]
        else:
            return None
        for key in wanted:
            if missing := self._sums.missing(key):
                return key, missing
        return None

    def reduce(self, action: Action) -> None:
        """Begin a sum with other workers."""
        if action.group is ReduceGroup.TIED:
            for stage in self._stages:  # one action serves all stages of a worker
                for tie in self._plan.tied:
                    if stage in tie.stages:
                        key = SumKey(f"tied {tie.parameter}", self._members(tie.stages), action.version)
                        self._begin(stage, key, self._stages[stage].contribution([tie.parameter]))
        elif action.group is ReduceGroup.REPLICAS:
            stage = self._stages[action.stage]
            key = SumKey.of_replicas(action.stage, self._members([action.stage]), action.version)
            names = [name for name in stage.versions.trainable if name not in self._tied[action.stage]]
            self._begin(action.stage, key, stage.whole_contribution(names))
        else:
            self._averaged = {id: stage.averaged(self._total(id)) for id, stage in self._stages.items()}
            members = tuple(Contributor(self._plan.groups[group][0], replica) for group, replica in self._plan.workers)
            self._norm = SumKey("norm", members, action.version)
            self._verdict = None
            self._sums.contribute(self._norm, self._me, GradientContribution({}, norms=self._own_norms()))

    def step(self, action: Action) -> None:
        """Make the next version of a stage's weights.

        Raises:
            ScheduleInvalid: the action's version is not the next.
            GradientNotFinite: gradients are NaN or infinite, and the policy is to raise.
        """
        stage, newest = self._stages[action.stage], self._stages[action.stage].versions.newest
        if action.version is not None and action.version != newest + 1:
            raise ScheduleInvalid(f"{action} would make version {action.version}, but the newest is {newest}")
        if action.stage not in self._averaged:
            stage.step(stage.averaged(self._total(action.stage)))
            return
        verdict = self._decided(stage, action)
        total = self._averaged.pop(action.stage)
        if verdict.skips:
            stage.skip()
        else:
            stage.step(total, verdict.factor)

    # --- private ------------------------------------------------------------------------------------------------------

    def _members(self, stages: Iterable[int]) -> tuple[Contributor, ...]:
        return tuple(
            Contributor(stage, replica) for stage in stages for replica in range(self._plan.stages[stage].replicas)
        )

    def _begin(self, stage: int, key: SumKey, contribution: GradientContribution) -> None:
        self._sums.contribute(key, Contributor(stage, self._worker.replica), contribution)
        self._begun[stage].append(key)

    def _total(self, stage: int) -> GradientContribution:
        """Return the sum over a stage's micro-batches, here and on the workers with which it was reduced."""
        total = self._stages[stage].whole_contribution(self._stages[stage].versions.trainable)
        begun, self._begun[stage] = self._begun[stage], []
        for key in begun:
            summed = self._sums.take(key, Contributor(stage, self._worker.replica))
            total = GradientContribution(
                {**total.gradients, **summed.gradients},
                total.weight if summed.weight is None else summed.weight,
                {**total.moments, **summed.moments},
                means=total.means | summed.means,
            )
        return total

    def _own_norms(self) -> Norms:
        """Return the norms that no other worker counts: copies on other replicas and in later stages are the same."""
        counted = {tie.parameter: tie.stages[0] for tie in self._plan.tied}
        return Norms.of(
            {
                stage.setup.positions[name]: gradient
                for id, stage in self._stages.items()
                for name, gradient in self._averaged[id].gradients.items()
                if gradient is not None and self._worker.replica == 0 and counted.get(name, id) == id
            }
        )

    def _decided(self, stage: RunningStage, action: Action) -> UpdateVerdict:
        """Return the verdict about this update, which is the same for all stages."""
        if self._norm is not None:
            norms = self._sums.take(self._norm, self._me).norms
            self._norm = None
            assert norms is not None
            self._verdict = judge(
                norms, stage.setup.options, tuple(stage.setup.positions), action.version, self.run_step
            )
            self.verdict = self._verdict
            self.num_skipped += self._verdict.skips
            self.num_clipped += self._verdict.clips
        assert self._verdict is not None
        return self._verdict
