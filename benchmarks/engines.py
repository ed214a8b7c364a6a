"""What many agents cost: a session with hundreds of them on this machine, each with workers of its own.

    python benchmarks/engines.py                        # 200 agents of 10 workers, as benchmarks/engines.md has it
    python benchmarks/engines.py --agents 20 --repeats 3

Agents of the local engine talk over unix sockets; everything else of their life is what agents on a cluster do. What
TLS adds to a control link is measured beside it, over a link of loopback.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import socket
import statistics
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import psutil

import ropewalk as rw
from ropewalk.processes.messages import CONTROL, Ping, Pong
from ropewalk.processes.session import Session
from ropewalk.transport.authority import RunAuthority
from ropewalk.transport.link import Link
from ropewalk.transport.streams.plain import PlainStream
from ropewalk.transport.streams.tls import TlsStream, client_context, server_context

IDLE_S = 10.0


def worker_host(_: int) -> int:
    return os.getppid()


def measure(num_agents: int, num_workers: int) -> dict[str, float]:
    """One session from its first submission to its end."""
    facts: dict[str, float] = {}
    begun, cpu = time.monotonic(), time.process_time()
    with Session(engine="local", hosts=num_agents) as session:
        until(lambda: sum(agent.up for agent in session.hosts()) == num_agents)
        facts["agents up, s"] = time.monotonic() - begun
        facts["launcher's CPU until then, s"] = time.process_time() - cpu
        begun, cpu = time.monotonic(), time.process_time()
        with rw.Pool(num_agents * num_workers, session=session) as pool:
            pool.wait_until_ready(600)
            facts["workers ready, s"] = time.monotonic() - begun
            facts["launcher's CPU for them, s"] = time.process_time() - cpu
            sizes = {len(agent.processes) for agent in session.hosts()}
            assert sizes == {num_workers}, f"the workers are not spread evenly: {sizes}"
            begun = time.monotonic()
            hosts = pool.map(worker_host, range(num_agents * num_workers * 5), chunksize=1)
            facts["5 tasks for each worker, tasks/s"] = len(hosts) / (time.monotonic() - begun)
            facts |= idle(session, num_agents)
            victim = session.hosts()[0]
            begun = time.monotonic()
            os.kill(victim.pid, 9)
            until(lambda: victim.id not in {agent.id for agent in session.hosts()})
            facts["loss of a killed agent noticed, s"] = time.monotonic() - begun
            pool.wait_until_ready(600)
            facts["pool back to size, s"] = time.monotonic() - begun
            begun = time.monotonic()
    facts["everything ended, s"] = time.monotonic() - begun
    return facts


def idle(session: Session, num_agents: int) -> dict[str, float]:
    """What it costs when nothing happens: heartbeats and samples."""
    pids = [agent.pid for agent in session.hosts()]
    links = [agent.link for agent in session.hosts() if agent.link]
    time.sleep(2.0)  # what was just computed is reported meanwhile
    cpu, agents_cpu, received, begun = time.process_time(), cpu_of(pids), _received(links), time.monotonic()
    time.sleep(IDLE_S)
    elapsed_s, spent_s = time.monotonic() - begun, time.process_time() - cpu
    facts = {
        "launcher's CPU when idle, % of a core": 100 * spent_s / elapsed_s,
        "an agent's CPU when idle, % of a core": 100 * (cpu_of(pids) - agents_cpu) / elapsed_s / num_agents,
        "control link, bytes/s from each agent": (_received(links) - received) / elapsed_s / num_agents,
    }
    shared = sum(psutil.Process(pid).memory_full_info().pss for pid in pids[:20]) / len(pids[:20])
    return facts | {
        "memory of an agent (PSS), MB": shared / 1e6,
        "memory of the launcher (largest RSS), MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3,
    }


def _received(links: Sequence[Link]) -> int:
    return sum(link.received_bytes for link in links)


def cpu_of(pids: Iterable[int]) -> float:
    """Seconds of CPU of the threads of processes, by the scheduler's own count.

    The times that `ps` shows are counted in ticks of 10 ms, and miss most of what runs for less than one.
    """
    files = (file for pid in pids for file in Path(f"/proc/{pid}/task").glob("*/schedstat"))
    return sum(int(file.read_text().split()[0]) for file in files) / 1e9


def heartbeat_cost(rounds: int = 20_000) -> dict[str, float]:
    """CPU of one heartbeat (ping out, pong back) at one end, over a plain and over a TLS stream."""
    ours, theirs = socket.socketpair()
    plain = _beat(PlainStream(ours), PlainStream(theirs), rounds)
    authority = RunAuthority.create("benchmark")
    one, other = authority.issue("one"), authority.issue("other")
    listening = socket.create_server(("127.0.0.1", 0))
    dialled = socket.create_connection(listening.getsockname())
    accepted, _ = listening.accept()
    listening.close()
    server = TlsStream(accepted, server_context(one), server_side=True)
    client = TlsStream(dialled, client_context(other), server_side=False)
    thread = threading.Thread(target=server.handshake, args=(10.0, lambda _: True))
    thread.start()
    client.handshake(10.0, lambda _: True)
    thread.join()
    return {
        "heartbeat over a unix socket, CPU of both ends, µs": plain,
        "heartbeat over TLS, CPU of both ends, µs": _beat(server, client, rounds),
    }


def _beat(one: object, other: object, rounds: int) -> float:
    a, b = Link(one, CONTROL, "a"), Link(other, CONTROL, "b")  # type: ignore[arg-type]
    cpu = time.process_time()
    for _ in range(rounds):
        a.send(Ping())
        b.receive()
        b.send(Pong())
        a.receive()
    spent_s = time.process_time() - cpu
    a.close()
    b.close()
    return spent_s / rounds * 1e6


def until(condition: Callable[[], bool], timeout_s: float = 600.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"waited {timeout_s:g} s in vain"
        time.sleep(0.005)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--agents", type=int, default=200)
    parser.add_argument("--workers", type=int, default=10, help="of each agent")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write the numbers there as well")
    arguments = parser.parse_args()
    runs: list[dict[str, float]] = []
    for number in range(arguments.repeats):
        runs.append(measure(arguments.agents, arguments.workers) | heartbeat_cost())
        print(f"run {number + 1} of {arguments.repeats} is over", flush=True)
    medians = {name: statistics.median(run[name] for run in runs) for name in runs[0]}
    about = f"{os.cpu_count()} cores, Linux {platform.release()}, Python {platform.python_version()}"
    print(f"\n{arguments.agents} agents of {arguments.workers} workers, {about}, median of {arguments.repeats}:\n")
    print("| what | measured |\n| --- | --- |")
    for name, value in medians.items():
        print(f"| {name} | {value:,.3g} |" if value < 1000 else f"| {name} | {value:,.0f} |")
    if arguments.json:
        arguments.json.write_text(json.dumps(medians, indent=2))


if __name__ == "__main__":
    main()
