"""The options of the engine docker, named as Docker names them, and the notation of volumes and limits."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import Any

from ropewalk.engines.resources import parse_memory
from ropewalk.near_names import check_choice

_PULL = ("missing", "always", "never")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NETWORK = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]*")
_VOLUME = "HOST:CONTAINER, HOST:CONTAINER:ro or NAME:CONTAINER"


@dataclass(frozen=True)
class DockerOptions:
    """The daemon, and the settings of containers besides the requests of a job."""

    image: str = ""
    """The image of the agents, with a Python that has this version of ropewalk; the setting `image` if empty."""
    python: str = "python3"
    """The Python interpreter in the image."""
    pull: str = "missing"
    """missing, always or never: when the image is fetched from its registry."""
    host: str = ""
    """The daemon: unix:///PATH, tcp://IP:PORT or ssh://USER@HOST; DOCKER_HOST or the default of `docker` if empty."""
    network: str = ""
    """An existing network, or `host`; a network of the run's own if empty."""
    volumes: list[str] = field(default_factory=list[str])
    """The mounts: HOST:CONTAINER or NAME:CONTAINER, each with :ro or not. A HOST must exist."""
    environment: list[str] = field(default_factory=list[str])
    """Variables of the containers: NAME=value, or NAME to pass on the launcher's value."""
    user: str = ""
    """The user of the processes, USER or UID:GID; the image's own user if empty."""
    entrypoint: str = ""
    """A program of the image that runs the command; if empty, the command runs itself, whatever the image says."""
    shm_size: str = ""
    """The size of /dev/shm, such as 2Gi; 64 MB if empty, which is small for the data loaders of PyTorch."""
    runtime: str = ""
    """The container runtime, such as nvidia or runsc; the daemon's default if empty."""
    gpus: list[str] = field(default_factory=list[str])
    """The GPUs that may be given out, as indices or UUIDs; counted up from 0 if empty."""
    ulimits: dict[str, str] = field(default_factory=dict[str, str])
    """Limits of the processes, NAME=SOFT:HARD or NAME=VALUE, such as memlock=-1."""
    per_container: int | None = None
    """The most processes of one container; None lets one container host all."""

    def __post_init__(self) -> None:
        check_choice("pull", self.pull, _PULL)
        if any(character.isspace() for character in self.image):
            raise ValueError(f"image has no spaces in it: {self.image!r}")
        if self.network and not _NETWORK.fullmatch(self.network):
            raise ValueError(f"network is a name of letters, digits, - _ . and :, not {self.network!r}")
        if self.per_container is not None and self.per_container < 1:
            raise ValueError(f"per_container is at least 1, not {self.per_container}")
        if self.shm_size:
            parse_memory(self.shm_size)
        for text in self.volumes:
            mount(text)
        for text in self.environment:
            if not _VARIABLE.fullmatch(text.partition("=")[0]):
                raise ValueError(f"environment has NAME=value or NAME, not {text!r}")
        for name, text in self.ulimits.items():
            ulimit(name, text)

    def variables(self) -> dict[str, str]:
        """Return the variables of the containers; a variable to pass on that is not set here is left out."""
        found: dict[str, str] = {}
        for text in self.environment:
            name, equals, value = text.partition("=")
            if equals:
                found[name] = value
            elif name in os.environ:
                found[name] = os.environ[name]
        return found


def mount(text: str) -> dict[str, Any]:
    """Return the mount for a text such as `/data:/data:ro`, as Docker's API defines it.

    A folder of the host becomes a mount of type bind. With `-v` Docker would make a missing folder, empty and owned by
    root, instead of raising an error.

    Raises:
        ValueError: the text describes no mount.
    """
    source, *rest = text.split(":")
    mode = rest[1] if len(rest) == 2 else "rw"
    if len(rest) not in (1, 2) or not rest[0].startswith("/") or mode not in ("ro", "rw") or not source:
        raise ValueError(f"volumes are written {_VOLUME}; not {text!r}")
    is_path = source[0] in "/~."
    return {
        "Type": "bind" if is_path else "volume",
        "Source": os.path.abspath(os.path.expanduser(source)) if is_path else source,
        "Target": rest[0],
        "ReadOnly": mode == "ro",
    }


def ulimit(name: str, text: str) -> dict[str, Any]:
    """Return the limit for a name and a text, such as `memlock` and `-1`, or `nofile` and `1024:4096`.

    Raises:
        ValueError: the text describes no limit.
    """
    soft, _, hard = text.partition(":")
    try:
        return {"Name": name, "Soft": int(soft), "Hard": int(hard or soft)}
    except ValueError:
        raise ValueError(f"ulimits are written NAME=SOFT:HARD or NAME=VALUE, not {name}={text}") from None
