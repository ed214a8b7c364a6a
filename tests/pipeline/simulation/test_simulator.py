"""Links, ports, slots and reductions by hand; bounds, order and standstills."""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ropewalk.errors import PlanInvalid, ScheduleInvalid
from ropewalk.pipeline.actions import Action, ActionKind
from ropewalk.pipeline.cost import reduce_s
from ropewalk.pipeline.plans import Plan, PlanWorker, Stage, assemble
from ropewalk.pipeline.profiles import Operator, Profile
from ropewalk.pipeline.simulation.simulator import simulate
from ropewalk.pipeline.topology import DeviceKind, Level, Topology

MB = 10**6


def chain(
    times: Sequence[tuple[float, float]],
    *,
    replicas: Sequence[int] | None = None,
    sizes: int = MB,
    weights: int = 8 * MB,
    micro_batches: int = 1,
) -> tuple[Profile, Plan]:
    """One operator a stage, on devices in order."""
    operators = tuple(
        Operator(f"op{s}", forward_s=f, backward_s=b, output_bytes=sizes, parameters={f"w{s}": weights}, saved_bytes=1)
        for s, (f, b) in enumerate(times)
    )
    profile = Profile(operators, tuple((f"op{s}", f"op{s + 1}") for s in range(len(times) - 1)))
    stages: list[Stage] = []
    device = 0
    for s, number in enumerate(replicas or [1] * len(times)):
        stages.append(Stage(s, (f"op{s}",), tuple(range(device, device + number))))
        device += number
    return profile, assemble(profile, stages, schedule="by hand", micro_batches=micro_batches)


def lists(text: Mapping[str, str]) -> dict[PlanWorker, list[Action]]:
    """Action lists from their codes: {"0.0": "F0:0 S0:0>1/op0 ..."}."""
    found: dict[PlanWorker, list[Action]] = {}
    for name, codes in text.items():
        group, replica = map(int, name.split("."))
        found[PlanWorker(group, replica)] = [Action.parse(code, replica) for code in codes.split()]
    return found


def one_f_one_b(plan: Plan) -> dict[PlanWorker, list[Action]]:
    """A flush schedule of chains, for any replicas: each worker warms up, alternates, and ends with its backwards."""
    found: dict[PlanWorker, list[Action]] = {}
    for worker in plan.workers:
        stage, replicas = worker.group, plan.stages[worker.group].replicas
        pieces = range(worker.replica, plan.micro_batches, replicas)
        warm = min(len(pieces), math.ceil(plan.workers_after(stage) / replicas))
        order = [(ActionKind.FORWARD, b) for b in pieces[:warm]]
        for done, b in enumerate(pieces[warm:]):
            order += [(ActionKind.FORWARD, b), (ActionKind.BACKWARD, pieces[done])]
        order += [(ActionKind.BACKWARD, b) for b in pieces[max(0, len(pieces) - warm) :]]
        codes: list[str] = []
        for kind, b in order:
            before, after = (stage - 1, stage + 1) if kind is ActionKind.FORWARD else (stage + 1, stage - 1)
            if 0 <= before < len(plan.stages):
                codes.append(f"R{stage}:{b}<{before}/op{min(stage, before)}")
            codes.append(f"{kind.value}{stage}:{b}")
            if 0 <= after < len(plan.stages):
                codes.append(f"S{stage}:{b}>{after}/op{min(stage, after)}")
        if replicas > 1:
            codes.append(f"A{stage}v1/replicas")
        found[worker] = [Action.parse(code, worker.replica) for code in [*codes, f"U{stage}v1"]]
    return found


def flat(num: int, bandwidth: float = math.inf, latency_s: float = 0.0) -> Topology:
    return Topology((Level(num, bandwidth, latency_s),))


# --- by hand ----------------------------------------------------------------------------------------------------------


def test_a_step_of_one_micro_batch_is_the_sum_of_its_parts() -> None:
    profile, plan = chain([(1, 2), (3, 4)])
    timeline = simulate(plan, profile, flat(2, MB / 0.5, 0.25), one_f_one_b(plan))
    # forward 1, half a second on the link and a quarter of latency, 3 + 4, back over the link, backward 2
    assert timeline.length_s == timeline.step_s == pytest.approx(1 + 0.75 + 7 + 0.75 + 2, abs=1e-12)
    assert timeline.compute_s == {PlanWorker(0, 0): 3, PlanWorker(1, 0): 7}
    assert timeline.idle_s == pytest.approx({PlanWorker(0, 0): 8.5, PlanWorker(1, 0): 4.5})
    assert timeline.bytes_of_level == (2 * MB,)
    assert timeline.bytes_between == {
        (PlanWorker(0, 0), PlanWorker(1, 0)): MB,
        (PlanWorker(1, 0), PlanWorker(0, 0)): MB,
    }


