"""Which process may send which message of `messages.CONTROL`: the one place where that is written.

The link identifies the sender: the launcher, one agent, or one process. Its rights follow from that and from this
table, never from the content of a message: an agent that is not the host of a process cannot report its end, and a
process cannot recall another one's tasks. A message without the right to it is ignored, and reported once.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ropewalk.processes import messages as say


class Right(enum.Enum):
    """The processes that may send a message."""

    ANYBODY = "whoever has a link: it concerns the speaker alone"
    LAUNCHER = "the launcher"
    OWNER = "whoever has asked for the process that it names"
    HOST = "the agent that hosts the process that it names, or each of the processes"


def guest_mark(host: str) -> str:
    """The end of the ids of all processes that sessions inside of processes of a host start, and of no others.

    The launcher does not know these processes. Their ids tell it which agent may send messages about them.

    Args:
        host: name of the host in addresses (`HostAddress.host`); empty in a run of one host.
    """
    return f"@{host}"


TO_AGENT: Mapping[type, Right] = {
    say.StartProcess: Right.ANYBODY,  # the sender becomes the owner; the id has to be a new one
    say.SignalProcess: Right.OWNER,
    say.SetRequest: Right.OWNER,
    say.Recall: Right.OWNER,
    say.Peek: Right.OWNER,
    say.PutBlob: Right.ANYBODY,
    say.DropBlob: Right.ANYBODY,  # drops the sender's own share
    say.GetBlob: Right.ANYBODY,
    say.GetMade: Right.ANYBODY,
    say.FetchBlob: Right.LAUNCHER,
    say.BlobPiece: Right.LAUNCHER,
    say.BlobAbsent: Right.LAUNCHER,
    say.PutCode: Right.LAUNCHER,
    say.OutputSeen: Right.ANYBODY,  # of the sender's own processes
    say.RecordsSeen: Right.ANYBODY,  # of the sender's own processes
    say.FlushRecords: Right.ANYBODY,  # of the sender's own processes
    say.Ping: Right.ANYBODY,
    say.ShutdownMessage: Right.ANYBODY,  # of the sender's own processes
    say.OpenRelay: Right.LAUNCHER,
    say.MeetAt: Right.LAUNCHER,
    say.NoWay: Right.LAUNCHER,
    say.ServiceAt: Right.LAUNCHER,
    say.TokenIs: Right.LAUNCHER,
    say.Retired: Right.LAUNCHER,
    say.NeedWay: Right.ANYBODY,
    say.NeedService: Right.ANYBODY,
    say.NeedToken: Right.ANYBODY,  # for the sender, whatever the message says
}
"""Messages to an agent, from the launcher and from processes of its host."""

TO_SESSION: Mapping[type, Right] = {
    say.AgentUp: Right.ANYBODY,  # once
    say.Started: Right.HOST,
    say.NotStarted: Right.HOST,
    say.Exited: Right.HOST,
    say.TaskReport: Right.HOST,
    say.Output: Right.HOST,
    say.Records: Right.HOST,
    say.RecordsFlushed: Right.ANYBODY,
    say.Samples: Right.HOST,
    say.Pong: Right.ANYBODY,
    say.HostEvent: Right.ANYBODY,
    say.Draining: Right.ANYBODY,
    say.NeedWay: Right.ANYBODY,
    say.RelayAt: Right.ANYBODY,
    say.Met: Right.ANYBODY,
    say.NeedService: Right.ANYBODY,
    say.NeedToken: Right.HOST,
    say.ReadBlob: Right.ANYBODY,  # of those that were promised to its host
    say.BlobProgress: Right.ANYBODY,  # of its own host
    say.BlobFetched: Right.ANYBODY,  # of its own host
    say.BlobNotFetched: Right.ANYBODY,  # of its own host
    say.Retired: Right.HOST,  # of processes that sessions inside of processes of its host have started
}
"""Messages to a session from an agent. An agent's messages about relays are compared with the relays that were chosen
(`relay_routing.py`)."""


def may_say(
    table: Mapping[type, Right], message: object, *, is_launcher: bool, concerns: Callable[[str], bool]
) -> bool:
    """Return whether a sender may send a message.

    Args:
        table: table of the receiver.
        message: the message.
        is_launcher: whether the sender is the launcher.
        concerns: returns whether the sender owns, or hosts, the process with an id; also True for one that has ended,
            as a message about a process may cross that about its end.
    """
    match table.get(type(message)):
        case Right.ANYBODY:
            return True
        case Right.LAUNCHER:
            return is_launcher
        case Right.OWNER | Right.HOST:
            return all(map(concerns, _processes_in(message)))
        case None:
            return False


def _processes_in(message: Any) -> Iterable[str]:
    match message:
        case say.Samples():
            return (sample.id for sample in message.samples)
        case say.Retired():
            return (process.id for process in message.processes)
        case _:
            return (message.id,)
