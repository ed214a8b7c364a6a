"""A run that is cut where workers took snapshots, and goes on from these in new workers, equals the undisturbed one."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from ropewalk.exchange.all_gather import AllGather
from ropewalk.exchange.compressors.gd_sec import GDSEC
from ropewalk.exchange.exchange import Exchange
from ropewalk.pipeline.actions import Action, ActionKind
from ropewalk.pipeline.local_executor import LocalExecutor
from ropewalk.pipeline.plans import Plan, PlanWorker
from ropewalk.pipeline.resuming import can_cut, last_step
from ropewalk.pipeline.schedules import make_schedule
from ropewalk.pipeline.schedules.streams import Cut
from ropewalk.pipeline.stages.optimizer_maker import OptimizerMaker
from ropewalk.pipeline.stages.snapshots import SnapshotTaker, WorkerSnapshot, as_state, cut_of, put
from ropewalk.pipeline.tracing.model_graph import ModelGraph
from ropewalk.pipeline.tracing.tracer import trace
from tests.pipeline.played_plans import even_cut, plan_of

pytestmark = pytest.mark.usefixtures("one_thread")


class Counting(nn.Module):
    """Has a buffer that forwards change, and whose value matters."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.seen += 1
        return x + 0.01 * self.seen


def model_of(normalises: bool = True) -> nn.Module:
    """Dropout, batch normalisation, a counter of forwards, and a bias that is not trained, on every stage some."""
    layers: list[nn.Module] = []
    for _ in range(4):
        norm = nn.BatchNorm1d(5) if normalises else nn.Identity()
        layers += [nn.Linear(5, 5), nn.Dropout(0.2), norm, Counting()]
    layers[0].bias.requires_grad_(False)  # pyright: ignore[reportAttributeAccessIssue]
    return nn.Sequential(*layers)


@pytest.fixture(scope="module")
def graph() -> ModelGraph:
    torch.manual_seed(0)
    return trace(model_of(), (torch.randn(4, 5),))


def adam(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, 1e-2)


def momentum(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, 1e-2, momentum=0.9)


