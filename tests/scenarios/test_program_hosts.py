"""Programs whose nodes are on several hosts: states, moves, calls, ranks, and looking at them."""

from __future__ import annotations

import os
import signal
import textwrap
from pathlib import Path

import pytest

from tests.lab import Lab, Machine
from tests.patience import wait_until
from tests.scenarios.hosts import Cluster, cluster_of

#: A service whose state is larger than what goes into a header, and a wait until the launcher has it.
COUNTER = """
    class Counter:
        def __init__(self):
            self.value, self.ballast = 0, b""

        def add(self, number, ballast=b""):
            self.value += number
            self.ballast = ballast or self.ballast
            return socket.gethostname()

        @rw.idempotent
        def look(self):
            return self.value, len(self.ballast), socket.gethostname(), rw.current_node().generation

        def sleep(self, seconds):
            note("calls", "sleep")  # from here on the call has begun: before, it would follow the service elsewhere
            time.sleep(seconds)

        def state_dict(self):
            return {"value": self.value, "ballast": self.ballast}

        def load_state_dict(self, state):
            self.value, self.ballast = state["value"], state["ballast"]

    def wait_until_kept(session, size_bytes):
        kept = []
        while not any(path.stat().st_size > size_bytes for path in kept):
            time.sleep(0.01)
            kept = list(session.folder.glob("checkpoints-*/counter.0.checkpoint"))
"""


def script_of(*parts: str) -> str:
    return "\n".join(textwrap.dedent(part) for part in parts)


def agent_on(cluster: Cluster, machine: Machine) -> int:
    """The agent in a machine, as seen from here."""
    return next(process.pid for _, where, process in reversed(cluster.spool.started) if where is machine)


def states_on(machine: Machine) -> list[Path]:
    """Saved states in the folders of a machine that are its own."""
    found = [path for folder in ("/tmp", "/run") for path in machine.path(folder).rglob("*.checkpoint")]
    # The checkout may lie in /tmp, and tests have checkpoints of an earlier format.
    return [path for path in found if "checkpoint_of_format_1" not in path.parts]


def test_a_service_whose_host_is_lost_comes_back_elsewhere_with_its_state(lab: Lab, tmp_path: Path) -> None:
    with cluster_of(lab, tmp_path) as cluster:
        script = cluster.launch(
            script_of(
                COUNTER,
                """
                def watch(counter):
                    # On a host that stays: its call waits on a link that nobody closes.
                    while not os.path.exists(os.path.join(FOLDER, "kept")):
                        time.sleep(0.01)
                    try:
                        counter.sleep(60)
                    except rw.ServiceLost as error:
                        note("lost", error)
                    value, size, host, generation = counter.look()
                    note("back", f"{value} {size} {host} {generation}")

                with session(hosts=3) as here:
                    program = rw.Program("kept")
                    counter = program.add(rw.Service(Counter), restart="on_failure", checkpoint_s=0.05)
                    program.add(rw.Worker(watch, counter))
                    running = program.launch(session=here)
                    running.wait_ready(120)
                    client = running.client("counter")
                    client.add(41)
                    host = client.add(1, os.urandom(3_000_000))
                    wait_until_kept(here, 3_000_000)
                    note("kept", host)
                    say(host)
                    running.wait(120)
                    status = running.status()
                    lost = [event for event in status.events if "replaced" in event]
                    say(len(lost), lost)
                """,
            ),
            slots=1,
        )
        host = cluster.host(script.line())
        wait_until(lambda: bool(cluster.notes("calls")))
        assert not states_on(host), "a state was left on a host other than the launcher's"
        lab.plug(host)
        line = script.line()
        code, _, errors = script.end()
        assert code == 0, errors
        assert line.startswith("1 "), line
        (lost,) = cluster.notes("lost")
        assert "it is being restarted" in lost
        value, size, where, generation = cluster.notes("back")[0].split()
        assert (value, size, generation) == ("42", "3000000", "1") and where != host.name


def test_units_on_a_host_that_is_taken_away_move_with_their_state(lab: Lab, tmp_path: Path) -> None:
    with cluster_of(lab, tmp_path) as cluster:
        script = cluster.launch(
            script_of(
                COUNTER,
                """
                def work(counter):
                    # Never restarted after a failure, and on no host that stays when all of them are taken away.
                    node = rw.current_node()
                    note("works", f"{node.generation} {socket.gethostname()}")
                    while not rw.stopping():
                        counter.add(1)
                        time.sleep(0.005)

                with session(hosts=3) as here:
                    program = rw.Program("moved")
                    counter = program.add(rw.Service(Counter), checkpoint_s=60)
                    program.add(rw.Worker(work, counter))
                    running = program.launch(session=here)
                    running.wait_ready(120)
                    client = running.client("counter")
                    before = client.add(1000)
                    seen = (1000,)  # it may move before the first look
                    say(before)
                    while (now := client.look())[3] == 0:
                        seen = now
                        time.sleep(0.01)
                    assert now[0] >= seen[0] >= 1000, (seen, now)
                    assert now[2] != before, now
                    status = running.status()
                    assert all(node.restarts == 0 for node in status.nodes), status
                    say(*[event for event in status.events if "counter.0" in event])
                    running.stop()
                """,
            ),
            slots=1,
        )
        host = cluster.host(script.line())
        wait_until(lambda: bool(cluster.notes("works")))
        cluster.spool.deaf.add(host)  # no new agent there
        os.kill(agent_on(cluster, host), signal.SIGTERM)
        event = script.line()
        code, _, errors = script.end()
        assert code == 0, errors
        assert f"counter.0 moves to another host: {host.name} is taken away (the engine sent SIGTERM)" in event


