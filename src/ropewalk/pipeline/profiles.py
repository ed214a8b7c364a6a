"""A profile: the operators of a model as a graph, with what each costs in time, bytes and memory for one micro-batch.

An operator is a module call or a function of the model. It has one value (a tensor, or
a tree of them), which the operators at the ends of its edges read:

    input.x ──▶ conv1 ──▶ relu ──▶ add ──▶ head        relu's value crosses a cut between
                             └──▶ conv2 ──▶┘            relu and add once, however many read it

The inputs of a model are operators too, without cost; so a mask that only a late layer
reads can enter at the stage of that layer. Profiles come from `profile()`, from JSON, or
from PipeDream's `graph.txt` (SOSP'19; see `graph_text`).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import msgspec

from ropewalk.errors import ProfileInvalid
from ropewalk.quantities import shown_duration

#: Spread of a profile from which on its times are not to be relied on (measured: 0.02 to 0.06 on a machine with little
#: else to do, 0.5 to 1 where four other programs shared two cores).
LARGE_SPREAD = 0.25


@dataclass(frozen=True, slots=True)
class SavedValue:
    """A value that an operator keeps from its forward for its backward."""

    #: The operator whose value it is: this one, or one it reads from. The same storage is then counted once a stage.
    operator: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Operator:
    """One vertex of the graph. Times are lower quartiles, in seconds, for one micro-batch on a device of speed 1."""

    #: Module path and call index, "encoder.layers.0.linear1:0"; the same in every process. PipeDream's "node12".
    id: str
    description: str = ""
    forward_s: float = 0.0
    #: The whole backward, measured whole.
    backward_s: float = 0.0
    #: The two halves of a split backward, measured split; they may sum to more than the whole. None: not measured.
    input_gradient_s: float | None = None
    weight_gradient_s: float | None = None
    #: Half the distance between the quartiles of forward plus backward over the repeats.
    spread_s: float = 0.0
    #: Bytes of the operator's value in its real dtype: what crosses a cut behind it, forwards.
    output_bytes: int = 0
    #: Bytes of the gradient that comes back over the same cut; 0 for values without one. None: as many as forwards.
    gradient_bytes: int | None = None
    #: Names of the parameters it reads, as the user's model names them, and the bytes of each. One that several
    #: operators read is tied.
    parameters: Mapping[str, int] = field(default_factory=dict[str, int])
    buffer_bytes: int = 0
    #: Bytes kept for backward in storages of its own, beside the values in `saved`. None: taken as its output.
    saved_bytes: int | None = None
    saved: tuple[SavedValue, ...] = ()
    #: Bytes kept from the input-gradient half to the weight-gradient half of a split backward.
    held_bytes: int = 0
    #: Whether its forward draws random numbers (dropout).
    is_random: bool = False
    #: Whether it is one of the model's inputs.
    is_input: bool = False

    @property
    def has_split_backward(self) -> bool:
        """Whether both halves of its backward were measured."""
        return self.input_gradient_s is not None and self.weight_gradient_s is not None

    @property
    def returned_bytes(self) -> int:
        """Bytes of the gradient of its value, which come back where it crosses a cut."""
        return self.output_bytes if self.gradient_bytes is None else self.gradient_bytes

    @property
    def parameter_bytes(self) -> int:
        """Bytes of all parameters it reads, tied ones with them."""
        return sum(self.parameters.values())


@dataclass(frozen=True)
class Profile:
    """What a model costs, operator by operator, for one micro-batch of `num_samples` samples.

    Raises:
        ProfileInvalid: an id occurs twice, an edge names an unknown operator, the edges go round in a circle, a time
            or a size is negative or not finite, or there is no operator at all.
    """

    operators: tuple[Operator, ...]
    #: Pairs (source, target): the target reads the value of the source.
    edges: tuple[tuple[str, str], ...]
    #: Samples in the micro-batch that was measured.
    num_samples: int = 1
    model: str = ""
    #: What it was measured on, in words.
    device: str = ""

    def __post_init__(self) -> None:
        _check(self)

    # --- the graph ----------------------------------------------------------------------------------------------------

    @cached_property
    def by_id(self) -> Mapping[str, Operator]:
        """The operators by their ids."""
        return {operator.id: operator for operator in self.operators}

    @cached_property
    def targets(self) -> Mapping[str, tuple[str, ...]]:
        """Who reads the value of each operator, in the order of `operators`."""
        return _neighbours(self.operators, self.edges)

    @cached_property
    def sources(self) -> Mapping[str, tuple[str, ...]]:
        """Whose values each operator reads, in the order of `operators`."""
        return _neighbours(self.operators, [(target, source) for source, target in self.edges])

    @cached_property
    def order(self) -> tuple[str, ...]:
        """The ids in topological order; among those that may come next, the first of `operators` comes first."""
        order = _topological(self.operators, self.edges)
        assert order is not None, "checked when it was made"
        return order

    @cached_property
    def tied(self) -> Mapping[str, tuple[str, ...]]:
        """The parameters that more than one operator reads, and by whom."""
        readers: dict[str, list[str]] = {}
        for operator in self.operators:
            for name in operator.parameters:
                readers.setdefault(name, []).append(operator.id)
        return {name: tuple(ids) for name, ids in readers.items() if len(ids) > 1}

    @property
    def compute_s(self) -> float:
        """Seconds of forward and whole backward of one micro-batch on a device of speed 1."""
        return math.fsum(operator.forward_s + operator.backward_s for operator in self.operators)

    @property
    def spread(self) -> float:
        """How much times varied between repeats: that of all operators, as a share of what they take; 0: not known."""
        return math.fsum(operator.spread_s for operator in self.operators) / self.compute_s if self.compute_s else 0.0

    @property
    def spread_in_words(self) -> str:
        """How much times varied, and if that is much where most and what to do; "" if it is not known."""
        if not self.spread:
            return ""
        most = max(self.operators, key=lambda operator: operator.spread_s)
        most_s = most.forward_s + most.backward_s
        said = f"measured times vary by {self.spread:.0%} (half the distance between quartiles)"
        if self.spread < LARGE_SPREAD:
            return said
        return (
            f"{said}, most at {most.id}: {shown_duration(most_s)}, {shown_duration(most.spread_s)} more or less; the "
            f"machine was busy, or micro-batches are too small to be measured, and plans from it may be wrong: measure "
            f"again when it has nothing else to do, or with more repeats"
        )

    @property
    def parameter_bytes(self) -> int:
        """Bytes of the model's parameters, each counted once."""
        sizes: dict[str, int] = {}
        for operator in self.operators:
            sizes.update(operator.parameters)
        return sum(sizes.values())

    # --- files --------------------------------------------------------------------------------------------------------

    def to_json(self) -> bytes:
        """The profile as JSON, readable by people and by `Profile.from_json`."""
        return msgspec.json.format(msgspec.json.encode(self), indent=1)

    @classmethod
    def from_json(cls, text: bytes | str) -> Profile:
        """Read what `to_json` wrote.

        Raises:
            ProfileInvalid: it is not such a profile; says where.
        """
        try:
            return msgspec.json.decode(text, type=cls)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise ProfileInvalid(
                f"this is not a profile in Ropewalk's JSON: {error}; PipeDream's graph.txt is read by "
                f"`ropewalk.pipeline.read_graph_text`"
            ) from error

    def save(self, path: str | Path) -> None:
        """Write it to a file as JSON."""
        Path(path).write_bytes(self.to_json())


