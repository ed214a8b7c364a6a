"""A training whose stages are on several hosts, one of which is cut off."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lab import Lab
from tests.scenarios.hosts import cluster_of, wait_until_empty

TRAINING = """
    import torch
    from tests.training.faulty_training import PATIENCE, Job, batch, go_through

    if __name__ == "__main__":
        torch.set_num_threads(1)
        job = Job("one_f_one_b", num_steps=12)
        with session(hosts=2) as here, job.trainer(here) as trainer:
            for step in range(5):
                trainer.step(*batch(step)).metrics()
            say(*(counted.host for _, counted in sorted(trainer._run.counters().items())))
            sys.stdin.readline()
            begun = time.monotonic()
            found = go_through(trainer, job, first=5)
            torch.save((found.losses, found.state), os.path.join(FOLDER, "learnt"))
            say(*(counted.host for _, counted in sorted(trainer._run.counters().items())))
            say(*trainer.events)
"""


def test_a_training_goes_on_when_the_host_of_a_stage_is_cut_off(lab: Lab, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from tests.training.faulty_training import Job, Learnt, assert_same, undisturbed

    with cluster_of(lab, tmp_path) as cluster:
        script = cluster.launch(TRAINING, slots=1, OMP_NUM_THREADS="1")
        first, second = (cluster.host(name) for name in script.line().split())
        assert first is not second
        cluster.spool.deaf.add(second)
        lab.cut(second)
        assert script.process.stdin
        script.process.stdin.write("go on\n")
        script.process.stdin.flush()
        hosts, event = script.line().split(), script.line()
        assert hosts[0] == first.name
        assert hosts[1] not in (first.name, second.name)
        assert "the process of stage 1 was lost" in event
        code, _, errors = script.end()
        assert code == 0, errors
        lab.heal(second)
        wait_until_empty(second)
    job = Job("one_f_one_b", num_steps=12)
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as the stages have
    before = undisturbed(job)
    torch.set_num_threads(num_threads)
    losses, state = torch.load(tmp_path / "learnt", weights_only=False)
    assert_same(Learnt(before.losses[:5] + losses, state), before)
