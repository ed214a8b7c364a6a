"""Training on real processes equals the local executor, to the bit, and does in parallel what the schedule says.

What the local executor computes is held against plain torch elsewhere
(`tests/pipeline/test_local_executor_parity.py`); here a plan runs on one process for each worker, and losses,
parameters, buffers and the state of the optimizers must be those of the local executor. Bits are equal even where its
own are only within rounding of one process, because sums between processes are added in the same order.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import ropewalk as rw
from ropewalk.pipeline.local_executor import LocalExecutor
from ropewalk.pipeline.plans import Plan
from ropewalk.pipeline.schedules import SCHEDULES
from ropewalk.pipeline.stages.losses import Loss
from ropewalk.pipeline.stages.optimizer_maker import OptimizerMaker
from ropewalk.pipeline.stages.training_options import TrainingOptions
from ropewalk.training.trainer import Trainer
from ropewalk.training.trainer_options import ProcessOptions, Snapshots
from tests.training.executed import executed_matches
from tests.training.faulty_training import Job, Meeting, batch
from tests.training.parity_cases import OPTIMIZERS, SUBJECTS, Case, Recompute, adam, falling, graph_of

pytestmark = pytest.mark.usefixtures("one_thread")

SEED = 11


def differences(found: Any, expected: Any, path: str = "") -> list[str]:
    """Where two trees of tensors are not the same to the bit."""
    if isinstance(expected, dict):
        if not isinstance(found, dict) or found.keys() != expected.keys():
            return [f"{path}: {sorted(map(str, found))} in place of {sorted(map(str, expected))}"]
        return [one for key in expected for one in differences(found[key], expected[key], f"{path}.{key}")]
    if isinstance(expected, list | tuple):
        if len(found) != len(expected):
            return [f"{path}: {len(found)} in place of {len(expected)}"]
        return [one for n, wanted in enumerate(expected) for one in differences(found[n], wanted, f"{path}.{n}")]
    if isinstance(expected, Tensor):
        if found.dtype != expected.dtype or found.shape != expected.shape:
            return [f"{path}: {found.dtype} {tuple(found.shape)}, not {expected.dtype} {tuple(expected.shape)}"]
        is_same = (found == expected) | ((found != found) & (expected != expected))  # so that NaN is NaN
        return [] if is_same.all() else [f"{path}: {int((~is_same).sum())} of {is_same.numel()} numbers are others"]
    return [] if found == expected else [f"{path}: {found} in place of {expected}"]


def trained(one: Any, case: Case) -> tuple[list[Any], dict[str, Any]]:
    """What each step of a local executor or trainer gives, and the states in the middle and at the end."""
    steps: list[Any] = []
    states: dict[str, Any] = {}
    for number, (x, y) in enumerate(case.batches(), 1):
        steps.append(one.step(x, y))
        if number == case.drains_after:
            states["middle"] = copy.deepcopy(one.state_dict())
    return steps, {**states, "end": one.state_dict()}


def compare(case: Case, session: rw.Session) -> None:
    """Train both ways; all that is learnt must be the same, and done in the order of the schedule."""
    subject, plan, graph = SUBJECTS[case.subject], case.plan, graph_of(case.subject)
    loss = Loss(subject.loss_fn, subject.loss)
    optimizer = OptimizerMaker(OPTIMIZERS[case.optimizer], case.lr_schedule, case.lr_scale)
    options = TrainingOptions(clip_norm=case.clip_norm, nan="skip" if case.skips_nan else "pass")
    player = LocalExecutor(graph, loss, optimizer, plan, options=options, seed=SEED)
    steps, expected = trained(player, case)
    snapshots = None if case.snapshot_every is None else Snapshots(case.snapshot_every)
    own = ProcessOptions(session=session, snapshots=snapshots)
    with Trainer(graph, loss, optimizer, plan, options=options, processes=own, seed=SEED) as trainer:
        handles, found = trained(trainer, case)
        assert all(handle.done for handle in handles)
        metrics = [handle.metrics() for handle in handles]
        assert trainer._run is not None
        records, counters = trainer.records(), trainer._run.counters()
    for told in ("losses", "gradient_norm", "is_skipped"):
        assert differences([getattr(one, told) for one in metrics], [getattr(one, told) for one in steps], told) == []
    assert any(one.is_skipped for one in steps) == case.skips_nan
    assert differences(found, expected) == []
    executed_matches(player.plan, player.schedule, records, admitted=case.admitted)
    assert case.snapshot_every is None or any(one.num_snapshots for one in counters.values())


def compare_all(cases: Sequence[Case], session: rw.Session) -> None:
    for case in cases:
        try:
            compare(case, session)
        except BaseException as error:
            error.add_note(f"in the case: {case}")
            raise


#: Each schedule once, and each number of stages, width, model, optimizer and option with one of them.
QUICK = [
    Case("gpipe", 2, 2, "skips", "sgd"),
    Case("one_f_one_b", 3, 1, "trees", "adam", clip_norm=0.5, skips_nan=True, lr_schedule=falling),
    Case("pipedream", 2, (2, 1), "trees", "adam", "never", lr_schedule=falling, lr_scale="pipedream"),
    Case("pipedream_2bw", 4, 1, "skips", "sgd", "always"),
    Case("interleaved", 2, 1, "trees", "sgd"),
    Case("zb_h1", 3, 1, "trees", "adam", "never"),
    Case("zb_h2", 2, 2, "skips", "sgd"),
    Case("zb_v", 2, 1, "trees", "adam"),
]


def test_processes_equal_the_player_under_every_schedule(trainings: rw.Session) -> None:
    assert {case.schedule for case in QUICK} == set(SCHEDULES)
    compare_all([replace(case, num_steps=7, drains_after=5) for case in QUICK], trainings)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_two_stages_compute_at_once(schedule: str, trainings: rw.Session, tmp_path: Path) -> None:
    job = Job(schedule, num_steps=1, model=lambda: Meeting.layers(tmp_path, Job(schedule).num_stages))
    with job.trainer(trainings) as trainer:
        assert trainer.step(*batch(0)).metrics().losses
    assert {path.name for path in tmp_path.iterdir()} == {"0", "1"}, "they have met"


@pytest.mark.soak
@pytest.mark.parametrize(("optimizer", "recompute"), [("sgd", "every_other"), ("adam", "never"), ("adam", "always")])
@pytest.mark.parametrize("subject", SUBJECTS)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_processes_equal_the_player_in_every_combination(
    schedule: str, subject: str, optimizer: str, recompute: Recompute, trainings: rw.Session
) -> None:
    compare_all(
        [
            Case(schedule, num_groups, replicas, subject, optimizer, recompute)
            for num_groups in (1, 2, 3, 4)
            for replicas in (1, 2)
        ],
        trainings,
    )


@pytest.mark.soak
@pytest.mark.parametrize("schedule", ["gpipe", "one_f_one_b", "pipedream"])
def test_processes_equal_the_player_with_replicas_of_unequal_width(schedule: str, trainings: rw.Session) -> None:
    compare_all(
        [
            Case(schedule, len(replicas), replicas, subject, "sgd", lr_schedule=falling)
            for replicas in ((2, 1), (1, 2), (3, 1, 2), (1, 2, 4))
            for subject in SUBJECTS
            if (schedule, subject) != ("pipedream", "skips")  # which has a tie, and refuses
        ],
        trainings,
    )


@pytest.mark.soak
@pytest.mark.parametrize("schedule", [name for name, kind in SCHEDULES.items() if not kind.refuses_norm])
def test_processes_equal_the_player_when_norms_are_clipped_and_updates_skipped(
    schedule: str, trainings: rw.Session
) -> None:
    compare_all(
        [
            Case(schedule, 3, replicas, subject, "adam", clip_norm=0.3, skips_nan=True, lr_schedule=falling)
            for replicas in (1, 2)
            for subject in SUBJECTS
        ],
        trainings,
    )


@pytest.mark.soak
def test_snapshots_change_nothing(trainings: rw.Session) -> None:
    compare_all([Case(schedule, 2, 1, "trees", "adam", snapshot_every=2) for schedule in SCHEDULES], trainings)


@pytest.mark.soak
def test_states_checkpoints_and_new_widths_go_on_as_in_the_player(tmp_path: Path) -> None:
    """Under another plan and schedule, from memory and from files, evaluated in between, and in half precision."""
    graph, subject = graph_of("trees"), SUBJECTS["trees"]
    first = Case("pipedream", 2, 1, "trees", "adam")
    batches = first.batches()
    optimizer, options = OptimizerMaker(adam, falling), TrainingOptions(autocast=torch.bfloat16)
    with rw.Session() as session:

        def both(plan: Plan) -> tuple[LocalExecutor, Trainer]:
            alike: Any = {"options": options, "seed": SEED}
            player = LocalExecutor(graph, subject.loss_fn, optimizer, plan, **alike)
            own = ProcessOptions(session=session)
            return player, Trainer(graph, subject.loss_fn, optimizer, plan, processes=own, **alike)

        player, trainer = both(first.plan)
        with trainer:
            train((player, trainer), batches[:7])
            assert trainer.evaluate(batches[7:9]) == player.evaluate(batches[7:9])
            state = copy.deepcopy(trainer.state_dict())
            trainer.save(tmp_path).wait()
        for plan in (Case("zb_v", 2, 1, "trees", "adam").plan, Case("one_f_one_b", 3, 1, "trees", "adam").plan):
            player, trainer = both(plan)
            with trainer:
                player.load_state_dict(copy.deepcopy(state))
                trainer.load_state_dict(state)
                train((player, trainer), batches[7:12])
                assert differences(trainer.state_dict(), player.state_dict()) == []
                trainer.load(tmp_path)
                train((trainer,), batches[7:12])
                assert differences(trainer.state_dict(), player.state_dict()) == []
        wide, _ = both(replace(Case("one_f_one_b", 3, (1, 2, 1), "trees", "adam").plan, micro_batches=4))
        player, trainer = both(Case("one_f_one_b", 3, 1, "trees", "adam").plan)
        with trainer:
            train((player, trainer), batches[:5])
            trainer.resize(1, 2)
            wide.load_state_dict(copy.deepcopy(player.state_dict()))
            train((wide, trainer), batches[5:10])
            assert differences(trainer.state_dict(), wide.state_dict()) == []


def train(both: Sequence[Any], batches: Sequence[tuple[Any, Any]]) -> None:
    for x, y in batches:
        for one in both:
            one.step(x, y)
