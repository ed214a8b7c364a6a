"""The ssh engine passes the public suite, over three machines with an sshd each."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from ropewalk.engines.engine import Engine
from ropewalk.engines.ssh import SshEngine
from ropewalk.testing.engine_conformance import EngineConformance
from tests.lab.ssh import SshHosts


@pytest.mark.usefixtures("_hosts")
class TestSsh(EngineConformance):
    engine_name = "ssh"
    hosts: SshHosts

    @pytest.fixture
    def _hosts(self, ssh_hosts: SshHosts) -> None:
        self.hosts = ssh_hosts

    def engine_options(self) -> Mapping[str, object]:
        return self.hosts.options

    def lose(self, engine: Engine, id: str) -> None:
        assert isinstance(engine, SshEngine)
        job = engine._jobs[id]
        host = next(machine for machine in self.hosts.hosts if machine.ip == job.connection.host.name)
        host.run(["pkill", "-9", "-f", "sleep.600"])