def halving(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    return torch.optim.lr_scheduler.MultiStepLR(optimizer, [3, 5], 0.5)


def batches(num: int, size: int) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(3)
    return [(torch.randn(size, 5, generator=generator), torch.randn(size, 5, generator=generator)) for _ in range(num)]


def takers_of(executor: LocalExecutor) -> dict[PlanWorker, SnapshotTaker]:
    """What takes the snapshots of each worker, as each stage process has one; to be called before the first step."""
    return {
        worker: SnapshotTaker(one, executor._rates, exchanges_of(executor, worker), flushes=executor.schedule.flushes)
        for worker, one in executor.workers.items()
    }


def exchanges_of(executor: LocalExecutor, worker: PlanWorker) -> dict[int, Exchange]:
    return {
        member.stage: bound.exchange
        for member, bound in executor.exchanges.items()
        if member.replica == worker.replica and member.stage in executor.workers[worker].stages
    }


def resume(executor: LocalExecutor, snapshots: Sequence[WorkerSnapshot], *, num_steps: int) -> None:
    """Go on from a cut at which an executor of the same plan took snapshots, as stage processes do in a recovery."""
    executor.drain()
    cut = cut_of(snapshots, executor.workers)
    for snapshot in snapshots:
        worker = snapshot.worker
        put(snapshot, executor.workers[worker], executor._rates, exchanges_of(executor, worker))
    executor.stream = executor.schedule.stream(executor.plan, start=cut)
    executor.num_steps = num_steps


@dataclass
class Recording:
    """Takes a snapshot of each worker when it comes to its last step before a cut, while all go on."""

    executor: LocalExecutor
    takers: dict[PlanWorker, SnapshotTaker] = field(default_factory=dict[PlanWorker, SnapshotTaker])
    wanted: dict[PlanWorker, tuple[Action, Any]] = field(default_factory=dict[PlanWorker, tuple[Action, Any]])
    found: list[bytes] = field(default_factory=list[bytes])

    def __post_init__(self) -> None:
        self.takers = takers_of(self.executor)
        self.executor.on_performed = self.look

    def want(self) -> None:
        """Before the step that leads to the cut is played, as a process learns it with the step."""
        admit = self.executor.stream.admit

        def admit_and_note(num: int) -> Any:
            del self.executor.stream.admit  # pyright: ignore[reportAttributeAccessIssue]
            lists = admit(num)
            cut, plan, schedule = self.executor.stream.position, self.executor.plan, self.executor.schedule
            assert can_cut(plan, schedule, cut), "the test is to choose such steps"
            self.wanted = {worker: (last_step(plan, schedule, cut, worker), cut) for worker in plan.workers}
            return lists

        self.executor.stream.admit = admit_and_note  # pyright: ignore[reportAttributeAccessIssue]

    def look(self, worker: PlanWorker, action: Action) -> None:
        if worker in self.wanted and action == self.wanted[worker][0]:
            snapshot = self.takers[worker].take(self.wanted.pop(worker)[1])
            self.found.append(pickle.dumps(snapshot, 5))
            snapshot.release()

    def snapshots(self) -> list[WorkerSnapshot]:
        """As another process has them."""
        assert not self.wanted, "some worker was never at the cut"
        return [pickle.loads(one) for one in self.found]


def steps(executor: LocalExecutor, data: Sequence[tuple[Tensor, Tensor]], drains: Sequence[int] = ()) -> list[Tensor]:
    metrics: list[Any] = []
    for number, (x, y) in enumerate(data):
        metrics.append(executor.step(x, y))
        if number in drains:
            executor.drain()
    executor.drain()
    return [loss for one in metrics for loss in one.losses]


def assert_same(found: Any, expected: Any, path: str = "") -> None:
    if isinstance(expected, dict):
        assert found.keys() == expected.keys(), path
        for key in expected:
            assert_same(found[key], expected[key], f"{path}.{key}")
    elif isinstance(expected, Tensor):
        assert torch.equal(found, expected), path
    else:
        assert found == expected, path


def own_states(executor: LocalExecutor) -> dict[tuple[int, int], dict[str, Any]]:
    """What every replica has on its own: weights, buffers, moments of the optimizer, versions."""
    found: dict[tuple[int, int], dict[str, Any]] = {}
    for stage in executor.stages():
        optimizer = stage.versions.optimizer
        found[stage.setup.id, stage.setup.replica] = {
            "weights": dict(stage.versions.parameters),
            "buffers": dict(stage.buffers),
            "optimizer": optimizer.state_dict()["state"] if optimizer else {},
            "newest": stage.versions.newest,
        }
    return found


def check_resumes(
    make: Callable[[], LocalExecutor],
    data: Sequence[tuple[Tensor, Tensor]],
    num_before: int,
    drains: Sequence[int] = (),
) -> None:
    """Cut after `num_before` steps, and compare all later losses, and what all replicas hold at the end."""
    executor = make()
    recording = Recording(executor)
    metrics: list[Any] = []
    for number, (x, y) in enumerate(data):
        if number == num_before - 1:
            recording.want()
        metrics.append(executor.step(x, y))
        if number in drains:
            executor.drain()
    executor.drain()
    losses = [loss for one in metrics for loss in one.losses]

    resumed = make()
    resume(resumed, recording.snapshots(), num_steps=num_before)
    if num_before - 1 in drains:
        resumed.drain()
    again = steps(resumed, data[num_before:], [number - num_before for number in drains])
    assert len(again) > 0
    assert all(map(torch.equal, again, losses[-len(again) :]))
    assert_same(own_states(resumed), own_states(executor))
    assert_same(resumed.state_dict(), executor.state_dict())
    assert resumed.stream.position == executor.stream.position


SCHEDULES: list[tuple[str, dict[str, Any]]] = [
    ("gpipe", {}),
    ("one_f_one_b", {}),
    ("pipedream", {}),
    ("pipedream", {"vertical_sync": True}),
    ("pipedream_2bw", {}),
    ("interleaved", {}),
    ("zb_h1", {}),
    ("zb_h2", {}),
    ("zb_v", {}),
]


def placed(graph: ModelGraph, name: str, replicas: int, recompute: bool, micro_batches: int) -> Plan:
    schedule = make_schedule(name)
    num_groups = 4 // schedule.stages_per_worker if schedule.stages_per_worker > 1 else 3
    num_stages = num_groups * schedule.stages_per_worker
    return plan_of(
        graph,
        even_cut(graph, num_stages),
        schedule=name,
        micro_batches=micro_batches,
        replicas=replicas,
        recompute=[recompute and stage % 2 == 0 for stage in range(num_stages)],
        devices=[schedule.group_of(stage, num_groups) for stage in range(num_stages)],
    )


def check_schedule(graph: ModelGraph, name: str, options: dict[str, Any], replicas: int, recompute: bool) -> None:
    micro_batches = 5 * replicas if name.startswith("zb") or name == "pipedream_2bw" else 4
    micro_batches += micro_batches % (2 * replicas)
    plan = placed(graph, name, replicas, recompute, micro_batches)

    def make() -> LocalExecutor:
        schedule = make_schedule(name, **options)
        return LocalExecutor(graph, functional.mse_loss, OptimizerMaker(adam, halving), plan, schedule=schedule, seed=5)

    check_resumes(make, batches(4, 3 * micro_batches - 1), 2)


@pytest.mark.parametrize(("replicas", "recompute"), [pytest.param(1, False, marks=pytest.mark.soak), (2, True)])
@pytest.mark.parametrize(("name", "options"), SCHEDULES)
def test_a_resumed_run_equals_the_undisturbed_one(
    graph: ModelGraph, name: str, options: dict[str, Any], replicas: int, recompute: bool
) -> None:
    check_schedule(graph, name, options, replicas, recompute)


@pytest.mark.soak
@pytest.mark.parametrize(("replicas", "recompute"), [(1, True), (2, False)])
@pytest.mark.parametrize(("name", "options"), SCHEDULES)
def test_a_resumed_run_equals_the_undisturbed_one_in_the_other_combinations(
    graph: ModelGraph, name: str, options: dict[str, Any], replicas: int, recompute: bool
) -> None:
    check_schedule(graph, name, options, replicas, recompute)


def test_taking_snapshots_does_not_disturb_a_run(graph: ModelGraph) -> None:
    executor, undisturbed = (
        LocalExecutor(graph, functional.mse_loss, adam, placed(graph, "pipedream", 1, False, 4)) for _ in range(2)
    )
    takers = takers_of(executor)

    def take(worker: PlanWorker, action: Action) -> None:
        if action.kind is ActionKind.STEP:
            takers[worker].take(Cut(0, 0, (0,) * 3)).release()

    executor.on_performed = take
    data = batches(3, 8)
    assert all(map(torch.equal, steps(executor, data), steps(undisturbed, data)))
    assert_same(own_states(executor), own_states(undisturbed))


@pytest.mark.parametrize("num_before", [1, 2, 4])
def test_it_does_not_matter_where_the_cut_is(graph: ModelGraph, num_before: int) -> None:
    plan = placed(graph, "pipedream", 1, False, 1)  # fewer in the first steps than the pipeline has stages
    check_resumes(
        lambda: LocalExecutor(graph, functional.mse_loss, momentum, plan, schedule="pipedream"),
        batches(6, 4),
        num_before,
    )


@pytest.mark.parametrize("drains", [[2], [3], [0, 2, 3]])
def test_drains_before_at_and_after_the_cut_are_repeated(graph: ModelGraph, drains: list[int]) -> None:
    plan = placed(graph, "pipedream", 2, True, 4)
    data = batches(5, 10)
    check_resumes(
        lambda: LocalExecutor(graph, functional.mse_loss, momentum, plan, schedule="pipedream"), data, 3, drains
    )


@pytest.mark.parametrize("name", ["pipedream", "one_f_one_b"])
def test_short_mini_batches_may_come_before_and_after_the_cut(name: str) -> None:
    graph = trace(model_of(normalises=False), (torch.randn(4, 5),))
    plan = placed(graph, name, 1, True, 4)
    data = batches(6, 8)
    for number in (1, 4):
        data[number] = data[number][0][:3], data[number][1][:3]
    check_resumes(lambda: LocalExecutor(graph, functional.mse_loss, momentum, plan), data, 3)


def test_unequal_replicas_go_on_where_all_rounds_end(graph: ModelGraph) -> None:
    plan = plan_of(graph, even_cut(graph, 3), schedule="pipedream", micro_batches=3, replicas=[3, 2, 1])
    check_resumes(lambda: LocalExecutor(graph, functional.mse_loss, momentum, plan), batches(6, 9), 4)


def test_a_snapshot_is_as_it_was_when_the_run_has_gone_on(graph: ModelGraph) -> None:
    plan = placed(graph, "pipedream", 1, False, 4)
    executor = LocalExecutor(graph, functional.mse_loss, adam, plan)
    taker = takers_of(executor)[PlanWorker(0, 0)]
    data = batches(3, 8)
    steps(executor, data[:1])
    snapshot = taker.take(executor.stream.position)
    before = pickle.dumps(snapshot, 5)
    steps(executor, data[1:])
    later = taker.take(executor.stream.position)
    assert pickle.dumps(snapshot, 5) == before
    assert pickle.dumps(later, 5) != before
    snapshot.release()
    memory = taker.take(executor.stream.position)
    with pytest.raises(ValueError, match=r"the snapshot of worker 0\.0 was released"):
        snapshot.stages()
    assert memory.stages().keys() == {0}


def test_a_snapshot_may_be_given_to_another_plan_and_schedule(graph: ModelGraph) -> None:
    data, falling = batches(4, 8), OptimizerMaker(adam, halving)
    executor = LocalExecutor(graph, functional.mse_loss, falling, placed(graph, "one_f_one_b", 2, False, 4))
    recording = Recording(executor)
    recording.want()
    steps(executor, data[:1])
    state = as_state(recording.snapshots())
    assert_same(state, {kind: part for kind, part in executor.state_dict().items() if kind in state})
    other = LocalExecutor(graph, functional.mse_loss, falling, placed(graph, "gpipe", 1, False, 4))
    other.load_state_dict({**state, "num_steps": 1, "seed": 0})
    expected = LocalExecutor(graph, functional.mse_loss, falling, placed(graph, "gpipe", 1, False, 4))
    expected.load_state_dict(executor.state_dict())
    assert all(map(torch.equal, steps(other, data[1:]), steps(expected, data[1:])))


def test_snapshots_that_do_not_belong_together_are_refused(graph: ModelGraph) -> None:
    executor = LocalExecutor(graph, functional.mse_loss, adam, placed(graph, "one_f_one_b", 1, False, 4))
    takers = takers_of(executor)
    first = [taker.take(executor.stream.position) for taker in takers.values()]
    steps(executor, batches(1, 8))
    second = [taker.take(executor.stream.position) for taker in takers.values()]
    with pytest.raises(ValueError, match="snapshots of one cut are wanted, and these are of 2"):
        resume(executor, [first[0], *second[1:]], num_steps=1)
    with pytest.raises(ValueError, match=r"one snapshot of each worker is wanted, 0\.0, 1\.0, 2\.0, and .* 1\.0, 2\.0"):
        resume(executor, second[1:], num_steps=1)
    wider = LocalExecutor(graph, functional.mse_loss, adam, placed(graph, "interleaved", 1, False, 4))
    with pytest.raises(ValueError, match=r"snapshot of worker 0\.0 is of stages \[0\], and worker 0\.0 has \[0, 2\]"):
        resume(wider, second[:2], num_steps=1)


def test_a_worker_that_is_not_at_the_cut_gives_no_snapshot(graph: ModelGraph) -> None:
    executor = LocalExecutor(graph, functional.mse_loss, adam, placed(graph, "pipedream", 1, False, 4))
    takers = takers_of(executor)
    executor.step(*batches(1, 8)[0])
    with pytest.raises(ValueError, match="micro-batch 2 is in flight at stage 0, and the cut is behind it, at 4"):
        takers[PlanWorker(0, 0)].take(executor.stream.position)


@pytest.mark.parametrize("name", ["one_f_one_b", "pipedream"])
def test_a_run_whose_replicas_exchange_what_is_worth_sending_goes_on(graph: ModelGraph, name: str) -> None:
    """GD-SEC keeps errors and means of earlier updates on each replica; by time it would choose what is sent."""
    plan = placed(graph, name, 2, False, 4)
    made: list[LocalExecutor] = []

    def make() -> LocalExecutor:
        made.append(
            LocalExecutor(
                graph,
                functional.mse_loss,
                momentum,
                plan,
                exchange=lambda: AllGather(GDSEC(c=20.0, beta=0.1), mode="sparse"),
            )
        )
        return made[-1]

    try:
        check_resumes(make, batches(5, 10), 3)
    finally:
        for executor in made:
            executor.close()


def test_an_exchange_goes_along(graph: ModelGraph) -> None:
    class Exchange:
        def __init__(self) -> None:
            self.kept: dict[str, Any] = {}

        def state_dict(self) -> dict[str, Any]:
            return self.kept

        def load_state_dict(self, state: Any, /) -> None:
            self.kept = state

    executor, other = (
        LocalExecutor(graph, functional.mse_loss, adam, placed(graph, "gpipe", 1, False, 4)) for _ in range(2)
    )
    mine, theirs = Exchange(), Exchange()
    mine.kept = {"errors": {"0.weight": torch.ones(3)}, "step": 5}
    worker = PlanWorker(0, 0)
    snapshot = SnapshotTaker(executor.workers[worker], {}, {0: mine}).take(executor.stream.position)
    mine.kept["errors"]["0.weight"].zero_()
    put(snapshot, other.workers[worker], {}, {0: theirs})
    assert_same(theirs.kept, {"errors": {"0.weight": torch.ones(3)}, "step": 5})
    with pytest.raises(ValueError, match="stage 0 had an exchange with state, and has none here"):
        put(snapshot, other.workers[worker], {})
