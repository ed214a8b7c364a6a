"""Checks whether a Docker daemon can be used, for `ropewalk doctor --engine docker`."""

from __future__ import annotations

import datetime
import os
import sys
import time
from collections.abc import Iterator
from typing import Any

from ropewalk.engines import docker_container as containers
from ropewalk.engines.docker_daemon import Daemon
from ropewalk.engines.docker_options import DockerOptions, mount
from ropewalk.engines.engine import EngineFinding, JobSpec
from ropewalk.errors import EngineError
from ropewalk.quantities import shown_size
from ropewalk.version import VERSION

_MOST_SKEW_S = 60.0
"""Certificates of a run are valid from a short time before its start."""
_TRIAL_S = 60
_VERSIONS = (
    "import sys; del sys.path[0]; from ropewalk.version import VERSION; print('%d.%d' % sys.version_info[:2], VERSION)"
)
"""Without -P, which only Python 3.11 and newer know; the current folder is removed from the import path instead."""


def findings(daemon: Daemon, options: DockerOptions, image: str) -> list[EngineFinding]:
    """Check everything that can be checked, also by starting one container briefly; nothing is left on the daemon."""
    found = [EngineFinding("package docker", True, f"version {daemon.sdk_version}")]
    try:
        found += _daemon(daemon)
        found += _folders(daemon, options)
        found += _network(daemon, options)
        found += _image(daemon, options, image)
        found += _left(daemon)
    except EngineError as error:
        found.append(EngineFinding("Docker daemon", False, str(error)))
    return found


def _daemon(daemon: Daemon) -> Iterator[EngineFinding]:
    with daemon.asked("ask the daemon what it is"):
        version, info = daemon.api.version(), daemon.api.info()
    yield EngineFinding(
        "Docker daemon",
        True,
        f"{daemon.host}, version {version.get('Version')}, API {version.get('ApiVersion')}, {info['NCPU']} CPUs,"
        f" {shown_size(info['MemTotal'])}",
    )
    missing = [name for name, key in (("memory", "MemoryLimit"), ("CPU", "CpuCfsQuota")) if not info.get(key)]
    yield EngineFinding(
        "limits of containers",
        not missing,
        f"its kernel enforces no {' and no '.join(missing)} limit: switch on these cgroup controllers"
        if missing
        else "memory and CPU are enforced",
    )
    devices = f"{info.get('Runtimes')} {info.get('DiscoveredDevices')}"
    yield EngineFinding(
        "GPUs", True, "the NVIDIA runtime is there" if "nvidia" in devices else "none: no NVIDIA runtime"
    )
    yield _clock(info.get("SystemTime", ""))


def _clock(text: str) -> EngineFinding:
    try:
        theirs = datetime.datetime.fromisoformat(text[:19] + "+00:00").timestamp()
    except ValueError:
        return EngineFinding("clock", True, "the daemon does not report its time")
    skew_s = time.time() - theirs
    ok = abs(skew_s) < _MOST_SKEW_S
    detail = f"{abs(skew_s):.0f} s {'ahead of' if skew_s > 0 else 'behind'} the daemon's"
    return EngineFinding("clock", ok, detail if ok else f"{detail}: certificates fail; set both clocks (NTP)")


def _folders(daemon: Daemon, options: DockerOptions) -> Iterator[EngineFinding]:
    for each in map(mount, options.volumes):
        if each["Type"] == "bind" and not daemon.remote_host:
            there = os.path.exists(each["Source"])
            yield EngineFinding(
                f"folder {each['Source']}", there, "is there" if there else "make it, or correct volumes"
            )


def _network(daemon: Daemon, options: DockerOptions) -> Iterator[EngineFinding]:
    name = options.network or "bridge"
    try:
        with daemon.asked(f"look at the network {name}"):
            network = daemon.api.inspect_network(name)
        subnets = [each.get("Subnet", "") for each in containers.subnets(network)]
        where = ", ".join(subnets) or "no addresses of its own"
        yield EngineFinding(
            f"network {name}", True, f"{where}; a firewall of this machine must let containers in to the launcher"
        )
    except EngineError as error:
        yield EngineFinding(f"network {name}", False, str(error))


def _image(daemon: Daemon, options: DockerOptions, image: str) -> Iterator[EngineFinding]:
    what = f"image {image}"
    if not image:
        yield EngineFinding("image", False, "none is named: `docker build -t ropewalk .`, then --option image=ropewalk")
        return
    if not daemon.has_image(image):
        if options.pull == "never":
            detail = f"is not there, and pull=never: `docker pull {image}` or `docker build -t {image} .`"
            yield EngineFinding(what, False, detail)
            return
        try:
            with daemon.asked(f"find {image} in its registry"):
                daemon.api.inspect_distribution(image)
            yield EngineFinding(what, True, "is not there yet, and will be pulled")
        except EngineError as error:
            yield EngineFinding(what, False, f"{error}; or make it here: `docker build -t {image} .`")
        return
    yield EngineFinding(what, True, "is there")
    yield _python(daemon, options, image)


def _python(daemon: Daemon, options: DockerOptions, image: str) -> EngineFinding:
    what = f"Python in {image}"
    code, said = _try(daemon, options, image, [options.python, "-c", _VERSIONS])
    ours = f"{sys.version_info.major}.{sys.version_info.minor} {VERSION}"
    if code != 0:
        detail = f"`{options.python}` with ropewalk does not run there: {said[-500:]}; set python, or install ropewalk"
        return EngineFinding(what, False, detail)
    python, version = [*said.split()[-2:], "?", "?"][:2]
    if f"{python} {version}" != ours:
        detail = f"it has Python {python} with ropewalk {version}, and here it is {ours.replace(' ', ' with ')}"
        return EngineFinding(what, False, f"{detail}: build the image from the same versions")
    return EngineFinding(what, True, f"Python {python} with ropewalk {version}, as here")


def _try(daemon: Daemon, options: DockerOptions, image: str, command: list[str]) -> tuple[int, str]:
    """Run a command in a container like those of jobs; returns its exit code and its output."""
    labels = {containers.USER: str(os.getuid())}
    body: dict[str, Any] = containers.container_body(
        JobSpec(command), options, image=image, network="none", labels=labels, most_cpus=1
    )
    try:
        with daemon.asked(f"try {image}"):
            id = daemon.api.create_container_from_config(body)["Id"]
            try:
                daemon.api.start(id)
                code = daemon.api.wait(id, timeout=_TRIAL_S)["StatusCode"]
                return code, daemon.api.logs(id).decode(errors="replace").strip()
            finally:
                daemon.api.remove_container(id, v=True, force=True)
    except EngineError as error:
        return -1, str(error)


def _left(daemon: Daemon) -> Iterator[EngineFinding]:
    with daemon.asked("list containers"):
        label = {"label": [containers.RUN, f"{containers.USER}={os.getuid()}"]}
        found = daemon.api.containers(all=True, filters=label)
    over = [each["Id"][:12] for each in found if not containers.is_alive(each["State"])]
    detail = f"{len(found) - len(over)} containers run, {len(over)} have ended"
    hint = "; `ropewalk doctor --leftovers --engine docker` says whose they are, and removes them" if over else ""
    yield EngineFinding("containers of runs", True, detail + hint)
