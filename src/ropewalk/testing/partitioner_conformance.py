"""The conformance suite of partitioners.

    class TestMine(PartitionerConformance):         # pytest runs its methods; pytest is not needed to import this
        def make_partitioner(self) -> Partitioner:
            return Mine()

Each method partitions small random graphs with branches, skips, inputs, tied parameters and operators that cost
nothing. A partitioner may refuse a request by `PlanInvalid` or `NoPlanFits`; its results must be plans. It must give
the same result in a process with another hash seed, so the subclass has to be in a module that can be imported.
"""

from __future__ import annotations

import base64
import os
import pickle
import random
import subprocess
import sys
import unittest
from collections.abc import Iterator

from ropewalk.errors import NoPlanFits, PlanInvalid, ProfileInvalid
from ropewalk.pipeline.cost import plan_cost
from ropewalk.pipeline.partitioners.partitioner import Partition, Partitioner, PlanRequest
from ropewalk.pipeline.plans import Plan, assemble
from ropewalk.pipeline.profiles import Operator, Profile, SavedValue
from ropewalk.pipeline.schedules import SCHEDULES, make_schedule
from ropewalk.pipeline.topology import DeviceKind, Level, Topology
from ropewalk.testing.conformance_suite import ConformanceSuite

_AGAIN = """
import base64, pickle, sys
sys.path[:] = pickle.loads(base64.b64decode(sys.argv[1]))
suite = pickle.loads(base64.b64decode(sys.argv[2]))()
print(suite.what_it_says())
"""
_LEVELS = ((Level(1),), (Level(3, 50.0),), (Level(2, 200.0), Level(2, 20.0)))


