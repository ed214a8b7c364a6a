"""A job as a container: the body of requests to Docker's API, and the meaning of its states.

Plain functions over the API's own dictionaries; nothing here connects to a daemon.
"""

from __future__ import annotations

import datetime
import hashlib
import re
import signal
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ropewalk.engines.docker_options import DockerOptions, mount, ulimit
from ropewalk.engines.engine import JobSpec, JobState, JobStatus
from ropewalk.engines.resources import parse_memory
from ropewalk.errors import EngineError

RUN, REQUEST, INDEX = "ropewalk.run", "ropewalk.request", "ropewalk.index"
"""Labels by which containers and networks are found again."""
USER, LAUNCHER = "ropewalk.user", "ropewalk.launcher"
TIME_LIMIT, GPUS = "ropewalk.time-limit", "ropewalk.gpus"

_GRACE_S = 10
"""Seconds that a job has to clean up after its time limit."""
_TIMED_OUT = 124
"""The exit code of `timeout` after its time limit."""
_KILLED = -int(signal.SIGKILL)
_NOT_FOUND = 127
_EVENT_S = 2.0
"""Seconds after the end of a container in which its last event may come."""
_STATES = {
    "created": JobState.PENDING,
    "running": JobState.RUNNING,
    "restarting": JobState.RUNNING,
    "paused": JobState.RUNNING,
}


def container_name(run_id: str, request_id: str, index: int) -> str:
    """Return a name that is unique on a daemon and the same each time: a repeated request conflicts with the first."""
    run = re.sub(r"[^A-Za-z0-9_.-]", "-", run_id)[:40]
    return f"ropewalk-{run}-{hashlib.sha256(request_id.encode()).hexdigest()[:8]}-{index}"


def network_name(run_id: str) -> str:
    """Return the name of a run's network."""
    return f"ropewalk-{re.sub(r'[^A-Za-z0-9_.-]', '-', run_id)[:40]}"


def container_body(
    spec: JobSpec,
    options: DockerOptions,
    *,
    image: str,
    network: str,
    labels: Mapping[str, str],
    gpus: Sequence[str] = (),
    most_cpus: float | None = None,
) -> dict[str, Any]:
    """Return the body of a request to create a container; holds no secret.

    Args:
        spec: the job.
        options: the options of the engine.
        image: the image of the container.
        network: the name of the network that it joins.
        labels: the labels of the container; labels of the container alone are added.
        gpus: the GPUs that it gets.
        most_cpus: the CPUs of the daemon's host; the daemon refuses a higher limit.

    Returns:
        The body, as Docker's API defines it.
    """
    command = list(spec.command)
    labels = dict(labels)
    environment = options.variables() | dict(spec.environment)
    if RUN in labels:
        environment["ROPEWALK_RUN_ID"] = labels[RUN]
    if spec.time_limit_s is not None:
        # Docker has no time limit. This one also works when the launcher is gone; busybox knows short options only.
        limit = _plain(spec.time_limit_s)
        command = ["timeout", "-k", str(_GRACE_S), "-s", "TERM", limit, *command]
        labels[TIME_LIMIT] = limit
    if gpus:
        labels[GPUS] = ",".join(gpus)
    cpus = spec.resources.cpus if most_cpus is None else min(spec.resources.cpus, most_cpus)
    host: dict[str, Any] = {
        "Init": True,  # process 1 ignores SIGTERM unless it has a handler, and may not reap orphans
        "NetworkMode": network,
        "RestartPolicy": {"Name": "no"},
        "NanoCpus": int(cpus * 1e9),
        "LogConfig": {"Type": "json-file", "Config": {"max-size": "10m", "max-file": "2"}},
        "Mounts": [mount(text) for text in options.volumes],
        "Ulimits": [ulimit(name, text) for name, text in options.ulimits.items()],
    }
    if spec.resources.memory_bytes is not None:
        host["Memory"] = host["MemorySwap"] = spec.resources.memory_bytes  # equal: no swap, so the limit is the limit
    if gpus:
        host["DeviceRequests"] = [{"Driver": "", "DeviceIDs": list(gpus), "Capabilities": [["gpu"]]}]
    if options.shm_size:
        host["ShmSize"] = parse_memory(options.shm_size)
    if options.runtime:
        host["Runtime"] = options.runtime
    body: dict[str, Any] = {
        "Image": image,
        "Entrypoint": [options.entrypoint],  # an empty entrypoint resets that of the image
        "Cmd": command,
        "Env": [f"{name}={value}" for name, value in sorted(environment.items())],
        "Labels": labels,
        "HostConfig": host,
    }
    if options.user:
        body["User"] = options.user
    if spec.stdin:  # else it is /dev/null
        body |= {"OpenStdin": True, "StdinOnce": True, "AttachStdin": True}
    return body


