"""`BucketedExchange`: gradients fill buckets, and buckets travel while the backward pass continues.

    ready(name, grad) ─ copied ─▶ bucket (flat) ─ full ─▶ communication thread ─ reduce_bucket ─▶ completion thread
                  ▲                                                                                   │ copied back
                  └───────────────────────────────────────────────────────────────────────────────────┘
    begin ── ready* ── wait ─────────────────────── finish: commit_bucket of all
                        └ an error, or abort() ───▶ abort_bucket of all: the step has no effect

A subclass defines how one bucket becomes the mean over members (`reduce_bucket`), and the state that it keeps for that.
State is saved by parameter name, so that it survives a change of buckets (`rebucket`): see `BucketStore`. The two
threads belong to `StepFlow`. After a change of members, the first step begins with summing anew the memories that are
sums over members, and with supplying members that have no state.
"""

from __future__ import annotations

import abc
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypedDict

import torch
from torch import Tensor

from ropewalk.errors import ExchangeAborted, ExchangeInvalid, GradientNotFinite
from ropewalk.exchange import not_finite
from ropewalk.exchange.backward_order import BackwardOrder
from ropewalk.exchange.bucket_store import BucketStore, State
from ropewalk.exchange.buckets import BUCKET_BYTES, FIRST_BUCKET_BYTES, BucketEntry, Layout, plan_buckets
from ropewalk.exchange.exchange import Exchange, ExchangeReport, StepRecord
from ropewalk.exchange.groups.group import Group, Work
from ropewalk.exchange.not_finite import NanPolicy
from ropewalk.exchange.observers import WHOLE_STEP, Observer, Observers
from ropewalk.exchange.open_step import Agreement, Bucket, OpenStep, findings, pack_facts
from ropewalk.exchange.reporting import Ledger
from ropewalk.exchange.stall_detector import StallDetector
from ropewalk.exchange.step_flow import Done, StepFlow
from ropewalk.exchange.timeline import ExchangeTimeline


class BucketOptions(TypedDict, total=False):
    """Options of every `BucketedExchange`; see there."""

    bucket_bytes: int
    first_bucket_bytes: int
    nan: NanPolicy
    observers: Sequence[Observer]
    timeline: ExchangeTimeline | str | Path | None
    stall_warning_s: float | None