def _check(profile: Profile) -> None:
    if not profile.operators:
        raise ProfileInvalid("a profile needs at least one operator, and this one has none: is the model empty?")
    if profile.num_samples < 1:
        raise ProfileInvalid(f"num_samples must be at least 1, not {profile.num_samples}")
    seen: set[str] = set()
    for operator in profile.operators:
        if operator.id in seen:
            raise ProfileInvalid(f"the id {operator.id!r} occurs twice among the operators; ids must differ")
        seen.add(operator.id)
        _check_numbers(operator)
    for source, target in profile.edges:
        for end in (source, target):
            if end not in seen:
                raise ProfileInvalid(f"the edge {source!r} -> {target!r} names {end!r}, which is no operator")
    if _topological(profile.operators, profile.edges) is None:
        circle = _circle(profile)
        raise ProfileInvalid(
            f"the edges go round in a circle: {' -> '.join(circle)}; an operator cannot wait for itself"
        )


def _check_numbers(operator: Operator) -> None:
    for name in Operator.__dataclass_fields__:
        value = getattr(operator, name)
        if isinstance(value, int | float) and not (math.isfinite(value) and value >= 0):
            raise ProfileInvalid(f"{name} of operator {operator.id!r} must be a number of at least 0, not {value!r}")
    for name, size_bytes in operator.parameters.items():
        if size_bytes < 0:
            raise ProfileInvalid(f"parameter {name!r} of operator {operator.id!r} has {size_bytes} bytes")


def _neighbours(operators: Iterable[Operator], pairs: Iterable[tuple[str, str]]) -> Mapping[str, tuple[str, ...]]:
    position = {operator.id: index for index, operator in enumerate(operators)}
    found: dict[str, set[str]] = {id: set() for id in position}
    for source, target in pairs:
        found[source].add(target)
    return {id: tuple(sorted(ends, key=position.__getitem__)) for id, ends in found.items()}


def _topological(operators: tuple[Operator, ...], edges: Iterable[tuple[str, str]]) -> tuple[str, ...] | None:
    """Kahn's algorithm, the earliest of `operators` first; None if there is a circle."""
    targets = _neighbours(operators, edges)
    waiting = dict.fromkeys(targets, 0)
    for ends in targets.values():
        for end in ends:
            waiting[end] += 1
    position = {operator.id: index for index, operator in enumerate(operators)}
    ready = [index for id, index in position.items() if not waiting[id]]
    order: list[str] = []
    while ready:  # a heap: ready starts sorted
        id = operators[heapq.heappop(ready)].id
        order.append(id)
        for end in targets[id]:
            waiting[end] -= 1
            if not waiting[end]:
                heapq.heappush(ready, position[end])
    return tuple(order) if len(order) == len(position) else None


def _circle(profile: Profile) -> list[str]:
    """One circle of the edges, its first operator also last."""
    left = set(profile.by_id)
    while ends := [id for id in left if not left & set(profile.targets[id])]:
        left.difference_update(ends)
    path = [min(left)]  # whoever is left leads to one who is left
    while True:
        following = min(left & set(profile.targets[path[-1]]))
        if following in path:
            return [*path[path.index(following) :], following]
        path.append(following)
