"""Actions: the words that schedules, the verifier, the simulator, the executor and timelines share.

A schedule gives each worker a list of these; nothing else decides order. Each prints as a
short code, and parses back:

    F0:3      forward of micro-batch 3 at stage 0        F0:3v2     the same, with version 2 of the weights
    B0:3      backward (the whole of it)                 I0:3 W0:3  its halves: input gradient, weight gradient
    C0:3      the forward again, before its backward (recomputation)
    S0:3>1/relu   send the value of relu to stage 1      S1:3>0/relu   send its gradient back to stage 0
    R1:3<0/relu   receive it                             R0:3<1/relu   receive its gradient
    A0v2/replicas   sum the gradients of update 2 over replicas (or tied, or norm)
    U0v2      update: the step that makes version 2
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from ropewalk.errors import ScheduleInvalid


class ActionKind(StrEnum):
    """What an action does; the value is its letter in print."""

    FORWARD = "F"
    BACKWARD = "B"
    INPUT_GRADIENT = "I"
    WEIGHT_GRADIENT = "W"
    RECOMPUTE = "C"
    SEND = "S"
    RECEIVE = "R"
    REDUCE = "A"
    STEP = "U"


class ReduceGroup(StrEnum):
    """Among whom gradients are reduced."""

    REPLICAS = "replicas"
    TIED = "tied"
    NORM = "norm"


@dataclass(frozen=True, slots=True)
class Action:
    """One thing a worker does. The fields that a kind has no use for are None (0 for `replica`)."""

    kind: ActionKind
    stage: int
    replica: int = 0
    #: 0, 1, ... within a step; from the start of the run for schedules without a flush.
    micro_batch: int | None = None
    #: F, B, I, W, C: the version of the weights it computes with. STEP: the version it makes. REDUCE: the version that
    #: is made of the sum.
    version: int | None = None
    #: SEND, RECEIVE: the operator whose value (or gradient) passes.
    edge: str | None = None
    #: SEND, RECEIVE: the stage at the other end. A value goes to a later stage, a gradient to an earlier one.
    peer: int | None = None
    group: ReduceGroup | None = None

    @property
    def is_gradient(self) -> bool:
        """For SEND and RECEIVE: whether a gradient passes, not a value."""
        assert self.peer is not None
        return self.peer < self.stage if self.kind is ActionKind.SEND else self.peer > self.stage

    def __str__(self) -> str:
        version = "" if self.version is None else f"v{self.version}"
        if self.kind is ActionKind.STEP:
            return f"U{self.stage}{version}"
        if self.kind is ActionKind.REDUCE:
            return f"A{self.stage}{version}/{self.group}"
        if self.kind is ActionKind.SEND:
            return f"S{self.stage}:{self.micro_batch}>{self.peer}/{self.edge}"
        if self.kind is ActionKind.RECEIVE:
            return f"R{self.stage}:{self.micro_batch}<{self.peer}/{self.edge}"
        return f"{self.kind.value}{self.stage}:{self.micro_batch}{version}"

    @classmethod
    def parse(cls, code: str, replica: int = 0) -> Action:
        """Read what printing wrote. The replica is not in print: it is that of the list the action stands in.

        Raises:
            ScheduleInvalid: it is no such code.
        """
        match = _CODE.fullmatch(code)
        if match is None:
            raise ScheduleInvalid(
                f"{code!r} is no action; they look like F0:3v2, B0:3, S0:3>1/relu, R1:3<0/relu, A0v2/replicas, U0v2",
                action=code,
            )
        found = match.groupdict()

        def number(name: str) -> int | None:
            return None if found[name] is None else int(found[name])

        return cls(
            kind=ActionKind(found["compute"] or found["passing"] or found["update"]),
            stage=int(found["stage_c"] or found["stage_p"] or found["stage_u"]),
            replica=replica,
            micro_batch=number("batch_p") if found["passing"] else number("batch_c"),
            version=number("version_u") if found["update"] else number("version_c"),
            edge=found["edge"],
            peer=number("peer"),
            group=ReduceGroup(found["group"]) if found["group"] else None,
        )


_CODE = re.compile(
    r"(?P<compute>[FBIWC])(?P<stage_c>\d+):(?P<batch_c>\d+)(?:v(?P<version_c>\d+))?"
    r"|(?P<passing>[SR])(?P<stage_p>\d+):(?P<batch_p>\d+)(?:(?<=\d)[<>])(?P<peer>\d+)/(?P<edge>.+)"
    r"|(?P<update>U|A)(?P<stage_u>\d+)(?:v(?P<version_u>\d+))?(?:/(?P<group>replicas|tied|norm))?"
)
