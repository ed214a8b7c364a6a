"""Links between hosts that are slow, far and lossy: nothing fails, nobody is taken for lost, and work goes on."""

from __future__ import annotations

import base64
import hashlib
import os
import shlex
import sys
import time
from pathlib import Path

import pytest

from tests.lab import Lab, Machine, wires
from tests.patience import wait_until
from tests.scenarios.hosts import cluster_of, processes_on

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
            pool.wait_until_ready(60)
            assert pool.map(work, range(3000), chunksize=1) == [n * n for n in range(3000)]
            status = pool.status()
        program = rw.Program("sum")
        total = program.add(rw.Service(Total))
        program.add(rw.Worker(Adder, total), replicas=2)
        with program.launch(session=here) as running:
            assert running.wait(120)
            detour = "only through the launcher"  # where the first segments of a direct connection are lost
            events = [event for event in running.status().events if "host" in event or "agent" in event]
        told = [event for event in (*status.events, *events) if detour not in event]
        say(status.num_deaths, len(told), *told)
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
        assert script.line().split() == ["0", "0"], "a death, or a word of the loss of a host"
        code, _, errors = script.end()
        assert code == 0, errors
        assert max(map(int, cluster.notes("totals"))) == 20


#: Here what one connection says is lost, and what others say is not.
MUTE = """
table ip mute {{
    chain output {{
        type filter hook output priority filter;
        tcp sport {port} drop
    }}
}}
"""


def test_the_end_of_a_node_is_told_after_its_last_words_even_if_these_are_lost_on_the_way_at_first(
    lab: Lab, tmp_path: Path
) -> None:
    with cluster_of(lab, tmp_path, 1) as cluster:
        script = cluster.launch(
            """
            import ropewalk.processes.process_manager as processes

            class Speaker:
                def run(self):
                    for fd in map(int, os.listdir("/proc/self/fd")):
                        try:
                            with socket.socket(fileno=os.dup(fd)) as own:
                                if own.family == socket.AF_INET and own.getpeername():
                                    note("ports", own.getsockname()[1])
                        except OSError:
                            pass  # no connection
                    while not os.path.exists(os.path.join(FOLDER, "go")):
                        time.sleep(0.01)
                    os.unlink(os.path.join(FOLDER, "go"))

            with session(hosts=1) as here:
                program = rw.Program("speaker")
                program.add(rw.Worker(Speaker))
                with program.launch(session=here) as running:
                    assert running.wait(120)
                    say("state", running.status().state)
                processes._LAST_WORDS_S = 0.4
                running = program.launch(session=here)
                try:
                    running.wait(120)
                except rw.ProgramFailed as error:
                    say(error)
            """
        )
        (host,) = cluster.hosts

        def end_muted(number: int) -> None:
            wait_until(lambda: len(cluster.notes("ports")) == number)
            host.visit(lambda: wires.nft(MUTE.format(port=cluster.notes("ports")[-1])))
            speaker = next(process for process in processes_on(host) if "speaker.0" in process.name())
            (cluster.folder / "go").touch()
            wait_until(lambda: not speaker.is_running())

        end_muted(1)
        time.sleep(0.3)  # ample for the news of its end, which must not be told yet
        host.visit(lambda: wires.nft("delete table ip mute"))
        assert script.line() == "state completed"
        end_muted(2)
        assert "speaker exited with code 0" in script.line(), "nobody waits for ever"
        code, _, errors = script.end()
        assert code == 0, errors


ARRAYS = """
    import numpy as np

    def doubled(array): return array * 2

    with session(hosts=2) as here, rw.Pool(2, session=here) as pool:
        arrays = (np.full(100_000, number) for number in range(20))  # 800 kB each
        answers = list(pool.imap_unordered(doubled, arrays))
        say(*sorted(int(array[0]) for array in answers))
"""


def test_arrays_are_arguments_and_results_of_tasks_on_other_hosts(lab: Lab, tmp_path: Path) -> None:
    # Arguments of 512 KiB or more were sent as descriptors, which no other host can be given, and the pool hung.
    with cluster_of(lab, tmp_path, 2) as cluster:
        script = cluster.launch(ARRAYS)
        assert [int(number) for number in script.line().split()] == [2 * number for number in range(20)]
        code, _, errors = script.end()
        assert code == 0 and not errors, errors


def test_tasks_are_told_of_a_value_that_their_host_cannot_hold(lab: Lab, tmp_path: Path) -> None:
    # The agent logged the error, and the tasks waited for the value for ever.
    refuse = "import errno, runpy; from ropewalk.processes import blob_shelf as shelf\n"
    refuse += "def pack(*_): raise OSError(errno.ENOMEM, 'Cannot allocate memory')\n"
    refuse += "shelf.pack = pack; runpy.run_module('ropewalk.processes.agent_main', run_name='__main__')"
    python = tmp_path / "python-without-memory"
    python.write_text(f"#!/bin/sh\nexec {shlex.quote(sys.executable)} -c {shlex.quote(refuse)}\n")
    python.chmod(0o700)
    with cluster_of(lab, tmp_path, 1) as cluster:
        script = cluster.launch(
            """
            with session(hosts=1) as here, rw.Pool(1, session=here) as pool:
                try:
                    pool.apply(len, (pool.put(bytes(20_000)),))
                except RuntimeError as error:
                    say(str(error))
            """,
            python=str(python),
        )
        assert "n1 cannot hold it: [Errno 12] Cannot allocate memory" in script.line()
        assert script.end()[0] == 0


