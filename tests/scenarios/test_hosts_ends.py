"""Ends with hosts: of the launcher, of its machine, of agents, of hosts that are taken away, and of sessions."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from ropewalk.tracking.store.opening import open_store
from tests.lab import Lab, Machine
from tests.patience import wait_until
from tests.scenarios.hosts import Cluster, cluster_of, processes_on, wait_until_empty
from tests.scenarios.launchers import Launcher, is_alive

#: A pool and a program on both hosts that never end by themselves.
ENDLESS = """
    from ropewalk.processes import agent_bootstrap
    agent_bootstrap._LAUNCHER_LEASE_S = 2.2  # of the agents; 30 s are too long for a test

    class Sleeper:
        def run(self):
            os.system("sleep 1000 & sleep 1000")

    def sleep(_):
        time.sleep(1000)

    here = session(hosts=2).__enter__()
    pool = rw.Pool(2, session=here)
    pool.wait_until_ready(120)
    pool.imap_unordered(sleep, range(4))
    program = rw.Program("sleepers")
    program.add(rw.Worker(Sleeper), replicas=2)
    running = program.launch(session=here)
    running.wait_ready(120)
    say("up")
    signal.pause()
"""


def folders_on(machine: Machine) -> list[str]:
    """What runs have left in the machine's own folders."""
    return [str(path) for own in ("/tmp", "/run") for path in machine.path(own).glob("ropewalk*")]


def agents_on(machine: Machine) -> list[psutil.Process]:
    named = [process for process in processes_on(machine) if process.name() == "rw-agent"]
    pids = {process.pid for process in named}
    return [process for process in named if process.ppid() not in pids]  # what it has just forked has its name


def started(cluster: Cluster) -> Launcher:
    script = cluster.launch(ENDLESS)
    assert script.line() == "up"
    for host in cluster.hosts:
        wait_until(lambda host=host: len(processes_on(host)) >= 6)
        assert folders_on(host)
    return script


def test_nothing_is_left_on_hosts_whose_launcher_is_killed(lab: Lab, tmp_path: Path) -> None:
    with cluster_of(lab, tmp_path, 2) as cluster:
        script = started(cluster)
        cluster.spool.deaf.update(cluster.hosts)
        script.signal(signal.SIGKILL)
        for host in cluster.hosts:
            wait_until_empty(host)
            assert not folders_on(host)
        script.end()
        cluster.spool.deaf.clear()
        # No agent on its own host removes the launcher's folder, and nothing else did so either: it stayed for ever.
        (left,) = folders_on(cluster.head)
        script = cluster.launch("with session(hosts=1) as here, rw.Pool(1, session=here) as pool: pool.map(len, ['a'])")
        code, _, errors = script.end()
        assert code == 0, errors
        assert not folders_on(cluster.head), left


def test_nothing_is_left_on_hosts_whose_launcher_lost_its_power(lab: Lab, tmp_path: Path) -> None:
    with cluster_of(lab, tmp_path, 2) as cluster:
        started(cluster)
        cluster.spool.deaf.update(cluster.hosts)
        lab.plug(cluster.head)
        assert all(len(processes_on(host)) >= 6 for host in cluster.hosts), "nobody could tell them yet"
        for host in cluster.hosts:
            wait_until_empty(host)
            assert not folders_on(host)


