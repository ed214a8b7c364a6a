"""Every partitioner through the suite, and partitioners with one fault each, which it must find."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ropewalk.errors import PlanInvalid
from ropewalk.pipeline.partitioners import PARTITIONERS, make_partitioner
from ropewalk.pipeline.partitioners.balanced import Balanced
from ropewalk.pipeline.partitioners.partitioner import Partition, Partitioner, PlanRequest
from ropewalk.pipeline.partitioners.pipedream import PipeDreamPartitioner
from ropewalk.testing.partitioner_conformance import PartitionerConformance


class TestBalanced(PartitionerConformance):
    def make_partitioner(self) -> Partitioner:
        return Balanced()


class TestPipeDream(PartitionerConformance):
    def make_partitioner(self) -> Partitioner:
        return PipeDreamPartitioner(memory_test="counted")


class TestPipeDreamOfThePaper(PartitionerConformance):
    def make_partitioner(self) -> Partitioner:
        return PipeDreamPartitioner(cost_model="paper")


class TestStraightPipeDream(PartitionerConformance):
    """By the memory test of PipeDream's repository, which our count does not agree with."""

    keeps_memory = False

    def make_partitioner(self) -> Partitioner:
        return PipeDreamPartitioner(straight=True, fewer_machines=True)


class TestExact(PartitionerConformance):
    num_graphs = 4

    def make_partitioner(self) -> Partitioner:
        return make_partitioner("exact")


class TestFixed(PartitionerConformance):
    """One cut in the middle, where there are two devices."""

    def make_partitioner(self) -> Partitioner:
        return make_partitioner("fixed")

    def asked(self, request: PlanRequest) -> PlanRequest:
        order = request.profile.order
        if request.fixed_cuts or request.num_stages is not None or request.topology.num_devices < 2 or len(order) < 2:
            return request
        return replace(request, fixed_cuts=(order[len(order) // 2 - 1],))


def test_every_partitioner_is_put_through_the_suite() -> None:
    tested = {suite().make_partitioner().name for suite in PartitionerConformance.__subclasses__()}
    assert set(PARTITIONERS) <= tested


def test_an_option_that_a_partitioner_does_not_have_is_named() -> None:
    # It was: Balanced() takes no arguments, a TypeError.
    with pytest.raises(PlanInvalid, match="partitioner 'exact' has no option 'max_set'; did you mean 'max_sets'"):
        make_partitioner("exact", max_set=3)
    with pytest.raises(PlanInvalid, match="is configured already; it takes no max_sets"):
        make_partitioner(Balanced(), max_sets=3)


class Faulty(PartitionerConformance):
    """A partitioner that spoils what `balanced` answers."""

    def __init__(self, fault: str = "") -> None:
        self.fault = fault
        self.calls = 0

    name = "faulty"

    def make_partitioner(self) -> Partitioner:
        return self

    def partition(self, request: PlanRequest) -> Partition:
        self.calls += 1
        if self.fault == "forgets the memory":
            return Balanced().partition(replace(request, memory_bytes=None))
        if self.fault == "forgets the number of stages":
            return Balanced().partition(replace(request, num_stages=None))
        if self.fault == "forgets recomputation":
            return Balanced().partition(replace(request, recompute=False))
        partition = Balanced().partition(request)
        stages = list(partition.stages)
        match self.fault:
            case "loses an operator" if stages[0].operators[1:]:
                stages[0] = replace(stages[0], operators=stages[0].operators[1:])
            case "runs an operator twice" if len(stages) > 1:
                stages[1] = replace(stages[1], operators=(stages[0].operators[0], *stages[1].operators))
            case "goes back" if len(stages) > 1:
                one, other = stages[0].operators, stages[1].operators
                stages[0], stages[1] = replace(stages[0], operators=other), replace(stages[1], operators=one)
            case "takes a device that is not there":
                stages[-1] = replace(stages[-1], devices=(request.topology.num_devices,))
            case "changes its mind" if self.calls % 2:
                stages[0] = replace(stages[0], devices=tuple(reversed(range(request.topology.num_devices)))[:1])
                stages[1:] = [replace(stage, devices=(stage.id - 1,)) for stage in stages[1:]]
            case "has a bound above its objective":
                return replace(partition, lower_bound_s=partition.objective_s * 2)
            case "stumbles" if request.num_stages == 2:
                raise KeyError("stage")
            case _:
                pass
        return replace(partition, stages=tuple(stages))


@pytest.mark.parametrize(
    ("fault", "test"),
    [
        ("loses an operator", "test_every_operator_is_in_one_stage_and_edges_lead_forward"),
        ("runs an operator twice", "test_every_operator_is_in_one_stage_and_edges_lead_forward"),
        ("goes back", "test_every_operator_is_in_one_stage_and_edges_lead_forward"),
        ("takes a device that is not there", "test_stages_take_devices_of_the_topology_and_share_none"),
        ("takes a device that is not there", "test_one_device_runs_everything"),
        ("changes its mind", "test_the_same_request_gets_the_same_answer_in_every_process"),
        ("has a bound above its objective", "test_the_objective_is_a_time_and_no_less_than_its_bound"),
        ("forgets the memory", "test_plans_keep_to_the_memory"),
        ("forgets recomputation", "test_recomputation_is_as_asked"),
        ("forgets the number of stages", "test_a_number_of_stages_is_kept_or_refused"),
        ("stumbles", "test_a_number_of_stages_is_kept_or_refused"),
    ],
)
def test_the_suite_finds_a_partitioner_that(fault: str, test: str) -> None:
    getattr(Faulty(), test)()
    with pytest.raises((AssertionError, PlanInvalid, KeyError)):
        getattr(Faulty(fault), test)()


class OfHashes(PartitionerConformance):
    """Its choice depends on the hash seed."""

    name = "of_hashes"

    def make_partitioner(self) -> Partitioner:
        return self

    def partition(self, request: PlanRequest) -> Partition:
        found = Balanced().partition(request)
        return replace(found, notes=(str(hash("x")),))


def test_the_suite_finds_a_partitioner_whose_plans_hang_on_the_hash_seed() -> None:
    with pytest.raises(AssertionError, match="in a process with hash seed"):
        OfHashes().test_the_same_request_gets_the_same_answer_in_every_process()


def test_all_tests_names_the_whole_suite() -> None:
    assert PartitionerConformance.all_tests().countTestCases() == 11
