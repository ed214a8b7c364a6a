"""`ElasticTrainer`: runs steps that all members of an epoch do, or none.

    begin ─▶ own share: forward, backward ─▶ exchange ─▶ vote ─▶ all have voted: optimizer.step, next batch
      ▲            │ a member died, whenever that is noticed               │
      │            ▼                                                       ▼ members change
      └── next epoch: the dead one's share is divided ◀── regroup ◀── new members get weights, rank 0 takes residuals

Weights, optimizer, buffers, random numbers and the exchange's state advance only after the vote.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ropewalk.errors import ExchangeAborted, ExchangeInvalid, GradientNotFinite, MemberLost
from ropewalk.exchange.elastic.membership import Commit, MembershipView, RefusedBatch
from ropewalk.exchange.elastic.shares import pass_on, seed_of, share_out
from ropewalk.exchange.exchange import Exchange, ExchangeReport, StepRecord
from ropewalk.exchange.packed_state import pack, unpack

if TYPE_CHECKING:
    from ropewalk.exchange.elastic.elastic_member import ElasticMember

_NOTES = 100
"""Number of notes that are kept, the latest ones."""

_Interrupted = (MemberLost, ExchangeAborted)
"""The errors of an exchange whose members have changed during a call."""


class ElasticTrainer:
    """Trains a model together with the current members; made by `worker.trainer`.

    Attributes:
        epoch: counts changes of the members, and batches that they left out.
        members: names by rank.
        num_steps: number of steps done.
        num_left_out: number of batches with which no step was done, those after the end of a loop that ended early
            included; the same on every member.
        left: whether this worker has left, on its own request or because it was asked to.
        lost: names of members that died while this one took part; the residuals of their exchanges are lost.
    """

    def __init__(
        self, member: ElasticMember, model: torch.nn.Module, optimizer: torch.optim.Optimizer, *, carry: Sequence[Any]
    ) -> None:
        self._member = member
        self._model = model
        self._optimizer = optimizer
        self._carry = carry
        self._parameters = {name: part for name, part in model.named_parameters() if part.requires_grad}
        self._frozen = {name: part for name, part in model.named_parameters() if not part.requires_grad}
        self._exchange: Exchange = member.new_exchange()
        self._is_bound = False
        self._overlaps = member.training.redo == "recompute"
        self._sends = False
        """Whether gradients that autograd completes are final, and sent at once."""
        self._sent: set[str] = set()
        self._is_exchanging = self._is_interrupted = False
        self._is_between_steps = False
        """Whether nothing of a step is under way here: the residuals are those of the last committed step."""
        self._interrupting = threading.Lock()
        self.epoch: int = -1
        self.members: tuple[str, ...] = ()
        self._before: tuple[tuple[str, ...], ...] = ()
        self.num_steps: int = 0
        self.num_left_out: int = 0
        self.left: bool = False
        self.lost: tuple[str, ...] = ()
        self._notes: list[str] = []
        self._has_next_members = False
        """Whether the members of the next step are others, whom this one has not joined yet. What its code does before
        that step, such as a step of the learning-rate schedule, belongs to the state that a newcomer gets."""
        self._num_refused = 0
        """The number of batches that all members have left out together."""
        self._refusal: GradientNotFinite | None = None
        """The error of this member's exchange, until the coordinator has decided about it."""
        self._wills_taken: set[str] = set()
        for name, parameter in self._parameters.items():
            hook: Callable[[Tensor], None] = partial(self._made, name)
            parameter.register_post_accumulate_grad_hook(hook)  # pyright: ignore[reportUnknownMemberType]
        member.interrupt, member.leave_now = self._interrupt, self._leave_now
        member.coordinator.join(member.name)
        self._enter_next()
        self._set_between_steps(True)

    def __repr__(self) -> str:
        return f"<ElasticTrainer {self._member.name!r}, one of {len(self.members)}, {self.num_steps} steps>"

    @property
    def rank(self) -> int:
        """The rank of this worker in the current epoch."""
        return self.members.index(self._member.name)

    @property
    def size(self) -> int:
        """The number of members in the current epoch."""
        return len(self.members)

    @property
    def exchange(self) -> Exchange:
        """The exchange through which gradients travel."""
        return self._exchange

    def step(self, batch: Tensor, loss_of: Callable[[Tensor], Tensor]) -> float:
        """Do one step over a batch, together with all members; return when all have done it.

        Args:
            batch: indices of all samples of the step, one-dimensional, the same on every member; each computes its
                share.
            loss_of: returns the mean loss over the samples with the given indices, as a scalar tensor with its graph.
                It is called again with other indices if a member dies, so it must change only the gradients, the
                buffers of the model and torch's random numbers, which are restored.

        Returns:
            The mean loss over the whole batch, the same on every member.

        Raises:
            TypeError: `batch` holds no indices, or `loss_of` cannot be called.
            ExchangeInvalid: a parameter is to be trained that was frozen when the trainer was made.
            RuntimeError: this worker has left.
            ExchangeStalled: a member that is alive does not come to the exchange.
            GradientNotFinite: the exchange of some member refuses a gradient. The step does not count, and all members
                raise this: do it again with the same batch and another loss, or go on with the next of
                `worker.batches`. The exchange leaves such batches out by itself with nan="skip", which counts them as
                steps.
        """
        _check_step(batch, loss_of)
        if thawed := [name for name, part in self._frozen.items() if part.requires_grad]:
            raise ExchangeInvalid(
                f"{thawed[0]!r} is trained now, and was frozen when worker.trainer was called, so that its gradients "
                f"would stay on this worker, and the weights of the members go apart; call worker.trainer with all "
                f"parameters that will be trained, and give those that wait a group of the optimizer with lr=0"
            )
        if self.left:
            raise RuntimeError(f"{self._member.name} has left after step {self.num_steps - 1}, and does no more steps")
        self._set_between_steps(False)
        if self._has_next_members or self._member.mailbox.epoch > self.epoch:
            self._enter_next()
        attempt = _Attempt(self._shares(batch), self._buffers())
        while (commit := self._try(attempt, loss_of)) is None:
            self._exchange.abort(self.epoch)
            if self._overlaps:  # parts that are kept are not computed again, and keep their effects on buffers
                self._restore(attempt.buffers)
            try:
                self._enter_next(self._member.training.timeouts.stalled_s)
            except GradientNotFinite:
                self._restore(attempt.buffers)
                raise
            attempt.shares = self._shares(batch)
        if not self._exchange.finish().skipped:
            self._optimizer.step()
        self.num_steps += 1
        self._before = ()
        if self._member.name in commit.parting:
            self._part()
        else:
            self._has_next_members = commit.changes
            self._set_between_steps(True)
        return commit.loss

    def report(self) -> ExchangeReport:
        """Return costs and effects of the exchange in all steps that this worker took part in."""
        report = self._exchange.report()
        return dataclasses.replace(report, notes=(*report.notes, *self._notes))

    # One attempt at a step

    def _try(self, attempt: _Attempt, loss_of: Callable[[Tensor], Tensor]) -> Commit | None:
        """Compute, exchange and vote; None if the members have changed meanwhile."""
        of_members = {name: float(sum(map(len, pieces))) for name, pieces in attempt.shares.items()}
        samples, total = of_members[self._member.name], sum(of_members.values())
        try:
            with self._interruptible():
                self._exchange.begin(StepRecord(self.num_steps, self.num_steps, samples, total_samples=total))
                loss = self._compute(attempt, loss_of)
                self._exchange.wait()
        except Exception as error:
            # After another thread has taken the step back, calls of the exchange raise that no step is open.
            if self._is_interrupted or isinstance(error, ExchangeAborted):
                return None
            if isinstance(error, MemberLost) and error.ranks:
                return None
            if not isinstance(error, GradientNotFinite):
                raise
            # Not raised yet: another member may not have it, if one died, or if the gradients go through servers.
            self._refusal = error
            batch = RefusedBatch(self.num_steps, str(error), error.ranks, error.parameters)
            self._member.coordinator.refuse(self._member.name, self.epoch, batch)
            return None
        if self._is_interrupted:
            return None
        self._member.coordinator.vote(self._member.name, self.epoch, self.num_steps, loss, samples)
        return self._member.mailbox.wait_outcome(self.epoch, self.num_steps)

    @contextlib.contextmanager
    def _interruptible(self) -> Generator[None]:
        """In this context another thread may take the step back; a step that was voted for must not be taken back."""
        self._is_exchanging, self._is_interrupted = True, False
        try:
            # A change that came before the flag was set has interrupted nothing.
            if self._member.mailbox.epoch > self.epoch or self._member.mailbox.has_ended:
                raise ExchangeAborted("the members changed before this step began", epoch=self.epoch)
            yield
        finally:
            with self._interrupting:
                self._is_exchanging = False

    def _interrupt(self, epoch: int) -> None:
        with self._interrupting:
            if self._is_exchanging and self.epoch == epoch:
                self._is_interrupted = True
                self._exchange.abort(epoch)

    def _leave_now(self) -> bool:
        """Leave with the residuals from before this step, which the others do without this worker."""
        with self._interrupting:
            if self._is_exchanging:
                self._is_interrupted = True
                self._exchange.abort(self.epoch)
            elif not self._is_between_steps:  # the worker has voted, and the step may be committed
                return False
            self._hand_over()
            return True

    def _set_between_steps(self, is_between: bool) -> None:
        with self._interrupting:
            self._is_between_steps = is_between

    def _compute(self, attempt: _Attempt, loss_of: Callable[[Tensor], Tensor]) -> float:
        """Make the gradients of this worker's share ready; return the sum of its losses."""
        pieces = attempt.shares[self._member.name]
        if self._overlaps:
            self._forget_gradients()
            self._sent.clear()
            self._sends = True
            try:
                loss = self._backward(pieces[0], 0, loss_of)
            finally:
                self._sends = False
            for name in reversed(self._parameters):
                if name not in self._sent:
                    self._send(name, None)
            return loss
        for number in range(attempt.num_computed, len(pieces)):
            self._forget_gradients()
            loss = self._backward(pieces[number], number, loss_of)
            attempt.add({name: part.grad for name, part in self._parameters.items()}, loss, len(pieces[number]))
        self._forget_gradients()
        for name in reversed(self._parameters):
            kept = attempt.sums.get(name)
            self._send(name, None if kept is None else kept / max(attempt.samples, 1))
        return attempt.loss

    def _backward(self, piece: Tensor, number: int, loss_of: Callable[[Tensor], Tensor]) -> float:
        """Compute gradients of the mean loss over a part of the batch; return the sum of losses."""
        if not len(piece):
            return 0.0
        devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
        with torch.random.fork_rng(devices):  # pyright: ignore[reportUnknownMemberType]
            # A repeated step must draw the same random numbers, and members must draw different ones.
            seed = seed_of(self._member.training.seed, self.num_steps, self.rank, number)
            torch.manual_seed(seed)  # pyright: ignore[reportUnknownMemberType]
            loss = loss_of(piece)
            loss.backward()  # pyright: ignore[reportUnknownMemberType]
        return float(loss.detach()) * len(piece)

    def _made(self, name: str, parameter: Tensor) -> None:
        """Send a gradient that autograd has completed."""
        if self._sends:
            if self._member.mailbox.epoch > self.epoch:
                raise ExchangeAborted("the members have changed in the middle of a backward", epoch=self.epoch)
            self._sent.add(name)
            self._send(name, parameter.grad)

    def _send(self, name: str, gradient: Tensor | None) -> None:
        parameter = self._parameters[name]
        parameter.grad = torch.zeros_like(parameter) if gradient is None else gradient
        self._exchange.ready(name, parameter.grad)

    def _forget_gradients(self) -> None:
        for parameter in self._parameters.values():
            parameter.grad = None

    def _shares(self, batch: Tensor) -> dict[str, list[Tensor]]:
        """Return each member's share of a batch; with redo="keep" no share becomes smaller when others die."""
        if self._overlaps:
            return share_out(batch, self.members)
        # All epochs of the step, even those that ended before this member saw them: all members agree on these.
        first, *others = *self._before, self.members
        shares = share_out(batch, first)
        for members in others:
            shares = pass_on(shares, members)
        return shares

    # Changes of members

    def _enter_next(self, timeout_s: float | None = None) -> None:
        """Become a member of the latest epoch, or of a later one if it ends meanwhile."""
        while True:
            view = self._member.mailbox.wait_view(self.epoch, timeout_s)
            if self._is_bound:
                self._raise_refused(view)
            try:
                self._enter(view)
                self._has_next_members = False
                return
            except _Interrupted:
                continue

    def _raise_refused(self, view: MembershipView) -> None:
        """Raise if all members leave out the batch of this step, one error for each batch.

        The view is entered when the next step begins: what this worker's code does about the error belongs to the state
        that newcomers get.
        """
        refusal, self._refusal = self._refusal, None
        if view.num_refused == self._num_refused or view.refused is None:
            return
        self._num_refused += 1
        self._set_between_steps(True)
        if refusal is not None:
            raise refusal
        refused = view.refused
        raise GradientNotFinite(refused.text, ranks=refused.ranks, parameters=refused.parameters, step=refused.step)

    def _enter(self, view: MembershipView) -> None:
        member = self._member
        is_first = not self._is_bound
        self.epoch, self.members, self._before = view.epoch, view.members, view.before
        group = member.make_group(view)
        if member.name in view.newcomers:
            self._load(member.mailbox.wait_state(view))
        elif self.rank == 0 and view.newcomers:
            member.send_state(view.newcomers, view.epoch, self._state())
        self.num_steps = view.step
        if is_first:
            self._exchange.bind(self._parameters.items(), group)
            self._is_bound = True
        if view.has_wills and self.rank == 0:
            for name, will in member.coordinator.take_wills().items():
                if name not in self._wills_taken:
                    self._exchange.take_errors(unpack(will))
                    self._wills_taken.add(name)
        self._note_lost(view)
        if view.epoch > 0:
            self._exchange.regroup(group)

    def _note_lost(self, view: MembershipView) -> None:
        for name in view.lost:
            if name not in self.lost:
                self.lost += (name,)
                kept = ", what it had kept back is lost" if self._exchange.errors() else ""
                self._notes = [*self._notes, f"step {view.step}: {name} died{kept}"][-_NOTES:]

    def _part(self) -> None:
        """Stop being a member, after a step."""
        self._hand_over()
        self.left = True
        self._exchange.close()

    def _hand_over(self) -> None:
        errors: Mapping[str, Tensor] = self._exchange.errors()
        will = pack(dict(errors)) if errors else None
        self._member.coordinator.left(self._member.name, will, sorted(self._wills_taken))

    def settle(self) -> None:
        """Join the members of the step that would be next, for newcomers among them: they get the last weights."""
        self._set_between_steps(False)
        # Newcomers wait for rank 0 also where the last batch was refused.
        is_awaited = self.rank == 0 and self._member.mailbox.epoch > self.epoch
        if self._has_next_members or is_awaited:
            self._enter_next()
            self._member.wait_delivered()  # the training may be over for all as soon as this worker has finished

    def close(self) -> None:
        """End the threads of the exchange; may be called twice."""
        self._exchange.close()

    # State for new members

    def _state(self) -> bytes:
        return pack(
            {
                "model": self._model.state_dict(),
                "optimizer": self._optimizer.state_dict(),
                "carry": [part.state_dict() for part in self._carry],
                "random": torch.get_rng_state(),
                "left_out": self.num_left_out,
                "refused": self._num_refused,
            }
        )

    def _load(self, packed: bytes) -> None:
        state = unpack(packed)
        self._model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])
        for part, its_state in zip(self._carry, state["carry"], strict=True):
            part.load_state_dict(its_state)
        torch.set_rng_state(state["random"])
        self.num_left_out = state["left_out"]
        self._num_refused = state["refused"]

    def _buffers(self) -> dict[str, Tensor]:
        return {name: buffer.clone() for name, buffer in self._model.named_buffers()}

    def _restore(self, buffers: Mapping[str, Tensor]) -> None:
        with torch.no_grad():
            for name, buffer in self._model.named_buffers():
                if name in buffers:
                    buffer.copy_(buffers[name])