class BucketedExchange(Exchange):
    """Base class of exchanges that fuse gradients into buckets.

    Args:
        bucket_bytes: size in bytes at which a bucket is closed.
        first_bucket_bytes: the same for the first bucket, small so that sending begins early.
        nan: what happens when a member's gradient is NaN or infinite: "raise", "skip" the step, "zero" the components,
            or "pass" it on to all members, which is what a GradScaler needs.
        observers: observers that are told about each event of the exchange.
        timeline: where to write a trace; a path, or an `ExchangeTimeline`.
        stall_warning_s: seconds of waiting after which a warning names the members and gradients that are missing; None
            for never.

    Attributes:
        uniform: every member has one sample in every step, so that weights need not be agreed on. Set before `bind`.
        skipped: whether all members skipped the last step because of NaN or infinity; its gradients are zeros.
    """

    uniform: bool = False
    skipped: bool = False

    def __init__(
        self,
        *,
        bucket_bytes: int = BUCKET_BYTES,
        first_bucket_bytes: int = FIRST_BUCKET_BYTES,
        nan: NanPolicy = "pass",
        observers: Sequence[Observer] = (),
        timeline: ExchangeTimeline | str | Path | None = None,
        stall_warning_s: float | None = 30.0,
    ) -> None:
        self._bucket_bytes = bucket_bytes
        self._first_bucket_bytes = first_bucket_bytes
        self._nan: NanPolicy = not_finite.check_policy(nan)
        self._ledger = Ledger()
        told: list[Observer] = [self._ledger, *observers]
        if timeline is not None:
            told.append(timeline if isinstance(timeline, ExchangeTimeline) else ExchangeTimeline(timeline))
        if stall_warning_s is not None:
            told.append(StallDetector(stall_warning_s))
        self._observers = Observers(told)
        self._entries: tuple[BucketEntry, ...] = ()
        self._buckets = BucketStore(self)
        self._group: Group | None = None
        self._flow: StepFlow | None = None
        self._order: BackwardOrder | None = None
        self._step: OpenStep | None = None
        self._aborting = threading.RLock()
        self._next_step = 0
        self._syncs = False
        self._fresh = True

    # Methods for subclasses.

    @property
    def keeps_state(self) -> bool:
        """Whether buckets have state, which NaN must not corrupt and members must agree on when a step begins."""
        return False

    def prepare(self, bucket: Bucket) -> None:
        """Allocate what a new bucket needs. Not called on the communication thread; no bucket is in flight."""

    def discard(self, bucket: Bucket) -> None:
        """Release a bucket that is no longer used; `bucket_state` has returned its state before."""

    @abc.abstractmethod
    def reduce_bucket(self, bucket: Bucket, step: OpenStep) -> Callable[[], None] | None:
        """Begin to replace `bucket.flat`, this member's gradients, by the mean over members.

        Called on the communication thread, in the order of bucket indices on every member. The returned function is
        called on the completion thread, in the same order, and `bucket.flat` must be the mean after it; None: it is the
        mean already. `step.agreed` has the samples of all members. State must not change before `commit_bucket`.
        """

    def sync_bucket(self, bucket: Bucket, agreement: Agreement) -> None:
        """Sum memories anew and supply new members with state; on the communication thread, again if the step fails."""

    def commit_bucket(self, bucket: Bucket) -> None:
        """Take over the state that `reduce_bucket` prepared, because the step has succeeded."""

    def abort_bucket(self, bucket: Bucket) -> None:
        """Drop the state that `reduce_bucket` prepared, if any, because the step failed."""

    def bucket_state(self, bucket: Bucket) -> State:
        """Return copies of the committed state of a bucket."""
        return {}

    def load_bucket_state(self, bucket: Bucket, state: State) -> None:
        """Load state into a bucket; state of other parameters is ignored."""

    def interrupt(self) -> None:
        """Wake up calls that hang in `reduce_bucket` or its completion; may be called from any thread."""
        self.group.abort()

    def agree(self, record: StepRecord) -> Agreement:
        """Exchange the facts of this step with the other members; on the communication thread."""
        if self.uniform and not self.must_agree:
            return Agreement((1.0,) * self.group.size)
        facts = pack_facts(record, syncs=self._syncs, fresh=self._fresh)
        gathered = self.group.all_gather(memoryview(b""), [*facts, *self.further_facts()], "step")
        agreement = Agreement.of([theirs[: len(facts)] for _, theirs in gathered])  # refuses members of another step
        self.hear_facts([theirs[len(facts) :] for _, theirs in gathered])
        return agreement

    @property
    def must_agree(self) -> bool:
        """Whether members talk at the start of a step even where every sample counts the same."""
        return self.keeps_state

    def further_facts(self) -> Sequence[int]:
        """Return the numbers that a subclass sends at the start of a step; the same count of them on every member."""
        return ()

    def hear_facts(self, told: Sequence[Sequence[int]]) -> None:
        """Receive what `further_facts` returned on each member, by rank."""

    def tell_findings(self, names: Sequence[str]) -> Mapping[int, Sequence[str]]:
        """Tell all members where NaN or infinity was found, and return all findings; on the communication thread."""
        message = memoryview("\0".join(names).encode())
        return findings(self.group.all_gather(message, [], "not finite"))

    @property
    def next_step(self) -> int:
        """The number of the step after the last one that succeeded."""
        return self._next_step

    # Binding.

    @property
    def group(self) -> Group:
        """The group that this exchange is bound to."""
        if self._group is None:
            raise RuntimeError("this exchange is not bound; call bind(model.named_parameters(), group) first")
        return self._group

    @property
    def layouts(self) -> tuple[Layout, ...]:
        """The layouts of the buckets, in the order of sending."""
        return self._buckets.layouts

    def bind(self, named_parameters: Iterable[tuple[str, Tensor]], group: Group) -> None:
        if self._group is not None:
            raise RuntimeError("this exchange is bound already; close() it first, or use regroup() for other members")
        self._entries = tuple(BucketEntry.of(name, parameter) for name, parameter in named_parameters)
        self._buckets.planned = plan_buckets(self._entries, self._bucket_bytes, self._first_bucket_bytes)
        self._group = group
        self._flow = StepFlow(self, self._buckets, self._observers, self._nan, f"rank {group.rank} exchange")
        self._tell_bound()

    def regroup(self, group: Group) -> None:
        self._refuse_open_step("regroup")
        old, self._group = self.group, group
        self._syncs = self._syncs or group is not old or self._fresh
        self._tell_bound()

    def rebucket(self, layouts: Sequence[Layout]) -> None:
        """Switch to other buckets of the same parameters, between two steps; state is carried over by name.

        Args:
            layouts: the new buckets, in the order of sending, the same on every member.

        Raises:
            ExchangeInvalid: the buckets do not hold the same parameters, each once.
            RuntimeError: a step is open, or the exchange is not bound.
        """
        self._refuse_open_step("rebucket")
        if sorted(name for layout in layouts for name in layout.names) != sorted(entry.name for entry in self._entries):
            raise ExchangeInvalid("other buckets must hold the same parameters, each once")
        self._buckets.plan(layouts)
        self._tell_bound()

    def set_bucket_bytes(self, bucket_bytes: int, first_bucket_bytes: int = FIRST_BUCKET_BYTES) -> None:
        """Switch to buckets of other sizes, in bytes, as by `rebucket`; the sizes are the same on every member."""
        self.rebucket(plan_buckets(self._entries, bucket_bytes, first_bucket_bytes))
        self._bucket_bytes, self._first_bucket_bytes = bucket_bytes, first_bucket_bytes

    @property
    def bucket_bytes(self) -> int:
        """The size in bytes at which a bucket is closed."""
        return self._bucket_bytes

    def close(self) -> None:
        if self._flow is None:
            return
        if self._step is not None:
            self.abort(self._step.epoch)
        self._flow.close()
        # The kept state goes by name to the buckets of the next `bind`, which may have additional parameters.
        self._buckets.clear()
        self._flow = self._group = None
        self._observers.close()

    # Steps.

    def begin(self, record: StepRecord) -> None:
        self._refuse_open_step("begin a step")
        self._buckets.make()
        self._order = BackwardOrder(self._buckets.planned)
        self._open(record)

    def ready(self, name: str, grad: Tensor) -> Work:
        step, order = self._open_step("ready"), self._order
        bucket = self._buckets.of(name)
        assert order is not None, "buckets of a hook are not filled one by one"
        if grad.is_sparse:
            raise ExchangeInvalid(f"the gradient of {name!r} is a sparse tensor; make its layer with sparse=False")
        going = order.ready(name)
        with torch.no_grad():
            bucket.views[name].copy_(grad)
        step.grads[name] = grad
        self._observers.ready(name)
        self._send(step, going)
        return step.arrival(bucket.index)

    def wait(self) -> None:
        step = self._open_step("wait")
        if self._order is not None:
            for index, missing in self._order.rest():
                for name in missing:
                    self._buckets[index].views[name].zero_()
                self._send(step, [index])
        began = time.perf_counter()
        while not step.settled.wait(1.0):
            try:
                self._observers.waiting(time.perf_counter() - began)
            except Exception as error:
                self._bound_flow.fail(step, error)
        self._observers.phase("wait", WHOLE_STEP, began)
        if step.error is not None:
            raise step.error

    def finish(self) -> ExchangeReport:
        self.wait()
        return self._close_step(self._open_step("finish"))

    def abort(self, epoch: int) -> None:
        with self._aborting:
            step, flow = self._step, self._flow
            if step is None or flow is None or epoch < step.epoch:
                return
            # If all members went through the whole step, even one that they refused, the group is as good as before. If
            # this member stopped in the middle, its next call would be paired with another call of the others.
            went_through = isinstance(step.error, GradientNotFinite) or (step.complete and step.error is None)
            flow.fail(step, ExchangeAborted(f"step {step.record.step} was taken back", epoch=step.epoch))
            if step.num_sent and not went_through and self.group.size > 1:
                self.interrupt()
            flow.drain()
            for bucket in self._buckets:
                self.abort_bucket(bucket)
                # Transfers under way may still write to the old memory when a slow member arrives after all.
                bucket.replace_flat(torch.zeros_like(bucket.flat))
            self._step = self._order = None

    def carry(self, index: int, layout: Layout, flat: Tensor, *, last: bool, done: Done) -> None:
        """Exchange in place a bucket that the caller has filled, as part of the open step; in the order of indices.

        If the buckets differ from those of the last step, state is carried over by name. The exchange's state advances
        by itself when the last bucket is done; `finish` is not called.

        Args:
            index: index of the bucket, from 0.
            layout: which parameters lie where in the bucket.
            flat: this member's gradients, one-dimensional, as `layout` says; replaced by the mean.
            last: whether this is the last bucket of the step.
            done: called on a thread of the exchange with the error of the step, or None.

        Raises:
            RuntimeError: no step is open.
        """
        step = self._open_step("carry")
        if index < len(self._buckets) and self._buckets[index].layout != layout:
            # The buckets before it, which are in flight, stay: a parameter is in one bucket only.
            self._buckets.drop(index)
        if index == len(self._buckets):
            self._buckets.add(index, layout, flat)
            self._tell_bound()
        bucket = self._buckets[index]
        bucket.replace_flat(flat)
        step.arrivals[index] = threading.Event()
        for name in layout.names:
            self._observers.ready(name)
        if last:
            self._observers.waiting(0.0)
        self._bound_flow.send(step, bucket, is_last=last, done=done)

    def open_carried(self, record: StepRecord) -> None:
        """Begin a step whose buckets come by `carry`; a failed step before it is taken back."""
        self.take_back_failed_step()
        self._refuse_open_step("begin a step")
        self._order = None
        self._open(record)

    def take_back_failed_step(self) -> None:
        """Take back the open step if it has failed: of a carried step nobody else does so before the next begins."""
        if self._step is not None and self._step.error is not None:
            self.abort(self._step.epoch)

    # State.

    def report(self) -> ExchangeReport:
        return self._ledger.report()

    def state_dict(self) -> dict[str, Any]:
        self._refuse_open_step("take its state")
        return {"step": self._next_step, "size": self.group.size, "state": self._buckets.state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._refuse_open_step("load a state")
        self._next_step = int(state["step"])
        self._buckets.load(state["state"])
        self._fresh = False
        # Memories are summed anew only where members changed, because a sum in another order has other bits.
        self._syncs = int(state["size"]) != self.group.size

    # The course of a step.

    def _open(self, record: StepRecord) -> None:
        self._next_step = record.step
        self.skipped = False
        step = OpenStep(record, self.group.epoch, screens=self._nan != "pass" or self.keeps_state)
        step.arrivals = {bucket.index: threading.Event() for bucket in self._buckets}
        self._step = step
        self._observers.begin(record)

    def _send(self, step: OpenStep, indices: Iterable[int]) -> None:
        for index in indices:
            self._bound_flow.send(step, self._buckets[index], is_last=index == len(self._buckets) - 1)

    def settled(self, step: OpenStep, *, skipped: bool) -> None:
        """Record that all buckets of a step without an error have come back, and whether members skip it."""
        self.skipped = skipped
        if step.held and step.error is None:  # a carried step, for which `finish` is not called
            self._close_step(step)

    def _close_step(self, step: OpenStep) -> ExchangeReport:
        """Move the state forward, or back if the step does not count."""
        with self.timed("commit", WHOLE_STEP):
            for bucket in self._buckets:
                (self.commit_bucket if step.counts else self.abort_bucket)(bucket)
        self._step = self._order = None
        self._syncs = self._fresh = False
        self._buckets.forget_carried()
        self._next_step = step.record.step + 1
        self._observers.ended(step.record.step)
        agreed = step.agreed
        return self._ledger.finish(samples=agreed.total_samples, skipped=self.skipped, all_joined=agreed.all_joined)

    def tell_sent(self, bucket: Bucket, mode: str, num_values: int) -> None:
        """Tell observers that a bucket travels "dense", "sparse" or "bypass", with `num_values` own components."""
        self._observers.sent(bucket.index, str(mode), num_values)

    @property
    def _bound_flow(self) -> StepFlow:
        assert self._flow is not None, "a step is open between bind and close"
        return self._flow

    def _open_step(self, what: str) -> OpenStep:
        if self._step is None:
            raise RuntimeError(f"cannot {what} outside of a step; call begin(StepRecord(step)) first")
        return self._step

    def _refuse_open_step(self, what: str) -> None:
        self.group  # noqa: B018  (raises if the exchange is not bound)
        if self._step is not None:
            raise RuntimeError(f"cannot {what} while step {self._step.record.step} is open; call finish() or abort()")

    def _tell_bound(self) -> None:
        self._observers.bind(self.layouts, self.group)

    def timed(self, phase: str, bucket: int) -> AbstractContextManager[None]:
        """Tell observers how long a phase of a bucket takes."""
        return self._observers.timed(phase, bucket)