def test_control_c_in_the_launcher_ends_everything_on_the_hosts(lab: Lab, tmp_path: Path) -> None:
    with cluster_of(lab, tmp_path, 2) as cluster:
        script = started(cluster)
        cluster.spool.deaf.update(cluster.hosts)
        script.signal(signal.SIGINT)
        code, _, errors = script.end()
        assert code in (1, 130, -signal.SIGINT)
        assert "KeyboardInterrupt" in errors
        for host in cluster.hosts:
            wait_until_empty(host)
            assert not folders_on(host)
        assert not folders_on(cluster.head)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_host_that_is_taken_away_finishes_what_runs_there(lab: Lab, tmp_path: Path, number: signal.Signals) -> None:
    with cluster_of(lab, tmp_path, 2) as cluster:
        script = cluster.launch(
            """
            def work(number):
                note("begun", f"{number} {time.time()} {socket.gethostname()} {os.getpid()}")
                time.sleep(0.3)
                return number, socket.gethostname(), os.getpid()

            with session() as here:
                with rw.Pool(4, session=here) as pool:
                    pool.wait_until_ready(120)
                    say("ready")
                    is_told = False
                    for number, host, pid in pool.imap_unordered(work, range(40), chunksize=1):
                        note("ended", f"{number} {time.time()} {host} {pid}")
                        if pool.status().events and not is_told:
                            is_told = True
                            note("told", time.time())
                    pool.wait_until_ready(120)
                    status = pool.status()
                    say(len(status.workers), status.num_deaths, status.retried, status.failed)
                    for event in status.events: say(event)
            """,
            jobs=3,
        )
        assert script.line() == "ready"
        n1 = cluster.hosts[0]
        wait_until(lambda: len(cluster.notes("ended")) >= 4)
        assert len(cluster.spool.started) == 2, "four processes, two to a job"
        (agent,) = agents_on(n1)
        taken = time.time()
        os.kill(agent.pid, number)
        wait_until(lambda: not is_alive(agent.pid))
        assert script.numbers() == [4, 0, 0, 0]
        assert f"n1 is being taken away (the engine sent {number.name})" in script.line()
        code, _, errors = script.end()
        assert code == 0, errors
        begun = [line.split() for line in cluster.notes("begun")]
        assert sorted(int(number) for number, *_ in begun) == list(range(40)), "a task ran twice"
        there = {pid for _, when, host, pid in begun if host == "n1" and float(when) < taken}
        assert len(there) == 2
        (told,) = map(float, cluster.notes("told"))
        late = [pid for _, when, host, pid in begun if host == "n1" and pid in there and float(when) > told]
        assert len(late) == len(set(late)), "a worker begins the task that it has, and nothing new goes there"


def test_a_trial_on_a_host_that_is_taken_away_pauses_and_goes_on_on_another_one(lab: Lab, tmp_path: Path) -> None:
    with cluster_of(lab, tmp_path, 2) as cluster:
        script = cluster.launch(
            """
            from ropewalk.search import Search, Uniform

            def train(run, x):
                saved = run.restore()
                first = saved.state["first"] if saved else socket.gethostname()
                num_elsewhere = 0
                for step in run.steps():
                    note("steps", f"{step} {socket.gethostname()}")
                    run.log(step=step, score=x)
                    run.checkpoint({"first": first})
                    num_elsewhere += socket.gethostname() != first
                    if num_elsewhere == 5:
                        return
                    time.sleep(0.02)

            with session() as here:
                search = Search(train, {"x": Uniform(0, 1)}, metric="score", trials=1, max_concurrent=1, session=here,
                                store=FOLDER + "/runs.db", folder=FOLDER + "/trials", progress=False)
                (trial,) = search.run()
                say(trial.state, trial.attempts)
            """,
            slots=1,
        )
        wait_until(lambda: len(cluster.notes("steps")) >= 3)
        host = cluster.host(cluster.notes("steps")[0].split()[1])
        cluster.spool.deaf.add(host)  # no new agent there
        (agent,) = agents_on(host)
        os.kill(agent.pid, signal.SIGTERM)
        assert script.line() == "done 2"
        code, _, errors = script.end()
        assert code == 0, errors
        steps = [int(line.split()[0]) for line in cluster.notes("steps")]
        assert steps == list(range(1, len(steps) + 1)), "a step was lost, or computed twice"
        with open_store(tmp_path / "runs.db") as store:
            (trial,) = store.runs(kind="trial")
            assert [one.outcome for one in store.attempts(trial.id)] == ["paused", "done"]