def test_a_slow_link_sets_the_pace() -> None:
    profile, plan = chain([(1, 0), (1, 0)], micro_batches=5)
    plan = dataclasses.replace(plan, edges=tuple(dataclasses.replace(edge, gradient_bytes=0) for edge in plan.edges))
    actions = lists(
        {
            "0.0": " ".join(f"F0:{b} S0:{b}>1/op0" for b in range(5)),
            "1.0": " ".join(f"R1:{b}<0/op0 F1:{b}" for b in range(5)),
        }
    )
    timeline = simulate(plan, profile, flat(2, MB / 3), actions, slots=9)
    assert [transfer.arrival_s for transfer in timeline.transfers] == pytest.approx([4, 7, 10, 13, 16])
    assert timeline.length_s == pytest.approx(17)
    assert timeline.busiest == "the port out of device 0 (stage 0) at level 1 is busy 88 % of the time"


def test_a_send_waits_for_a_free_slot_until_the_receive() -> None:
    profile, plan = chain([(1, 0), (10, 0)], micro_batches=3)
    actions = lists(
        {
            "0.0": "F0:0 S0:0>1/op0 F0:1 S0:1>1/op0 F0:2 S0:2>1/op0",
            "1.0": "R1:0<0/op0 F1:0 R1:1<0/op0 F1:1 R1:2<0/op0 F1:2",
        }
    )

    def sent(slots: int) -> list[float]:
        return [transfer.sent_s for transfer in simulate(plan, profile, flat(2), actions, slots=slots).transfers]

    assert sent(3) == [1, 2, 3]
    assert sent(2) == [1, 2, 3]  # the first was received at 1
    assert sent(1) == [1, 2, 11]  # the second is received when F1:0 has ended


def test_without_overlap_the_worker_waits_for_its_transfer() -> None:
    profile, plan = chain([(1, 0), (1, 0)], micro_batches=2)
    actions = lists({"0.0": "F0:0 S0:0>1/op0 F0:1 S0:1>1/op0", "1.0": "R1:0<0/op0 F1:0 R1:1<0/op0 F1:1"})
    topology = flat(2, MB / 4, 0.5)
    with_overlap = simulate(plan, profile, topology, actions)
    without = simulate(plan, profile, topology, actions, overlap=False)
    assert with_overlap.starts[PlanWorker(0, 0)] == [0, 1, 1, 2]
    assert without.starts[PlanWorker(0, 0)] == [0, 1, 5, 6]  # busy with sending from 1 to 5
    assert without.ends[PlanWorker(0, 0)] == [1, 5, 6, 10]
    assert with_overlap.length_s == 1 + 4 + 4 + 0.5 + 1
    assert without.length_s == 10 + 0.5 + 1


def test_senders_to_one_device_share_its_port_in_the_order_of_their_coming() -> None:
    """Two replicas of stage 0 send to the one of stage 1 at the same instant; the lower number goes first."""
    profile, plan = chain([(1, 0), (0, 0)], replicas=[2, 1], micro_batches=2)
    actions = lists({"0.0": "F0:0 S0:0>1/op0", "0.1": "F0:1 S0:1>1/op0", "1.0": "R1:1<0/op0 F1:1 R1:0<0/op0 F1:0"})
    timeline = simulate(plan, profile, flat(3, MB / 2), actions)
    assert sorted((transfer.micro_batch, transfer.in_s, transfer.arrival_s) for transfer in timeline.transfers) == [
        (0, 1, 3),
        (1, 3, 5),
    ]
    assert timeline.port_busy_s[PlanWorker(1, 0), 0, "in"] == 4


