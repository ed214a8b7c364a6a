"""The Slurm engine passes the public suite on a real cluster, and says what stands in the way there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from ropewalk.engines.engine import Engine
from ropewalk.testing.engine_conformance import EngineConformance
from tests.lab.slurm import SlurmCluster


@pytest.mark.usefixtures("_cluster")
class TestSlurm(EngineConformance):
    engine_name = "slurm"
    cluster: SlurmCluster

    @pytest.fixture
    def _cluster(self, slurm: SlurmCluster) -> None:
        self.cluster = slurm

    def engine_options(self) -> Mapping[str, object]:
        return self.cluster.options

    def lose(self, engine: Engine, id: str) -> None:
        self.cluster.run("scancel", "--batch", "--signal=KILL", id)

    def leftovers(self) -> list[str]:
        return [str(path) for path in Path(str(self.cluster.options["folder"])).glob("*")]
