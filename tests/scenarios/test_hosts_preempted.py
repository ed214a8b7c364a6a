"""All hosts are taken away at once, with less time than processes take: preemption in Slurm, spot machines."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

from tests.lab import Lab
from tests.patience import PATIENCE_S, wait_until
from tests.scenarios.hosts import Cluster, cluster_of, processes_on
from tests.scenarios.test_program_hosts import COUNTER, script_of

GRACE_S = 0.5


def preempt(cluster: Cluster, *, tells_all: Sequence[float] = (), told: threading.Event | None = None) -> None:
    """SIGTERM to all agents, and SIGKILL to what is left of all hosts half a second later; they take new jobs then.

    Args:
        cluster: whose hosts are taken away.
        tells_all: how many seconds later SIGTERM goes to all processes, as of a job of PBS or LSF, and of Slurm with
            `scancel --full`; each time.
        told: set when all have had their SIGTERM.
    """
    before = {process for machine in cluster.hosts for process in processes_on(machine)}
    for _, _, agent in list(cluster.spool.started):
        if agent.poll() is None:
            os.kill(agent.pid, signal.SIGTERM)
    for delay_s in tells_all:
        time.sleep(delay_s)
        for process in before:
            with contextlib.suppress(psutil.Error):
                process.terminate()
    if told:
        told.set()
    time.sleep(GRACE_S)
    for process in before:
        with contextlib.suppress(psutil.Error):
            process.kill()


def test_tasks_that_are_preempted_again_and_again_are_never_blamed(lab: Lab, tmp_path: Path) -> None:
    """Each is longer than the grace, and more often preempted than a task may die."""
    with cluster_of(lab, tmp_path, 2) as cluster:
        script = cluster.launch(
            """
            def work(number):
                note("begun", number)
                time.sleep(0.01 if os.path.exists(os.path.join(FOLDER, "quick")) else 60)
                return number

            with session() as here:
                with rw.Pool(4, session=here) as pool:
                    pool.wait_until_ready(120)
                    found = pool.map(work, range(8), chunksize=1)
                    status = pool.status()
                    say(sorted(found) == list(range(8)), status.num_deaths, status.failed)
            """,
        )
        for round in range(1, 6):
            wait_until(lambda num=4 * round: len(cluster.notes("begun")) >= num)
            if round == 5:
                (tmp_path / "quick").touch()
            preempt(cluster)
        assert script.line() == "True 0 0"
        code, _, errors = script.end()
        assert code == 0, errors


@pytest.mark.parametrize("tells_all", [(), (0.0,), (0.0, 0.0), (0.05,), (0.0, 0.05)])
def test_a_service_whose_hosts_are_all_preempted_keeps_its_state(
    lab: Lab, tmp_path: Path, tells_all: tuple[float, ...]
) -> None:
    # A service died of the signal that was meant as a notice, with all that it had not saved; and later of one that
    # came twice, or after the launcher had asked for the state.
    with cluster_of(lab, tmp_path) as cluster:
        script = cluster.launch(
            script_of(
                COUNTER,
                """
                with session(hosts=3) as here:
                    program = rw.Program("moved")
                    counter = program.add(rw.Service(Counter), checkpoint_s=60)
                    running = program.launch(session=here)
                    client = running.client(counter, on_lost="retry")
                    while client.look()[3] == 0:
                        client.add(1)
                        note("calls", "add")
                        time.sleep(0.01)
                    say(client.look()[0], *[node.restarts for node in running.status().nodes])
                    running.stop()
                """,
            ),
            slots=1,
        )
        wait_until(lambda: len(cluster.notes("calls")) > 50)
        preempt(cluster, tells_all=tells_all)
        num_added, num_restarts = script.numbers()
        code, _, errors = script.end()
        assert code == 0, errors
        assert (num_added, num_restarts) == (len(cluster.notes("calls")), 0)


def test_a_training_whose_hosts_are_all_preempted_learns_the_same(lab: Lab, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from tests.training.faulty_training import Job, Learnt, assert_same, undisturbed

    with cluster_of(lab, tmp_path) as cluster:
        script = cluster.launch(
            """
            import torch
            from tests.training.faulty_training import Job, batch, go_through

            if __name__ == "__main__":
                torch.set_num_threads(1)
                job = Job("one_f_one_b", num_steps=12)
                with session(hosts=2) as here, job.trainer(here) as trainer:
                    for step in range(5):
                        trainer.step(*batch(step)).metrics()
                    say("ready")
                    sys.stdin.readline()
                    found = go_through(trainer, job, first=5)
                    torch.save((found.losses, found.state), os.path.join(FOLDER, "learnt"))
                    say(*trainer.events)
            """,
            slots=1,
            OMP_NUM_THREADS="1",
        )
        assert script.line() == "ready"
        told = threading.Event()
        taking = threading.Thread(target=preempt, args=(cluster,), kwargs={"told": told})
        taking.start()
        assert told.wait(PATIENCE_S)  # seven steps may be over sooner than a thread of a busy machine begins
        assert script.process.stdin
        script.process.stdin.write("go on\n")
        script.process.stdin.flush()
        assert "training goes on with step" in script.line()
        code, _, errors = script.end()
        taking.join()
        assert code == 0, errors
    job = Job("one_f_one_b", num_steps=12)
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as the stages have
    before = undisturbed(job)
    torch.set_num_threads(num_threads)
    losses, state = torch.load(tmp_path / "learnt", weights_only=False)
    assert_same(Learnt(before.losses[:5] + losses, state), before)


def test_a_launcher_that_is_killed_in_the_middle_of_a_checkpoint_leaves_the_one_before_for_any_number_of_hosts(
    lab: Lab, tmp_path: Path
) -> None:
    source = script_of(
        COUNTER,
        """
        with session() as here:
            program = rw.Program("kept")
            program.add(rw.Service(Counter), checkpoint_s=0.05)
            program.add(rw.Worker(rw.wait_for_stop), name="others", replicas=2)
            running = program.launch(session=here, checkpoint=FOLDER + "/states")
            client = running.client("counter")
            before = client.look()
            say(*before[:2])
            if not before[0]:
                client.add(42, bytes(3_000_000))
                kept = os.path.join(FOLDER, "states", "counter.0.checkpoint")
                while not (os.path.exists(kept) and os.path.getsize(kept) > 3_000_000):
                    time.sleep(0.01)
                say("kept")
                sys.stdin.readline()
                client.add(1, os.urandom(40_000_000))
                sys.stdin.readline()
            running.stop()
        """,
    )
    with cluster_of(lab, tmp_path, 3) as cluster:
        first = cluster.launch(source, slots=3, jobs=1)
        assert first.line() == "0 0"
        assert first.line() == "kept"
        lab.slow(cluster.head, 100e6)  # the next one takes three seconds
        assert first.process.stdin
        first.process.stdin.write("go on\n")
        first.process.stdin.flush()
        wait_until(lambda: any(path.name.startswith(".counter.0.") for path in (tmp_path / "states").iterdir()))
        first.process.kill()
        first.process.wait()
        assert (tmp_path / "states/counter.0.checkpoint").stat().st_size < 4_000_000
        second = cluster.launch(source, slots=1, jobs=3)
        assert second.line() == "42 3000000"
        code, _, errors = second.end()
        assert code == 0, errors
        names = sorted(path.name for path in (tmp_path / "states").iterdir())
        assert not [name for name in names if name.startswith(".")], names