def test_levels_have_ports_of_their_own() -> None:
    """Stage 0 sends to a neighbour and to another server; neither holds up the other."""
    operators = (Operator("a", forward_s=1, output_bytes=MB), Operator("b"), Operator("c"))
    profile = Profile(operators, (("a", "b"), ("a", "c")))
    plan = assemble(
        profile, [Stage(0, ("a",), (0,)), Stage(1, ("b",), (1,)), Stage(2, ("c",), (2,))], schedule="", micro_batches=1
    )
    actions = lists({"0.0": "F0:0 S0:0>1/a S0:0>2/a", "1.0": "R1:0<0/a F1:0", "2.0": "R2:0<0/a F2:0"})
    two_levels = simulate(plan, profile, Topology((Level(2, MB), Level(2, MB / 2))), actions)
    one_level = simulate(plan, profile, flat(4, MB), actions)
    assert [transfer.arrival_s for transfer in two_levels.transfers] == [2, 3]
    assert [transfer.arrival_s for transfer in one_level.transfers] == [2, 3]
    assert [transfer.out_s for transfer in two_levels.transfers] == [1, 1]
    assert [transfer.out_s for transfer in one_level.transfers] == [1, 2]
    assert two_levels.bytes_of_level == (MB, MB)


def test_replicas_sum_their_gradients_when_all_have_come() -> None:
    profile, plan = chain([(1, 3)], replicas=[3], micro_batches=4)
    timeline = simulate(plan, profile, flat(3, 4 * MB, 0.5), one_f_one_b(plan))
    # worker 0 has two micro-batches and comes at 8; then 2 (2/3) 8 MB at 4 MB/s and 2 latencies
    assert timeline.length_s == pytest.approx(8 + 2 * 2 / 3 * 2 + 2 * 0.5)
    assert timeline.idle_s[PlanWorker(0, 2)] == pytest.approx(4)
    assert timeline.bytes_of_level == (4 * 8 * MB,)


def test_tied_weights_are_summed_among_their_holders_and_a_norm_among_all() -> None:
    operators = (
        Operator("a", forward_s=1, backward_s=1, output_bytes=0, parameters={"w": 6 * MB}),
        Operator("b", forward_s=1, backward_s=1, output_bytes=0),
        Operator("c", forward_s=1, backward_s=1, output_bytes=0, parameters={"w": 6 * MB}),
    )
    profile = Profile(operators, (("a", "b"), ("b", "c")))
    stages = [Stage(number, (operator.id,), (number,)) for number, operator in enumerate(operators)]
    plan = assemble(profile, stages, schedule="", micro_batches=1)
    actions = lists(
        {
            "0.0": "F0:0 A0v1/tied A0v1/norm U0v1",
            "1.0": "F1:0 B1:0 A1v1/norm U1v1",
            "2.0": "F2:0 B2:0 A2v1/tied A2v1/norm U2v1",
        }
    )
    timeline = simulate(plan, profile, flat(3, 2 * MB, 0.25), actions, update_s={1: 7})
    tied, norm = timeline.sums
    assert (tied.start_s, tied.end_s) == pytest.approx((2, 2 + 3 + 0.25))  # 6 MB at 2 MB/s, one message
    assert (norm.start_s, norm.end_s) == pytest.approx((5.25, 5.5))
    assert timeline.length_s == pytest.approx(12.5)


@pytest.mark.parametrize(("replicas", "seconds"), [(2, 6 + 0.5), (3, 8 + 2 * 0.5), (6, 10 + 2 * 0.5)])
def test_replicas_sum_in_slices_by_two_messages_and_two_of_them_by_one(replicas: int, seconds: float) -> None:
    profile, plan = chain([(1, 1)], replicas=[replicas], micro_batches=replicas, weights=6 * MB)
    actions = lists({f"0.{replica}": "A0v1/replicas" for replica in range(replicas)})
    timeline = simulate(plan, profile, flat(replicas, MB, 0.5), actions)
    assert timeline.length_s == pytest.approx(seconds)
    assert timeline.length_s == reduce_s(6.0 * MB, replicas, Level(replicas, MB, 0.5))


def test_a_norm_goes_from_all_to_all() -> None:
    profile, plan = chain([(1, 1)], replicas=[5], micro_batches=5)
    actions = lists({f"0.{replica}": "A0v1/norm" for replica in range(5)})
    assert simulate(plan, profile, flat(5, MB, 0.5), actions).length_s == 0.5


