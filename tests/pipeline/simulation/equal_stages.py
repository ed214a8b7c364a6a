"""Plans of equal stages, for which the papers state idle time and memory in formulas."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ropewalk.pipeline.plans import Plan, Stage, assemble
from ropewalk.pipeline.profiles import Operator, Profile
from ropewalk.pipeline.schedules import Schedule, make_schedule
from ropewalk.pipeline.topology import Level, Topology


class Times(NamedTuple):
    """Seconds of one micro-batch on one device: forward, input gradient, weight gradient."""

    forward: float
    input_gradient: float
    weight_gradient: float

    @property
    def sum(self) -> float:
        return sum(self)


class Case(NamedTuple):
    """A schedule on p groups of devices with v equal stages each, and m micro-batches."""

    schedule: Schedule
    p: int
    m: int
    times: Times
    replicas: int = 1

    @property
    def v(self) -> int:
        return self.schedule.stages_per_worker

    @property
    def topology(self) -> Topology:
        """Free links."""
        return Topology((Level(self.p * self.replicas),))

    def profile(self) -> Profile:
        v, num = self.v, self.p * self.v
        operators = tuple(
            Operator(
                f"op{s}",
                forward_s=self.times.forward / v,
                backward_s=(self.times.input_gradient + self.times.weight_gradient) / v,
                input_gradient_s=self.times.input_gradient / v,
                weight_gradient_s=self.times.weight_gradient / v,
                output_bytes=8,
                saved_bytes=1000,
                held_bytes=1000,
                parameters={f"w{s}": 10},
            )
            for s in range(num)
        )
        return Profile(operators, tuple((f"op{s}", f"op{s + 1}") for s in range(num - 1)))

    def plan(self) -> Plan:
        stages: list[Stage] = []
        for s in range(self.p * self.v):
            group = self.schedule.group_of(s, self.p)
            devices = tuple(range(group * self.replicas, (group + 1) * self.replicas))
            stages.append(Stage(s, (f"op{s}",), devices))
        return assemble(self.profile(), stages, schedule=self.schedule.name, micro_batches=self.m)

    def __str__(self) -> str:
        return f"{self.schedule.name} p={self.p} v={self.v} m={self.m} {tuple(self.times)}"


EQUAL = Times(1.0, 1.0, 1.0)
#: The weight gradient takes no longer than the others, as the formulas of zero bubble suppose.
UNEQUAL = Times(0.9, 1.1, 0.7)
#: Of interleaved a backward may take 6 forwards on 4 devices; the more devices, the nearer to the papers' 2 it must be.
SHORT_FORWARD = Times(0.5, 1.3, 1.7)


def cases(name: str, *, most: int = 4) -> Iterator[Case]:
    """The cases of one schedule for up to `most` groups of devices (docs/theory.md, "Schedules and their ranges")."""
    for p in range(1, most + 1):
        options = [{"chunks": 2}, {"chunks": 3}] if name == "interleaved" else [{}]
        for schedule in (make_schedule(name, **option) for option in options):
            least = {"zb_h1": p, "zb_h2": 2 * p - 1, "zb_v": 2 * p, "pipedream_2bw": p}.get(name, 1)
            for m in sorted({least, 2 * p + 3, 12}):
                if m < least or (name == "interleaved" and m % p):
                    continue
                for times in (EQUAL, UNEQUAL, SHORT_FORWARD):
                    if times == UNEQUAL and name == "zb_v":
                        continue
                    if times == SHORT_FORWARD and (name.startswith("zb") or (name == "interleaved" and p > 4)):
                        continue
                    yield Case(schedule, p, m, times)
