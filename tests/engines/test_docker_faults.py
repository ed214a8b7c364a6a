"""What goes wrong with containers and daemons is told in words with a next step; and nothing is left of it."""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import warnings
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from ropewalk.engines import docker as docker_module
from ropewalk.engines import docker_daemon, make_engine
from ropewalk.engines.docker import DockerEngine
from ropewalk.engines.engine import EngineFinding, JobSpec, JobState, JobStatus
from ropewalk.engines.resources import Resources
from ropewalk.errors import EngineError
from ropewalk.testing.engine_under_test import new_run
from tests.lab.docker import THIN, DockerHost
from tests.patience import PATIENCE_S, wait_until

SLEEP = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"]


def docker_errors() -> Any:
    return importlib.import_module("docker.errors")


@pytest.fixture(autouse=True)
def host(docker_host: DockerHost) -> Iterator[DockerHost]:
    """The daemon; each test leaves nothing on it."""
    before = docker_host.left()
    yield docker_host
    assert docker_host.left() == before


@pytest.fixture
def engine(host: DockerHost) -> Iterator[DockerEngine]:
    with engine_of(host) as engine:
        yield engine


@contextlib.contextmanager
def engine_of(host: DockerHost, **options: object) -> Generator[DockerEngine]:
    engine = DockerEngine({**host.options, **options})
    try:
        yield engine
    finally:
        for ids in list(engine._requests.values()):
            engine.cancel(ids)
        engine.close()


def end_of(engine: DockerEngine, id: str) -> JobStatus:
    wait_until(lambda: engine.poll([id])[id].state in (JobState.ENDED, JobState.LOST), f"{id} to end")
    return engine.poll([id])[id]


def start(engine: DockerEngine, *words: str, **facts: object) -> str:
    return engine.submit(JobSpec(list(words) or SLEEP, **facts), 1, new_run(), "a")[0]  # pyright: ignore[reportArgumentType]


def refusal(act: Callable[[], object]) -> str:
    with pytest.raises(EngineError) as caught:
        act()
    return str(caught.value)


@pytest.fixture
def unreachable() -> Iterator[None]:
    """For daemons that cannot be reached: the SDK then leaves a socket for the collector to close."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


# --- jobs -------------------------------------------------------------------------------------------------------------


def test_a_job_over_its_memory_is_said_to_have_been(engine: DockerEngine) -> None:
    code = "block = b'x' * (200 << 20); print(len(block))"
    status = end_of(engine, start(engine, sys.executable, "-c", code, resources=Resources(memory="50Mi")))
    assert status.exit_code == -9
    assert status.reason.startswith("out of memory") and "52428800 bytes" in status.reason


def test_a_job_over_its_memory_is_said_to_have_been_although_its_inspection_lacks_it(
    engine: DockerEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it learns of it after the end, only its events say so."""
    inspect = engine.daemon.inspect

    def missed(id: str) -> dict[str, Any] | None:
        if inspected := inspect(id):
            inspected["State"]["OOMKilled"] = False
        return inspected

    monkeypatch.setattr(engine.daemon, "inspect", missed)
    test_a_job_over_its_memory_is_said_to_have_been(engine)


def test_the_limits_hold_in_the_container(engine: DockerEngine) -> None:
    code = "from ropewalk.engines.resources import usable_cpus; print('CPUs', usable_cpus())"
    id = start(engine, sys.executable, "-c", code, resources=Resources(cpus=1))
    end_of(engine, id)
    assert engine.logs(id).strip() == "CPUs 1"


def test_a_paused_container_is_said_to_be_and_can_be_ended(engine: DockerEngine, host: DockerHost) -> None:
    id = start(engine)
    host.docker("pause", id)
    status = engine.poll([id])[id]
    assert status.state is JobState.RUNNING
    assert f"docker unpause {id}" in status.reason
    engine.cancel([id])
    assert engine.poll([id])[id] == JobStatus(JobState.ENDED, -9, "cancelled")


