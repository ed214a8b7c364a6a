"""The docker engine passes the public suite, over a daemon of its own."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from ropewalk.engines.engine import Engine
from ropewalk.testing.engine_conformance import EngineConformance
from tests.lab.docker import DockerHost


@pytest.mark.usefixtures("_host")
class TestDocker(EngineConformance):
    engine_name = "docker"
    num_jobs = 8
    host: DockerHost

    @pytest.fixture
    def _host(self, docker_host: DockerHost) -> None:
        self.host = docker_host

    def engine_options(self) -> Mapping[str, object]:
        return self.host.options

    def lose(self, engine: Engine, id: str) -> None:
        self.host.docker("kill", id)

    def leftovers(self) -> list[str]:
        return self.host.left()