def test_an_agent_that_is_killed_is_one_event_and_is_replaced(lab: Lab, tmp_path: Path) -> None:
    with cluster_of(lab, tmp_path, 2) as cluster:
        script = cluster.launch(
            """
            with session(hosts=2) as here:
                with rw.Pool(4, session=here) as one, rw.Pool(2, session=here) as two:
                    for pool in (one, two):
                        pool.wait_until_ready(120)
                    say("ready")
                    sys.stdin.readline()
                    for pool in (one, two):
                        assert [number for number, _, _ in pool.map(where, range(500), chunksize=1)] == list(range(500))
                        pool.wait_until_ready(120)
                    for pool in (one, two):
                        status = pool.status()
                        say(len(status.workers), status.num_deaths, status.retried, len(status.events))
                        say(*status.events)
                    sys.stdin.readline()
            """,
            slots=3,
        )
        assert script.line() == "ready"
        (agent,) = agents_on(cluster.hosts[0])
        left = processes_on(cluster.hosts[0])
        (folder,) = folders_on(cluster.hosts[0])
        agent.kill()
        wait_until(lambda: not any(process.is_running() for process in left))
        script.tell("go on")
        for size in (4, 2):
            assert script.numbers() == [size, 0, 0, 1]
            assert script.line().startswith("the agent on n1 (pid ")
        # It stayed for ever: nobody was left who knew of it.
        assert folder not in folders_on(cluster.hosts[0]), "the next agent removes the folder of a killed one"
        script.tell("end")
        assert script.end()[0] == 0


def test_a_death_names_its_host(lab: Lab, tmp_path: Path) -> None:
    with cluster_of(lab, tmp_path, 2) as cluster:
        script = cluster.launch(
            """
            def die(number):
                print("these are my last words on", socket.gethostname(), flush=True)
                if number == 0:
                    os.kill(os.getpid(), signal.SIGSEGV)

            with session(hosts=2) as here:
                with rw.Pool(2, session=here, max_deaths=2) as pool:
                    try:
                        pool.map(die, range(1))
                    except rw.TaskPoisoned as error:
                        say(str(error).replace(chr(10), " "))
                    for death in pool.status().deaths:
                        say(death.host, death.describe().replace(chr(10), " "))
            """
        )
        lines = [script.line() for _ in range(5)]
        printed = [line for line in lines if line.startswith("[pool-1 ")]
        told, *deaths = [line for line in lines if line not in printed]
        assert len(deaths) == 2
        for death in deaths:
            host, name = death.split()[:2]
            assert death.startswith(f"{host} {name} on host {host} (pid ")
            assert "was killed by SIGSEGV" in death
            assert f"last output: these are my last words on {host}" in death
            assert death.removeprefix(f"{host} ") in told
            assert f"[pool-1 {name[-1]}@{host}] these are my last words on {host}" in printed
        code, _, errors = script.end()
        assert code == 0, errors
        assert "Fatal Python error: Segmentation fault" in errors


def test_a_pool_inside_a_worker_lives_on_that_workers_host(lab: Lab, tmp_path: Path) -> None:
    with cluster_of(lab, tmp_path, 2) as cluster:
        script = cluster.launch(
            """
            def outer(number):
                with rw.Pool(2) as inner:
                    parents = set(inner.map(lambda _: (time.sleep(0.01), os.getppid())[1], range(20)))
                    assert parents == {os.getppid()}, "they have the same agent"
                    return socket.gethostname(), sorted({host for _, host, _ in inner.map(where, range(40))})

            with session(hosts=2) as here:
                with rw.Pool(2, session=here) as pool:
                    pool.wait_until_ready(120)
                    results = pool.map(outer, range(2), chunksize=1)
                    for host, inner_hosts in results:
                        say(host, *inner_hosts)
            """
        )
        for _ in range(2):
            host, *inner_hosts = script.line().split()
            assert inner_hosts == [host]
        code, _, errors = script.end()
        assert code == 0, errors


def test_a_session_on_hosts_ends_a_while_after_its_last_pool(lab: Lab, tmp_path: Path) -> None:
    with cluster_of(lab, tmp_path, 2) as cluster:
        script = cluster.launch(
            """
            os.environ["ROPEWALK_ENGINE"], os.environ["ROPEWALK_ENGINE_OPTIONS"] = "spool", json.dumps(OPTIONS)
            with rw.Pool(2) as pool:
                agents = {host for _, host, _ in pool.map(where, range(100))}
            with rw.Pool(2) as pool:
                pool.map(where, range(10))
            say(*sorted(agents))
            sys.stdin.readline()
            """,
            ROPEWALK_SESSION_IDLE_S="0.5",
        )
        host = cluster.host(script.line().split()[0])
        assert agents_on(host), "the second pool found the agents of the first"
        for machine in cluster.hosts:
            wait_until_empty(machine)
            assert not folders_on(machine)
        assert len(cluster.spool.started) <= 2
        script.tell("go on")
        assert script.end()[0] == 0
