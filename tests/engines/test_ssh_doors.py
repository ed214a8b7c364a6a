"""A door carries connections to a unix socket of the job: many at once, large payloads, both ways, for nobody else."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ropewalk.engines import ssh_checks
from ropewalk.engines.engine import JobSpec
from ropewalk.engines.ssh import SshEngine
from ropewalk.engines.ssh_connection import SshConnection
from ropewalk.errors import EngineError
from ropewalk.processes.session import Session
from ropewalk.testing.engine_under_test import new_run
from tests.engines.test_ssh_faults import engine_of
from tests.lab.ssh import SshHosts
from tests.patience import PATIENCE_S, wait_until
from tests.processes.test_session import Listener, start

ECHO = """
import os, socket, threading
def serve(peer):
    while data := peer.recv(1 << 16):
        peer.sendall(data)
    peer.close()
with socket.socket(socket.AF_UNIX) as listener:
    listener.bind(os.environ['ROPEWALK_DOOR'])
    listener.listen(64)
    print('up', flush=True)
    while True:
        threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"""


def start_echo(engine: SshEngine, count: int = 1) -> list[str]:
    ids = engine.submit(JobSpec([sys.executable, "-c", ECHO], door=True), count, new_run(), "a")
    wait_until(lambda: all("up" in engine.logs(id) for id in ids), "the jobs to listen")
    return ids


def there_and_back(door: str, payload: bytes) -> bytes:
    came = bytearray()
    with socket.socket(socket.AF_UNIX) as link:
        link.settimeout(PATIENCE_S)
        link.connect(door)
        sender = threading.Thread(target=lambda: (link.sendall(payload), link.shutdown(socket.SHUT_WR)))
        sender.start()
        while data := link.recv(1 << 16):
            came += data
        sender.join()
    return bytes(came)


def test_many_connections_and_large_payloads_go_both_ways_at_once(ssh_hosts: SshHosts) -> None:
    with engine_of(ssh_hosts.options) as engine:
        doors = [engine.door(id) for id in start_echo(engine, 3)]
        assert len(set(doors)) == 3
        before = [machine.bytes_received() for machine in ssh_hosts.hosts]
        payloads = [os.urandom(size) for size in [4 << 20, 1, *[100_000] * 10] for _ in doors]
        with ThreadPoolExecutor(len(payloads)) as threads:
            answers = list(threads.map(there_and_back, [*doors] * 12, payloads))
        assert answers == payloads
        crossed = [m.bytes_received() - b for m, b in zip(ssh_hosts.hosts, before, strict=True)]
        assert min(crossed) > 4 << 20, "each host got its share over the wire"


def test_a_door_opens_for_its_owner_only_and_goes_with_the_connection(ssh_hosts: SshHosts) -> None:
    with engine_of(ssh_hosts.options) as engine:
        id = start_echo(engine)[0]
        door = Path(engine.door(id))
        assert engine.door(id) == str(door), "the same each time"
        assert stat.S_IMODE(door.stat().st_mode) == 0o600
        assert stat.S_IMODE(door.parent.stat().st_mode) == 0o700
        engine.cancel([id])
        assert not door.exists(), "nobody listens any more"
    assert not door.parent.exists()


def test_a_door_of_a_job_that_has_none_or_is_unknown_is_an_error(ssh_hosts: SshHosts) -> None:
    with engine_of(ssh_hosts.options) as engine:
        id = engine.submit(JobSpec([sys.executable, "-c", "import time; time.sleep(600)"]), 1, new_run(), "a")[0]
        with pytest.raises(EngineError, match="has no door"):
            engine.door(id)
        with pytest.raises(EngineError, match="no job nowhere"):
            engine.door("nowhere")


def place_of(engine: SshEngine, id: str) -> Path:
    """Where a job listens on its host."""
    return Path(engine._jobs[id].socket)


def test_the_folder_of_a_door_goes_with_its_job(ssh_hosts: SshHosts) -> None:
    machine = ssh_hosts.hosts[0]
    with engine_of(ssh_hosts.options) as engine:
        id = start_echo(engine)[0]
        path = place_of(engine, id)
        assert machine.path(str(path)).is_socket()
        engine.cancel([id])
        assert not machine.path(str(path.parent)).exists()
        with pytest.raises(EngineError, match="nowhere"):
            engine.submit(JobSpec(["/nowhere/python"], door=True), 1, new_run(), "a")
        assert not list(machine.path("/tmp").glob("ropewalk-*")), "a job that never was left its folder"


#: What another user of the host tries, who has seen the path in a command line of the launcher's machine.
SQUAT = """
import os, socket, sys
os.setuid(65534)
path, folder = sys.argv[1], os.path.dirname(sys.argv[1])
def listen():
    with socket.socket(socket.AF_UNIX) as listener: listener.bind(path)
def connect():
    with socket.socket(socket.AF_UNIX) as link: link.connect(path)
for attempt in (lambda: os.mkdir(folder), lambda: os.rename(folder, folder + "-mine"), lambda: os.rmdir(folder),
                lambda: os.listdir(folder), listen, connect):
    try: attempt()
    except OSError as error: print(error.strerror)
    else: print("done")
