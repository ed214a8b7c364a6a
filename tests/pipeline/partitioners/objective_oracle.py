"""Random requests, and their best plan found by trying all: the objective written anew from its definition.

Shares no formula with `cost`, `operator_costs` or `topology`: what a stage sends, keeps and
waits for is found here operator by operator, for every way to cut the graph and every way to
lay the stages on the devices, of which any may stay idle.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from functools import cache

from ropewalk.pipeline.partitioners.partitioner import PlanRequest
from ropewalk.pipeline.profiles import Operator, Profile
from ropewalk.pipeline.schedules import make_schedule
from ropewalk.pipeline.topology import DeviceKind, Level, Topology

#: Devices in a server, and servers; one server is a flat topology.
SHAPES = ((2, 2), (3, 2), (2, 3), (2, 2), (3, 2), (4, 1), (6, 1))


def random_request(seed: int) -> PlanRequest:
    """Up to 8 operators with skips and ties on up to 6 devices, with and without latency and limits of memory."""
    draw = random.Random(seed)
    num = draw.randint(2, 8)
    has_ties = draw.random() < 0.4
    operators: list[Operator] = []
    edges: list[tuple[str, str]] = []
    for number in range(num):
        forward_s = draw.choice([0.0, 0.003, 0.005, 0.01, 0.02])
        parameters = {f"op{number}": draw.choice([0, 1_000, 200_000, 20_000_000])}
        if has_ties and draw.random() < 0.4:
            parameters["tied"] = 3_000_000
        operators.append(
            Operator(
                f"op{number}",
                forward_s=forward_s,
                backward_s=forward_s * draw.choice([1, 2]),
                output_bytes=draw.choice([0, 10_000, 50_000, 100_000, 1_000_000]),
                parameters=parameters,
                buffer_bytes=draw.choice([0, 0, 5_000]),
                saved_bytes=draw.choice([None, 300_000]),
            )
        )
        sources = {number - 1} if number and draw.random() < 0.85 else set[int]()
        sources |= {draw.randrange(number) for _ in range(draw.choice([0, 0, 1])) if number}
        edges += [(f"op{source}", f"op{number}") for source in sorted(sources)]
    inside, servers = draw.choice(SHAPES)
    latencies = draw.choice([(0.0, 0.0), (0.0, 0.0), (0.0005, 0.002)])
    bandwidths = draw.choice([(1e8, 1e7), (1e8, 1e8), (1e9, 1e7), (1e7, 1e8)])
    levels = tuple(map(Level, (inside, servers), bandwidths, latencies))
    return PlanRequest(
        Profile(tuple(operators), tuple(edges)),
        Topology(levels[: 1 if servers == 1 else 2], (DeviceKind(),)),
        make_schedule(draw.choice(["one_f_one_b", "gpipe", "pipedream"])),
        micro_batches=draw.choice([1, 4, 6, 8]),
        memory_bytes=draw.choice([None, None, 150_000_000, 90_000_000, 60_000_000]),
        optimizer_slots=draw.randint(0, 2),
        recompute=draw.choice([None, None, True, False]),
    )


def chains(profile: Profile) -> Iterator[tuple[frozenset[str], ...]]:
    """All ways to cut operators into stages that read only from earlier ones."""
    ids = tuple(operator.id for operator in profile.operators)
    sources = {id: {source for source, target in profile.edges if target == id} for id in ids}

    @cache
    def larger(before: frozenset[str]) -> frozenset[frozenset[str]]:
        """All sets beyond this one that hold the sources of their members."""
        found: set[frozenset[str]] = set()
        for id in ids:
            if id not in before and sources[id] <= before:
                more = before | {id}
                found |= {more, *larger(more)}
        return frozenset(found)

    def cut(before: frozenset[str]) -> Iterator[tuple[frozenset[str], ...]]:
        if len(before) == len(ids):
            yield ()
        for after in larger(before):
            for rest in cut(after):
                yield (after - before, *rest)

    return cut(frozenset())


def placements(inside: int, servers: int) -> dict[int, set[tuple[tuple[int, int], ...]]]:
    """By the number of stages: what each may take, as a first device and a number of them."""
    runs = [
        (first, num)
        for first in range(inside * servers)
        for num in range(1, inside * servers - first + 1)
        if first // inside == (first + num - 1) // inside or (first % inside == 0 and num % inside == 0)
    ]
    found: dict[int, set[tuple[tuple[int, int], ...]]] = {0: {()}}
    for stages in range(1, inside * servers + 1):
        found[stages] = {
            (*earlier, run)
            for earlier in found[stages - 1]
            for run in runs
            if not earlier or sum(earlier[-1]) <= run[0]
        }
    return found


def least_objective_s(request: PlanRequest) -> float:
    """The objective of the best plan there is, `inf` if none fits."""
    levels = request.topology.levels
    inside, servers = levels[0].count, levels[1].count if len(levels) > 1 else 1
    operators = {operator.id: operator for operator in request.profile.operators}
    edges, batches, kind = request.profile.edges, request.micro_batches, request.schedule.name
    flushes = kind != "pipedream"
    memory = math.inf if request.memory_bytes is None else request.memory_bytes

    def level(one: int, other: int) -> int:
        return 0 if one // inside == other // inside else 1

    @cache
    def sums(stage: frozenset[str]) -> tuple[float, float, int, int, int, int, int]:
        """Forward and backward seconds; bytes received, sent, of weights, of buffers, and kept for backwards."""
        mine = [operators[id] for id in sorted(stage)]
        weights: dict[str, int] = {}
        for operator in mine:
            weights.update(operator.parameters)
        received = {source for source, target in edges if target in stage and source not in stage}
        sent = {source for source, target in edges if source in stage and target not in stage}
        return (
            math.fsum(operator.forward_s for operator in mine),
            math.fsum(operator.backward_s for operator in mine),
            sum(operators[id].output_bytes for id in received),
            sum(operators[id].output_bytes for id in sent),
            sum(weights.values()),
            sum(operator.buffer_bytes for operator in mine),
            sum(operator.output_bytes if operator.saved_bytes is None else operator.saved_bytes for operator in mine),
        )

    @cache
    def parts(
        stage: frozenset[str], earlier_s: float, num: int, own: int, before: int, after: int, workers_after: int
    ) -> tuple[float, float]:
        """What the plan's maximum takes of a stage, and its sum; levels are -1 where there is no neighbour."""
        forward_s, backward_s, received, sent, weights, buffers, saved = sums(stage)
        ahead = math.ceil(workers_after / num) + 1
        flying = {
            "gpipe": math.ceil(batches / num),
            "one_f_one_b": min(ahead, math.ceil(batches / num)),
            "pipedream": ahead,
        }[kind]
        versions = 2 + request.optimizer_slots + (0 if flushes else ahead - 1)
        plain = weights * versions + buffers + saved * flying <= memory
        again = weights * versions + buffers + received * flying + saved <= memory
        if not (again if request.recompute else plain or (again and request.recompute is None)):
            return math.inf, math.inf
        recompute = request.recompute is True or not plain
        compute_s = forward_s * (2 if recompute else 1) + backward_s
        # Each port, in and out, of each level carries values one way and gradients the other.
        ports = [[0.0, 0.0], [0.0, 0.0]]
        if before >= 0:
            ports[before][0] += received
            ports[before][1] += received
        if after >= 0:
            ports[after][0] += sent
            ports[after][1] += sent
        link_s = max(max(ports[number]) / levels[number].bandwidth for number in range(len(levels))) / num
        joined = levels[own]
        # Slices of all to all, then the sums of slices; two send each other everything at once.
        latencies = {1: 0, 2: 1}.get(num, 2)
        summed_s = 2 * (num - 1) * (weights / num / joined.bandwidth) + latencies * joined.latency_s
        if not flushes:
            return batches * max((compute_s + summed_s) / num, link_s), 0.0
        under_way_s = 0.0
        if before >= 0 and received:
            under_way_s = 2 * (received / levels[before].bandwidth + levels[before].latency_s)
        slowest = max((math.ceil(batches / num) - 1) * compute_s, (batches - 1) * link_s)
        return slowest, compute_s + under_way_s + max(0.0, summed_s - earlier_s)

    @cache
    def along(places: tuple[tuple[int, int], ...]) -> list[tuple[int, int, int, int, int]]:
        """Of each stage: replicas, the levels inside it, before and after it, and the workers after it."""
        found: list[tuple[int, int, int, int, int]] = []
        for number, (first, num) in enumerate(places):
            before = level(sum(places[number - 1]) - 1, first) if number else -1
            after = level(first + num - 1, places[number + 1][0]) if number + 1 < len(places) else -1
            later = sum(run[1] for run in places[number + 1 :])
            found.append((num, level(first, first + num - 1), before, after, later))
        return found

    # Of places that no formula tells apart, one will do.
    on_devices = {
        stages: list({tuple(along(places)) for places in them}) for stages, them in placements(inside, servers).items()
    }
    best = math.inf
    for chain in chains(request.profile):
        earlier = [0.0]
        for stage in chain:
            earlier.append(earlier[-1] + sums(stage)[1])
        tied = [number for number, stage in enumerate(chain) if any("tied" in operators[id].parameters for id in stage)]
        for places in on_devices.get(len(chain), ()):
            if kind == "pipedream" and len({places[number][0] for number in tied}) > 1:
                continue  # PipeDream updates stages that share parameters together
            slowest = total = 0.0
            for stage, earlier_s, of in zip(chain, earlier, places, strict=False):
                one, more = parts(stage, earlier_s, *of)
                slowest, total = max(slowest, one), total + more
                if slowest + total >= best:
                    break
            best = min(best, slowest + total)
    return best
