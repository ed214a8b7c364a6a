"""Units, which start and end as a whole: one node, or the nodes that share a process; and each start of a unit."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from ropewalk.engines.resources import Resources
from ropewalk.program.instructions import NodeRule
from ropewalk.program.messages import UnitEnded, UnitName
from ropewalk.program.node import NodeSpec
from ropewalk.transport.loop import Timer


class UnitReplica:
    """One replica of a unit, in its latest start."""

    def __init__(self, name: UnitName, nodes: Sequence[NodeSpec]) -> None:
        self.name = name
        self.started = time.monotonic()
        self.address = ""
        """The address on which its host listens; empty until it is up."""
        self.gpus = ""
        """The GPUs that its process was given, as in CUDA_VISIBLE_DEVICES."""
        self.missing = {spec.name for spec in nodes}
        """Its nodes that are not ready yet."""
        self.ending: UnitEnded | None = None
        """Its final report."""
        self.reported = 0.0
        """Monotonic time of the final report."""
        self.asked: float | None = None
        """Monotonic time of the first question for its status that its host has not answered; None if it has."""
        self.timer: Timer | None = None
        """The next step if it does not end when it is asked to."""

    @property
    def label(self) -> str:
        """Its name in messages, such as "actor.3"."""
        return f"{self.name.unit}.{self.name.replica}"


class Units:
    """The units of a program, and their living replicas."""

    def __init__(self, specs: Sequence[NodeSpec]) -> None:
        self.nodes: dict[str, list[NodeSpec]] = {}
        for spec in specs:
            self.nodes.setdefault(spec.unit, []).append(spec)
        self.sizes = {name: nodes[0].replicas for name, nodes in self.nodes.items()}
        self._live: dict[tuple[str, int], UnitReplica] = {}

    def __iter__(self) -> Iterator[UnitReplica]:
        """The replicas that live or are being started."""
        return iter(list(self._live.values()))

    def __len__(self) -> int:
        return len(self._live)

    def begin(self, name: UnitName) -> UnitReplica:
        """Record the start of a unit's replica."""
        unit = self._live[name.unit, name.replica] = UnitReplica(name, self.nodes[name.unit])
        return unit

    def end(self, unit: UnitReplica) -> None:
        """Record the end of a unit's replica."""
        del self._live[unit.name.unit, unit.name.replica]

    def find(self, name: UnitName) -> UnitReplica | None:
        """The unit's replica with this name, unless it is gone or its successor has been started."""
        unit = self._live.get((name.unit, name.replica))
        return unit if unit is not None and unit.name == name else None

    def at(self, name: str, replica: int) -> UnitReplica | None:
        """The living replica of a unit with this index."""
        return self._live.get((name, replica))

    def is_finite(self, name: str) -> bool:
        """Whether a unit ends by itself."""
        return any(spec.node.finite for spec in self.nodes[name])

    def is_worker(self, name: str) -> bool:
        """Whether a unit has nodes that cannot be called and end by themselves."""
        return any(spec.node.finite and spec.node.methods() is None for spec in self.nodes[name])

    def is_rank_group(self, name: str) -> bool:
        """Whether the replicas of a unit are the ranks of a group."""
        return self.nodes[name][0].node.num_replicas is not None

    def resources(self, name: str) -> Resources:
        """The resources that the process of a unit requests."""
        return max((spec.resources for spec in self.nodes[name]), key=lambda each: each.cpus)

    def environment(self, name: str) -> dict[str, str]:
        """Environment variables for the process of a unit."""
        return {key: value for spec in self.nodes[name] for key, value in spec.environment.items()}

    def preload(self, name: str) -> tuple[str, ...]:
        """Modules that the process of a unit shares from the start."""
        return tuple(dict.fromkeys(module for spec in self.nodes[name] for module in spec.preload))

    def rules(self) -> list[NodeRule]:
        """The supervisor's rules for the nodes."""
        return [
            NodeRule(
                name=name,
                replicas=nodes[0].replicas,
                restart=nodes[0].restart,
                gang=nodes[0].gang,
                essential=nodes[0].essential,
                finite=self.is_finite(name),
            )
            for name, nodes in self.nodes.items()
        ]