def _check_step(batch: object, loss_of: object) -> None:
    """Check the arguments of a step, which are easily mixed up."""
    is_tensor = isinstance(batch, Tensor)
    if not is_tensor or batch.ndim != 1 or batch.is_floating_point() or batch.is_complex() or batch.dtype == torch.bool:
        shown = f"a tensor of {batch.dtype} with shape {tuple(batch.shape)}" if is_tensor else repr(batch)
        raise TypeError(
            f"batch is a one-dimensional tensor with the indices of the step's samples, as worker.batches gives it, "
            f"not {shown}; loss_of gets this worker's part of it"
        )
    if not callable(loss_of):
        raise TypeError(f"loss_of is a function that returns the mean loss over samples, not {loss_of!r}")


class _Attempt:
    """The results so far of a step that may have to be done again."""

    def __init__(self, shares: dict[str, list[Tensor]], buffers: dict[str, Tensor]) -> None:
        self.shares = shares
        self.buffers = buffers
        # With redo="keep", the sums of what was computed so far.
        self.sums: dict[str, Tensor] = {}
        self.loss = 0.0
        self.samples = 0
        self.num_computed = 0

    def add(self, gradients: Mapping[str, Tensor | None], loss: float, samples: int) -> None:
        """Add one more computed part: its mean gradients, its summed loss, its number of samples."""
        for name, gradient in gradients.items():
            if gradient is None:
                continue
            if name in self.sums:
                self.sums[name].add_(gradient, alpha=samples)
            else:
                self.sums[name] = gradient * samples
        self.loss += loss
        self.samples += samples
        self.num_computed += 1
