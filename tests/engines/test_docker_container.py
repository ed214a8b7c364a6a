"""What a job looks like as a container, and what the end of one means; without a daemon."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

import pytest

from ropewalk.engines import docker_container as containers
from ropewalk.engines.docker import DockerEngine, is_gone, this_process
from ropewalk.engines.docker_options import DockerOptions
from ropewalk.engines.engine import JobSpec, JobState
from ropewalk.engines.options import read_options
from ropewalk.engines.resources import Resources
from ropewalk.errors import EngineError, SettingsError
from tests.lab.plugin import require_packages


def body(spec: JobSpec, options: Mapping[str, object] | None = None, **facts: Any) -> dict[str, Any]:
    read = read_options("docker", DockerOptions, options or {})
    facts = {"image": "agents:1", "network": "net", "labels": {containers.RUN: "run"}} | facts
    return containers.container_body(spec, read, **facts)


def test_resources_become_limits_and_swap_is_none() -> None:
    host = body(JobSpec(["python3"], resources=Resources(cpus=1.5, memory="1Gi")))["HostConfig"]
    assert host["NanoCpus"] == 1_500_000_000
    assert host["Memory"] == host["MemorySwap"] == 2**30
    assert host["Init"] is True and host["RestartPolicy"] == {"Name": "no"}


def test_a_launcher_in_a_container_needs_the_socket_of_the_daemon() -> None:
    require_packages("docker")
    given = {"host": "unix:///run/docker.sock", "volumes": ["/data:/data"]}
    with pytest.raises(EngineError, match=r"add /run/docker.sock:/run/docker.sock to the option volumes"):
        DockerEngine(given).launcher_options(given)
    given["volumes"] = ["/data:/data", "/run/docker.sock:/run/docker.sock"]
    assert DockerEngine(given).launcher_options(given) == given
    elsewhere = {"host": "tcp://10.0.0.1:2376"}
    assert DockerEngine(elsewhere).launcher_options(elsewhere) == elsewhere


def test_no_more_cpus_are_asked_for_than_the_daemon_accepts() -> None:
    host = body(JobSpec(["python3"], resources=Resources(cpus=8)), most_cpus=2)["HostConfig"]
    assert host["NanoCpus"] == 2_000_000_000
    assert "Memory" not in host


def test_the_secret_is_nowhere_in_what_is_sent() -> None:
    sent = body(JobSpec(["python3"], stdin=b"the-secret-5f2c", environment={"A": "b"}))
    assert "the-secret-5f2c" not in json.dumps(sent)
    assert sent["OpenStdin"] and sent["StdinOnce"]
    assert sent["Env"] == ["A=b", "ROPEWALK_RUN_ID=run"]


def test_a_job_without_stdin_gets_the_end_of_file_at_once() -> None:
    assert "OpenStdin" not in body(JobSpec(["python3"]))


def test_every_option_finds_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HANDED_ON", "from here")
    monkeypatch.delenv("NOT_SET", raising=False)
    options = {
        "volumes": "/data:/data:ro,cache:/cache",
        "environment": "A=b=c,HANDED_ON,NOT_SET",
        "user": "1000:1000",
        "entrypoint": "/entry.sh",
        "shm_size": "2Gi",
        "runtime": "nvidia",
        "ulimits": "memlock=-1,nofile=1024:4096",
    }
    sent = body(JobSpec(["python3"]), options)
    assert sent["User"] == "1000:1000"
    assert sent["Entrypoint"] == ["/entry.sh"]
    assert sent["Env"] == ["A=b=c", "HANDED_ON=from here", "ROPEWALK_RUN_ID=run"]
    assert sent["HostConfig"]["ShmSize"] == 2**31
    assert sent["HostConfig"]["Runtime"] == "nvidia"
    assert sent["HostConfig"]["Mounts"] == [
        {"Type": "bind", "Source": "/data", "Target": "/data", "ReadOnly": True},
        {"Type": "volume", "Source": "cache", "Target": "/cache", "ReadOnly": False},
    ]
    assert sent["HostConfig"]["Ulimits"] == [
        {"Name": "memlock", "Soft": -1, "Hard": -1},
        {"Name": "nofile", "Soft": 1024, "Hard": 4096},
    ]


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("volumes", "/data", "HOST:CONTAINER"),
        ("volumes", "/data:data", "HOST:CONTAINER"),
        ("volumes", "/data:/data:rx", "not '/data:/data:rx'"),
        ("pull", "sometimes", "pull must be one of 'missing', 'always', 'never', not 'sometimes'"),
        ("image", "two words", "no spaces"),
        ("network", "a b", "network is a name"),
        ("environment", "1=2", "NAME=value or NAME"),
        ("ulimits", "nofile=many", "NAME=SOFT:HARD"),
        ("shm_size", "2gi", '"2Gi"'),
        ("per_container", "0", "at least 1"),
    ],
)
def test_an_option_that_does_not_fit_is_refused_with_its_rule(option: str, value: str, words: str) -> None:
    with pytest.raises(SettingsError) as caught:
        read_options("docker", DockerOptions, {option: value})
    assert words in str(caught.value)


def test_a_time_limit_holds_without_a_launcher() -> None:
    sent = body(JobSpec(["python3", "-c", "pass"], time_limit_s=5400))
    assert sent["Cmd"] == ["timeout", "-k", "10", "-s", "TERM", "5400", "python3", "-c", "pass"]
    assert sent["Labels"][containers.TIME_LIMIT] == "5400"


@pytest.mark.parametrize(
    ("seconds", "written"), [(30 * 86400.0, "2592000"), (1234567.0, "1234567"), (0.5, "0.5"), (1e-6, "0.001")]
)
def test_a_time_limit_is_written_so_that_every_timeout_reads_it(seconds: float, written: str) -> None:
    """That of busybox took 2.592e+06 for no number, and 1234567 s were 3 s more."""
    sent = body(JobSpec(["python3"], time_limit_s=seconds))
    assert sent["Cmd"][5] == sent["Labels"][containers.TIME_LIMIT] == written


def test_containers_get_gpus_of_their_own() -> None:
    assert containers.free_gpus(2, [], []) == ["0", "1"]
    assert containers.free_gpus(2, [], ["0", "2"]) == ["1", "3"]
    assert containers.free_gpus(1, ["GPU-a", "GPU-b"], ["GPU-a"]) == ["GPU-b"]
    assert containers.free_gpus(0, [], ["0"]) == []
    with pytest.raises(EngineError, match="asks for 2 GPUs, and of 0, 1 only 1 is free: ask for less"):
        containers.free_gpus(2, ["0", "1"], ["0"])
    sent = body(JobSpec(["python3"]), gpus=["1", "3"])
    assert sent["HostConfig"]["DeviceRequests"][0]["DeviceIDs"] == ["1", "3"]
    assert sent["Labels"][containers.GPUS] == "1,3"


def test_names_are_the_same_each_time_and_fit_docker_whatever_they_are_made_of() -> None:
    name = containers.container_name("run/1 ü", "request; rm -rf /\n", 3)
    assert name == containers.container_name("run/1 ü", "request; rm -rf /\n", 3)
    assert name.startswith("ropewalk-run-1---") and name.endswith("-3")
    assert name != containers.container_name("run/1 ü", "another", 3)
    assert containers.network_name("run/1 ü") == "ropewalk-run-1--"


def inspected(code: int, *, limit: str = "", memory: int = 0, ran_s: int = 1, **state: Any) -> dict[str, Any]:
    times = {"StartedAt": "2026-11-21T16:00:00.123456789Z", "FinishedAt": f"2026-11-21T16:00:{ran_s:02}.223456789Z"}
    return {
        "State": {"Status": "exited", "ExitCode": code, **times, **state},
        "Config": {"Labels": {containers.TIME_LIMIT: limit} if limit else None, "Cmd": ["trainer"]},
        "HostConfig": {"Memory": memory},
    }


@pytest.mark.parametrize(
    ("facts", "code", "words"),
    [
        (inspected(0), 0, ""),
        (inspected(7), 7, ""),
        (inspected(128), 128, ""),
        (inspected(143), -15, ""),
        (inspected(137), -9, "docker kill"),
        (inspected(255), 255, ""),
        (inspected(137, OOMKilled=True, memory=50 << 20), -9, "limit of 52428800 bytes; ask for more"),
        (inspected(0, OOMKilled=True), 0, "out of memory"),
        (inspected(124), 124, ""),
        (inspected(124, limit="5"), -15, "time limit of 5 s"),
        (inspected(137, limit="5", ran_s=15), -9, "killed after its time limit of 5 s"),
        (inspected(137, limit="5", ran_s=2), -9, "docker kill"),
        (inspected(127), 127, "'trainer' in the image?"),
        (inspected(128, Error="no such device"), 128, "no such device"),
    ],
)
def test_an_end_is_told_with_its_cause(facts: dict[str, Any], code: int, words: str) -> None:
    status = containers.end_status(facts)
    assert (status.state, status.exit_code) == (JobState.ENDED, code)
    assert words in status.reason if words else not status.reason


def test_a_process_is_gone_only_if_that_is_sure() -> None:
    here = this_process()
    assert not is_gone(here)
    place, pid, started = here.split("/")
    assert is_gone(f"{place}/{pid}/1.00"), "the number was given out again"
    assert is_gone(f"{place}/{2**22 + 1}/{started}")
    assert not is_gone(f"another-machine/{2**22 + 1}/{started}")
    assert not is_gone("") and not is_gone("nonsense/x")
    assert pid == str(os.getpid())
