"""Hosts that are cut off, come back, or are gone: what becomes of their tasks, their processes and their agents."""

from __future__ import annotations

import shlex
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.lab import Lab, Machine, wires
from tests.patience import wait_until
from tests.scenarios.hosts import Cluster, cluster_of, processes_on, wait_until_empty


def test_a_pool_survives_a_host_that_is_cut_off_and_one_that_is_plugged(lab: Lab, tmp_path: Path) -> None:
    with cluster_of(lab, tmp_path) as cluster:
        script = cluster.launch(
            """
            def work(number):
                note("begun", number)
                time.sleep(0.035)
                return number * number, socket.gethostname(), os.getpid()

            def watch(pool):
                seen = 0
                while True:
                    events = pool.status().events
                    for event in events[seen:]:
                        note("events", f"{time.time():.3f} {event}")
                    seen = len(events)
                    time.sleep(0.01)

            with session(hosts=3) as here:
                with rw.Pool(6, session=here) as pool:
                    pool.wait_until_ready(120)
                    say("ready")
                    threading.Thread(target=watch, args=(pool,), daemon=True).start()
                    accepted = []
                    for index, (square, host, pid) in pool.imap_unordered(lambda n: (n, work(n)), range(2000)):
                        assert square == index * index
                        accepted.append(index)
                        note("accepted", f"{time.time():.3f} {index} {host} {pid}")
                    assert sorted(accepted) == list(range(2000)), "a result is missing, or came twice"
                    pool.wait_until_ready(120)
                    status = pool.status()
                    working = [worker for worker in status.workers if worker.state in ("idle", "running")]
                    say(len(working), status.num_deaths, status.retried, status.failed)
                    say(*sorted({worker.host for worker in status.workers}))
            """
        )
        assert script.line() == "ready"
        n1, n2, _ = cluster.hosts
        wait_until(lambda: len(cluster.notes("accepted")) > 300)
        cluster.spool.deaf.add(n1)
        cut = time.time()
        lab.cut(n1)
        wait_until(lambda: any("n1" in event for event in cluster.notes("events")))
        time.sleep(max(0.0, cut + 5 - time.time()))
        assert processes_on(n1), "the host was to be cut off, not dead"
        lab.heal(n1)
        wait_until_empty(n1)
        cluster.spool.deaf.discard(n1)
        lab.plug(n2)
        assert script.numbers() == [6, 0, 0, 0], "six workers again, and no task is blamed: hosts were lost"
        assert "n2" not in script.line()
        code, _, errors = script.end()
        assert code == 0, errors
        _assert_nothing_of_the_lost_was_accepted(cluster, "n1", cut)
        again = sum(count - 1 for count in Counter(cluster.notes("begun")).values())
        assert again <= 24, f"{again} tasks ran twice; only those that lost workers held may"


def _assert_nothing_of_the_lost_was_accepted(cluster: Cluster, host: str, lost: float) -> None:
    accepted = [line.split() for line in cluster.notes("accepted")]
    assert len(accepted) == 2000
    lost_pids = {pid for when, _, at, pid in accepted if at == host and float(when) < lost}
    late = [words for words in accepted if words[2] == host and words[3] in lost_pids and float(words[0]) > lost + 0.5]
    assert lost_pids
    assert not late


#: On one side of a wire: nothing that comes from there is heard.
DEAF = "table ip deaf {{ chain input {{ type filter hook input priority filter; ip saddr {ip} counter drop; }}; }}"


