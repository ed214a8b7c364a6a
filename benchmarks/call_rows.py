"""One function for each row of the table of calls: it measures all contenders side by side and judges ours.

As in `pool_rows`: contenders are opened first and then measured in turn, A B C, B C A, ..., so that whatever else the
machine does falls on all of them. A number is the median of the rounds, a ratio is one of medians.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import importlib
import itertools
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import probes
from call_contenders import LIBRARIES, Client, Contender, Future, is_installed, opened
from callee import Control, calls_within, look_at_every_page, total_rate
from pool_rows import Line, medians, milliseconds, per_second, shown

FLOOR = "bare"
WINDOW = 64
SIZES = {"1 KB": 1_000, "100 KB": 100_000, "1 MB": 1_000_000, "10 MB": 10_000_000, "200 MB": 200_000_000}
JUDGED_SIZE = "10 MB"


@dataclass(frozen=True, slots=True)
class Bench:
    """Who is measured, against whom, and how thoroughly."""

    subject: str = "ropewalk"
    against: tuple[str, ...] = ("bare", "managers", "grpc", "ray")
    repeats: int = 7
    quick: bool = False

    @property
    def names(self) -> list[str]:
        return [name for name in LIBRARIES if name == self.subject or name in self.against]

    @property
    def duration_s(self) -> float:
        return 0.2 if self.quick else 1.0

    def calls(self, usual: int) -> int:
        return usual // 10 if self.quick else usual

    def line(
        self,
        what: str,
        reach: str,
        measured: str,
        holds: bool | None,
        values: dict[str, str],
        unable: str = "",
    ) -> Line:
        """One line; who is missing from `values` is said to be not installed, or `unable`."""
        missing = {name: unable if is_installed(name) else "not installed" for name in self.names}
        return Line(what, reach, measured, holds, missing | values)


@contextlib.contextmanager
def clients_of(names: Sequence[str]) -> Generator[dict[str, Client]]:
    """A client of each contender."""
    with opened(names) as contenders, contextlib.ExitStack() as stack:
        clients = {name: contender.client() for name, contender in contenders.items()}
        for client in clients.values():
            stack.callback(client.close)
        yield clients


def by_turns(names: Sequence[str], repeats: int, measure: Callable[[str], float]) -> dict[str, float]:
    """The median over the rounds of what `measure` returns for each name; a first round warms up and is forgotten."""
    seen: dict[str, list[float]] = {name: [] for name in names}
    order = list(names)
    for turn in range(1 + repeats):
        for name in order:
            time.sleep(0.02)  # lets the one before come to rest
            value = measure(name)
            if turn:
                seen[name].append(value)
        order = order[1:] + order[:1]
    return medians(seen)


# ---------------------------------------------------------------- empty calls


def empty(bench: Bench) -> Iterator[Line]:
    """Where client and server run decides as much as what they do: on two cores, each message wakes a sleeping core."""
    cores = sorted(os.sched_getaffinity(0))
    with clients_of(bench.names) as clients:
        calls = {name: client.method("empty") for name, client in clients.items()}
        servers = {name: client.method("pid")() for name, client in clients.items()}
        places: dict[str, tuple[list[int], list[int]]] = {
            "": (cores, cores),
            ", both ends on one core": (cores[:1], cores[:1]),
            ", each end on a core of its own": (cores[:1], cores[1:2]),
        }
        for place, (client_cores, server_cores) in places.items():
            if not server_cores:
                continue
            pin(os.getpid(), client_cores)
            for pid in servers.values():
                pin(pid, server_cores)
            p50 = by_turns(list(calls), bench.repeats, lambda name: median_s(calls[name], bench.calls(2_000)))
            ratio = p50[bench.subject] / p50[FLOOR]
            yield bench.line(
                f"empty call p50, one client{place}",
                "" if place else "<= 1.6 x the bare socket's",
                f"{ratio:.2f} x",
                None if place else ratio <= 1.6,
                {name: f"{microseconds(value)} ({value / p50[FLOOR]:.2f} x)" for name, value in p50.items()},
            )


def cost(bench: Bench) -> Iterator[Line]:
    """Processor time of a call at both ends together, on one core: comparable even while the machine is busy."""
    import numpy as np

    core = sorted(os.sched_getaffinity(0))[-1:]
    arrays = {"1 KB": np.zeros(125), "100 KB": np.zeros(12_500)}
    with clients_of(bench.names) as clients:
        pids = {name: [os.getpid(), client.method("pid")()] for name, client in clients.items()}
        for pid in itertools.chain.from_iterable(pids.values()):
            pin(pid, core)
        rows: dict[str, dict[str, Callable[[], object]]] = {
            "empty call": {name: client.method("empty") for name, client in clients.items()}
        }
        for size, array in arrays.items():
            rows[f"{size} array as argument"] = {
                name: functools.partial(client.method("take"), array) for name, client in clients.items()
            }
            rows[f"{size} array as result"] = {
                name: functools.partial(client.method("give"), array.nbytes) for name, client in clients.items()
            }
        for what, calls in rows.items():
            seen = by_turns(
                list(calls),
                4 * bench.repeats,
                lambda name, calls=calls: cost_s(calls[name], pids[name], bench.calls(1_000)),
            )
            yield bench.line(
                f"{what}, processor time of both ends, on one core",
                "",
                f"{seen[bench.subject] / seen[FLOOR]:.2f} x the bare socket's",
                None,
                {name: f"{microseconds(value)} ({value / seen[FLOOR]:.2f} x)" for name, value in seen.items()},
            )


def cost_s(call: Callable[[], object], pids: Sequence[int], count: int) -> float:
    before = sum(map(processor_s, pids))
    for _ in range(count):
        call()
    return (sum(map(processor_s, pids)) - before) / count


def processor_s(pid: int) -> float:
    """Processor time of all threads of a process that are still there, to the nanosecond."""
    taken = 0
    for thread in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(OSError):
            taken += int(pathlib.Path(f"/proc/{pid}/task/{thread}/schedstat").read_text().split()[0])
    return taken / 1e9


def pin(pid: int, cores: Sequence[int]) -> None:
    """Puts all threads of a process, and those that they start, on these cores."""
    for thread in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(int(thread), cores)


def median_s(call: Callable[[], object], count: int) -> float:
    return statistics.median(durations_s(call, count))


def durations_s(call: Callable[[], object], count: int) -> list[float]:
    clock, seen = time.perf_counter, list[float]()
    for _ in range(count):
        start = clock()
        call()
        seen.append(clock() - start)
    return seen


def microseconds(value: float) -> str:
    return f"{value * 1e6:.1f} µs"


def busy(bench: Bench) -> Iterator[Line]:
    """What is answered, and how fast, while a method of the same object sleeps."""
    sleep_s = 1.0 if bench.quick else 5.0
    middle: dict[str, float] = {}
    worst: dict[str, float] = {}
    with opened(bench.names) as contenders:
        for name, contender in contenders.items():
            sleeper, caller = contender.client(), contender.client()
            caller.method("quick")()
            asleep = threading.Thread(target=sleeper.method("sleep"), args=(sleep_s,))
            asleep.start()
            time.sleep(0.1)
            seen = durations_s(caller.method("quick"), bench.calls(3_000))
            assert asleep.is_alive(), "the calls took longer than the sleep"
            middle[name], worst[name] = statistics.median(seen), max(seen)
            asleep.join()
    yield bench.line(
        f"call of a concurrent method while another sleeps {sleep_s:.0f} s: worst",
        "< 0.1 s",
        f"{milliseconds(worst[bench.subject])} (p50 {middle[bench.subject] / middle[FLOOR]:.2f} x the bare socket's)",
        worst[bench.subject] < 0.1,
        {name: f"{milliseconds(worst[name])} (p50 {microseconds(middle[name])})" for name in middle},
    )
    if bench.subject == "ropewalk":
        for what, value, limit_s in importlib.import_module("call_subject").answered_meanwhile(sleep_s):
            yield bench.line(
                f"{what} while a method sleeps {sleep_s:.0f} s",
                f"< {limit_s} s",
                milliseconds(value),
                value < limit_s,
                {bench.subject: milliseconds(value)},
                unable="-",
            )


def window(bench: Bench) -> Iterator[Line]:
    with clients_of(bench.names) as clients:
        blocking = by_turns(
            list(clients),
            bench.repeats,
            lambda name: total_rate([calls_within(bench.duration_s / 2, clients[name].method("empty"))]),
        )
        futures = {name: call for name, client in clients.items() if (call := client.futures("empty"))}
        windowed = by_turns(
            list(futures),
            bench.repeats,
            lambda name: windowed_rate(futures[name], bench.calls(10_000)),
        )
    ratio = windowed.get(bench.subject, 0.0) / blocking[bench.subject]
    yield bench.line(
        f"calls per second, window of {WINDOW} futures, one client",
        ">= 3 x the rate of one blocking client",
        f"{ratio:.2f} x" if bench.subject in windowed else "no futures",
        ratio >= 3,
        {
            name: f"{windowed[name]:,.0f}/s against {rate:,.0f}/s" if name in windowed else f"no futures, {rate:,.0f}/s"
            for name, rate in blocking.items()
        },
    )


def windowed_rate(call: Callable[..., Future], count: int, size: int = WINDOW, arguments: Sequence[Any] = ()) -> float:
    """Calls per second with `size` of them on the way: whoever has waited longest is read, then one more is made."""
    waiting: collections.deque[Future] = collections.deque()
    start = time.perf_counter()
    for _ in range(count):
        if len(waiting) == size:
            waiting.popleft().result()
        waiting.append(call(*arguments))
    while waiting:
        waiting.popleft().result()
    return count / (time.perf_counter() - start)


# ---------------------------------------------------------------- several clients


def clients(bench: Bench) -> Iterator[Line]:
    count = 8
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        contenders = stack.enter_context(opened(bench.names))
        controls: dict[str, Control] = {}
        for name, contender in contenders.items():
            controls[name] = Control(f"{folder}/{name}", count)
            stack.callback(controls[name].close)
            contender.start_clients(controls[name])
            controls[name].wait_for_clients()
        rates = by_turns(list(controls), bench.repeats, lambda name: controls[name].rate(bench.duration_s))
    yield judged_by_floor(bench, f"{count} client processes, calls per second", rates)

    with opened(bench.names) as contenders:
        rates = by_turns(
            list(contenders), bench.repeats, lambda name: threads_rate(contenders[name], count, bench.duration_s)
        )
    yield judged_by_floor(bench, f"{count} client threads of one process, calls per second", rates)


def judged_by_floor(bench: Bench, what: str, rates: dict[str, float]) -> Line:
    ratio = rates[bench.subject] / rates[FLOOR]
    return bench.line(
        what, ">= 0.8 x the bare threaded socket's", f"{ratio:.2f} x", ratio >= 0.8, shown(rates, per_second)
    )


def threads_rate(contender: Contender, count: int, duration_s: float) -> float:
    counts: list[tuple[int, float]] = []
    barrier = threading.Barrier(count)

    def run() -> None:
        client = contender.client()
        call = client.method("empty")
        call()
        barrier.wait()
        counts.append(calls_within(duration_s, call))
        client.close()

    join_all([threading.Thread(target=run) for _ in range(count)])
    assert len(counts) == count, "a client failed"
    return total_rate(counts)


def join_all(threads: Sequence[threading.Thread]) -> None:
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


# ---------------------------------------------------------------- arrays


def arrays(bench: Bench) -> Iterator[Line]:
    with clients_of(bench.names) as clients:
        for size, size_bytes in SIZES.items():
            if bench.quick and size_bytes > 10_000_000:
                continue
            count = max(1, min(200, 40_000_000 // size_bytes))
            for way, measure in (("argument", sent_s), ("result", fetched_s)):
                elapsed = by_turns(
                    list(clients),
                    min(bench.repeats, 3) if size_bytes > 100_000_000 else bench.repeats,
                    lambda name, measure=measure, size_bytes=size_bytes, count=count: statistics.median(
                        measure(clients[name], size_bytes, count)
                    ),
                )
                rate = {name: size_bytes / value / 1e9 for name, value in elapsed.items()}
                judged = size == JUDGED_SIZE
                yield bench.line(
                    f"{size} array as {way}, same host",
                    ">= 1.5 GB/s" if judged else "",
                    f"{rate[bench.subject]:.3g} GB/s ({rate[bench.subject] / rate[FLOOR]:.2f} x the bare socket's)",
                    rate[bench.subject] >= 1.5 if judged else None,
                    {name: f"{value:.3g} GB/s ({milliseconds(elapsed[name])})" for name, value in rate.items()},
                )


def sent_s(client: Client, size_bytes: int, count: int) -> Iterator[float]:
    import numpy as np

    take = client.method("take")
    array = np.zeros(size_bytes // 8)
    for number in range(count):
        array[0] = number  # new content each time, so that nobody can have kept it
        start = time.perf_counter()
        seen = take(array)
        yield time.perf_counter() - start
        assert seen == number, "wrong results"


def fetched_s(client: Client, size_bytes: int, count: int) -> Iterator[float]:
    give, last = client.method("give"), 0.0
    for _ in range(count):
        start = time.perf_counter()
        array = give(size_bytes)
        seen = look_at_every_page(array)
        yield time.perf_counter() - start
        assert array.nbytes == size_bytes and seen > last, "wrong results"
        last = seen


# ---------------------------------------------------------------- batches


CALLERS = 32


def batched(bench: Bench) -> Iterator[Line]:
    """32 callers of one product each, against the same callers of the same product without `@batched`."""
    if bench.subject != "ropewalk":
        yield bench.line("`@batched` service", "", "nothing of the kind", None, {}, unable="-")
        return
    for width, kind, judged in ((64, "float32", False), (512, "float32", False), (4_096, "float64", True)):
        yield from batched_product(bench, width, kind, judged)


def batched_product(bench: Bench, width: int, kind: str, judged: bool) -> Iterator[Line]:
    import numpy as np

    vector = np.random.default_rng(3).random(width).astype(kind)
    matrix = np.random.default_rng(7).random((width, width)).astype(kind)
    with clients_of([bench.subject, FLOOR]) as clients:
        for client in clients.values():
            client.method("prepare")(width, kind)
        ours, floor = clients[bench.subject], clients[FLOOR]
        assert np.allclose(ours.method("product_batched")(vector), vector @ matrix, rtol=1e-4), "wrong results"
        count = bench.calls(640 if width > 1_000 else 6_400)
        ways: dict[str, Callable[[], float]] = {
            "futures": lambda: rate_of_futures(ours, "product_batched", vector, count),
            "futures, unbatched": lambda: rate_of_futures(ours, "product", vector, count),
            "threads": lambda: rate_of_threads(ours, "product_batched", vector, count),
            "threads, unbatched": lambda: rate_of_threads(ours, "product", vector, count),
            # Not by futures: large requests sent ahead fill the socket both ways, until neither end reads any more.
            "bare": lambda: total_rate(
                [calls_within(bench.duration_s, functools.partial(floor.method("product"), vector))]
            ),
        }
        rates = by_turns(list(ways), min(bench.repeats, 5), lambda way: ways[way]())
    one = median_s(lambda: vector @ matrix, 20)
    together = np.stack([vector] * CALLERS)
    ideal = one * CALLERS / median_s(lambda: together @ matrix, 20)
    for way, what in (("futures", f"{CALLERS} futures of one client"), ("threads", f"{CALLERS} client threads")):
        ratio = rates[way] / rates[f"{way}, unbatched"]
        yield bench.line(
            f"`@batched` product of a vector and a {width} x {width} {kind} matrix, {what}",
            ">= 5 x the unbatched rate" if judged else "",
            f"{ratio:.2f} x ({ideal:.1f} x with no calls at all)",
            ratio >= 5 if judged else None,
            {
                bench.subject: f"{rates[way]:,.0f}/s against {rates[f'{way}, unbatched']:,.0f}/s",
                FLOOR: f"{rates['bare']:,.0f}/s, one caller, unbatched",
            },
            unable="-",
        )


def rate_of_futures(client: Client, name: str, vector: Any, count: int) -> float:
    call = client.futures(name)
    assert call, "no futures"
    return windowed_rate(call, count, CALLERS, (vector,))


def rate_of_threads(client: Client, name: str, vector: Any, count: int) -> float:
    call = client.method(name)

    def run() -> None:
        for _ in range(count // CALLERS):
            call(vector)

    start = time.perf_counter()
    join_all([threading.Thread(target=run) for _ in range(CALLERS)])
    return count // CALLERS * CALLERS / (time.perf_counter() - start)


# ---------------------------------------------------------------- starts and deaths


def launch(bench: Bench) -> Iterator[Line]:
    seen = in_fresh_interpreters(bench, "launch")
    for key, what in (("cold_s", "first of the process"), ("next_s", "next")):
        value = {name: statistics.median(answer[key] for answer in answers) for name, answers in seen.items()}
        yield bench.line(
            f"five nodes, launch to ready, processes, {what}",
            "< 1 s",
            f"{value[bench.subject]:.3f} s",
            value[bench.subject] < 1,
            shown(value, milliseconds),
        )


def killed(bench: Bench) -> Iterator[Line]:
    seen = in_fresh_interpreters(bench, "killed")
    ours = seen[bench.subject]
    answered = [answer["answered_s"] for answer in ours if answer["answered_s"] is not None]
    whole = len(answered) == len(ours) and all(answer["restored"] for answer in ours)
    measured = ours[-1]["outcome"]
    if whole:
        measured = f"{statistics.median(answered):.3f} s (worst of {len(ours)}: {max(answered):.3f} s), state restored"
    yield bench.line(
        "SIGKILL of a service until its client's next call is answered, state restored",
        "< 1 s",
        measured,
        whole and statistics.median(answered) < 1,
        {name: answers[-1]["outcome"] for name, answers in seen.items()},
    )


def in_fresh_interpreters(bench: Bench, measurement: str) -> dict[str, list[dict[str, Any]]]:
    """What `fresh_calls.py` says of each contender, asked in turn, each time in a new interpreter."""
    seen: dict[str, list[dict[str, Any]]] = {name: [] for name in bench.names if is_installed(name)}
    script = pathlib.Path(__file__).with_name("fresh_calls.py")
    for turn in range(min(bench.repeats, 5)):
        for name, answers in seen.items():
            if turn and name == "ray":
                continue  # takes seconds each time, and is far from anybody's mark
            command = [sys.executable, str(script), measurement, name]
            done = subprocess.run(command, capture_output=True, text=True, timeout=60)
            assert done.returncode == 0, f"{' '.join(command[1:])} failed:\n{done.stderr}"
            answers.append(json.loads(done.stdout.splitlines()[-1]))
    return seen


# ---------------------------------------------------------------- soak


def soak(bench: Bench) -> Iterator[Line]:
    """A million calls, half of them by futures: what client and server hold after the first tenth, and after all."""
    total = bench.calls(1_000_000)
    with clients_of([bench.subject]) as clients:
        client = clients[bench.subject]
        futures = client.futures("empty")
        servers = probes.family()[1:]
        held: list[float] = []
        start = time.perf_counter()
        for _ in range(10):
            for _ in range(10):
                for call in itertools.repeat(client.method("empty"), total // 200):
                    call()
                if futures:
                    windowed_rate(futures, total // 200)
                else:
                    for call in itertools.repeat(client.method("empty"), total // 200):
                        call()
            held.append(probes.held_bytes([os.getpid(), *servers]) / probes.MB)
        elapsed = time.perf_counter() - start
    growth = held[-1] - held[0]
    yield bench.line(
        f"{total:,} small calls: memory of client and server after the first tenth and after all",
        "grows by < 1 MB",
        f"{growth:+.2f} MB",
        growth < 1,
        {bench.subject: f"{held[0]:.1f} MB, {held[-1]:.1f} MB ({elapsed:.0f} s)"},
        unable="-",
    )


ROWS: dict[str, Callable[[Bench], Iterator[Line]]] = {
    "empty": empty,
    "cost": cost,
    "busy": busy,
    "window": window,
    "clients": clients,
    "arrays": arrays,
    "batched": batched,
    "launch": launch,
    "killed": killed,
    "soak": soak,
}