def free_gpus(count: int, known: Sequence[str], taken: Iterable[str]) -> list[str]:
    """Choose the GPUs of a container: Docker's own `--gpus N` gives every container the first N.

    Args:
        count: the number of GPUs that are requested.
        known: the GPUs that may be given out; if empty, indices from 0 without limit.
        taken: the GPUs of our running containers.

    Returns:
        The GPUs, as indices or UUIDs.

    Raises:
        EngineError: not enough GPUs are free.
    """
    used = set(taken)
    free = [gpu for gpu in known or map(str, range(len(used) + count)) if gpu not in used]
    if len(free) < count:
        raise EngineError(
            f"a container asks for {count} GPUs, and of {', '.join(known)} only {', '.join(free) or 'none'} is free:"
            " ask for less, or name more in the option gpus"
        )
    return free[:count]


def labels_of(inspected: Mapping[str, Any]) -> Mapping[str, str]:
    """Return the labels of an inspected container; Docker writes null for none."""
    return inspected["Config"].get("Labels") or dict[str, str]()


def subnets(network: Mapping[str, Any]) -> Sequence[Mapping[str, str]]:
    """Return the subnets of an inspected network, each with `Subnet` and perhaps `Gateway`."""
    return network["IPAM"].get("Config") or list[Mapping[str, str]]()


def is_alive(state: str) -> bool:
    """Return whether a container in this state of Docker has not ended."""
    return state in _STATES


def live_status(state: str, id: str) -> JobStatus:
    """Return the status of a container that has not ended, from its state in Docker."""
    reason = {
        "paused": f"it is paused; docker unpause {id} lets it go on",
        "restarting": "it is being restarted, by a policy that somebody set",
    }
    return JobStatus(_STATES[state], reason=reason.get(state, ""))


def end_status(inspected: Mapping[str, Any]) -> JobStatus:
    """Return the status of a container that has ended, from its inspection."""
    state = inspected["State"]
    code = _exit_code(int(state["ExitCode"]))
    limit = float(labels_of(inspected).get(TIME_LIMIT, "inf"))
    if state.get("OOMKilled"):
        size_bytes: int = inspected["HostConfig"].get("Memory", 0)
        at = f"at the container's limit of {size_bytes} bytes" if size_bytes else "because the host had none left"
        return JobStatus(JobState.ENDED, code, f"out of memory: a process was killed {at}; ask for more memory")
    if code == _TIMED_OUT and limit < float("inf"):
        return JobStatus(JobState.ENDED, -int(signal.SIGTERM), f"it was ended after its time limit of {limit:g} s")
    if code == _KILLED:
        if _ran_s(state) >= limit:
            return JobStatus(JobState.ENDED, code, f"it was killed after its time limit of {limit:g} s")
        return JobStatus(
            JobState.ENDED,
            code,
            "killed with SIGKILL: by docker kill or stop, by itself, or by the host for lack of memory",
        )
    if state.get("Error"):
        return JobStatus(JobState.ENDED, code, str(state["Error"]))
    if code == _NOT_FOUND:
        command = (inspected["Config"].get("Cmd") or [""])[0]
        return JobStatus(JobState.ENDED, code, f"a program was not found: is {command!r} in the image?")
    return JobStatus(JobState.ENDED, code)


def is_killed(inspected: Mapping[str, Any]) -> bool:
    """Return whether a container was ended by SIGKILL, and its inspection does not say that it ran out of memory."""
    state = inspected["State"]
    return _exit_code(int(state["ExitCode"])) == _KILLED and not state.get("OOMKilled")


def life_of(inspected: Mapping[str, Any]) -> tuple[float, float]:
    """Return from when to when there may be events of a container that has ended, by the clock of its daemon."""
    state = inspected["State"]
    return _seconds(state.get("StartedAt", "")), finished_s(inspected) + _EVENT_S


def finished_s(inspected: Mapping[str, Any]) -> float:
    """Return when a container ended, in seconds since 1970; 0 if it never ran."""
    return _seconds(inspected["State"].get("FinishedAt", ""))


def _plain(seconds: float) -> str:
    """Write a time for `timeout`: that of busybox reads no exponent, as in 1e+06; 0 would be no limit."""
    return f"{max(seconds, 0.001):.3f}".rstrip("0").rstrip(".")


def _exit_code(code: int) -> int:
    # The init in the container exits with 128+n for a signal; a program that does so itself means the same.
    return 128 - code if code - 128 in signal.valid_signals() else code


def _ran_s(state: Mapping[str, Any]) -> float:
    return _seconds(state.get("FinishedAt", "")) - _seconds(state.get("StartedAt", ""))


def _seconds(text: str) -> float:
    # "2026-11-21T16:06:47.910804434Z": Python reads six digits of a second at most. The year 1 stands for never.
    match = re.match(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d{1,6})?\d*(Z|[+-]\d\d:\d\d)?", text)
    if match is None or text.startswith("0001"):
        return 0.0
    moment, fraction, zone = match.groups()
    whole = datetime.datetime.fromisoformat(moment + (zone or "Z").replace("Z", "+00:00"))
    return whole.timestamp() + float(fraction or 0)
