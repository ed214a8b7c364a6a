"""Ways between hosts: a launcher behind a NAT, and hosts that do not reach each other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.lab import Lab
from tests.scenarios.hosts import cluster_of

#: A service and a worker for each host, and all workers call all services.
PROGRAM = """
    class Total:
        def __init__(self): self.total = 0
        def add(self): self.total += 1; return self.total
        def get(self): return self.total

    class Adder:
        def __init__(self, *totals): self.totals = totals
        def run(self):
            for _ in range(10):
                for total in self.totals:
                    total.add()
            # Until all have done the same, so that the status can be looked at.
            while min(total.get() for total in self.totals) < 10 * len(self.totals) or not os.path.exists(GATE):
                time.sleep(0.02)

    GATE = os.path.join(FOLDER, "gate")

    def run_program(here, num_hosts):
        program = rw.Program("sum")
        totals = [program.add(rw.Service(Total), name=f"total{number}") for number in range(num_hosts)]
        program.add(rw.Worker(Adder, *totals), replicas=num_hosts)
        with program.launch(session=here) as running:
            running.wait_ready(120)
            clients = [running.client(f"total{number}") for number in range(num_hosts)]
            while min(client.get() for client in clients) < 10 * num_hosts:
                time.sleep(0.02)
            status = running.status()
            assert all(way in str(status) for way in status.ways), "it is to be seen in the text of the status"
            assert [str(way) for way in here.ways()] == list(status.ways)
            say(*sorted({node.host for node in status.nodes}))
            say(*status.ways, sep="; ")
            open(GATE, "x").close()
            assert running.wait(120)
"""


def assert_ways(said: str, *, through: str) -> None:
    """One detour or one in each direction between n1 and n2, and none elsewhere."""
    ways = said.split("; ")
    agent = "agent-[123] on n[12]"
    assert 1 <= len(ways) <= 2
    assert all(re.fullmatch(f"{agent} reaches {agent} only through {through}", way) for way in ways), ways


@pytest.mark.parametrize("parted", [False, True])
def test_a_launcher_that_cannot_be_reached_dials_its_agents(lab: Lab, tmp_path: Path, parted: bool) -> None:
    with cluster_of(lab, tmp_path, 2, prepare=lambda head, hosts: lab.nat(head)) as cluster:
        if parted:
            lab.part(*cluster.hosts)
        script = cluster.launch(
            PROGRAM
            + """
    with session(hosts=2) as here:
        with rw.Pool(4, session=here) as pool:
            pool.wait_until_ready(120)
            say(*sorted({host for _, host, _ in pool.map(where, range(400))}))
            say(*pool.status().events)
        run_program(here, 2)
"""
        )
        assert script.line() == "n1 n2"
        events = script.line()
        for host in ("n1 (10.77.0.2)", "n2 (10.77.0.3)"):
            assert f"{host} cannot reach the launcher at 192.168.1.2:" in events
        assert script.line() == "n1 n2"
        if parted:
            assert_ways(script.line(), through="the launcher")
        else:
            assert script.line() == "", "these two reach each other"
        code, _, errors = script.end()
        assert code == 0, errors


@pytest.mark.parametrize("refuse", [False, True])
def test_hosts_that_do_not_reach_each_other_meet_at_a_third(lab: Lab, tmp_path: Path, refuse: bool) -> None:
    with cluster_of(lab, tmp_path, 3) as cluster:
        n1, n2, _ = cluster.hosts
        lab.part(n1, n2, refuse=refuse)
        script = cluster.launch(
            PROGRAM
            + """
    with session(hosts=3) as here:
        run_program(here, 3)
""",
        )
        assert script.line() == "n1 n2 n3"
        assert_ways(script.line(), through="agent-[123] on n3")
        code, _, errors = script.end()
        assert code == 0, errors


def test_hosts_that_do_not_reach_each_other_meet_at_the_launcher_if_there_is_no_third(lab: Lab, tmp_path: Path) -> None:
    with cluster_of(lab, tmp_path, 2) as cluster:
        lab.part(*cluster.hosts)
        script = cluster.launch(
            PROGRAM
            + """
    with session(hosts=2) as here:
        run_program(here, 2)
""",
        )
        assert script.line() == "n1 n2"
        assert_ways(script.line(), through="the launcher")
        code, _, errors = script.end()
        assert code == 0, errors


def test_a_host_that_reaches_nobody_is_named_and_not_tried_for_ever(lab: Lab, tmp_path: Path) -> None:
    with cluster_of(lab, tmp_path, 1) as cluster:
        lab.part(cluster.head, cluster.hosts[0])
        script = cluster.launch(
            """
            here = session(hosts=1)
            pool = rw.Pool(1, session=here)
            while len(pool.status().events) < 2:
                time.sleep(0.01)
            for event in pool.status().events:
                say(event)
            try:
                pool.apply(where)
            except rw.StartFailed as error:
                say(error)
            pool.terminate()
            here.close()
            """
        )
        assert "n1 (10.77.0.2) cannot reach the launcher at 10.77.0.1:" in script.line()
        assert "the launcher cannot reach agent-1 at 10.77.0.2:" in script.line()
        said = script.line()
        assert "n1 (10.77.0.2) cannot reach the launcher at 10.77.0.1:" in said
        assert "nothing answers; a firewall" in said
        assert "Nor in the other direction" in said
        code, _, errors = script.end()
        assert code == 0, errors


def test_a_relay_that_does_not_reach_both_is_passed_over(lab: Lab, tmp_path: Path) -> None:
    with cluster_of(lab, tmp_path, 3) as cluster:
        n1, n2, n3 = cluster.hosts
        lab.part(n1, n2, refuse=True)
        lab.part(n1, n3, refuse=True)
        script = cluster.launch(
            PROGRAM
            + """
    with session(hosts=3) as here:
        run_program(here, 3)
"""
        )
        assert script.line() == "n1 n2 n3"
        ways = script.line().split("; ")
        assert ways
        assert all(way.endswith(" only through the launcher") for way in ways), ways
        code, _, errors = script.end()
        assert code == 0, errors
