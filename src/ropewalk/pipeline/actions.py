"""Actions: the vocabulary that schedules, the verifier, the simulator, the executor and timelines share.

A schedule gives each worker a list of actions, and these lists alone decide the order. Each
action prints as a short code, which `Action.parse` reads:

    F0:3      forward of micro-batch 3 at stage 0        F0:3v2     the same, with version 2 of the weights
    B0:3      the whole backward                         I0:3 W0:3  its halves: input gradient, weight gradient
    C0:3      the forward again, before its backward (recomputation)
    S0:3>1/relu   send the value of relu to stage 1      S1:3>0/relu   send its gradient back to stage 0
    R1:3<0/relu   receive the value                      R0:3<1/relu   receive the gradient
    A0v2/replicas   sum the gradients of update 2 over replicas (or tied, or norm)
    U0v2      update: the step that makes version 2
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from ropewalk.errors import ScheduleInvalid


class ActionKind(StrEnum):
    """What an action does; the value is its letter in the printed code."""

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
    """The kinds of groups of workers that reduce gradients."""

    REPLICAS = "replicas"
    TIED = "tied"
    NORM = "norm"


@dataclass(frozen=True, slots=True)
class Action:
    """One action of a worker. Fields that a kind of action does not use are None (0 for `replica`)."""

    kind: ActionKind
    stage: int
    replica: int = 0
    micro_batch: int | None = None
    """Number of the micro-batch, counted from 0 in each step; for schedules without a flush, from the start of the run.
    """
    version: int | None = None
    """F, B, I, W, C: the version of the weights that the action uses. STEP: the version that it makes. REDUCE: the
    version that the reduced gradients will make."""
    edge: str | None = None
    """SEND, RECEIVE: id of the operator whose value (or gradient) is transferred."""
    peer: int | None = None
    """SEND, RECEIVE: the stage at the other end. Values go to later stages, gradients to earlier ones."""
    group: ReduceGroup | None = None

    @property
    def is_gradient(self) -> bool:
        """For SEND and RECEIVE: whether the action transfers a gradient, not a value."""
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
        """Read the code of an action.

        Args:
            code: what `str` returned for an action.
            replica: the action's replica, which the code does not have: that of the worker whose list has the action.

        Raises:
            ScheduleInvalid: `code` is not the code of an action.
        """
        match = _CODE.fullmatch(code)
        if match is None:
            raise ScheduleInvalid(
                f"{code!r} is not an action; they look like F0:3v2, B0:3, S0:3>1/relu, R1:3<0/relu, A0v2/replicas, "
                "U0v2",
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