"""


def test_nobody_is_at_a_door_before_its_job(ssh_hosts: SshHosts) -> None:
    """The path used to be in a command line before its folder was made: who was quicker there met the launcher."""
    with engine_of(ssh_hosts.options) as engine:
        id = engine.submit(
            JobSpec([sys.executable, "-c", "import time; time.sleep(600)"], door=True), 1, new_run(), "a"
        )[0]
        path = place_of(engine, id)
        machine = next(machine for machine in ssh_hosts.hosts if id.startswith(f"{machine.ip}/"))
        os.chmod(machine.path("/tmp"), 0o1777)
        folder = machine.path(str(path.parent)).stat()
        assert stat.S_IMODE(folder.st_mode) == 0o700 and folder.st_uid == os.geteuid()
        said = machine.run([sys.executable, "-S", "-c", SQUAT, str(path)]).stdout.split("\n")
        denied = "Permission denied"
        assert said[:-1] == [
            "File exists",
            "Operation not permitted",
            "Operation not permitted",
            denied,
            denied,
            denied,
        ]


@pytest.mark.parametrize("answer", ["/tmp/a:/etc/passwd", "relative", "/tmp/%h", "", None, ["/tmp/a"], "/" + "x" * 107])
def test_what_a_host_says_is_a_path_is_looked_at(
    ssh_hosts: SshHosts, monkeypatch: pytest.MonkeyPatch, answer: object
) -> None:
    with engine_of(ssh_hosts.options) as engine:
        monkeypatch.setattr(SshConnection, "answer", lambda *_: answer)
        with pytest.raises(EngineError, match="sends what no keeper sends as the path of a socket"):
            engine.submit(JobSpec(["true"], door=True), 1, new_run(), "a")


#: Another user, in the place of an agent: challenges whoever comes, welcomes it, speaks on, and notes what it hears.
IMPOSTOR = """
import contextlib, os, socket, sys, threading
from ropewalk.processes.messages import CONTROL, AgentUp
from ropewalk.transport.frames import encode_alone
from ropewalk.transport.handshake import CODEC, Challenge, Welcome
folder = sys.argv[1]
os.mkdir(folder, 0o755)
os.chown(folder, 65534, 65534)
os.setuid(65534)
words = [b"\\x01", *map(encode_alone, (CODEC.encode(Challenge(bytes(32))), CODEC.encode(Welcome(bytes(32))),
                                       CONTROL.encode(AgentUp(1, "n1"))))]
def meet(peer):
    heard = []
    peer.settimeout(5)
    with peer, contextlib.suppress(OSError):
        heard.append(peer.recv(1 << 16))
        peer.sendall(words[0] + words[1])
        for word in words[2:]:
            heard.append(peer.recv(1 << 16))
            peer.sendall(word)
        while data := peer.recv(1 << 16):
            heard.append(data)
    print(b"".join(heard).hex(), flush=True)
with socket.socket(socket.AF_UNIX) as listener:
    listener.bind(folder + "/door.sock")
    os.chmod(folder + "/door.sock", 0o777)
    listener.listen(64)
    print("up", flush=True)
    while True:
        threading.Thread(target=meet, args=listener.accept()[:1], daemon=True).start()
"""


def test_an_impostor_at_the_door_hears_a_ticket_and_a_name_and_is_not_believed(
    ssh_hosts: SshHosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without TLS, the launcher sent its secret to whoever said `Welcome`, and then the project and the keys."""
    machine, folder = ssh_hosts.hosts[0], "/tmp/ropewalk-impostor"
    impostor = machine.popen([sys.executable, "-c", IMPOSTOR, folder], stdout=subprocess.PIPE, text=True)
    assert impostor.stdout and impostor.stdout.readline() == "up\n"
    monkeypatch.setattr(SshConnection, "socket_of", lambda *_: f"{folder}/door.sock")  # it has taken the place
    monkeypatch.setattr(ssh_checks, "require_forwarding", lambda _: None)  # which would try that socket
    with Session("ssh", hosts=1, engine_options={**ssh_hosts.options, "hosts": [machine.ip]}) as session:
        start(session, Listener(), "echo")
        heard: list[bytes] = []
        while len(heard) < 3:  # the launcher tries again, as an agent may be slow
            heard += filter(None, [bytes.fromhex(impostor.stdout.readline())])
        (agent,) = session._fleet.agents.values()
        assert agent.dialling and not session.hosts(), "it was not taken for the agent"
        secrets = [session._run_key, agent.launcher_secret, agent.credentials.secret]
        secrets += [process.credentials.secret for process in session.processes._processes.values()]
    impostor.kill()
    impostor.wait()
    impostor.stdout.close()
    for words in heard:
        assert words.startswith(b"ropewalk-switchboard " + agent.launcher_ticket.encode()) and b"launcher" in words
        assert len(words) < 500 and not [secret for secret in secrets if secret.encode() in words]


def test_the_folder_of_a_killed_keeper_goes_with_the_next_agent_of_its_host(own_ssh_hosts: SshHosts) -> None:
    machine = own_ssh_hosts.hosts[0]

    def folders() -> set[str]:
        return {path.name for path in machine.path("/tmp").glob("ropewalk-*")}

    machine.path("/tmp/ropewalk-mine").mkdir(mode=0o700)  # ours, but nothing says that an agent made it
    options = {**own_ssh_hosts.options, "hosts": [machine.ip]}
    with Session("ssh", hosts=1, engine_options=options) as session:
        start(session, Listener(), "echo")
        wait_until(lambda: session.hosts(), "the agent to be up")
        (left,) = folders() - {"ropewalk-mine"}
        machine.run(["pkill", "-9", "-f", "ropewalk-keeper"])
        wait_until(lambda: not session.hosts(), "the agent to be lost")
    with Session("ssh", hosts=1, engine_options=options) as session:
        start(session, Listener(), "echo")
        wait_until(lambda: session.hosts(), "the next agent to be up")
        assert left not in folders()
    wait_until(lambda: folders() == {"ropewalk-mine"}, "the folder of the next agent to go with it")
