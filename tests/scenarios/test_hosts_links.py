"""Links between hosts that are slow, far and lossy: nothing fails, nobody is taken for lost, and work goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lab import Lab, Machine
from tests.scenarios.hosts import cluster_of

#: Tasks of a millisecond, a program whose nodes call each other, and the events of both.
WORK = """
    def work(number):
        time.sleep(0.001)
        return number * number

    class Total:
        def __init__(self): self.total = 0
        def add(self, number): self.total += number; return self.total

    class Adder:
        def __init__(self, total): self.total = total
        def run(self):
            for _ in range(10): last = self.total.add(1)
            note("totals", last)

    with session(hosts=2) as here:
        with rw.Pool(4, session=here) as pool:
            pool.wait_until_ready(15)
            pool.map(work, range(200), chunksize=1)
            begun = time.monotonic()
            assert pool.map(work, range(3000), chunksize=1) == [n * n for n in range(3000)]
            say(3000 / (time.monotonic() - begun))
            status = pool.status()
        program = rw.Program("sum")
        total = program.add(rw.Service(Total))
        program.add(rw.Worker(Adder, total), replicas=2)
        with program.launch(session=here) as running:
            assert running.wait(20)
            events = [event for event in running.status().events if "host" in event or "agent" in event]
        say(status.num_deaths, len(status.events), *events)
"""


@pytest.mark.parametrize("condition", ["far", "lossy", "slow", "all"])
def test_nothing_fails_on_a_bad_wire(lab: Lab, tmp_path: Path, condition: str) -> None:
    def spoil(head: Machine, hosts: list[Machine]) -> None:
        for host in hosts:
            if condition in ("far", "all"):
                lab.delay(host, 0.02)
            if condition in ("lossy", "all"):
                lab.lossy(host, 0.02)
            if condition in ("slow", "all"):
                lab.slow(host, 10e6)

    with cluster_of(lab, tmp_path, 2, prepare=spoil) as cluster:
        script = cluster.launch(WORK)
        rate = float(script.line())
        # Four workers could do 3,600 a second; one task per round trip of 40 ms each would make 100.
        assert rate > 800
        assert script.line().split() == ["0", "0"], "a death, or a word of the loss of a host"
        code, _, errors = script.end()
        assert code == 0, errors
        assert max(map(int, cluster.notes("totals"))) == 20


def test_a_large_blob_on_a_slow_wire_makes_nobody_lost(lab: Lab, tmp_path: Path) -> None:
    def spoil(head: Machine, hosts: list[Machine]) -> None:
        lab.slow(hosts[0], 10e6)

    with cluster_of(lab, tmp_path, 1, prepare=spoil) as cluster:
        script = cluster.launch(
            """
            import ropewalk.processes.boarding as boarding
            boarding._LAUNCHER_LEASE_S = 2.2  # that of the agents

            with session(hosts=1) as here:
                with rw.Pool(2, session=here) as pool:
                    pool.wait_until_ready(15)
                    begun = time.monotonic()
                    blob = pool.put(os.urandom(4_000_000))
                    assert pool.map(len, [blob] * 8, chunksize=1) == [4_000_000] * 8
                    took_s = time.monotonic() - begun
                    status = pool.status()
                    say(took_s, len(status.events), status.num_deaths)
                    assert len(pool.apply(os.urandom, (2_000_000,))) == 2_000_000
                    say(len(pool.status().events), pool.status().num_deaths)
            """,
            ROPEWALK_LEASE_S="1",
        )
        took_s, events, deaths = map(float, script.line().split())
        assert (events, deaths) == (0, 0)
        assert took_s > 2.5, "the wire was not slow"
        assert took_s < 6, "the blob was sent more than once"
        assert script.numbers() == [0, 0]
        assert script.end()[0] == 0
