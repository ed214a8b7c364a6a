"""GPUs of containers: launchers that share a daemon choose different ones, though the daemon lends none itself."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from ropewalk.engines import docker as docker_module
from ropewalk.engines import docker_container as containers
from ropewalk.engines.docker import DockerEngine
from ropewalk.engines.engine import JobSpec
from ropewalk.engines.resources import Resources
from ropewalk.errors import EngineError
from tests.patience import PATIENCE_S

SPEC = JobSpec(["python3"], resources=Resources(gpus=1))


class PretendDaemon:
    """A daemon that keeps containers and their labels; the first lists of several launchers see the same."""

    host = "unix:///pretend.sock"

    def __init__(self, num_launchers: int) -> None:
        self.api = self
        self.kept: dict[str, dict[str, Any]] = {}
        self._first = threading.local()
        self._all_have_chosen = threading.Barrier(num_launchers)
        self._numbers = itertools.count(1)

    @contextlib.contextmanager
    def asked(self, _what: str) -> Generator[None]:
        yield

    @contextlib.contextmanager
    def forgiving(self, *_codes: int) -> Generator[None]:
        yield

    def info(self) -> dict[str, Any]:
        return {"NCPU": 8}

    def containers(self, **_: Any) -> list[dict[str, Any]]:
        found = [dict(each) for each in list(self.kept.values())]
        if not hasattr(self._first, "is_over"):
            self._first.is_over = True
            self._all_have_chosen.wait(PATIENCE_S)
        return found

    def create_container_from_config(self, body: dict[str, Any], _name: str) -> dict[str, str]:
        id = f"{next(self._numbers):064x}"[::-1]
        self.kept[id] = {"Id": id, "State": "created", "Labels": body["Labels"]}
        return {"Id": id}

    def start(self, id: str, data: bytes) -> None:
        [whole] = [each for each in self.kept if each.startswith(id)]
        self.kept[whole]["State"] = "running"

    def kill(self, id: str) -> None:
        pass

    def remove_container(self, id: str, **_: Any) -> None:
        self.kept = {whole: each for whole, each in self.kept.items() if not whole.startswith(id)}

    def remove_network(self, _name: str) -> None:
        pass

    def gpus(self) -> list[str]:
        return sorted(each["Labels"][containers.GPUS] for each in self.kept.values())


def engine_on(daemon: PretendDaemon, monkeypatch: pytest.MonkeyPatch, **options: object) -> DockerEngine:
    engine = DockerEngine({"image": "ropewalk", "network": "theirs", **options})
    monkeypatch.setattr(engine, "daemon", daemon)
    for step in ("_ensure_image", "_sweep"):
        monkeypatch.setattr(engine, step, lambda: None)
    return engine


def test_launchers_that_choose_at_the_same_moment_get_different_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    # Both had listed the containers before either had created its own, and both took GPU 0.
    daemon = PretendDaemon(3)
    engines = [engine_on(daemon, monkeypatch) for _ in range(3)]
    with ThreadPoolExecutor(3) as executor:
        starts = [executor.submit(engine._start, SPEC, 1, f"run{at}", "a") for at, engine in enumerate(engines)]
        ids = [id for start in starts for id in start.result(PATIENCE_S)]
    assert daemon.gpus() == ["0", "1", "2"] and len(ids) == 3
    assert {each["State"] for each in daemon.kept.values()} == {"running"}


def test_what_is_chosen_by_others_at_every_try_is_told_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docker_module, "_GPU_PAUSES_S", (0.0, 0.0))
    daemon = PretendDaemon(1)
    engine = engine_on(daemon, monkeypatch, gpus=["0", "1"])
    create = daemon.create_container_from_config

    def create_twice(body: dict[str, Any], name: str) -> dict[str, str]:
        other = create(body, "of another launcher")  # which created it in the same moment
        made = create(body, name)
        monkeypatch.setattr(
            daemon, "remove_container", lambda id, **_: [daemon.kept.pop(other["Id"], None), remove(id)]
        )
        return made

    remove = daemon.remove_container
    monkeypatch.setattr(daemon, "create_container_from_config", create_twice)
    with pytest.raises(EngineError, match=r"chose the same GPUs of .* at the same moment, 3 times: try again"):
        engine._start(SPEC, 1, "run", "a")
    assert daemon.kept == {}


def test_containers_of_others_that_share_gpus_among_themselves_are_no_concern(monkeypatch: pytest.MonkeyPatch) -> None:
    daemon = PretendDaemon(1)
    for _ in range(2):
        daemon.start(daemon.create_container_from_config({"Labels": {containers.GPUS: "0"}}, "theirs")["Id"], b"")
    [id] = engine_on(daemon, monkeypatch)._start(SPEC, 1, "run", "a")
    assert daemon.gpus() == ["0", "0", "1"] and [each for each in daemon.kept if each.startswith(id)]