def test_a_large_blob_on_a_slow_wire_makes_nobody_lost(lab: Lab, tmp_path: Path) -> None:
    def spoil(head: Machine, hosts: list[Machine]) -> None:
        lab.slow(hosts[0], 10e6)

    with cluster_of(lab, tmp_path, 1, prepare=spoil) as cluster:
        before = cluster.hosts[0].bytes_received()
        script = cluster.launch(
            """
            from ropewalk.processes import agent_bootstrap
            agent_bootstrap._LAUNCHER_LEASE_S = 2.2  # that of the agents

            with session(hosts=1) as here:
                with rw.Pool(2, session=here) as pool:
                    pool.wait_until_ready(60)
                    blob = pool.put(os.urandom(4_000_000))
                    assert pool.map(len, [blob] * 8, chunksize=1) == [4_000_000] * 8
                    status = pool.status()
                    say(len(status.events), status.num_deaths)
                    assert len(pool.apply(os.urandom, (2_000_000,))) == 2_000_000
                    say(len(pool.status().events), pool.status().num_deaths)
            """,
            ROPEWALK_LEASE_S="1",
        )
        assert script.numbers() == [0, 0], "an event or a death"
        assert 4e6 < cluster.hosts[0].bytes_received() - before < 6e6, "the blob was sent more than once"
        assert script.numbers() == [0, 0]
        assert script.end()[0] == 0


def test_a_large_blob_goes_from_host_to_host_and_reaches_all_though_one_of_these_is_unplugged(
    lab: Lab, tmp_path: Path
) -> None:
    def slow(head: Machine, hosts: list[Machine]) -> None:
        for machine in (head, *hosts):
            lab.slow(machine, 20e6)

    size = 6_000_000
    with cluster_of(lab, tmp_path, 5, prepare=slow) as cluster:
        script = cluster.launch(
            """
            def look(blob):
                time.sleep(0.2)
                return socket.gethostname(), len(blob)

            with session(hosts=5) as here:
                with rw.Pool(5, session=here) as pool:
                    pool.wait_until_ready(60)
                    blob = pool.put(os.urandom(6_000_000))
                    say("ready")
                    found = pool.map(look, [blob] * 10, chunksize=1)
                    say(len(found), *sorted({size for _, size in found}))
                    say(*{host for host, _ in found})
            """
        )
        assert script.line() == "ready"
        before = cluster.head.bytes_sent()
        quiet = {machine: machine.bytes_sent() for machine in cluster.hosts}

        def source() -> Machine | None:
            return next((each for each in cluster.hosts if each.bytes_sent() - quiet[each] > size // 4), None)

        wait_until(lambda: source() is not None)
        lost = source()
        assert lost
        lab.plug(lost)
        assert script.numbers() == [10, size]
        assert lost.name not in script.line().split()
        assert cluster.head.bytes_sent() - before < 4.5 * size, "the launcher sent it to each host"
        code, _, errors = script.end()
        assert code == 0, errors


def test_a_large_project_goes_from_host_to_host(lab: Lab, tmp_path: Path) -> None:
    with cluster_of(lab, tmp_path, 5) as cluster:
        words = base64.b64encode(os.urandom(3_000_000)).decode()
        (tmp_path / "project" / "weights.py").write_text(f"WORDS = {words!r}\n")
        before = cluster.head.bytes_sent()
        script = cluster.launch(
            """
            import hashlib

            def look(_):
                import weights
                time.sleep(0.2)
                return socket.gethostname(), hashlib.sha256(weights.WORDS.encode()).hexdigest()

            with session(hosts=5) as here:
                with rw.Pool(5, session=here) as pool:
                    pool.wait_until_ready(60)
                    found = pool.map(look, range(10), chunksize=1)
                    say(len({host for host, _ in found}), *{digest for _, digest in found})
            """
        )
        num_hosts, digest = script.line().split()
        assert int(num_hosts) > 2 and digest == hashlib.sha256(words.encode()).hexdigest()
        assert cluster.head.bytes_sent() - before < 3.5 * 3_000_000, "the launcher sent it to each host"
        code, _, errors = script.end()
        assert code == 0, errors


def test_a_network_that_loses_large_packets_is_named_as_a_cause(lab: Lab, tmp_path: Path) -> None:
    # Connections come up and stay silent: nothing says so but the size of what is lost.
    def lose_large(_head: Machine, hosts: list[Machine]) -> None:
        rules = "".join(
            f"add chain inet mtu {hook} {{ type filter hook {hook} priority 0; }}\n"
            f"add rule inet mtu {hook} meta oifname != lo meta length > 600 drop\n"
            for hook in ("input", "output")
        )
        for machine in hosts:
            machine.run(
                ["nft", "-f", "-"], input=f"add table inet mtu\n{rules}".replace("input meta oif", "input meta iif")
            )

    with cluster_of(lab, tmp_path, 1, prepare=lose_large) as cluster:
        script = cluster.launch(
            """
            with session(hosts=1) as here:
                with rw.Pool(2, session=here) as pool:
                    try:
                        pool.map(where, range(4))
                    except rw.StartFailed as error:
                        say(str(error).replace(chr(10), " "))
            """
        )
        words = script.line()
        assert "this agent on n1 cannot run" in words and "the network loses large packets" in words and "MTU" in words
        code, _, errors = script.end()
        assert code == 0, errors
