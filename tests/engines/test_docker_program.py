"""A pool whose workers are in containers: the same answers as here, and nothing left, however the launcher ends."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Generator, Iterator

import pytest

from tests.lab.docker import THIN, DockerHost, thin_volumes
from tests.patience import wait_until

SQUARES = """
import platform, sys, time
import ropewalk

def square(number):
    time.sleep(0.01)
    return number * number, platform.node()

if __name__ == "__main__":
    with ropewalk.Pool(4) as pool:
        pool.wait_until_ready()  # else the first container may do all before the second one is up
        for _ in range(2 if "again" in sys.argv else 1):
            answers = pool.map(square, range(200), chunksize=5)
            print(sum(answer for answer, _ in answers), len({host for _, host in answers}), flush=True)
            if len(sys.argv) > 1:
                sys.stdin.readline()
"""
SUM = str(sum(number * number for number in range(200)))
PROGRAM = "/tmp/squares/squares.py"


@pytest.fixture(autouse=True)
def host(docker_host: DockerHost) -> Iterator[DockerHost]:
    """The daemon with the program beside it; each test leaves nothing on it."""
    docker_host.machine.path("/tmp/squares").mkdir(exist_ok=True)
    docker_host.machine.path(PROGRAM).write_text(SQUARES)
    yield docker_host
    assert docker_host.left() == []


@contextlib.contextmanager
def launch(host: DockerHost, *words: str, **variables: str) -> Generator[subprocess.Popen[str]]:
    """The program, as a launcher beside the daemon; it is killed if the test does not end it."""
    engine = {"ROPEWALK_ENGINE": "docker", "ROPEWALK_ENGINE_OPTIONS": json.dumps(host.inner_options)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with host.machine.popen([sys.executable, PROGRAM, *words], env=engine | variables, **pipes) as process:
        try:
            yield process
        finally:
            process.kill()


def test_a_pool_in_two_containers_gives_the_right_answers(host: DockerHost) -> None:
    with launch(host, ROPEWALK_HOSTS="2") as process:
        said, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    assert said.split() == [SUM, "2"]


@pytest.mark.parametrize("fault", ["pause", "disconnect"])
def test_the_work_of_a_container_that_falls_silent_is_done_by_others(host: DockerHost, fault: str) -> None:
    with launch(host, "again", ROPEWALK_HOSTS="2") as process:
        assert process.stdout and process.stdin
        assert process.stdout.readline().split() == [SUM, "2"]
        victim = host.docker("ps", "-q").split()[0]
        if fault == "pause":
            host.docker("pause", victim)
        else:
            names = "{{range $name, $_ := .NetworkSettings.Networks}}{{$name}}{{end}}"
            host.docker("network", "disconnect", host.docker("inspect", "--format", names, victim), victim)
        process.stdin.write("go on\n")
        process.stdin.flush()
        assert process.stdout.readline().split()[0] == SUM
        process.communicate("end\n", timeout=120)
    assert process.returncode == 0


def test_containers_end_soon_after_their_launcher_was_killed(host: DockerHost) -> None:
    with launch(host, "wait") as process:
        assert process.stdout
        assert process.stdout.readline().split()[0] == SUM
        assert len(host.docker("ps", "-q").split()) == 1
        process.send_signal(signal.SIGKILL)
        process.wait()
    wait_until(lambda: not host.docker("ps", "-q"), "its container to end")
    with launch(host) as process:  # it removes the network of the other one; the container is kept for a while
        process.communicate(timeout=120)
    assert [words for words in host.left() if words.startswith("network")] == []
    host.docker("container", "prune", "--force")


def test_a_launcher_in_a_container_takes_its_own_network(host: DockerHost) -> None:
    options = host.inner_options
    volumes = [*thin_volumes(), "/run/docker.sock:/run/docker.sock", "/tmp/squares:/tmp/squares:ro"]
    mounts = [word for volume in volumes for word in ("--volume", volume)]
    variables = {"ROPEWALK_ENGINE": "docker", "ROPEWALK_ENGINE_OPTIONS": json.dumps(options)}
    variables |= {"DOCKER_HOST": "unix:///run/docker.sock", "XDG_RUNTIME_DIR": "/tmp"}
    environment = [word for name, value in variables.items() for word in ("--env", f"{name}={value}")]
    said = host.docker("run", "--rm", "--init", *mounts, *environment, THIN, sys.executable, PROGRAM)
    assert said.split() == [SUM, "1"]
