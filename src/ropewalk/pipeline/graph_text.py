"""PipeDream's `graph.txt`: reads such files as profiles, and writes profiles as such files.

The format is that of msr-fiddle/pipedream (Harlap et al., "PipeDream: Generalized Pipeline
Parallelism for DNN Training", SOSP'19): a line for each operator, then a line for each edge,
which begins with a tab. Times are in milliseconds, sizes in bytes; the activation size of an
operator with several outputs is a list.

    node7 -- LSTM(2048, 1024) -- forward_compute_time=3.190, backward_compute_time=5.348,
        activation_size=[6291456.0; 131072.0], parameter_size=50364416.000 -- stage_id=1     (one line)
    <tab>node6 -- node7

A list is read as its sum, as PipeDream reads it. The time that PipeDream gives for an `Input`
is the time to load data, which is not part of the model: such operators are read as inputs
without time. The format has no split backwards, saved bytes, ties and buffers; the JSON of
`Profile.save` has them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from decimal import Decimal, InvalidOperation

from ropewalk.errors import ProfileInvalid
from ropewalk.pipeline.profiles import Operator, Profile

_FIELDS = ("forward_compute_time", "backward_compute_time", "activation_size", "parameter_size")
_NODE_FORM = (
    '"id -- description -- forward_compute_time=ms, backward_compute_time=ms, activation_size=bytes or [bytes; ..], '
    'parameter_size=bytes", perhaps with " -- stage_id=number"'
)
_INPUT = "Input"
_LARGEST = Decimal(
    "1e18"
)  # bytes or milliseconds; without this limit a typing error such as 1e999999 would be a number of that length


def read_graph_text(text: str) -> Profile:
    """Read a profile in PipeDream's format.

    Parameters are named after their operator: "node7.parameters". Stages of PipeDream's optimizer are not read.

    Args:
        text: the contents of a `graph.txt`.

    Raises:
        ProfileInvalid: a line is malformed, or the lines together are not a profile; the message gives the line and
            the form that it needs.
    """
    operators: dict[str, Operator] = {}
    edges: dict[int, tuple[str, str]] = {}
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        if line.startswith("\t"):
            edges[number] = _edge(number, line)
            continue
        operator = _node(number, line)
        if operator.id in operators:
            raise ProfileInvalid(f"line {number}: the id {operator.id!r} occurs a second time; ids must differ")
        operators[operator.id] = operator
    for number, edge in edges.items():
        for end in edge:
            if end not in operators:
                raise ProfileInvalid(
                    f"line {number}: the edge {edge[0]!r} -> {edge[1]!r} names {end!r}, which no line describes"
                )
    readers = {target for _, target in edges.values()}
    described = tuple(
        _as_input(operator) if operator.description.startswith(_INPUT) and operator.id not in readers else operator
        for operator in operators.values()
    )
    return Profile(described, tuple(edges.values()))


def write_graph_text(profile: Profile, stage_of: Mapping[str, int] | None = None) -> str:
    """Write a profile in PipeDream's format; `read_graph_text` returns the same numbers, where the format has them.

    Args:
        profile: the profile to write.
        stage_of: the stage of each operator, written as its `stage_id`; operators that are missing here get none.

    Raises:
        ProfileInvalid: an id cannot be written: it is empty, has " -- " or a line break in it, or begins or ends with
            a space.
    """
    lines: list[str] = []
    for operator in profile.operators:
        if " -- " in operator.id or operator.id != operator.id.strip() or len(operator.id.splitlines()) != 1:
            raise ProfileInvalid(
                f"PipeDream's format has no way to write the id {operator.id!r}: it needs some text without "
                f'" -- ", line breaks and spaces around it; rename the operator'
            )
        numbers = (
            _milliseconds(operator.forward_s),
            _milliseconds(operator.backward_s),
            f"{operator.output_bytes}.0",
            f"{operator.parameter_bytes}.000",
        )
        line = [operator.id, _description(operator), ", ".join(map("=".join, zip(_FIELDS, numbers, strict=True)))]
        if stage_of is not None and operator.id in stage_of:
            line.append(f"stage_id={stage_of[operator.id]}")
        lines.append(" -- ".join(line))
    lines += [f"\t{source} -- {target}" for source, target in profile.edges]
    return "\n".join(lines) + "\n"


def _as_input(operator: Operator) -> Operator:
    return Operator(
        operator.id, operator.description, output_bytes=operator.output_bytes, gradient_bytes=0, is_input=True
    )


def _edge(number: int, line: str) -> tuple[str, str]:
    match line.strip().split(" -- "):
        case [source, target]:
            return source, target
        case _:
            raise ProfileInvalid(f'line {number}: a line with a tab needs "source -- target" behind it, not {line!r}')


def _node(number: int, line: str) -> Operator:
    parts = line.strip().split(" -- ")
    if not 3 <= len(parts) <= 4 or not parts[0]:
        raise ProfileInvalid(f"line {number}: an operator needs {_NODE_FORM}, not {line!r}")
    texts = dict(part.split("=", 1) for part in parts[2].split(", ") if "=" in part)
    if tuple(texts) != _FIELDS:
        raise ProfileInvalid(
            f"line {number}: operator {parts[0]!r} needs {', '.join(_FIELDS)} in this order, and has "
            f"{', '.join(texts) or 'none of them'}"
        )
    forward, backward, activation, parameter = (
        _value(number, name, text, _list if name == "activation_size" else Decimal) for name, text in texts.items()
    )
    parameter_bytes = _bytes(number, _FIELDS[3], parameter)
    if len(parts) == 4 and not re.fullmatch(r"stage_id=\d+", parts[3].strip(), re.ASCII):
        raise ProfileInvalid(f'line {number}: "stage_id=" and a number of at least 0 was expected, not {parts[3]!r}')
    return Operator(
        parts[0],
        parts[1],
        # Decimals, so that a file written by `write_graph_text` gives exactly the same seconds again.
        forward_s=float(forward.scaleb(-3)),
        backward_s=float(backward.scaleb(-3)),
        output_bytes=_bytes(number, _FIELDS[2], activation),
        parameters={f"{parts[0]}.parameters": parameter_bytes} if parameter_bytes else {},
    )


def _value(number: int, name: str, text: str, parse: Callable[[str], Decimal]) -> Decimal:
    try:
        value = parse(text)
    except InvalidOperation:
        value = None
    if value is None or not (value.is_finite() and 0 <= value <= _LARGEST):
        lists = ", or a list of such as [1.0; 2.0]" if name == "activation_size" else ""
        raise ProfileInvalid(f"line {number}: {name} must be a number from 0 to {_LARGEST}{lists}, not {text!r}")
    return value


def _list(text: str) -> Decimal:
    if not (text.startswith("[") and text.endswith("]")):
        return Decimal(text)
    return sum(map(Decimal, text[1:-1].split(";")), Decimal())


def _bytes(number: int, name: str, value: Decimal) -> int:
    if value != value.to_integral_value():
        raise ProfileInvalid(f"line {number}: {name} must be whole bytes, not {value}")
    return int(value)


def _milliseconds(seconds: float) -> str:
    """The exact milliseconds, with at least three decimals, as PipeDream writes them."""
    milliseconds = Decimal(repr(seconds)).scaleb(3)
    exponent = milliseconds.as_tuple().exponent
    digits = -exponent if isinstance(exponent, int) else 0
    return f"{milliseconds:.{max(3, digits)}f}"


def _description(operator: Operator) -> str:
    words = re.sub(r"(?<!\S)--(?!\S)", "-", re.sub(r"[\r\n]+", " ", operator.description))
    return f"{_INPUT} {words}" if operator.is_input and not words.startswith(_INPUT) else words
