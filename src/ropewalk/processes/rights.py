"""Who may say which message of `messages.CONTROL`: the one place where that is written.

A link tells who speaks: it is that of the launcher, of one agent, or of one process. What the speaker may say follows
from that and from this table, never from what a message says of itself: an agent that is not the host of a process
cannot report its end, and a process cannot have another one's tasks taken back. What somebody may not say is not
acted on, and told once.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ropewalk.processes import messages as say


class Right(enum.Enum):
    """Who may say a message."""

    ANYBODY = "whoever has a link: it concerns the speaker alone"
    LAUNCHER = "the launcher"
    OWNER = "whoever has asked for the process that it names"
    HOST = "the agent that hosts the process that it names, or each of the processes"


def guest_mark(host: str) -> str:
    """The end of the ids of all processes that sessions inside of processes of a host start, and of no others.

    The launcher does not know these processes. Their ids tell it which agent may speak for them.

    Args:
        host: as addresses name it (`HostAddress.host`); empty in a run of one host.
    """
    return f"@{host}"


#: What an agent hears, from the launcher and from processes of its host.
TO_AGENT: Mapping[type, Right] = {
    say.StartProcess: Right.ANYBODY,  # who starts a process owns it; the id has to be a new one
    say.SignalProcess: Right.OWNER,
    say.Recall: Right.OWNER,
    say.Peek: Right.OWNER,
    say.PutBlob: Right.ANYBODY,
    say.DropBlob: Right.ANYBODY,  # gives up the speaker's own share
    say.GetBlob: Right.ANYBODY,
    say.GetMade: Right.ANYBODY,
    say.PutCode: Right.LAUNCHER,
    say.OutputSeen: Right.ANYBODY,  # of the speaker's own processes
    say.Ping: Right.ANYBODY,
    say.ShutdownMessage: Right.ANYBODY,  # of the speaker's own processes
    say.OpenRelay: Right.LAUNCHER,
    say.MeetAt: Right.LAUNCHER,
    say.NoWay: Right.LAUNCHER,
    say.ServiceAt: Right.LAUNCHER,
    say.TokenIs: Right.LAUNCHER,
    say.Retired: Right.LAUNCHER,
    say.NeedWay: Right.ANYBODY,
    say.NeedService: Right.ANYBODY,
    say.NeedToken: Right.ANYBODY,  # for the speaker, whatever it says
}

#: What a session hears from an agent. What an agent says of relays is compared with where two were sent
#: (`relay_routing.py`).
TO_SESSION: Mapping[type, Right] = {
    say.AgentUp: Right.ANYBODY,  # once
    say.Started: Right.HOST,
    say.NotStarted: Right.HOST,
    say.Exited: Right.HOST,
    say.TaskReport: Right.HOST,
    say.Output: Right.HOST,
    say.Samples: Right.HOST,
    say.Pong: Right.ANYBODY,
    say.HostEvent: Right.ANYBODY,
    say.Draining: Right.ANYBODY,
    say.NeedWay: Right.ANYBODY,
    say.RelayAt: Right.ANYBODY,
    say.Met: Right.ANYBODY,
    say.NeedService: Right.ANYBODY,
    say.NeedToken: Right.HOST,
    say.Retired: Right.HOST,  # of processes that sessions inside of processes of its host have started
}


def may_say(
    table: Mapping[type, Right], message: object, *, is_launcher: bool, concerns: Callable[[str], bool]
) -> bool:
    """Whether a speaker may say a message.

    Args:
        table: of what the listener hears.
        message: that has come.
        is_launcher: whether the speaker is the launcher.
        concerns: whether the speaker owns, or hosts, the process with an id; also true of one that has ended, as news
            of a process may cross that of its end.
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