def test_the_next_launcher_has_the_states_of_services_on_other_hosts(lab: Lab, tmp_path: Path) -> None:
    source = script_of(
        COUNTER,
        """
        with session() as here:
            program = rw.Program("kept")
            program.add(rw.Service(Counter), checkpoint_s=0.05)
            running = program.launch(session=here, checkpoint=FOLDER + "/states")
            client = running.client("counter")
            before = client.look()
            if before[0]:
                say(*before)
                running.stop()
            else:
                client.add(42, bytes(3_000_000))
                states = os.path.join(FOLDER, "states", "counter.0.checkpoint")
                while not (os.path.exists(states) and os.path.getsize(states) > 3_000_000):
                    time.sleep(0.01)
                say("saved")
                os.kill(os.getpid(), signal.SIGKILL)
        """,
    )
    with cluster_of(lab, tmp_path, 1) as cluster:
        first = cluster.launch(source, slots=1)
        assert first.line() == "saved"
        first.process.wait()
        second = cluster.launch(source, slots=1)
        assert second.line() == "42 3000000 n1 0"
        code, _, errors = second.end()
        assert code == 0, errors


def test_ranks_on_several_hosts_meet_at_the_address_of_the_first(lab: Lab, tmp_path: Path) -> None:
    with cluster_of(lab, tmp_path) as cluster:
        script = cluster.launch(
            """
            def rank():
                # The rendezvous of torch.distributed is a TCP connection of each rank to this address.
                number, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
                assert (os.environ["LOCAL_RANK"], os.environ["LOCAL_WORLD_SIZE"]) == ("0", "1"), "one on each host"
                assert (os.environ["GROUP_RANK"], os.environ["GROUP_WORLD_SIZE"]) == (os.environ["RANK"], "3")
                place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
                if number == 0:
                    with socket.create_server(place) as server:
                        links = [server.accept()[0] for _ in range(size - 1)]
                        names = [link.recv(100).decode() for link in links]
                    note("met", " ".join(sorted([socket.gethostname(), *names])))
                    return
                for _ in range(500):
                    try:
                        link = socket.create_connection(place, 1)
                        break
                    except ConnectionRefusedError:
                        time.sleep(0.01)
                link.sendall(socket.gethostname().encode())

            with session(hosts=3) as here:
                program = rw.Program("ranks")
                program.add(rw.RankGroup(rank, 3))
                program.launch(session=here).wait(120)
            """,
            slots=1,
        )
        code, _, errors = script.end()
        assert code == 0, errors
        assert cluster.notes("met") == ["n1 n2 n3"]


@pytest.mark.parametrize("parted", [False, True], ids=["reachable", "parted"])
def test_calls_between_hosts_are_like_calls_on_one(lab: Lab, tmp_path: Path, parted: bool) -> None:
    def part(_head: Machine, hosts: list[Machine]) -> None:
        if parted:
            lab.part(*hosts, refuse=True)

    with cluster_of(lab, tmp_path, 2, prepare=part) as cluster:
        script = cluster.launch(
            """
            class Store:
                def __init__(self):
                    self.batches = []
                    self.heard = False
                    self.published = rw.Frozen(bytearray(3_000_000))

                def echo(self, value):
                    return value

                def greet(self, value):
                    self.heard = True
                    return value

                def weights(self):
                    return self.published

                def was_greeted(self):
                    return self.heard

                def count(self, number):
                    for each in range(number):
                        yield each, b"x" * 100_000

                @rw.batched(max_size=8, max_wait_s=0.2)
                def double(self, numbers):
                    self.batches.append(len(numbers))
                    return [2 * each for each in numbers]

                def sizes(self):
                    return self.batches

                def host(self):
                    return socket.gethostname()

            def call(store, table, cached):
                big = bytearray(os.urandom(5_000_000))
                for number in range(3):
                    back = store.echo((big, number))
                    assert back == (big, number) and isinstance(back[0], bytearray)
                futures = [store.echo.future((big, number)) for number in range(4)]
                assert [future.result(120)[1] for future in futures] == [0, 1, 2, 3]
                assert [each for each, _ in store.count(50)] == list(range(50))
                doubles = [store.double.future(each) for each in range(8)]
                assert [future.result(120) for future in doubles] == [2 * each for each in range(8)]
                assert cached.host() == cached.host() == store.host() != socket.gethostname()
                for _ in range(2):  # of another host, packed for this one's callers already, and from memory
                    assert store.weights() == table.weights() == cached.weights() == bytearray(3_000_000)
                assert table.host() == socket.gethostname(), "colocated nodes share a host"
                assert max(store.sizes()) > 1
                while not store.was_greeted():  # a program whose workers are done answers nobody any more
                    time.sleep(0.01)

            with session(hosts=2) as here:
                while sum(agent.up for agent in here.hosts()) < 2:
                    time.sleep(0.01)
                program = rw.Program("calls")
                table, cached = map(program.declare, ["table", "cached"])
                store = program.add(rw.Service(Store), name="store")
                parts = {"table": rw.Service(Store), "call": rw.Worker(call, store, table, cached)}
                program.add(rw.Colocate(parts, as_="processes"), name="together")
                program.add(rw.Cache(store, ttl_s=10, only=["host", "weights"]), name="cached")
                running = program.launch(session=here)
                running.wait_ready(120)
                assert len(running.client("store").greet(b"x" * 3_000_000)) == 3_000_000  # from the launcher
                running.wait(120)
                say(sum("only through the launcher" in event for event in running.status().events))
            """,
            slots=2,
        )
        code, out, errors = script.end()
        assert code == 0, errors
        assert bool(int(out.split()[-1])) == parted, out


