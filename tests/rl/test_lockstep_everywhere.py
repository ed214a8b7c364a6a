"""The weights after updates in lock-step: the same bits in one process, with any actors and deaths, and on Slurm."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.lab.machine import REPOSITORY
from tests.lab.slurm import SlurmCluster
from tests.rl.lockstep_script import run


@pytest.mark.soak
def test_five_hundred_updates_have_the_same_bits_with_actors_that_are_killed_every_two_seconds() -> None:
    expected = run(0, 500)
    assert len(expected["digests"]) == 5
    for actors in (1, 2, 4):
        result = run(actors, 500)
        assert result["deaths"] >= 2
        assert (result["digests"], result["steps"]) == (expected["digests"], expected["steps"]), f"{actors} actors"


def test_lock_step_on_three_slurm_nodes_has_the_bits_of_one_process(slurm: SlurmCluster) -> None:
    expected = run(0, 100)
    # Not the commands by which the process of the tests reaches the cluster, to which its PATH leads.
    path = os.environ["PATH"].replace(f"{slurm.bin}{os.pathsep}", "")
    environment = {
        **slurm.inner_environment,
        "PATH": path,
        "ROPEWALK_ENGINE": "slurm",
        "ROPEWALK_ENGINE_OPTIONS": json.dumps(slurm.options),
        "ROPEWALK_HOSTS": "3",
    }
    process = slurm.controller.popen(
        [sys.executable, "-m", "tests.rl.lockstep_script", "4", "100"],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=str(REPOSITORY),
    )
    try:
        out, err = process.communicate(timeout=140)
    except BaseException:
        process.kill()
        raise
    assert process.returncode == 0, err[-4000:]
    result = json.loads(out.splitlines()[-1])
    assert result["deaths"] >= 1
    assert len(result["hosts"]) >= 2, "actors ran on several nodes"
    assert (result["digests"], result["steps"]) == (expected["digests"], expected["steps"])
