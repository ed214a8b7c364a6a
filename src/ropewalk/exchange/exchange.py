"""`Exchange`: the interface that averages gradients over members, by whichever transport.

        begin(step) ── ready(name, grad) ── ready ── ready ── finish() ──▶ every gradient is the mean
                            └─ a bucket is full: it travels while the backward pass continues

The data-parallel loop, the hook of DistributedDataParallel and a replicated pipeline stage all call this interface.
A step is atomic: until `finish` has returned, none of the exchange's own state has changed, and `abort` takes the step
back.
"""

from __future__ import annotations

import abc
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from ropewalk.errors import ExchangeInvalid
from ropewalk.exchange.groups.group import Group, Work


@dataclass(frozen=True, slots=True)
class StepRecord:
    """A member's statement about the gradients that follow.

    Attributes:
        step: counts optimizer steps, from 0; the same on every member.
        version: weight version that the gradients belong to (for asynchronous exchanges; otherwise the step).
        samples: weight of this member's gradients in the mean, `sum n_r g_r / sum n_r`; 0 means "I have none", and the
            member takes part in everything else.
        scale: the factor that the gradients were multiplied by (a GradScaler's); state is kept without it.
        total_samples: the sum of all members' samples, where the caller knows it, the same on every member; None where
            the exchange is to find out.
        scaled: whether a GradScaler inspects these gradients; it must see infinities, whatever `scale` is.
        joined: this member has no more batches and takes part for the others; `samples` is 0.
    """

    step: int
    version: int = 0
    samples: float = 1.0
    scale: float = 1.0
    total_samples: float | None = None
    scaled: bool = False
    joined: bool = False


@dataclass(frozen=True, slots=True)
class ExchangeReport:
    """Costs and effects of one step, or of all steps so far.

    Attributes:
        steps: number of steps covered.
        sent_bytes: payload that this member sent.
        received_bytes: payload that this member received.
        header_bytes: bytes that this member sent in addition to the payload.
        dense_bytes: bytes that this member would have sent with a dense ring all-reduce of the same gradients.
        density: components sent over all components; 1.0 for dense exchanges.
        error_norm: Euclidean norm of what compression has kept back so far; 0.0 where it keeps nothing back.
        seconds: time in seconds by phase, such as "encode", "wait", "transfer", "decode".
        layers: payload bytes sent by parameter.
        modes: number of buckets that travelled "sparse", "dense" or "bypass".
        notes: what a person should know, such as "step 7 was skipped: NaN on rank 2".
        samples: sum of all members' samples in the last step; 0 when no member had any.
        skipped: number of steps that all members skipped because of NaN or infinity.
        all_joined: whether every member had joined in the last step, so that there are no more batches.
    """

    steps: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0
    header_bytes: int = 0
    dense_bytes: int = 0
    density: float = 1.0
    error_norm: float = 0.0
    seconds: Mapping[str, float] = field(default_factory=dict[str, float])
    layers: Mapping[str, int] = field(default_factory=dict[str, int])
    modes: Mapping[str, int] = field(default_factory=dict[str, int])
    notes: tuple[str, ...] = ()
    samples: float = 0.0
    skipped: int = 0
    all_joined: bool = False


class Exchange(abc.ABC):
    """Averages gradients over the members of a group.

    An exchange is configured by its constructor and bound once to parameters and a group; `regroup` follows a change
    of members. All methods are called from one thread, except `abort`, which may be called from any thread.
    """

    @abc.abstractmethod
    def bind(self, named_parameters: Iterable[tuple[str, Tensor]], group: Group) -> None:
        """Name the parameters whose gradients will come, in the order of the model, and the group that exchanges them.

        Args:
            named_parameters: names and parameters, the same on every member.
            group: the group of members.

        Raises:
            ValueError: no parameters, a name twice, or parameters that this exchange cannot handle.
            RuntimeError: the exchange is bound already.
        """

    @abc.abstractmethod
    def begin(self, record: StepRecord) -> None:
        """Begin a step; `record` describes this member's gradients."""

    @abc.abstractmethod
    def ready(self, name: str, grad: Tensor) -> Work:
        """Report that a parameter's gradient is complete; the exchange replaces it with the mean, in place.

        Args:
            name: the parameter's name, as bound.
            grad: its gradient, of the parameter's shape; owned by the exchange until the work is done.

        Returns:
            The work that is done when `grad` is the mean.

        Raises:
            KeyError: no parameter of this name is bound.
            RuntimeError: the gradient was reported already in this step, or no step is open.
        """

    @abc.abstractmethod
    def wait(self) -> None:
        """Wait until all gradients of the step are the mean; those that were not made ready take part with zeros.

        Raises:
            MemberLost, ExchangeStalled, ExchangeAborted: the step cannot be completed; call `abort`.
            GradientNotFinite: a member's gradient is NaN or infinite and the policy is to raise.
        """

    @abc.abstractmethod
    def finish(self) -> ExchangeReport:
        """Call `wait`, then advance the exchange's own state (residuals, memories); return the report of the step."""

    @abc.abstractmethod
    def abort(self, epoch: int) -> None:
        """Undo the step: drop its buckets and restore the state from before `begin`; from any thread.

        Args:
            epoch: epoch of the group in which the step began; an abort of an older epoch does nothing.
        """

    @abc.abstractmethod
    def regroup(self, group: Group) -> None:
        """Switch to another group, between two steps; every member of the new group calls this.

        Memories that are sums over members are computed anew over the new members. A joining member takes replicated
        state from the member with rank 0, which must not be new.
        """

    @abc.abstractmethod
    def report(self) -> ExchangeReport:
        """Return costs and effects of all steps so far."""

    def errors(self) -> dict[str, Tensor]:
        """Return copies of the residuals that compression keeps back here, by parameter name; between two steps."""
        return {}

    def take_errors(self, errors: Mapping[str, Tensor]) -> None:
        """Add the residuals of a leaving member to this member's; on one member, between two steps.

        Args:
            errors: tensors in the parameters' shapes, by parameter name, as `errors` returns them.

        Raises:
            ExchangeInvalid: this exchange keeps nothing back.
        """
        if errors:
            raise ExchangeInvalid(f"{type(self).__name__} keeps nothing back, and cannot take over errors of others")

    @abc.abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Return the state from which this member can resume later, by parameter name; between two steps."""

    @abc.abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from `state`; after `bind`."""

    @abc.abstractmethod
    def close(self) -> None:
        """End the exchange's threads; the group stays open. May be called twice."""