def test_units_on_other_hosts_are_seen_logged_scaled_and_restarted(lab: Lab, tmp_path: Path) -> None:
    with cluster_of(lab, tmp_path) as cluster:
        script = cluster.launch(
            """
            import subprocess

            def stand_still(number):
                print("standing still on", socket.gethostname(), flush=True)
                rw.wait_for_stop()

            def ropewalk(*words):
                done = subprocess.run([sys.executable, "-m", "ropewalk", *words], capture_output=True, text=True)
                assert done.returncode == 0, done.stderr
                return done.stdout

            with session(hosts=3) as here:
                program = rw.Program("seen")
                with program.group("outer"):
                    program.add(rw.Worker(stand_still, 1), name="still", replicas=3)
                running = program.launch(session=here)
                running.wait_ready(120)
                name = running.status().nodes[0].name
                hosts = {node.host for node in running.status().nodes}
                assert hosts == {"n1", "n2", "n3"}, hosts
                while running.logs(name).count("standing still") < 3:
                    time.sleep(0.01)
                assert all(host in running.logs(name) for host in hosts)
                stacks = running.stacks()
                assert len(stacks) == 3 and all("stand_still" in stack for stack in stacks.values()), stacks
                running.scale(name, 4)
                running.restart(name)
                while [(n.generation, n.state) for n in running.status().nodes].count((1, "running")) < 4:
                    time.sleep(0.01)
                shown = ropewalk("ps")
                assert all(host in shown for host in hosts), shown
                assert "stand_still" in ropewalk("stack", "seen")
                assert "standing still on n2" in ropewalk("logs", "seen")
                say("done")
                running.stop()
            """,
            slots=2,
        )
        while (line := script.line()) != "done":
            assert "standing still on" in line
        code, _, errors = script.end()
        assert code == 0, errors


@pytest.mark.parametrize("chosen", ["", "lo"], ids=["nothing set", "set by the user"])
def test_ranks_of_hosts_whose_names_lead_to_loopback_reach_each_other(lab: Lab, tmp_path: Path, chosen: str) -> None:
    # The default of Debian and Ubuntu, where gloo listened at 127.0.1.1 and other hosts were refused.
    def name_loopback(head: Machine, hosts: list[Machine]) -> None:
        for machine in (head, *hosts):
            machine.path("/run/hosts").write_text(f"127.0.0.1 localhost\n127.0.1.1 {machine.name}\n")

    source = """
        def rank():
            if not CHOSEN:
                import torch
                import torch.distributed as dist
                dist.init_process_group("gloo")
                total = torch.ones(1)
                dist.all_reduce(total)
                note("totals", total.item())
            note("interfaces", os.environ.get("GLOO_SOCKET_IFNAME"))

        with session(hosts=2) as here:
            program = rw.Program("ranks")
            environment = {"GLOO_SOCKET_IFNAME": CHOSEN} if CHOSEN else {}
            program.add(rw.RankGroup(rank, 2), environment=environment)
            assert program.launch(session=here).wait(300)
    """
    with cluster_of(lab, tmp_path, 2, prepare=name_loopback) as cluster:
        script = cluster.launch(source.replace("CHOSEN", repr(chosen)), slots=1)
        code, _, errors = script.end()
        assert code == 0, errors
        assert cluster.notes("interfaces") == [chosen or "eth0"] * 2
        assert cluster.notes("totals") == ([] if chosen else ["2.0", "2.0"])