def test_replicas_do_not_sum_again_what_is_tied_to_other_stages() -> None:
    operators = (
        Operator("a", output_bytes=8, parameters={"w": 6 * MB, "a": 2 * MB}),
        Operator("b", parameters={"w": 6 * MB}),
    )
    profile = Profile(operators, (("a", "b"),))
    plan = assemble(profile, [Stage(0, ("a",), (0, 1)), Stage(1, ("b",), (2,))], schedule="", micro_batches=2)
    codes = "A0v1/tied A0v1/replicas U0v1"
    actions = lists({"0.0": codes, "0.1": codes, "1.0": "A1v1/tied U1v1"})
    timeline = simulate(plan, profile, flat(3, 2 * MB), actions)
    tied, replicas = timeline.sums
    assert (tied.size_bytes, tied.end_s) == (6 * MB, pytest.approx(2 * 3)), "each sends all of it to two"
    assert timeline.bytes_of_level == ((3 * 2 * 6 + 2 * 2) * MB,)
    assert (replicas.size_bytes, replicas.end_s - replicas.start_s) == (2 * MB, pytest.approx(1))


def test_a_gradient_may_be_smaller_than_its_value() -> None:
    profile, plan = chain([(1, 1), (1, 1)])
    plan = dataclasses.replace(plan, edges=(dataclasses.replace(plan.edges[0], gradient_bytes=MB // 4),))
    timeline = simulate(plan, profile, flat(2, MB), one_f_one_b(plan))
    assert [transfer.port_s for transfer in timeline.transfers] == [1, 0.25]


def test_a_faster_kind_of_device_takes_less_time_and_stages_on_one_device_pass_for_nothing() -> None:
    profile, plan = chain([(1, 2), (3, 4)])
    stages = tuple(dataclasses.replace(stage, devices=(1,)) for stage in plan.stages)
    plan = dataclasses.replace(plan, stages=stages)
    actions = lists({"0.0": "F0:0 S0:0>1/op0 R1:0<0/op0 F1:0 B1:0 S1:0>0/op0 R0:0<1/op0 B0:0"})
    topology = Topology((Level(2, 1.0, 9.0),), (DeviceKind(), DeviceKind("fast", 4.0)), (0, 1))
    assert simulate(plan, profile, topology, actions, slots=1).length_s == pytest.approx(10 / 4)


# --- lists that cannot be carried on, and other bad input -------------------------------------------------------------


def test_a_receive_without_its_send_is_named_before_those_it_holds_up() -> None:
    profile, plan = chain([(1, 1), (1, 1), (1, 1)])
    actions = one_f_one_b(plan)
    actions[PlanWorker(1, 0)] = [action for action in actions[PlanWorker(1, 0)] if str(action) != "S1:0>2/op1"]
    with pytest.raises(
        ScheduleInvalid, match=r"worker 2.0 waits at R2:0<1/op1 .* for worker 1.0 to send it, which"
    ) as info:
        simulate(plan, profile, flat(3), actions)
    assert (info.value.action, info.value.worker) == ("R2:0<1/op1", "2.0")
    assert "worker 0.0 waits at R0:0<1/op0" in str(info.value)


def test_sends_and_receives_in_a_circle_come_to_a_standstill() -> None:
    profile, plan = chain([(1, 1), (1, 1)], micro_batches=2)
    actions = lists(
        {
            "0.0": "F0:0 S0:0>1/op0 F0:1 S0:1>1/op0 R0:0<1/op0 B0:0",
            "1.0": "R1:1<0/op0 F1:1 R1:0<0/op0 F1:0 B1:0 S1:0>0/op0",
        }
    )
    simulate(plan, profile, flat(2), actions, slots=2)
    with pytest.raises(
        ScheduleInvalid, match=r"worker 0.0 waits at S0:1>1/op0 .* to receive what takes the link's 1 slot"
    ):
        simulate(plan, profile, flat(2), actions, slots=1)


def test_a_reduction_that_someone_never_reaches_names_him() -> None:
    profile, plan = chain([(1, 1)], replicas=[2], micro_batches=2)
    actions = lists({"0.0": "F0:0 B0:0 A0v1/replicas", "0.1": "R0:1<0/op0 A0v1/replicas"})
    with pytest.raises(ScheduleInvalid, match="R0:1<0/op0"):
        simulate(plan, profile, flat(2), actions)


@pytest.mark.parametrize(
    ("codes", "message"),
    [
        ("F7:0", "names stage 7 of 2"),
        ("S0:0>1/nobody", "a tensor that does not pass"),
        ("R1:1<0/op0", "belongs to worker 1.0"),
        ("A0v1/tied", "without tied parameters"),
    ],
)
def test_actions_that_do_not_belong_to_the_plan_are_named(codes: str, message: str) -> None:
    profile, plan = chain([(1, 1), (1, 1)])
    with pytest.raises(ScheduleInvalid, match=message):
        simulate(plan, profile, flat(2), lists({"0.0": codes}))


def test_a_plan_for_other_devices_or_operators_is_refused() -> None:
    profile, plan = chain([(1, 1), (1, 1)])
    with pytest.raises(PlanInvalid, match="device 1, but the topology has 1"):
        simulate(plan, profile, flat(1), one_f_one_b(plan))
    with pytest.raises(PlanInvalid, match="operator 'op1', which the profile does not know"):
        simulate(plan, chain([(1, 1)])[0], flat(2), one_f_one_b(plan))
    with pytest.raises(ValueError, match="at least 1 slot, not 0"):
        simulate(plan, profile, flat(2), one_f_one_b(plan), slots=0)


# --- properties -------------------------------------------------------------------------------------------------------

times = st.floats(0.01, 3.0)


@st.composite
def chains(draw: st.DrawFn) -> tuple[Profile, Plan]:
    num = draw(st.integers(1, 5))
    return chain(
        draw(st.lists(st.tuples(times, times), min_size=num, max_size=num)),
        replicas=draw(st.lists(st.integers(1, 3), min_size=num, max_size=num)),
        sizes=draw(st.integers(0, 3 * MB)),
        micro_batches=draw(st.integers(1, 8)),
    )


@given(chains(), st.floats(0.2, 20.0), st.floats(0, 0.5), st.integers(1, 3), st.booleans())
@settings(max_examples=60, deadline=None)
def test_no_step_is_shorter_than_its_lower_bounds(
    made: tuple[Profile, Plan], bandwidth: float, latency_s: float, slots: int, overlap: bool
) -> None:
    profile, plan = made
    topology = flat(sum(stage.replicas for stage in plan.stages), bandwidth * MB, latency_s)
    timeline = simulate(plan, profile, topology, one_f_one_b(plan), slots=slots, overlap=overlap)
    crossings = sum((edge.size_bytes + edge.gradient_bytes) / (bandwidth * MB) + 2 * latency_s for edge in plan.edges)
    slack = 1e-9
    assert timeline.length_s >= profile.compute_s + crossings - slack
    assert timeline.length_s >= max(timeline.compute_s.values()) - slack
    assert timeline.length_s >= max(timeline.port_busy_s.values(), default=0) - slack
    assert min(timeline.idle_s.values()) >= -slack
    for worker in plan.workers:  # one thing at a time, in order
        spans = list(timeline.spans(worker))
        assert all(span.start_s <= span.end_s for span in spans)
        assert all(one.end_s <= two.start_s for one, two in itertools.pairwise(spans))
    for port in {(transfer.receiver, transfer.level) for transfer in timeline.transfers}:
        inward = sorted(
            (transfer.in_s, transfer.port_s)
            for transfer in timeline.transfers
            if (transfer.receiver, transfer.level) == port
        )
        assert all(one[0] + one[1] <= two[0] + slack for one, two in itertools.pairwise(inward))


@given(chains(), st.floats(0.2, 20.0), st.randoms())
@settings(max_examples=20, deadline=None)
def test_the_same_lists_give_the_same_timeline(
    made: tuple[Profile, Plan], bandwidth: float, shuffler: random.Random
) -> None:
    profile, plan = made
    topology = flat(sum(stage.replicas for stage in plan.stages), bandwidth * MB, 0.01)
    actions = one_f_one_b(plan)
    shuffled = list(actions.items())
    shuffler.shuffle(shuffled)
    assert simulate(plan, profile, topology, actions) == simulate(plan, profile, topology, dict(shuffled))


@given(
    chains(),
    st.floats(0.2, 20.0),
    st.floats(1.0, 10.0),
)
@settings(max_examples=60, deadline=None)
def test_more_bandwidth_is_never_slower_on_chains(made: tuple[Profile, Plan], bandwidth: float, faster: float) -> None:
    profile, plan = made
    num = sum(stage.replicas for stage in plan.stages)
    slow, fast = (
        simulate(plan, profile, flat(num, b * MB), one_f_one_b(plan)).length_s for b in (bandwidth, bandwidth * faster)
    )
    assert fast <= slow + 1e-9
