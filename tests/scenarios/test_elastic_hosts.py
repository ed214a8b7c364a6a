"""Pools whose hosts come and go: asked for, given back, taken away, lost."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

import psutil

from tests.lab import Lab
from tests.patience import wait_until
from tests.scenarios.hosts import cluster_of, processes_on, wait_until_empty


def test_a_pool_asks_for_whole_hosts_and_gives_whole_hosts_back(lab: Lab, tmp_path: Path) -> None:
    with cluster_of(lab, tmp_path) as cluster:
        script = cluster.launch(
            """
            from ropewalk.processes import fleet
            fleet._IDLE_S = 0.5

            def work(number):
                time.sleep(0.1)
                return number, socket.gethostname()

            def agents(session):
                return [(agent.share.slots, len(agent.processes)) for agent in session.hosts()]

            with session() as here:
                with rw.Pool(2, max_processes=6, idle_s=1.0, session=here) as pool:
                    pool.wait_until_ready(120)
                    say(agents(here))
                    results = pool.map(work, range(200), chunksize=1)
                    assert [number for number, _ in results] == list(range(200))
                    say(*sorted({host for _, host in results}))
                    say(agents(here))
                    while len(here.hosts()) > 1:
                        time.sleep(0.01)
                    say(agents(here), pool.status().num_deaths)
                    sys.stdin.readline()
                with rw.Pool(2, session=here) as pool:  # its size changes when it is told to
                    pool.scale_to(6)
                    pool.wait_until_ready(120)
                    say(agents(here))
                    pool.scale_to(2)
                    while len(here.hosts()) > 1:
                        time.sleep(0.01)
                    say(agents(here))
            """
        )
        assert script.line() == "[(2, 2)]"
        assert script.line() == "n1 n2 n3"
        assert script.line() == "[(2, 2), (2, 2), (2, 2)]"
        assert script.line() == "[(2, 2)] 0"
        wait_until(lambda: sum(bool(processes_on(host)) for host in cluster.hosts) == 1)
        assert script.process.stdin
        script.process.stdin.write("go on\n")
        script.process.stdin.flush()
        assert script.line() == "[(2, 2), (2, 2), (2, 2)]"
        assert script.line() == "[(2, 2)]"
        code, _, errors = script.end()
        assert code == 0, errors


def test_the_tasks_of_a_host_that_is_taken_away_end_there_or_are_handed_on(lab: Lab, tmp_path: Path) -> None:
    with cluster_of(lab, tmp_path) as cluster:
        script = cluster.launch(
            """
            def work(number):
                # The first six, one for each worker: on n1, one is soon done and the other one never.
                note("begun", f"{time.time()} {number} {socket.gethostname()}")
                if number < 6:
                    endless = os.path.join(FOLDER, f"endless-on-{socket.gethostname()}")
                    try:
                        os.close(os.open(endless, os.O_CREAT | os.O_EXCL))
                        time.sleep(60 if socket.gethostname() == "n1" else 1)
                    except FileExistsError:
                        time.sleep(1)
                else:
                    time.sleep(0.05)
                note("ended", f"{time.time()} {number} {socket.gethostname()}")
                return number

            with session(hosts=3) as here:
                with rw.Pool(6, session=here, max_deaths=1) as pool:
                    pool.wait_until_ready(120)
                    results = pool.map_async(work, range(100), chunksize=1)
                    say("ready")
                    assert results.get(120) == list(range(100))
                    while len([w for w in pool.status().workers if w.state in ("idle", "running")]) < 6:
                        time.sleep(0.01)
                    status = pool.status()
                    say(status.num_deaths, status.failed, status.retried)
                    say(*[event for event in status.events if "n1" in event], sep=" | ")
            """.replace(', sep=" | "', "")
        )
        assert script.line() == "ready"
        n1 = cluster.hosts[0]
        wait_until(lambda: len(cluster.notes("begun")) == 6)
        cluster.spool.deaf.add(n1)
        agent = next(process for _, where, process in cluster.spool.started if where is n1)
        os.kill(agent.pid, signal.SIGTERM)
        wait_until(lambda: sum("n1" in line for line in cluster.notes("ended")) == 1)
        time.sleep(0.3)  # in which nothing new begins there
        os.kill(agent.pid, signal.SIGKILL)  # the end of the grace
        deaths, failed, retried = script.numbers()
        events = script.line()
        code, _, errors = script.end()
        assert code == 0, errors
        assert (deaths, failed, retried) == (0, 0, 0)
        ended = [int(line.split()[1]) for line in cluster.notes("ended")]
        assert sorted(ended) == list(range(100)), "a task ended twice"
        again = len(cluster.notes("begun")) - 100
        assert again == 1, "only the task that did not end in time began again, and none began there after the notice"
        assert "is being taken away (the engine sent SIGTERM)" in events


def test_workers_that_an_engine_signals_with_their_agent_are_no_deaths(lab: Lab, tmp_path: Path) -> None:
    # Slurm sends the notice to every process of a job: workers die of it, in the middle of a task.
    with cluster_of(lab, tmp_path) as cluster:
        script = cluster.launch(
            """
            def work(number):
                note("begun", socket.gethostname())
                time.sleep(0.2)
                return number

            with session(hosts=3) as here:
                with rw.Pool(6, session=here, max_deaths=1) as pool:
                    results = pool.map_async(work, range(60), chunksize=1)
                    assert results.get(120) == list(range(60))
                    status = pool.status()
                    say(status.num_deaths, status.failed, status.retried)
            """
        )
        n1 = cluster.hosts[0]
        wait_until(lambda: cluster.notes("begun").count("n1") >= 3)
        cluster.spool.deaf.add(n1)
        agent = next(process for _, where, process in cluster.spool.started if where is n1)
        os.kill(agent.pid, signal.SIGTERM)
        for process in processes_on(n1):
            with contextlib.suppress(psutil.NoSuchProcess):  # it has died of the notice already
                if process.name().startswith("rw:pool"):
                    process.terminate()
        assert script.numbers() == [0, 0, 0]
        assert script.end()[0] == 0
        wait_until_empty(n1)


def test_the_loss_of_a_host_is_one_event_and_no_death(lab: Lab, tmp_path: Path) -> None:
    with cluster_of(lab, tmp_path, 2) as cluster:
        script = cluster.launch(
            """
            with session(hosts=2) as here:
                with rw.Pool(6, session=here) as pool:
                    pool.wait_until_ready(120)
                    say("ready")
                    while len(here.hosts()) == 2:
                        time.sleep(0.01)
                    assert len(pool.map(where, range(100))) == 100
                    status = pool.status()
                    say(status.num_deaths, len(status.deaths), len([e for e in status.events if "replaced" in e]))
            """,
            slots=3,
        )
        assert script.line() == "ready"
        lab.plug(cluster.hosts[1])
        assert script.numbers() == [0, 0, 1]
        assert script.end()[0] == 0


def test_a_pool_whose_workers_wait_for_hosts_ends_at_once(lab: Lab, tmp_path: Path) -> None:
    # Workers without a host could not be told to end: join() waited until the cluster had room for them.
    with cluster_of(lab, tmp_path, 1) as cluster:
        cluster.spool.deaf.update(cluster.hosts)  # the queue does not move
        script = cluster.launch(
            """
            with session() as here:
                pool = rw.Pool(2, session=here)
                results = pool.map_async(abs, range(10))
                time.sleep(0.3)
                pool.terminate()
                pool.join()
                say("joined")
                program = rw.Program("waits")
                program.add(rw.Worker(print))
                running = program.launch(session=here)
                time.sleep(0.3)
                running.stop()
                say("stopped")
            """
        )
        assert (script.line(), script.line()) == ("joined", "stopped"), "though the queue never moves"
        assert script.end()[0] == 0


def test_a_slow_host_gets_less_also_of_the_chunks_that_it_has(lab: Lab, tmp_path: Path) -> None:
    with cluster_of(lab, tmp_path, 2) as cluster:
        script = cluster.launch(
            """
            def work(number, name):
                # The slow host needs as long for one task as the other one for all the others.
                done = os.path.join(FOLDER, name)
                while socket.gethostname() == "n1" and os.path.getsize(done) < 199:
                    time.sleep(0.001)
                fd = os.open(done, os.O_WRONLY | os.O_APPEND)
                os.write(fd, b".")
                os.close(fd)
                return socket.gethostname()

            with session(hosts=2) as here, rw.Pool(2, session=here) as pool:
                pool.wait_until_ready(120)
                for chunksize in (1, 100, None):
                    name = f"done-{chunksize}"
                    open(os.path.join(FOLDER, name), "x").close()
                    hosts = pool.starmap(work, [(number, name) for number in range(200)], chunksize=chunksize)
                    say(hosts.count("n1"), hosts.count("n2"))
            """,
            slots=1,
        )
        assert [script.numbers() for _ in range(3)] == [[1, 199]] * 3
        code, _, errors = script.end()
        assert code == 0, errors
