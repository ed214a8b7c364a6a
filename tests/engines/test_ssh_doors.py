"""A door carries connections to a unix socket of the job: many at once, large payloads, both ways, for nobody else."""

from __future__ import annotations

import os
import socket
import stat
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ropewalk.engines.engine import JobSpec
from ropewalk.engines.ssh import SshEngine
from ropewalk.errors import EngineError
from ropewalk.testing.engine_under_test import new_run
from tests.engines.test_ssh_faults import engine_of, wait_until
from tests.lab.ssh import SshHosts

ECHO = """
import socket, sys, threading
def serve(peer):
    while data := peer.recv(1 << 16):
        peer.sendall(data)
    peer.close()
with socket.socket(socket.AF_UNIX) as listener:
    listener.bind(sys.argv[1])
    listener.listen(64)
    print('up', flush=True)
    while True:
        threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"""


def start_echo(engine: SshEngine, count: int = 1) -> list[str]:
    path = f"/tmp/echo-{os.urandom(4).hex()}.sock"
    ids = engine.submit(JobSpec([sys.executable, "-c", ECHO, path], door=path), count, new_run(), "a")
    wait_until(lambda: all("up" in engine.logs(id) for id in ids), "the jobs to listen")
    return ids


def there_and_back(door: str, payload: bytes) -> bytes:
    came = bytearray()
    with socket.socket(socket.AF_UNIX) as link:
        link.settimeout(30)
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
        with pytest.raises(EngineError, match="cannot lead to the socket"):
            engine.submit(JobSpec(["true"], door="/tmp/a:/etc/passwd"), 1, new_run(), "b")


def test_the_socket_of_a_killed_job_goes_and_so_does_a_folder_of_ours(ssh_hosts: SshHosts) -> None:
    machine = ssh_hosts.hosts[0]
    folder = f"/tmp/ropewalk-{os.urandom(4).hex()}"
    code = f"import os, sys; os.mkdir(os.path.dirname(sys.argv[1]), 0o700)\n{ECHO}"
    with engine_of(ssh_hosts.options) as engine:
        for path in (f"{folder}/door.sock", "/tmp/alone.sock"):
            command = [sys.executable, "-c", code if folder in path else ECHO, path]
            id = engine.submit(JobSpec(command, door=path), 1, new_run(), "a")[0]
            wait_until(lambda id=id: "up" in engine.logs(id), "the job to listen")
            assert machine.path(path).exists()
            engine.cancel([id])
            assert not machine.path(path).exists()
        assert machine.path("/tmp").exists() and not machine.path(folder).exists()
