"""`Exchange`: what makes one gradient of many, whichever way it travels.

        begin(step) ── ready(name, grad) ── ready ── ready ── finish() ──▶ every gradient is the mean
                            └─ a bucket is full: it travels while the backward goes on

The data-parallel loop, the hook of DistributedDataParallel and a replicated pipeline stage all call this.
A step is atomic: until `finish` has returned nothing of the exchange's own state has changed, and `abort`
takes the step back.
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
    """What a member says about the gradients that follow.

    Attributes:
        step: counts optimizer steps, from 0; the same on every member.
        version: of the weights that the gradients belong to (for asynchronous exchanges; else the step).
        samples: weight of this member's gradients in the mean, `sum n_r g_r / sum n_r`; 0 means "I have none", and
            the member takes part in everything else.
        scale: what the gradients were multiplied by (a GradScaler's); state is kept without it.
        total_samples: the sum of all members' samples, where the caller knows it, the same on every member; None where
            the exchange is to find out.
        scaled: a GradScaler looks at these gradients; it must see infinities, whatever `scale` is.
        joined: this member has no more batches and goes along for the others'; `samples` is 0.
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
    """What one step, or all steps so far, cost and did.

    Attributes:
        steps: how many steps this covers.
        sent_bytes: payload that this member sent.
        received_bytes: payload that this member received.
        header_bytes: sent beside the payload.
        dense_bytes: what this member would have sent with a dense ring all-reduce of the same gradients.
        density: components sent over all components; 1.0 for dense exchanges.
        error_norm: Euclidean norm of what compression has kept back so far; 0.0 where nothing is.
        seconds: time by phase, such as "encode", "wait", "transfer", "decode".
        layers: payload bytes sent by parameter.
        modes: how many buckets went "sparse", "dense" or "bypass".
        notes: what a person should know, such as "step 7 was skipped: NaN on rank 2".
        samples: sum of all members' samples in the last step; 0 when nobody had any.
        skipped: steps that nobody took, because of NaN or infinity.
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
    """Averages gradients between the members of a group.

    An exchange is configured by its constructor and bound once to parameters and a group; `regroup` follows a change
    of members. The methods are called from one thread, `abort` from any.
    """

    @abc.abstractmethod
    def bind(self, named_parameters: Iterable[tuple[str, Tensor]], group: Group) -> None:
        """Say whose gradients will come, in the order of the model, and who takes part.

        Raises:
            ValueError: no parameters, a name twice, or parameters that this exchange cannot handle.
            RuntimeError: it is bound already.
        """

    @abc.abstractmethod
    def begin(self, record: StepRecord) -> None:
        """Begin a step."""

    @abc.abstractmethod
    def ready(self, name: str, grad: Tensor) -> Work:
        """This parameter's gradient is complete. It is replaced by the mean, in place, until the work is done.

        Raises:
            KeyError: no parameter of this name is bound.
            RuntimeError: it was ready already in this step; outside of a step.
        """

    @abc.abstractmethod
    def wait(self) -> None:
        """Wait until all gradients of the step are the mean. What was not made ready takes part with zeros.

        Raises:
            MemberLost, ExchangeStalled, ExchangeAborted: the step cannot be completed; call `abort`.
            GradientNotFinite: a member's gradient is NaN or infinite and the policy is to raise.
        """

    @abc.abstractmethod
    def finish(self) -> ExchangeReport:
        """`wait`, and then let the exchange's own state (errors kept, memories) move on to the next step."""

    @abc.abstractmethod
    def abort(self, epoch: int) -> None:
        """Take the step back: its buckets are dropped and the state is what it was before `begin`; from any thread.

        Args:
            epoch: of the group in which the step began; an abort of an older epoch does nothing.
        """

    @abc.abstractmethod
    def regroup(self, group: Group) -> None:
        """Go on with another group, between two steps; every member of the new group calls this.

        Memories that are sums over members are made anew as sums over the new members; who joins takes what is
        replicated from the member with rank 0, which must not be new.
        """

    @abc.abstractmethod
    def report(self) -> ExchangeReport:
        """All steps so far."""

    def errors(self) -> dict[str, Tensor]:
        """What compression has kept back here so far, by parameter name, as copies; between two steps."""
        return {}

    def take_errors(self, errors: Mapping[str, Tensor]) -> None:
        """Add what a member that leaves has kept back to the own; on one member, between two steps.

        Raises:
            ExchangeInvalid: this exchange keeps nothing back.
        """
        if errors:
            raise ExchangeInvalid(f"{type(self).__name__} keeps nothing back, and cannot take over errors of others")

    @abc.abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """What this member must keep to go on later, by parameter name; between two steps."""

    @abc.abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from `state`; after `bind`."""

    @abc.abstractmethod
    def close(self) -> None:
        """End its thread; the group stays open. May be called twice."""