def test_a_container_whose_log_cannot_be_read_is_ended_all_the_same(
    engine: DockerEngine, host: DockerHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log may be damaged, as after a loss of power; the container was left running."""
    id = start(engine)

    def damaged(*_: object, **__: object) -> bytes:
        raise docker_errors().APIError("Error grabbing logs: invalid character")

    monkeypatch.setattr(engine.daemon.api, "logs", damaged)
    engine.cancel([id])
    assert id not in host.docker("ps", "--all")


def test_a_container_without_its_network_lives_and_is_removed_all_the_same(
    engine: DockerEngine, host: DockerHost
) -> None:
    id = start(engine)
    network = host.docker("inspect", "--format", "{{range $name, $_ := .NetworkSettings.Networks}}{{$name}}{{end}}", id)
    assert network.startswith("ropewalk-conformance-")
    host.docker("network", "disconnect", network, id)
    assert engine.poll([id])[id].state is JobState.RUNNING


def test_a_container_removed_by_somebody_is_lost(engine: DockerEngine, host: DockerHost) -> None:
    id = start(engine)
    host.docker("rm", "--force", id)
    status = engine.poll([id])[id]
    assert status.state is JobState.LOST and "removed" in status.reason
    assert engine.logs(id) == ""
    engine.cancel([id])


def test_a_job_is_ended_after_its_time(engine: DockerEngine) -> None:
    id = start(engine, time_limit_s=0.5)
    status = end_of(engine, id)
    assert status.exit_code == -15 and "time limit of 0.5 s" in status.reason


def test_a_program_that_is_not_in_the_image_is_named(engine: DockerEngine) -> None:
    status = end_of(engine, start(engine, "/no/such/program"))
    assert status.exit_code == 127 and "'/no/such/program' in the image?" in status.reason


def test_a_secret_is_neither_in_the_inspection_nor_in_ps_nor_in_the_log(engine: DockerEngine, host: DockerHost) -> None:
    code = "import sys, time; print(len(sys.stdin.read()), flush=True); time.sleep(600)"
    secret = os.urandom(16).hex()
    id = start(engine, sys.executable, "-c", code, stdin=secret.encode())
    wait_until(lambda: engine.logs(id).strip() == "32", "the job to have read its secret")
    seen = [host.docker("inspect", id), host.docker("ps", "-a", "--no-trunc"), host.docker("top", id), engine.logs(id)]
    seen += [path.read_text(errors="replace") for path in host.machine.path("/run/data/containers").rglob("*.json")]
    seen += [host.machine.path("/run/dockerd.log").read_text()]
    assert len(seen) >= 6
    assert not [text for text in seen if secret in text]


def test_containers_reach_the_address_of_the_launcher(engine: DockerEngine, host: DockerHost) -> None:
    (ip,) = engine.hosts()
    with host.machine.visit(lambda: socket.create_server((ip, 0))) as listener:
        listener.settimeout(PATIENCE_S)
        port = listener.getsockname()[1]
        code = f"import socket; socket.create_connection(('{ip}', {port}), 5).sendall(b'hello')"
        start(engine, sys.executable, "-c", code)
        peer, _ = listener.accept()
        with peer:
            assert peer.recv(100) == b"hello"


# --- what is left -----------------------------------------------------------------------------------------------------

LAUNCHER = """
import json, os, signal, sys
from ropewalk.engines.docker import DockerEngine
from ropewalk.engines.engine import JobSpec
engine = DockerEngine(json.loads(sys.argv[1]))
print(*engine.submit(JobSpec(json.loads(sys.argv[3])), 1, sys.argv[2], "a"), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def killed_launcher(host: DockerHost, run: str, command: list[str]) -> str:
    """A launcher that dies after it has submitted a job; the id of that."""
    argv = [sys.executable, "-c", LAUNCHER, json.dumps(host.options), run, json.dumps(command)]
    done = subprocess.run(argv, stdout=subprocess.PIPE, text=True)
    assert done.returncode == -signal.SIGKILL
    return done.stdout.strip()


def test_the_next_run_removes_what_a_killed_launcher_left(host: DockerHost, monkeypatch: pytest.MonkeyPatch) -> None:
    run = new_run()
    left = killed_launcher(host, run, [sys.executable, "-c", "pass"])
    with engine_of(host) as engine:
        end_of(engine, left)
        start(engine)
        assert f"ropewalk-{run}" not in host.docker("network", "ls"), "networks are few, and go at once"
        assert engine.poll([left])[left].state is JobState.ENDED, "its log may say why, so it is kept for a while"
    monkeypatch.setattr(docker_module, "_KEPT_S", -1.0)
    with engine_of(host) as engine:
        start(engine)
        assert engine.poll([left])[left].state is JobState.LOST


def test_what_a_killed_launcher_left_is_told_and_removed_when_asked(host: DockerHost) -> None:
    run, busy = new_run(), new_run()
    runs = killed_launcher(host, busy, SLEEP)
    left = killed_launcher(host, run, [sys.executable, "-c", "pass"])
    with engine_of(host) as engine:
        end_of(engine, left)
        assert engine.remains() == {run: [f"container {left} (exited)", f"network ropewalk-{run}"]}
        engine.remove_remains(run)
        engine.remove_remains(busy)
        assert not engine.remains() and engine.runs() == {busy: [runs]}
        assert run not in host.docker("network", "ls") and left not in host.docker("ps", "--all")
        assert busy in host.docker("network", "ls")
        engine.cancel([runs])


def test_another_launcher_gets_the_jobs_of_a_request_that_was_made_already(host: DockerHost) -> None:
    run = new_run()
    first = killed_launcher(host, run, SLEEP)
    with engine_of(host) as engine:
        assert engine.submit(JobSpec(SLEEP), 1, run, "a") == [first]
        assert engine.runs()[run] == [first]


def test_jobs_that_cannot_all_be_started_leave_nothing(host: DockerHost, engine: DockerEngine) -> None:
    before = host.left()
    with engine_of(host, user="nobody-here") as other:
        said = refusal(lambda: other.submit(JobSpec(SLEEP), 2, new_run(), "a"))
    assert "nobody-here" in said and "the option user must be one of the image's users" in said
    assert host.left() == before


# --- refusals ---------------------------------------------------------------------------------------------------------


def test_without_an_image_it_says_how_to_build_one(host: DockerHost) -> None:
    with engine_of(host, image="") as engine:
        assert "docker build -t ropewalk ." in refusal(lambda: start(engine))
        assert not finding(engine, "image").ok


def test_the_setting_image_is_taken_unless_the_option_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROPEWALK_IMAGE", "from-settings:1")
    assert DockerEngine().image == "from-settings:1"
    assert DockerEngine({"image": THIN}).image == THIN


def test_an_image_that_is_not_there_is_named_with_what_puts_it_there(host: DockerHost) -> None:
    with engine_of(host, image="no/such:1", pull="never") as engine:
        said = refusal(lambda: start(engine))
        assert "`docker pull no/such:1`" in said and "`docker build -t no/such:1 .`" in said
        assert not finding(engine, "image no/such:1").ok


def test_an_image_that_cannot_be_pulled_says_why(host: DockerHost) -> None:
    with engine_of(host, image="127.0.0.1:1/such:1", pull="missing") as engine:
        said = refusal(lambda: start(engine))
    assert said.startswith("cannot pull the image '127.0.0.1:1/such:1'") and "connection refused" in said
    assert "`docker pull 127.0.0.1:1/such:1`" in said


@pytest.mark.parametrize(
    ("options", "facts", "words"),
    [
        ({"network": "no-such-net"}, {}, "`docker network ls` lists those there are"),
        ({"runtime": "no-such-runtime"}, {}, "`docker info` lists the runtimes"),
        ({"volumes": ["/no/such/folder:/data"]}, {}, "make that folder on the daemon's host"),
        ({}, {"resources": Resources(gpus=1)}, "NVIDIA Container Toolkit"),
        ({}, {"resources": Resources(memory="1k")}, "ask for more memory"),
    ],
)
def test_what_the_daemon_refuses_is_told_with_the_next_step(
    host: DockerHost, options: dict[str, object], facts: dict[str, object], words: str
) -> None:
    with engine_of(host, **options) as engine:
        assert words in refusal(lambda: start(engine, **facts))


def test_more_than_the_host_has_is_refused_with_what_it_has(engine: DockerEngine) -> None:
    assert f"has {os.cpu_count()} CPUs" in refusal(lambda: engine.per_job(Resources(cpus=1000)))
    assert "bytes of memory" in refusal(lambda: engine.per_job(Resources(memory="900Ti")))


@pytest.mark.usefixtures("unreachable")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_daemon_that_does_not_run_is_told_with_how_to_start_it(tmp_path: Path) -> None:
    engine = DockerEngine({"host": f"unix://{tmp_path}/docker.sock", "image": THIN})
    said = refusal(lambda: start(engine))
    assert f"unix://{tmp_path}/docker.sock" in said and "systemctl start docker" in said and "DOCKER_HOST" in said
    assert refusal(engine.hosts) and refusal(lambda: engine.find("run"))
    bad = [finding for finding in engine.check() if not finding.ok]
    assert len(bad) == 1 and "systemctl start docker" in bad[0].detail
    engine.close()


@pytest.mark.usefixtures("unreachable")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_port_where_nobody_listens_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:1")
    said = refusal(DockerEngine({"image": THIN}).hosts)
    assert "tcp://127.0.0.1:1" in said and "start the daemon" in said


@pytest.mark.usefixtures("unreachable")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_address_that_is_none_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "nonsense://x:1:2")
    assert "unix:///PATH, tcp://IP:PORT or ssh://USER@HOST" in refusal(DockerEngine({"image": THIN}).hosts)


def test_a_socket_that_may_not_be_opened_is_told_with_how_to_be_allowed(host: DockerHost) -> None:
    code = (
        "import os, sys; from ropewalk.engines.docker import DockerEngine; import docker\n"
        "os.setgid(65534); os.setuid(65534)\n"
        "try: DockerEngine({'host': sys.argv[1]}).hosts()\n"
        "except Exception as error: print(error)"
    )
    said = host.machine.run([sys.executable, "-c", code, "unix:///run/docker.sock"]).stdout
    assert "sudo usermod -aG docker $USER" in said


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "docker", None)
    assert "pip install 'ropewalk[docker]'" in refusal(lambda: make_engine("docker"))


