"""Where an agent takes those whom the launcher brings from another host, and how long it waits for a launcher."""

from __future__ import annotations

import contextlib
import os
import socket
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest

from ropewalk.errors import TransportRefused
from ropewalk.processes import agent_connect
from ropewalk.processes.agent_connect import AgentConnector
from ropewalk.processes.messages import AgentBoot, Certificate, MeetAt
from ropewalk.processes.relay_client import BOARD
from ropewalk.transport.authority import RunAuthority
from ropewalk.transport.joining import new_ticket
from ropewalk.transport.loop import Loop


def listening(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()
    listener.setblocking(False)
    return listener


@pytest.mark.parametrize(
    "target",
    [
        "at:agent-1|unix:{elsewhere}/docker.sock",
        "at:agent-1|unix:{folder}/../{elsewhere.name}/docker.sock",
        "at:agent-1|unix:{folder}/mine.sock|tls:127.0.0.1:{port}/" + "a" * 64,
        "unix:{folder}/mine.sock",
    ],
)
def test_nobody_from_another_host_is_brought_to_what_is_no_process_of_the_run(
    target: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The host that wants to be brought somewhere names the place: it could have been any socket of this user here."""
    with (
        tempfile.TemporaryDirectory() as folder,
        tempfile.TemporaryDirectory() as elsewhere,
        listening(Path(folder) / "mine.sock") as ours,
        listening(Path(elsewhere) / "docker.sock") as other,
        socket.create_server(("127.0.0.1", 0)) as tcp,
        contextlib.ExitStack() as at_end,
    ):
        tcp.setblocking(False)
        boot = AgentBoot("run", "agent-1", "s", "at:launcher|unix:/nowhere", "", 0, 1)
        loop = Loop()
        at_end.callback(loop.forget)
        meeting = AgentConnector(boot, loop, folder, "", lambda _: None)
        at_end.callback(meeting.close)
        port = tcp.getsockname()[1]
        place = target.format(folder=folder, elsewhere=Path(elsewhere), port=port)
        received: Any = type("Received", (), {"message": MeetAt(new_ticket(), "", 0, place)})
        meeting.actions[MeetAt](None, received)  # type: ignore[arg-type]
        for thread in threading.enumerate():
            if thread.name == "rw-meet":
                thread.join(60)
        for listener in (ours, other, tcp):
            with pytest.raises(BlockingIOError):
                listener.accept()
        assert "is not a process of the run here" in capsys.readouterr().out
        assert not os.path.exists(os.path.join(folder, BOARD))


def late_agent(port: int) -> AgentBoot:
    """What an agent is told whose launcher was at this port."""
    certificate = Certificate.of(RunAuthority.create("run").issue("agent-1"))
    address = f"at:launcher|unix:/nowhere|tls:127.0.0.1:{port}/{'a' * 64}"
    return AgentBoot("run", "agent-1", "s", address, "", 0, 1, certificate=certificate, launcher_ticket=new_ticket())


def test_an_agent_that_starts_after_the_death_of_its_launcher_ends_soon(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert agent_connect._WAIT_S == 30, "as docs/engines.md says"
    monkeypatch.setattr(agent_connect, "_WAIT_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as at_end:
        loop = Loop()
        at_end.callback(loop.forget)
        connector = AgentConnector(late_agent(port), loop, folder, "", lambda _: None)
        at_end.callback(connector.close)
        connector.begin()
        stranger = at_end.enter_context(socket.create_connection(connector._board_at(), timeout=60))
        stranger.sendall(b"hello")  # somebody comes, who is not the launcher
        loop.run()
    said = capsys.readouterr().out
    assert "ropewalk-agent listens at 127.0.0.1:" in said and "the launcher did not come within" in said


def test_an_agent_does_not_wait_where_another_program_has_the_port_of_its_launcher(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(agent_connect, "_DIAL_S", 0.5)
    with tempfile.TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0)) as server:
        loop = Loop()
        connector = AgentConnector(late_agent(server.getsockname()[1]), loop, folder, "", lambda _: None)
        with pytest.raises(TransportRefused, match="it is not a Ropewalk process"):
            connector.begin()
        connector.close()
        loop.forget()
