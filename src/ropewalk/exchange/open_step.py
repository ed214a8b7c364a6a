"""One step of a bucketed exchange: what members agreed on at its start, and the progress of each of its buckets."""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from ropewalk.errors import ExchangeInvalid
from ropewalk.exchange.buckets import Layout
from ropewalk.exchange.exchange import StepRecord
from ropewalk.exchange.groups.group import Work
from ropewalk.exchange.not_finite import NonFiniteVerdict


@dataclass
class Bucket:
    """A buffer that travels.

    Attributes:
        index: its position in the order of sending.
        layout: which parameter lies where.
        flat: this member's gradients, one-dimensional, and after the exchange the mean.
    """

    index: int
    layout: Layout
    flat: Tensor
    _made: tuple[Tensor, dict[str, Tensor]] | None = field(default=None, init=False, repr=False)
    """The memory of the last views, and these."""

    @property
    def views(self) -> dict[str, Tensor]:
        """Each parameter's part of `flat`, as a view in its shape."""
        flat, made = self.flat, self._made
        # Kept with their memory, because another thread may replace that (an abort) while views of it are made here:
        # the next step would be filled through these, and send the zeros of the new memory.
        if made is None or made[0] is not flat:
            made = self._made = flat, dict(self.layout.views(flat))
        return made[1]

    def replace_flat(self, flat: Tensor) -> None:
        """Replace the memory of the bucket; from any thread."""
        self.flat = flat


@dataclass(frozen=True, slots=True)
class Agreement:
    """What the members told each other at the start of a step.

    Attributes:
        samples: number of samples by rank.
        syncs: whether memories must be summed anew, because members changed or a state was loaded.
        fresh: ranks that have no state yet, while others do.
        all_joined: whether no member has any more batches.
    """

    samples: tuple[float, ...]
    syncs: bool = False
    fresh: tuple[int, ...] = ()
    all_joined: bool = False

    @property
    def total_samples(self) -> float:
        return sum(self.samples)

    def weight(self, rank: int) -> float:
        """Return the factor of this member's gradient in the mean; 0 where no member has any samples."""
        return self.samples[rank] / self.total_samples if self.total_samples else 0.0

    @property
    def source(self) -> int:
        """The first rank that has a state."""
        return next((rank for rank in range(len(self.samples)) if rank not in self.fresh), 0)

    @classmethod
    def of(cls, facts: Sequence[tuple[int, ...]]) -> Agreement:
        """Make the agreement from the results of `pack_facts` on all members.

        Raises:
            ExchangeInvalid: the members are not in the same step.
        """
        steps = [step for step, _, _ in facts]
        if len(set(steps)) > 1:
            raise ExchangeInvalid(
                f"members are in different steps: {', '.join(f'rank {at}: {step}' for at, step in enumerate(steps))}; "
                "each must begin every step once, and load the same checkpoint"
            )
        samples = tuple(struct.unpack("<d", struct.pack("<q", bits))[0] for _, bits, _ in facts)
        fresh = tuple(rank for rank, (_, _, flags) in enumerate(facts) if flags & _FRESH)
        if len(fresh) == len(facts):
            fresh = ()
        return cls(
            samples,
            syncs=bool(fresh) or any(flags & _SYNC for _, _, flags in facts),
            fresh=fresh,
            all_joined=all(flags & _JOINED for _, _, flags in facts),
        )


_SYNC, _FRESH, _JOINED = 1, 2, 4


def pack_facts(record: StepRecord, *, syncs: bool, fresh: bool) -> tuple[int, int, int]:
    """Pack the facts that a member sends at the start of a step as integers."""
    (bits,) = struct.unpack("<q", struct.pack("<d", record.samples))
    return record.step, bits, _SYNC * syncs + _FRESH * fresh + _JOINED * record.joined


class PendingWork(Work):
    """A part of a step in progress; `wait` raises the error of the step."""

    def __init__(self, step: OpenStep, done: threading.Event) -> None:
        self._step = step
        self._done = done

    @property
    def done(self) -> bool:
        return self._done.is_set()

    def wait(self) -> None:
        self._done.wait()
        if self._step.error is not None:
            raise self._step.error


@dataclass(slots=True)
class OpenStep:
    """A step between `begin` and `finish`.

    Attributes:
        record: the record given to `begin`.
        epoch: epoch of the group in which the step began.
        screens: whether members look for NaN and infinity, and tell each other.
        arrivals: one event per bucket, set when its gradients are the mean or the step has failed.
        grads: the tensors that results are copied to, by name.
        agreement: made on the communication thread before the first bucket.
        found: parameters with NaN or infinity in this member's gradient.
        verdict: what all members decided about such findings.
        error: why the step failed: its first error.
        settled: set when everything is done, or the step has failed.
        num_sent: number of buckets that were given to the communication thread.
        complete: the last bucket has come back, so that nothing is in flight any more.
        held: functions to call with the error of the step when it is settled.
    """

    record: StepRecord
    epoch: int
    screens: bool = False
    arrivals: dict[int, threading.Event] = field(default_factory=dict[int, threading.Event])
    grads: dict[str, Tensor] = field(default_factory=dict[str, Tensor])
    agreement: Agreement | None = None
    found: list[str] = field(default_factory=list[str])
    verdict: NonFiniteVerdict | None = None
    error: BaseException | None = None
    settled: threading.Event = field(default_factory=threading.Event)
    num_sent: int = 0
    complete: bool = False
    held: list[Callable[[BaseException | None], None]] = field(
        default_factory=list[Callable[[BaseException | None], None]]
    )

    @property
    def counts(self) -> bool:
        """Whether the exchange's own state advances with this step: not if no member has any samples."""
        agreed = self.agreement is not None and self.agreement.total_samples > 0
        return agreed and self.error is None and (self.verdict is None or self.verdict.goes_on)

    @property
    def agreed(self) -> Agreement:
        """The agreement, after the communication thread has made it."""
        assert self.agreement is not None, "a bucket is reduced after the members have agreed"
        return self.agreement

    def own_factor(self, rank: int) -> float:
        """Return the factor that turns this member's gradients, without the scale, into its part of the mean.

        It is applied before compression. The state of compressors is in this unit too, so that it means the same after
        a step of another number of samples.
        """
        return self.agreed.weight(rank) / self.record.scale

    @property
    def mean_factor(self) -> float:
        """The factor that turns a sum of such parts into the mean; 0 where no member has any samples."""
        return self.record.scale if self.agreed.total_samples else 0.0

    def arrival(self, index: int) -> PendingWork:
        return PendingWork(self, self.arrivals[index])

    def fail(self, error: BaseException) -> None:
        """Record the first error and wake up all threads that wait for a part of this step."""
        if self.error is None:
            self.error = error
        for event in list(self.arrivals.values()):
            event.set()
        self.settled.set()

    def release(self) -> None:
        """Call the functions in `held`."""
        while self.held:
            self.held.pop(0)(self.error)


def findings(messages: Sequence[tuple[memoryview, tuple[int, ...]]]) -> Mapping[int, Sequence[str]]:
    """Return names of parameters by rank, from messages of names joined with zero bytes."""
    return {rank: tuple(bytes(data).decode().split("\0")) for rank, (data, _) in enumerate(messages) if len(data)}
