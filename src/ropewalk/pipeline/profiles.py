"""A profile: the operators of a model as a graph, with the time, bytes and memory of each for one micro-batch.

An operator is a module call or a function of the model. It has one value (a tensor, or
a tree of tensors), which the operators at the ends of its edges read:

    input.x ──▶ conv1 ──▶ relu ──▶ add ──▶ head        relu's value crosses a cut between relu
                             └──▶ conv2 ──▶┘            and add once, whatever the number of readers

The inputs of a model are operators too, without cost, so that a mask that only a late layer
reads can enter at the stage of that layer. Profiles come from `profile()`, from JSON, or
from PipeDream's `graph.txt` (SOSP'19; see `graph_text`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import msgspec

from ropewalk.errors import ProfileInvalid
from ropewalk.pipeline.topological import topological_order
from ropewalk.quantities import shown_duration

LARGE_SPREAD = 0.25
"""Spread above which the times of a profile are unreliable (measured: 0.02 to 0.06 on a nearly idle machine, 0.5 to 1
where four other programs shared two cores)."""
_NOTICED_S = 1e-3
"""Seconds of spread in a micro-batch from which it is told: below, the 0.1 ms of each passing between processes count
more."""
_MOST = 1e18
"""Most seconds and bytes of an operator: their sums stay finite, and errors in a file are seen."""
_LONG_NUMBER = 10**30
_LONGEST_CIRCLE = 12
"""Operators of a cycle that an error names."""


@dataclass(frozen=True, slots=True)
class SavedValue:
    """A value that an operator keeps from its forward for its backward."""

    operator: str
    """The operator that made the value: the keeping operator itself or one that it reads. So a stage whose operators
    keep the same storage several times counts it once."""
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Operator:
    """One vertex of the graph. Times are lower quartiles, in seconds, for one micro-batch on a device of speed 1."""

    id: str
    """Module path and call index, "encoder.layers.0.linear1:0"; the same in every process. PipeDream's "node12"."""
    description: str = ""
    forward_s: float = 0.0
    backward_s: float = 0.0
    """The whole backward, measured whole."""
    input_gradient_s: float | None = None
    """The two halves of a split backward, measured split; they may sum to more than the whole. None: not measured."""
    weight_gradient_s: float | None = None
    spread_s: float = 0.0
    """Half the interquartile range of forward plus backward over the repeats."""
    output_bytes: int = 0
    """Bytes of the operator's value in its real dtype: the bytes that cross a cut after the operator."""
    gradient_bytes: int | None = None
    """Bytes of the gradient that comes back over the same cut; 0 for values without a gradient. None: `output_bytes`.
    """
    parameters: Mapping[str, int] = field(default_factory=dict[str, int])
    """Names of the parameters that the operator reads, as the user's model names them, and the bytes of each. A
    parameter that several operators read is tied."""
    buffer_bytes: int = 0
    saved_bytes: int | None = None
    """Bytes kept for the backward in storages of the operator's own, not counting `saved`. None: `output_bytes`."""
    saved: tuple[SavedValue, ...] = ()
    held_bytes: int = 0
    """Bytes kept from the input-gradient half to the weight-gradient half of a split backward."""
    is_random: bool = False
    """Whether the forward draws random numbers (dropout)."""
    is_input: bool = False
    """Whether the operator is one of the model's inputs."""

    @property
    def has_split_backward(self) -> bool:
        """Whether both halves of the backward were measured."""
        return self.input_gradient_s is not None and self.weight_gradient_s is not None

    @property
    def returned_bytes(self) -> int:
        """Bytes of the gradient of the value, which come back where the value crosses a cut."""
        return self.output_bytes if self.gradient_bytes is None else self.gradient_bytes

    @property
    def parameter_bytes(self) -> int:
        """Bytes of all parameters that the operator reads, including tied ones."""
        return sum(self.parameters.values())