@pytest.mark.usefixtures("unreachable")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_daemon_that_hangs_is_told(host: DockerHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docker_daemon, "_TIMEOUT_S", 0.5)
    host.dockerd.send_signal(signal.SIGSTOP)
    try:
        assert "did not answer: try `docker version`" in refusal(DockerEngine(host.options).hosts)
    finally:
        host.dockerd.send_signal(signal.SIGCONT)


# --- what it says of itself -------------------------------------------------------------------------------------------


def finding(engine: DockerEngine, what: str) -> EngineFinding:
    return next(finding for finding in engine.check() if finding.what == what)


def test_the_check_looks_into_the_image(engine: DockerEngine, host: DockerHost) -> None:
    bad = [finding for finding in engine.check() if not finding.ok]
    assert not bad
    assert "as here" in finding(engine, f"Python in {THIN}").detail
    with engine_of(host, python="/usr/bin/false") as other:
        assert "does not run there" in finding(other, f"Python in {THIN}").detail
    with engine_of(host, network="no-such-net") as other:
        assert not finding(other, "network no-such-net").ok


def test_the_launcher_is_reached_where_containers_can(host: DockerHost, monkeypatch: pytest.MonkeyPatch) -> None:
    with engine_of(host) as engine:
        assert engine.hosts() == ["10.79.0.1"]
    with engine_of(host, network="host") as engine:
        assert engine.hosts() == ["127.0.0.1"]
        assert engine.logs(start(engine)) in ("", "up\n")
    assert DockerEngine({"host": "tcp://192.0.2.7:2376"}).hosts() == ["192.0.2.7"]
    assert DockerEngine({"host": "ssh://me@there"}).hosts() == []
    monkeypatch.setattr(docker_module, "resolve", {"there": ["10.0.0.5"]}.get)
    assert DockerEngine({"host": "tcp://there:2376"}).hosts() == ["10.0.0.5"]
