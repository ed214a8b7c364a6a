"""What a plan says of itself: speedups over other ways to use the devices, and its bottleneck."""

from __future__ import annotations

import pytest

from ropewalk.pipeline.partitioners.partitioner import Partition, PlanRequest
from ropewalk.pipeline.planning import plan
from ropewalk.pipeline.plans import Stage
from ropewalk.pipeline.profiles import Operator, Profile
from ropewalk.pipeline.topology import DeviceKind, Level, Topology

FAST_AND_SLOW = (DeviceKind("fast", 4.0), DeviceKind("slow"))


class Copies:
    """Copies of the whole model on all devices."""

    name = "copies"

    def partition(self, request: PlanRequest) -> Partition:
        return Partition((Stage(0, request.profile.order, tuple(range(request.topology.num_devices))),), 1.0)


def chain(num: int, *, weight_bytes: int = 0) -> Profile:
    """Equal operators of 1 s forward and 2 s backward."""
    operators = tuple(
        Operator(f"op{n}", forward_s=1, backward_s=2, output_bytes=8, parameters={f"w{n}": weight_bytes})
        for n in range(num)
    )
    return Profile(operators, tuple((f"op{n}", f"op{n + 1}") for n in range(num - 1)))


@pytest.mark.parametrize("order", [(0, 1, 1), (1, 0, 1)])
def test_devices_of_two_kinds_are_compared_with_copies_that_wait_for_the_slowest(order: tuple[int, ...]) -> None:
    # Any plan for several kinds of devices ended in PlanInvalid: copies of the model ran on all of them together.
    topology = Topology((Level(3),), FAST_AND_SLOW, order)
    made = plan(chain(4), devices=topology, micro_batches=6, schedule="gpipe")
    found = made.prediction
    assert found is not None
    assert found.simulated_speedup_over_data_parallel == pytest.approx(6 / 3 * 12 / found.step_s)
    assert found.speedup_over_data_parallel == pytest.approx(6 / 3 * 12 / found.objective_s)
    assert found.step_s < 6 / 3 * 12, "the fast device has more to do"


def test_replicas_may_differ_in_memory_where_they_are_equally_fast() -> None:
    kinds = (DeviceKind("small", memory_bytes=10**9), DeviceKind("large", memory_bytes=10**10))
    topology = Topology((Level(2, 1e9),), kinds, (0, 1))
    made = plan(chain(1), devices=topology, micro_batches=4, partitioner="pipedream")
    assert [stage.devices for stage in made.stages] == [(0, 1)]


def test_sums_are_the_bottleneck_where_they_take_longer_than_what_is_computed_between_them() -> None:
    topology = Topology((Level(2, 1.0),))
    for weight_bytes, micro_batches, words in ((4, 12, "computing in stage 0"), (20, 12, "summing"), (4, 2, "summing")):
        made = plan(
            chain(1, weight_bytes=weight_bytes),
            devices=topology,
            micro_batches=micro_batches,
            schedule="gpipe",
            partitioner=Copies(),
        )
        assert made.prediction is not None
        assert made.prediction.bottleneck.startswith(words), (weight_bytes, micro_batches)