@pytest.mark.parametrize("deaf", ["head", "n1"])
def test_a_wire_that_carries_in_one_direction_only_is_noticed_at_both_ends(lab: Lab, tmp_path: Path, deaf: str) -> None:
    with cluster_of(lab, tmp_path, 2) as cluster:
        script = cluster.launch(
            """
            from ropewalk.processes import agent_bootstrap
            agent_bootstrap._LAUNCHER_LEASE_S = 2.2  # of the agents; 30 s are too long for a test

            def work(number):
                time.sleep(0.02)
                return number

            with session(hosts=2) as here:
                with rw.Pool(4, session=here) as pool:
                    pool.wait_until_ready(120)
                    say("ready")
                    assert sorted(pool.imap_unordered(work, range(1000))) == list(range(1000))
                    pool.wait_until_ready(120)
                    status = pool.status()
                    say(len(status.workers), status.num_deaths, status.retried)
                    say(*status.events)
            """
        )
        assert script.line() == "ready"
        n1 = cluster.hosts[0]
        cluster.spool.deaf.add(n1)
        here, there = (cluster.head, n1) if deaf == "head" else (n1, cluster.head)
        here.visit(lambda: wires.nft(DEAF.format(ip=there.ip)))
        wait_until_empty(n1)
        assert script.numbers() == [4, 0, 0]
        assert script.line().startswith("the agent on n1 (pid ")
        code, _, errors = script.end()
        assert code == 0, errors


def test_clocks_that_jump_by_days_lose_nobody(lab: Lab, tmp_path: Path) -> None:
    """As after a late synchronization. Only `time.time` jumps, in every process: the clock of the system is everyone's.

    In the launcher two days forward, then two days back; in agents and workers the same, at other moments.
    """
    jump = (
        "import time; real, born, days = time.time, time.monotonic(), (0, 2, -2);"
        "time.time = lambda: real() + 86400 * days[int((time.monotonic() - born) / 2) % 3]"
    )
    run_agent = "import runpy; runpy.run_module('ropewalk.processes.agent_main', run_name='__main__')"
    python = tmp_path / "jumping-python"
    python.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -c "{jump}; {run_agent}"\n')
    python.chmod(0o700)
    with cluster_of(lab, tmp_path, 2) as cluster:
        script = cluster.launch(
            """
            class Total:
                def __init__(self): self.total = 0
                def add(self, number): self.total += number; return self.total

            def clock(_):
                time.sleep(0.01)
                return round(time.time() / 86400)

            real = time.time
            with session(hosts=2) as here:
                with rw.Pool(3, session=here) as pool:
                    pool.wait_until_ready(120)
                    program = rw.Program("sum")
                    total = program.add(rw.Service(Total), name="total")
                    with program.launch(session=here) as running:
                        running.wait_ready(120)
                        client, days = running.client(total), set()
                        for shift in (0, 2, -2, 0):
                            time.time = lambda shift=shift: real() + 86400 * shift
                            days |= set(pool.map(clock, range(900)))  # longer than the lease of 2.5 s
                            client.add(1)
                        say(client.add(0), len(days), pool.status().num_deaths, pool.status().retried)
                        say("gone" in str([*pool.status().events, *running.status().events]))
            """,
            python=str(python),
        )
        total, num_days, num_deaths, retried = script.numbers()
        assert (total, num_deaths, retried) == (4, 0, 0)
        assert num_days >= 3, "the clocks of workers have jumped"
        assert script.line() == "False"
        code, _, errors = script.end()
        assert code == 0, errors


def test_a_host_with_a_full_disk_is_passed_over_and_named(lab: Lab, tmp_path: Path) -> None:
    # Its agent joined, could not unpack the project, and so each start there failed at once: the pool gave up in 0.4 s.
    def fill(_head: Machine, hosts: list[Machine]) -> None:
        for folder in ("/tmp", "/run"):
            hosts[0].run(["mount", "-o", "remount,size=256k", folder])
            hosts[0].run(["dd", "if=/dev/zero", f"of={folder}/all", "bs=4k"], check=False)

    with cluster_of(lab, tmp_path, 2, prepare=fill) as cluster:
        script = cluster.launch(
            """
            with session(hosts=2) as here:
                with rw.Pool(4, session=here) as pool:
                    pool.wait_until_ready(120)
                    say(*sorted({host for _, host, _ in pool.map(where, range(200))}))
                    say(pool.status().num_deaths)
                    say(*pool.status().events)
            """
        )
        assert script.line() == "n2"
        assert script.numbers() == [0]
        events = script.line()
        assert "this agent on n1 cannot run: the disk of /run/ropewalk-" in events and "make room there" in events
        code, _, errors = script.end()
        assert code == 0, errors
        assert not list(cluster.hosts[0].path("/run").glob("ropewalk-*"))