@dataclass(frozen=True)
class Profile:
    """The time and memory of a model, operator by operator, for one micro-batch of `num_samples` samples.

    Raises:
        ProfileInvalid: an id occurs twice, an edge names an unknown operator, the edges form a cycle, a time
            or a size is negative, not finite or above 1e18, or there is no operator.
    """

    operators: tuple[Operator, ...]
    edges: tuple[tuple[str, str], ...]
    """Pairs (source, target): the target reads the value of the source."""
    num_samples: int = 1
    """Samples in the micro-batch that was measured."""
    model: str = ""
    device: str = ""
    """Description of the device that it was measured on."""

    def __post_init__(self) -> None:
        _check(self)

    # --- the graph ----------------------------------------------------------------------------------------------------

    @cached_property
    def by_id(self) -> Mapping[str, Operator]:
        """The operators by their ids."""
        return {operator.id: operator for operator in self.operators}

    @cached_property
    def targets(self) -> Mapping[str, tuple[str, ...]]:
        """For each operator, the operators that read its value, in the order of `operators`."""
        return _neighbours(self.operators, self.edges)

    @cached_property
    def sources(self) -> Mapping[str, tuple[str, ...]]:
        """For each operator, the operators whose values it reads, in the order of `operators`."""
        return _neighbours(self.operators, [(target, source) for source, target in self.edges])

    @cached_property
    def order(self) -> tuple[str, ...]:
        """The ids in topological order; operators that could come next are taken in the order of `operators`."""
        order = _topological(self.operators, self.edges)
        assert order is not None, "checked when it was made"
        return order

    @cached_property
    def tied(self) -> Mapping[str, tuple[str, ...]]:
        """The parameters that more than one operator reads, each with those operators."""
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
        """The spread of all operators' times over the repeats, as a share of their times; 0 if it is not known."""
        return math.fsum(operator.spread_s for operator in self.operators) / self.compute_s if self.compute_s else 0.0

    @property
    def is_unsure(self) -> bool:
        """Whether the spread is large enough to change which cuts of a plan are best.

        Not if it is large beside operators that take next to no time: passing a micro-batch from process to process
        takes as long, so that their times decide nothing.
        """
        return self.spread >= LARGE_SPREAD and self.spread * self.compute_s >= _NOTICED_S

    @property
    def spread_in_words(self) -> str:
        """The spread in words; if it is large, also the operator with the largest one and a remedy. "" if not known."""
        if not self.spread:
            return ""
        most = max(self.operators, key=lambda operator: operator.spread_s)
        most_s = most.forward_s + most.backward_s
        share = f"{self.spread:.0%}" if self.spread <= 1 else "more than 100%"
        said = f"measured times vary by {share} from one repeat to the next"
        if not self.is_unsure:
            return said
        return (
            f"{said}, most at {most.id}: {shown_duration(most_s)}, {shown_duration(most.spread_s)} more or less. The "
            f"profile has the lower quartile of each operator, which other work on this machine disturbs least; still, "
            f"a plan from it may not have the best cuts. To be sure, profile on a machine with nothing else to do, "
            f"with larger micro-batches or with more repeats (40, say)"
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
        """Return the profile as indented JSON, which `Profile.from_json` reads."""
        return msgspec.json.format(msgspec.json.encode(self), indent=1)

    @classmethod
    def from_json(cls, text: bytes | str) -> Profile:
        """Read a profile that `to_json` wrote.

        Raises:
            ProfileInvalid: `text` is not such a profile; the message says where.
        """
        try:
            return msgspec.json.decode(text, type=cls)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise ProfileInvalid(
                f"this is not a profile in Ropewalk's JSON: {error}; PipeDream's graph.txt is read by "
                f"`ropewalk.pipeline.read_graph_text`"
            ) from error

    def save(self, path: str | Path) -> None:
        """Write the profile to a file as JSON."""
        Path(path).write_bytes(self.to_json())


def _check(profile: Profile) -> None:
    if not profile.operators:
        raise ProfileInvalid("a profile needs at least one operator, and this one has none: is the model empty?")
    if not 1 <= profile.num_samples <= _MOST:
        raise ProfileInvalid(f"num_samples must be from 1 to {_MOST:g}, not {_number(profile.num_samples)}")
    seen: set[str] = set()
    for operator in profile.operators:
        if operator.id in seen:
            raise ProfileInvalid(f"the id {operator.id!r} occurs twice among the operators; ids must differ")
        seen.add(operator.id)
        _check_numbers(operator)
    for source, target in profile.edges:
        for end in (source, target):
            if end not in seen:
                raise ProfileInvalid(f"the edge {source!r} -> {target!r} names {end!r}, which is not an operator")
    if _topological(profile.operators, profile.edges) is None:
        circle = _shown(_circle(profile))
        raise ProfileInvalid(f"the edges form a cycle: {circle}; an operator cannot wait for itself")


def _check_numbers(operator: Operator) -> None:
    for name in Operator.__dataclass_fields__:
        value = getattr(operator, name)
        if isinstance(value, int | float) and not 0 <= value <= _MOST:
            raise ProfileInvalid(
                f"{name} of operator {operator.id!r} must be a number from 0 to {_MOST:g}, not {_number(value)}"
            )
    sizes = [(f"parameter {name!r}", size_bytes) for name, size_bytes in operator.parameters.items()]
    sizes += [(f"what it saves of {saved.operator!r}", saved.size_bytes) for saved in operator.saved]
    for what, size_bytes in sizes:
        if not 0 <= size_bytes <= _MOST:
            raise ProfileInvalid(
                f"operator {operator.id!r}: {what} must have from 0 to {_MOST:g} bytes, not {_number(size_bytes)}"
            )


def _number(value: float) -> str:
    return repr(value) if isinstance(value, float) or abs(value) < _LONG_NUMBER else "one of very many digits"


def _neighbours(operators: Iterable[Operator], pairs: Iterable[tuple[str, str]]) -> Mapping[str, tuple[str, ...]]:
    position = {operator.id: index for index, operator in enumerate(operators)}
    found: dict[str, set[str]] = {id: set() for id in position}
    for source, target in pairs:
        found[source].add(target)
    return {id: tuple(sorted(ends, key=position.__getitem__)) for id, ends in found.items()}


def _topological(operators: tuple[Operator, ...], edges: Iterable[tuple[str, str]]) -> tuple[str, ...] | None:
    """The earliest of `operators` first; None if there is a cycle."""
    position = {operator.id: index for index, operator in enumerate(operators)}
    order = topological_order(_neighbours(operators, edges), position.__getitem__)
    return tuple(order) if len(order) == len(position) else None


def _circle(profile: Profile) -> list[str]:
    """One cycle of the edges; its first operator is also its last."""
    position = {operator.id: index for index, operator in enumerate(profile.operators)}
    left = set(position).difference(topological_order(profile.targets, position.__getitem__))
    back: dict[str, int] = {}  # every operator that is left reads another one that is left
    at = min(left, key=position.__getitem__)
    while at not in back:
        back[at] = len(back)
        at = min(left.intersection(profile.sources[at]), key=position.__getitem__)
    return [at, *list(back)[: back[at] : -1], at]


def _shown(circle: list[str]) -> str:
    """A cycle in words; of a long one both ends."""
    if len(circle) > _LONGEST_CIRCLE:
        circle = [*circle[:5], f"({len(circle) - 8} more)", *circle[-3:]]
    return " -> ".join(circle)
