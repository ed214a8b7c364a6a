"""Inside an allocation agents are steps on its nodes: the public suite on a real cluster, and what is special there."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from ropewalk.engines.engine import Engine
from ropewalk.engines.slurm_steps import SlurmSteps
from ropewalk.testing.engine_conformance import EngineConformance
from tests.lab.slurm import SlurmCluster


@pytest.fixture(scope="module")
def whole(slurm_cluster: SlurmCluster) -> Iterator[str]:
    """An allocation of all nodes, for all tests that leave it whole."""
    id = salloc(slurm_cluster, "--nodes=3", "--exclusive")
    yield id
    slurm_cluster.run("scancel", id)


def salloc(cluster: SlurmCluster, *flags: str) -> str:
    argv = ["/usr/bin/salloc", "--no-shell", "--job-name=mine", *flags]
    done = cluster.controller.run(argv, env=cluster.inner_environment)
    match = re.search(r"Granted job allocation (\d+)", done.stderr)
    assert match, done.stderr
    return match[1]


def steps(cluster: SlurmCluster) -> dict[str, str]:
    """The ids of all steps that run, by name."""
    printed = cluster.run("squeue", "--steps", "--noheader", "--format=%j %i")
    return dict(line.split() for line in printed.splitlines())


@pytest.mark.usefixtures("_inside")
class TestSlurmSteps(EngineConformance):
    engine_name = "slurm"
    cluster: SlurmCluster

    @pytest.fixture
    def _inside(self, slurm: SlurmCluster, whole: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cluster = slurm
        monkeypatch.setenv("SLURM_JOB_ID", whole)

    def engine_options(self) -> Mapping[str, object]:
        return self.cluster.options

    def make_engine(self) -> Engine:
        engine = super().make_engine()
        assert isinstance(engine, SlurmSteps)
        return engine

    def lose(self, engine: Engine, id: str) -> None:
        self.cluster.run("scancel", "--signal=KILL", steps(self.cluster)[f"ropewalk-{id}"])

    def leftovers(self) -> list[str]:
        return [str(path) for path in Path(str(self.cluster.options["folder"])).glob("step-*")]