class PartitionerConformance(ConformanceSuite):
    """The suite: subclass it, override `make_partitioner`, and run it by pytest or with the tests of `all_tests()`."""

    num_graphs: int = 6
    """The number of graphs that each test draws."""
    num_operators: int = 8
    """The number of operators of each graph, without inputs."""
    seed: int = 0
    """The seed of the graphs."""
    schedules: tuple[str, ...] = ("one_f_one_b", "gpipe", "pipedream")
    """Schedules for which it must find a plan on any devices; for other schedules it may refuse."""
    keeps_memory: bool = True
    """Whether its plans fit by the memory model of `ropewalk.pipeline.cost`; False if it has a model of its own."""

    def make_partitioner(self) -> Partitioner:
        """Make a new partitioner; called for each request."""
        raise NotImplementedError("say how your partitioner is made: override make_partitioner()")

    def asked(self, request: PlanRequest) -> PlanRequest:
        """Adapt a request of the suite; override it if your partitioner needs more facts, such as cuts."""
        return request

    # Guarantees

    def test_every_operator_is_in_one_stage_and_edges_lead_forward(self) -> None:
        """This holds for each schedule, with devices on one level and on two."""
        for profile in self._profiles(tied=False):  # `pipedream` demands more of stages that share a parameter
            for levels in _LEVELS:
                for schedule in self.schedules:
                    self._plan(self._request(profile, levels, schedule))

    def test_stages_take_devices_of_the_topology_and_share_none(self) -> None:
        """Each device runs one stage."""
        for profile in self._profiles():
            for levels in _LEVELS:
                request = self._request(profile, levels)
                plan, _ = self._plan(request)
                devices = [device for stage in plan.stages for device in stage.devices]
                assert len(set(devices)) == len(devices), f"a device runs two stages: {plan.stages}"
                known = range(request.topology.num_devices)
                assert set(devices) <= set(known), f"there are devices {known}, and the stages take {devices}"

    def test_one_device_runs_everything(self) -> None:
        """One device leaves no choice: all operators are in one stage."""
        for profile in self._profiles():
            plan, _ = self._plan(self._request(profile, (Level(1),)))
            assert [stage.devices for stage in plan.stages] == [(0,)], f"one stage on device 0, not {plan.stages}"

    def test_the_objective_is_a_time_and_no_less_than_its_bound(self) -> None:
        """The objective is in seconds per mini-batch; a lower bound is optional."""
        for profile in self._profiles():
            _, partition = self._plan(self._request(profile, (Level(3, 50.0),)))
            assert 0 < partition.objective_s < float("inf"), f"objective_s is {partition.objective_s}"
            bound = partition.lower_bound_s
            assert bound is None or 0 <= bound <= partition.objective_s * (1 + 1e-9), (
                f"lower_bound_s is {bound}, above the objective_s {partition.objective_s}"
            )

    def test_the_same_request_gets_the_same_answer_in_every_process(self) -> None:
        """Neither an earlier request nor the hash seed changes it."""
        first = self.what_it_says()
        assert first == self.what_it_says(), "asked a second time in the same process, it says something else"
        suite = type(self)
        if getattr(sys.modules.get(suite.__module__), suite.__qualname__, None) is not suite:
            raise unittest.SkipTest(f"{suite.__qualname__} cannot be imported from {suite.__module__}")
        arguments = [base64.b64encode(pickle.dumps(value)).decode() for value in (sys.path, suite)]
        seed = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
        done = subprocess.run(
            [sys.executable, "-P", "-c", _AGAIN, *arguments],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"in another process it fails:\n{done.stderr}"
        assert done.stdout.strip() == first, f"in a process with hash seed {seed} it says something else"

    def what_it_says(self) -> str:
        """Return the answers to some requests as text that can be compared."""
        answers: list[str] = []
        for profile in self._profiles():
            for levels in _LEVELS[1:]:
                request = self.asked(self._request(profile, levels))
                answers.append(repr(self.make_partitioner().partition(request)))
        return "\n".join(answers)

    def test_plans_keep_to_the_memory(self) -> None:
        """It finds a plan within the limit or refuses; `needed` and `available` of the error are the two numbers."""
        if not self.keeps_memory:
            raise unittest.SkipTest("its plans keep to a memory model of its own")
        for profile in self._profiles():
            free = self._request(profile, (Level(3, 50.0),))
            _, partition = self._plan(free)
            fullest = max(plan_cost(free, partition.stages).device_bytes)
            for limit in (fullest, fullest * 3 // 4, fullest // 2, 1):
                request = self._request(profile, (Level(3, 50.0),), memory_bytes=int(limit))
                try:
                    _, partition = self._plan(request)
                except NoPlanFits as refusal:
                    facts = f"{refusal.needed} needed, {refusal.available} available, limit {limit}: {refusal}"
                    if limit == fullest or not refusal.needed > refusal.available:
                        raise AssertionError(
                            f"it found a plan of {fullest} bytes itself, and says {facts}"
                        ) from refusal
                else:
                    sizes = plan_cost(request, partition.stages).device_bytes
                    assert max(sizes) <= limit, f"devices have {limit} bytes, and the stages take {sizes}"

    def test_recomputation_is_as_asked(self) -> None:
        """All stages recompute, or none, if the request says so."""
        for profile in self._profiles():
            for recompute in (True, False):
                plan, _ = self._plan(self._request(profile, (Level(3, 50.0),), recompute=recompute))
                done = {stage.recompute for stage in plan.stages}
                assert done == {recompute}, f"recompute={recompute} was asked, and it is {done}"

    # Requests that may be refused, but not answered wrongly

    def test_a_number_of_stages_is_kept_or_refused(self) -> None:
        """The plan has exactly `num_stages` stages."""
        for profile in self._profiles():
            for num_stages in (1, 2, 3):
                request = self._request(profile, (Level(3, 50.0),), num_stages=num_stages)
                if planned := self._plan_or_refusal(request):
                    assert len(planned.stages) == num_stages, f"{num_stages} stages were asked for: {planned.stages}"

    def test_devices_of_two_kinds_are_used_as_they_are_or_refused(self) -> None:
        """The devices of a replicated stage are of one kind, and each kind has its own memory limit."""
        kinds = (DeviceKind("slow"), DeviceKind("fast", speed=2.0, memory_bytes=10**6))
        topology = Topology((Level(4, 50.0),), kinds, (0, 0, 1, 1))
        for profile in self._profiles():
            request = PlanRequest(profile, topology, make_schedule("one_f_one_b"), micro_batches=4)
            if planned := self._plan_or_refusal(request):
                for stage in planned.stages:
                    assert len({topology.kind(device) for device in stage.devices}) == 1, f"{stage} mixes kinds"

    def test_any_schedule_gets_stages_that_it_can_run_or_a_refusal(self) -> None:
        """Some schedules need equal replicas, or several stages on each device."""
        for profile in self._profiles(tied=False):
            for schedule in SCHEDULES:
                self._plan_or_refusal(self._request(profile, (Level(2, 50.0),), schedule))

    def test_odd_profiles_are_planned_or_refused(self) -> None:
        """The profiles have one operator, no time at all, no edges, only inputs, or an input that is not read."""
        one = Operator("a", forward_s=1.0, output_bytes=8)
        source = Operator("x", output_bytes=8, is_input=True)
        free = Operator("b")
        for operators in ((one,), (free,), (one, free), (source,), (source, one), (free, source)):
            self._plan_or_refusal(self._request(Profile(operators, ()), (Level(2, 50.0),)))

    # Helpers

    def _plan(self, request: PlanRequest) -> tuple[Plan, Partition]:
        """Return its answer as a plan, which checks operators, edges and devices, and check it by the schedule."""
        request = self.asked(request)
        partition = self.make_partitioner().partition(request)
        schedule = make_schedule(request.schedule.name)
        plan = assemble(request.profile, partition.stages, schedule=schedule.name, micro_batches=request.micro_batches)
        schedule.check(plan)
        return plan, partition

    def _plan_or_refusal(self, request: PlanRequest) -> Plan | None:
        """Return the plan, or None if the partitioner refuses the request."""
        try:
            request = self.asked(request)
            self.make_partitioner().partition(request)
        except (PlanInvalid, ProfileInvalid) as refusal:
            if not str(refusal):
                raise AssertionError("a refusal says what was asked, what there is, and what to do") from refusal
            return None
        return self._plan(request)[0]

    def _request(
        self,
        profile: Profile,
        levels: tuple[Level, ...],
        schedule: str = "one_f_one_b",
        *,
        memory_bytes: int | None = None,
        num_stages: int | None = None,
        recompute: bool | None = None,
    ) -> PlanRequest:
        return PlanRequest(
            profile,
            Topology(levels),
            make_schedule(schedule),
            micro_batches=4,
            memory_bytes=memory_bytes,
            num_stages=num_stages,
            recompute=recompute,
        )

    def _profiles(self, *, tied: bool = True) -> Iterator[Profile]:
        draw = random.Random(self.seed)
        for _ in range(self.num_graphs):
            yield random_profile(draw, self.num_operators, tied=tied)


def random_profile(draw: random.Random, num_operators: int, *, tied: bool = True) -> Profile:
    """Draw a graph with branches, skips, two inputs, operators that cost nothing, and perhaps a tied parameter."""
    inputs = [Operator(id, output_bytes=draw.randint(1, 99), is_input=True) for id in ("input.x", "input.mask")]
    operators: list[Operator] = []
    edges: list[tuple[str, str]] = [("input.x", "op0"), ("input.mask", f"op{draw.randrange(num_operators)}")]
    for number in range(num_operators):
        id = f"op{number}"
        busy = draw.random() < 0.8
        parameters = {f"{id}.weight": draw.randint(1, 50)} if draw.random() < 0.5 else {}
        if tied and number in (0, num_operators - 1):
            parameters["tied.weight"] = 30
        earlier = range(max(0, number - 4), number)
        sources = sorted({draw.choice(earlier) for _ in range(draw.choice((1, 1, 2)))}) if number else []
        edges += [(f"op{source}", id) for source in sources]
        operators.append(
            Operator(
                id,
                forward_s=draw.uniform(0.5, 3.0) if busy else 0.0,
                backward_s=draw.uniform(0.5, 6.0) if busy else 0.0,
                output_bytes=draw.randint(1, 99),
                parameters=parameters,
                saved_bytes=draw.choice((None, 0, 40)),
                saved=tuple(SavedValue(f"op{source}", 20) for source in sources if draw.random() < 0.3),
            )
        )
    return Profile((*inputs, *operators), tuple(dict.fromkeys(edges)))
