"""What launcher and hosts say: every message arrives as it was sent, and is told from all others."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ropewalk.calls.waits import LaneWaits, RunningCall, WaitingCall
from ropewalk.processes.messages import RetiredProcess
from ropewalk.program import messages
from ropewalk.program.checkpoints import CheckpointFile
from ropewalk.program.messages import PROGRAM, NodeStart, StartUnit, StopUnit, UnitEnded, UnitName
from ropewalk.transport.blobs import BlobRef
from ropewalk.transport.failures import Failure

NAME = UnitName("host", 2, 1)
#: A value for each type of field; a new message is covered without a change here.
VALUES: dict[str, Any] = {
    "str": "words",
    "int": 3,
    "float": 0.5,
    "float | None": None,
    "bool": True,
    "dict[str, Any]": {"generation": 1},
    "bytes": b"\x00\xff",
    "UnitName": NAME,
    "Failure | None": Failure("builtins.ValueError", "broken", "...", b"pickle", [b"buffer"]),
    "list[NodeStart]": [NodeStart("table", 2, 1, None, 3)],
    "list[tuple[str, int]]": [("Model", 1)],
    "dict[int, BlobRef]": {1: BlobRef("ab12", (3, 4096))},
    "RendezvousAt": messages.RendezvousAt("rank", 0, "", "::1", 4711),
    "CheckpointFile": CheckpointFile("/run/store.0.checkpoint", 1 << 40, True),
    "list[CheckpointFile]": [CheckpointFile("/run/store.0.checkpoint", 7, False)],
    "Literal['begin', 'go on', 'keep', 'drop']": "go on",
    "list[str]": ["a.step", "b.push"],
    "list[RetiredProcess]": [RetiredProcess("actor.1#0", "ab12", is_cut=True)],
    "list[LaneWaits]": [
        LaneWaits(1, 2, [RunningCall(3, "a.step", [(0, 1)], "unix:/b", 4)], [WaitingCall(5, "a.pull", (6, 7), 0.5)])
    ],
    "list[NodeCalls]": [
        messages.NodeCalls(NAME, "table", 1, 2, [messages.CallStatus("table.get", 0.5)], calls_to={"log": 3})
    ],
}
TAGGED = [
    kind
    for kind in vars(messages).values()
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind.__struct_config__.tag is not None
]


def value_of(kind: type[Any]) -> Any:
    annotations = {name: base.__annotations__[name] for base in kind.__mro__[:1] for name in kind.__struct_fields__}
    return kind(*(VALUES[str(annotations[name])] for name in kind.__struct_fields__))


@pytest.mark.parametrize("kind", TAGGED, ids=lambda kind: kind.__name__)
def test_every_message_arrives_as_it_was_sent(kind: type[Any]) -> None:
    message = value_of(kind)
    arrived = PROGRAM.decode(PROGRAM.encode(message))
    assert type(arrived) is kind and arrived == message


def test_every_message_has_a_tag_of_its_own() -> None:
    assert len(TAGGED) == 25 == len({kind.__struct_config__.tag for kind in TAGGED})


def test_names_of_starts_are_keys() -> None:
    assert {UnitName("a", 0, 0): 1}[UnitName("a", 0, 0)] == 1
    assert UnitName("a", 0, 0) != UnitName("a", 0, 1)


def test_what_is_no_message_is_refused() -> None:
    for wrong in ([99], [2, ["a", 0], "why", 1.0], [2, ["a", 0, "0"], "why", 1.0], "words"):
        with pytest.raises(msgspec.ValidationError):
            PROGRAM.decode(msgspec.msgpack.encode(wrong))
    assert {StartUnit, StopUnit, UnitEnded} <= set(TAGGED)
