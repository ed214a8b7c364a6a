"""The coordinator's decisions: which workers are members, and which steps count. Pure: events in, instructions out.

    GATHERING ──▶ STEPPING ──▶ every member voted: the step is committed ──┐
                  ▲ ▲ ▲ │ a member died: the same step again               │
                  │ │ │ └──────▶ next epoch ──▶ STEPPING                   │
                  │ │ └───────────────────────────── no member changes ◀───┤
                  │ └───────────────────── next epoch ◀── a worker joins ◀─┤
                  └── next epoch ◀── PARTING: a leaver hands over ◀────────┘

A step is committed when all members of the epoch say that they hold all of its gradients; before that no member changes
a weight. So if any member dies, the others have either all done the step or none has. In the same way a batch whose
gradients are not finite is left out by all or by none: when one member refuses it, the next epoch begins the step with
another batch. Members are identified by names that are never used again: a restarted process is a new member.

Ranks: members keep their order, new members come last. So rank 0 always has the weights, unless all members that had
them are gone.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RefusedBatch:
    """A batch that no member does a step with, as the member told it whose exchange refused a gradient first.

    Attributes:
        step: number of the step.
        text: the message of its error.
        ranks: ranks of the members whose gradients are not finite.
        parameters: names of the parameters.
    """

    step: int
    text: str
    ranks: tuple[int, ...] = ()
    parameters: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MembershipView:
    """The members from now on.

    Attributes:
        epoch: counts views.
        step: the next step; those before it are committed.
        members: names by rank.
        newcomers: the new ones among them, which take weights and states over from rank 0.
        has_wills: whether the coordinator holds residuals of workers that left, for rank 0 to take.
        loss: mean loss of the last step, over all its samples; 0.0 before the first.
        before: members of the epochs that began the same step and did not complete it, in their order.
        lost: names of members that died since the last step was committed, and whose residuals are lost.
        num_refused: how many batches were refused so far, because of gradients that are not finite.
        refused: the last of them.
    """

    epoch: int
    step: int
    members: tuple[str, ...]
    newcomers: tuple[str, ...] = ()
    has_wills: bool = False
    loss: float = 0.0
    before: tuple[tuple[str, ...], ...] = ()
    lost: tuple[str, ...] = ()
    num_refused: int = 0
    refused: RefusedBatch | None = None


@dataclass(frozen=True, slots=True)
class Form:
    """Tell all members of this view."""

    view: MembershipView


@dataclass(frozen=True, slots=True)
class Commit:
    """Tell these members that the step counts.

    Attributes:
        epoch: the epoch in which it was done.
        step: number of the step.
        members: members of that epoch.
        loss: mean over all samples of the step.
        parting: the members for which it was the last step.
        changes: whether the next step belongs to another epoch, whose view will follow.
    """

    epoch: int
    step: int
    members: tuple[str, ...]
    loss: float
    parting: tuple[str, ...] = ()
    changes: bool = False


@dataclass(frozen=True, slots=True)
class Expel:
    """Tell a worker that believes it is a member that it is not."""

    name: str
    why: str


@dataclass(frozen=True, slots=True)
class Finish:
    """The training is over.

    Attributes:
        why: the reason, in words.
        failed: the weights are lost with all members that had them.
    """

    why: str
    failed: bool = False


Instruction = Form | Commit | Expel | Finish


@dataclass(frozen=True, slots=True)
class StepSpan:
    """Steps `begin` to `end - 1`, which these members have done.

    Attributes:
        epoch: epoch of the members.
        members: names by rank.
        begin: the first step that this epoch could do.
        end: the first step that it did not do.
        why: the reason for the epoch.
    """

    epoch: int
    members: tuple[str, ...]
    begin: int
    end: int
    why: str


class EpochPhase(enum.Enum):
    """What the coordinator waits for."""

    GATHERING = "gathering"
    STEPPING = "stepping"
    PARTING = "parting"
    OVER = "over"


class Membership:
    """The members of one training.

    Args:
        founders: number of workers that begin together; more may join later.
        restarts: whether a worker that dies is replaced; otherwise the others do not wait for it when they begin.

    Raises:
        ValueError: `founders` is below 1.
    """

    def __init__(self, founders: int, *, restarts: bool = True) -> None:
        if founders < 1:
            raise ValueError(f"a training begins with 1 worker or more, not {founders}")
        self.phase = EpochPhase.GATHERING
        self.view: MembershipView | None = None
        self.step = 0
        self.history: list[StepSpan] = []
        self._founders = founders
        self._lost_founders: list[str] = []
        """How those ended that died before the training began, and are not restarted."""
        self._restarts = restarts
        self._joining: dict[str, None] = {}
        self._leaving: set[str] = set()
        """Members that want to leave after a step."""
        self._votes: dict[str, tuple[float, float]] = {}
        self._has_weights: set[str] = set()
        """Members that took part in a committed step."""
        self._gone: set[str] = set()
        self._dead: set[str] = set()
        """Those of the gone that ended without a word, or seemed to."""
        self._has_finished = False
        """Whether a worker has finished with the weights of all steps: later deaths do not make the training fail. A
        worker that left has not finished, nor has one after which the others did another step."""
        self.wills: tuple[str, ...] = ()
        """Names of workers that left, whose residuals are not in a committed step yet."""
        self._lost: tuple[str, ...] = ()
        """Members that died since the last step was committed."""
        self._loss = 0.0
        self._num_refused = 0
        self._refused: RefusedBatch | None = None
        # In the phase PARTING: the members that still have to hand over, those that stay, and the reasons.
        self._parting: set[str] = set()
        self._staying: tuple[str, ...] = ()
        self._reasons: list[str] = []
        self._has_died = False
        self._said: list[Instruction] = []

    @property
    def members(self) -> tuple[str, ...]:
        """The names of the members, by rank."""
        return self.view.members if self.view else ()

    @property
    def joining(self) -> tuple[str, ...]:
        """The workers that wait to become members, in the order in which they came."""
        return tuple(self._joining)

    @property
    def awaited(self) -> tuple[str, ...]:
        """The members that the training waits for now."""
        if self.phase is EpochPhase.PARTING:
            return tuple(name for name in self.members if name in self._parting)
        if self.phase is EpochPhase.STEPPING:
            return tuple(name for name in self.members if name not in self._votes)
        return ()

    # Events

    def joins(self, name: str) -> list[Instruction]:
        """Record that a new worker is ready to take part."""
        if name in self._gone:
            self._expel(name)
        elif self.phase is not EpochPhase.OVER and name not in self.members:
            self._joining[name] = None
            self._gather()
        return self._settle()

    def gathers_no_more(self) -> list[Instruction]:
        """Begin with the workers that are ready, because waiting for all founders has timed out."""
        if self._joining and self.phase is EpochPhase.GATHERING:
            self._founders = min(self._founders, len(self._joining))
            self._gather()
        return self._settle()

    def leaves(self, name: str) -> list[Instruction]:
        """Record that a member wants to leave after the current step, or that a worker no longer wants to join."""
        self._joining.pop(name, None)
        if name in self.members:
            self._leaving.add(name)
        return self._settle()

    def voted(self, name: str, epoch: int, step: int, loss: float = 0.0, samples: float = 0.0) -> list[Instruction]:
        """Record that a member holds all gradients of a step.

        Args:
            name: name of the member.
            epoch: the epoch in which it got them; a vote of an earlier epoch does not count.
            step: number of the step.
            loss: sum of the losses of its samples.
            samples: number of its samples.

        Raises:
            ValueError: the step is not that of the epoch.
        """
        if name in self._gone:
            self._expel(name)
        elif self.phase is EpochPhase.STEPPING and name in self.members and epoch == self._epoch:
            if step != self.step:
                raise ValueError(f"{name} votes for step {step} of epoch {epoch}, which is at step {self.step}")
            self._votes[name] = (loss, samples)
            if len(self._votes) == len(self.members):
                self._commit()
        return self._settle()

    def refuses(self, name: str, epoch: int, batch: RefusedBatch) -> list[Instruction]:
        """Record that the exchange of a member has refused a gradient; the members begin the step with another batch.

        They do so in another epoch, so that all of them refuse the batch, or none: also those that have not heard of
        the gradient, because a member died when it told of its own, or because only servers see all gradients.

        Args:
            name: name of the member.
            epoch: the epoch in which the gradient was refused; an earlier one does not count, its step is done again.
            batch: what was refused.
        """
        if name in self._gone:
            self._expel(name)
        elif (
            self.phase is EpochPhase.STEPPING
            and name in self.members
            and (epoch, batch.step) == (self._epoch, self.step)
        ):
            self._num_refused, self._refused = self._num_refused + 1, batch
            self._form(self.members, [f"{name} refused a batch of step {self.step}"], in_step=True, is_new_batch=True)
        return self._settle()

    def left(self, name: str, *, has_will: bool = False, includes: Sequence[str] = ()) -> list[Instruction]:
        """Record that a member has left; if it had residuals after its last committed step, they are here.

        The member left after that step, when it was its turn or while others hand over, or in the middle of the next
        step, for which it has not voted and which the others do without it.

        Args:
            name: name of the member.
            has_will: whether it handed over residuals.
            includes: names of earlier leavers whose residuals it had taken over, so that its own include theirs.
        """
        is_staying = self.phase is EpochPhase.PARTING and name in self._staying
        if is_staying or name in self.awaited:
            self.wills = tuple(other for other in self.wills if other not in includes)
            if has_will:
                self.wills += (name,)
            self._gone.add(name)
            self._drop(name, "left")
        return self._settle()

    def finished(self, name: str) -> list[Instruction]:
        """Record that the code of a worker has finished: the worker does no more steps."""
        # The code of a worker that has left ends as well, in the middle of the training of the others.
        self._has_finished |= name in self._has_weights and name not in self._gone
        self._gone.add(name)
        self._drop(name, "has finished")
        self._expect_one_less(failed="")
        return self._settle()

    def died(self, name: str, why: str = "died") -> list[Instruction]:
        """Record that a worker is gone, whatever it was doing."""
        is_news = name not in self._gone
        self._gone.add(name)
        if is_news:
            self._dead.add(name)
        self._drop(name, why, by_death=True)
        if is_news and not self._restarts:
            self._expect_one_less(failed=f"{name} {why}")
        return self._settle()

    def failed(self, name: str) -> list[Instruction]:
        """Record that the code of a worker has raised; its error makes the training fail if nothing is returned."""
        if name in self._dead:
            self._expel(name)
        return self._settle()

    # Changes

    @property
    def _epoch(self) -> int:
        return self.view.epoch if self.view else -1

    def _gather(self) -> None:
        if self.phase is EpochPhase.GATHERING and len(self._joining) >= self._founders:
            # Sorted by number, not by arrival, so that another run does the same.
            self._joining = dict.fromkeys(sorted(self._joining, key=lambda name: (len(name), name)))
            self._form((), [f"{len(self._joining)} workers begin"])

    def _expect_one_less(self, *, failed: str) -> None:
        """Begin without a founder that will never come; `failed` says how it ended, if not well."""
        if self.phase is EpochPhase.GATHERING:
            self._founders -= 1
            if failed:
                self._lost_founders.append(failed)
            if self._founders:
                self._gather()
            elif failed:
                why = "; ".join(self._lost_founders)
                self._finish(f"no worker has done a step, and none is left: {why}", failed=True)
            else:
                self._finish("no worker has done a step")

    def _commit(self) -> None:
        losses = [self._votes[name] for name in self.members]  # by rank, so that the sum has the same bits
        samples = sum(count for _, count in losses)
        self._loss = sum(loss for loss, _ in losses) / samples if samples else 0.0
        self._has_weights = set(self.members)
        self._has_finished = False
        # Rank 0 had taken the residuals over before it began the step; until now it could have died with them.
        self._votes, self.wills, self._lost = {}, (), ()
        step, self.step = self.step, self.step + 1
        self.history[-1] = dataclasses.replace(self.history[-1], end=self.step)
        parting = [name for name in self.members if name in self._leaving]
        if self._joining and len(parting) == len(self.members):
            del parting[0]  # one member must stay until the weights are handed over
        changes = bool(parting or self._joining)
        self._said.append(Commit(self._epoch, step, self.members, self._loss, tuple(parting), changes))
        if parting:
            self.phase = EpochPhase.PARTING
            self._parting = set(parting)
            self._staying = tuple(name for name in self.members if name not in self._parting)
            self._reasons, self._has_died = [], False
        elif changes:
            self._form(self.members, [])

    def _drop(self, name: str, why: str, *, by_death: bool = False) -> None:
        """Continue without a worker."""
        self._joining.pop(name, None)
        self._leaving.discard(name)
        if by_death and (name in self._parting or name in (self._staying if self._parting else self.members)):
            self._lost += (name,)
        if self.phase is EpochPhase.PARTING and (name in self._parting or name in self._staying):
            # The others are told of all changes at once, when the leaving members have handed over.
            self._parting.discard(name)
            self._staying = tuple(other for other in self._staying if other != name)
            self._reasons.append(f"{name} {why}")
            self._has_died |= by_death
            if not self._parting:
                self._go_on(self._staying, self._reasons, by_death=self._has_died)
        elif self.phase is EpochPhase.STEPPING and name in self.members:
            stay = tuple(other for other in self.members if other != name)
            # No worker joins in the middle of a step: its weights would not be those of the members.
            self._go_on(stay, [f"{name} {why}"], by_death=by_death, in_step=True)

    def _go_on(self, stay: tuple[str, ...], reasons: list[str], *, by_death: bool, in_step: bool = False) -> None:
        have_weights = not self._has_weights or bool(self._has_weights & set(stay))
        if stay and have_weights:
            self._form(stay, reasons, in_step=in_step)
        elif by_death and not self._has_finished:
            self._finish(
                f"{', '.join(reasons)}, and nobody is left who has the weights of step {self.step}; begin again from a "
                "checkpoint, and use more workers, or machines that fail one at a time",
                failed=True,
            )
        else:  # workers that have just joined must not start over what the others have finished
            self._finish(f"no worker is left after {self.step} steps: {', '.join(reasons)}")

    def _form(
        self, stay: tuple[str, ...], reasons: list[str], *, in_step: bool = False, is_new_batch: bool = False
    ) -> None:
        members = stay
        if self._joining and not in_step:
            members += tuple(self._joining)
            if stay:
                reasons = [*reasons, f"{', '.join(self._joining)} joined"]
            self._joining = {}
        self._votes = {}
        newcomers = tuple(name for name in members[1:] if name not in self._has_weights)
        before: tuple[tuple[str, ...], ...] = ()
        if in_step and not is_new_batch and self.view:
            before = (*(self.view.before if self.view.step == self.step else ()), self.members)
        self.view = MembershipView(
            self._epoch + 1,
            self.step,
            members,
            newcomers,
            bool(self.wills),
            self._loss,
            before,
            self._lost,
            self._num_refused,
            self._refused,
        )
        self.history.append(StepSpan(self.view.epoch, members, self.step, self.step, ", ".join(reasons)))
        self.phase = EpochPhase.STEPPING
        self._said.append(Form(self.view))

    def _finish(self, why: str, *, failed: bool = False) -> None:
        self.phase = EpochPhase.OVER
        self._said.append(Finish(why, failed))

    def _expel(self, name: str) -> None:
        self._said.append(Expel(name, f"{name} was taken for dead, or had left"))

    def _settle(self) -> list[Instruction]:
        said, self._said = self._said, []
        return said
