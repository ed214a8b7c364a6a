"""Steps are done by all members or by none, wherever somebody dies; compared with the same training in one process."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from concurrent.futures import Future
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ropewalk.errors import ExchangeInvalid, ExchangeStalled, FailedForGood, GradientNotFinite, MemberLost
from ropewalk.exchange.all_reduce import AllReduce
from ropewalk.exchange.elastic.elastic_member import ElasticMember
from ropewalk.exchange.elastic.membership import MembershipView
from ropewalk.exchange.elastic.shares import batches
from ropewalk.exchange.elastic.worker import ElasticWorker
from ropewalk.exchange.exchange import StepRecord
from ropewalk.exchange.parameter_server.parameter_server import ParameterServer
from tests.exchange.elastic.society import (
    BATCH,
    PATIENCE,
    SAMPLES,
    STEPS,
    Data,
    Death,
    Killed,
    Society,
    make_model,
    make_optimizer,
    weights_of,
)
from tests.exchange.parameter_server.local_servers import LocalServers
from tests.patience import PATIENCE_S

PLACES = st.sampled_from(["loss", "packet", "vote", "voted", "commit"])


def plain_training(seed: int = 0) -> tuple[torch.Tensor, list[float]]:
    """What one process comes to: its weights, and the loss of each step."""
    data, model = Data(), make_model(seed)
    optimizer = make_optimizer(model)
    losses: list[float] = []
    for batch in batches(SAMPLES, BATCH, epochs=STEPS * BATCH // SAMPLES, seed=5):
        optimizer.zero_grad()
        loss = data.loss(model, batch)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return weights_of(model), losses


def check(society: Society, weights: torch.Tensor) -> None:
    for model in society.models.values():
        torch.testing.assert_close(weights_of(model), weights, rtol=0, atol=1e-12)
    done = [step for span in society.coordinator.history() for step in range(span.begin, span.end)]
    assert done == list(range(STEPS))


@pytest.mark.parametrize("size", [1, 3, 5])
def test_undisturbed_training_is_that_of_one_process(size: int) -> None:
    society = Society(size).wait()
    weights, losses = plain_training()
    assert len(society.models) == size
    check(society, weights)
    for of_member in society.losses.values():
        assert of_member == pytest.approx(losses, abs=1e-12)


def test_all_members_hold_the_same_bits() -> None:
    first, *others = [weights_of(model) for model in Society(3).wait().models.values()]
    assert all(torch.equal(first, other) for other in others)


@settings(max_examples=10, deadline=None)
@given(
    size=st.integers(2, 4),
    places=st.lists(st.tuples(PLACES, st.integers(1, 12)), max_size=2),
    redo=st.sampled_from(["recompute", "keep"]),
    joins_at=st.integers(0, STEPS),
)
def test_whoever_dies_wherever_the_steps_are_those_of_one_process(
    size: int, places: list[tuple[Any, int]], redo: str, joins_at: int
) -> None:
    # Not the one with replica 0, whose weights are those that all begin with.
    deaths = tuple(Death(1 + at, place, number) for at, (place, number) in enumerate(places[: size - 1]))

    def on_step(society: Society, worker: ElasticWorker, step: int) -> None:
        if step == joins_at:
            society.start(size)

    society = Society(size, deaths=deaths, on_step=on_step, redo=redo).wait()
    assert "workers.0#0" in society.models
    check(society, plain_training()[0])


def test_a_step_that_was_refused_for_nan_can_be_done_again() -> None:
    """The exchange's step stayed open, and the next one raised RuntimeError."""
    models: dict[str, torch.nn.Module] = {}

    def train(society: Society, worker: ElasticWorker) -> None:
        model = make_model()
        trainer = worker.trainer(model, make_optimizer(model))
        for batch in worker.batches(SAMPLES, BATCH, epochs=STEPS * BATCH // SAMPLES, seed=5):
            if trainer.num_steps == 2:
                factor = float("nan") if worker.rank == 0 else 1.0
                with pytest.raises(GradientNotFinite, match=r"step 2 .* rank 0 in "):
                    trainer.step(batch, lambda part, factor=factor: factor * society.data.loss(model, part))
                assert trainer.num_steps == 2
            trainer.step(batch, lambda part: society.data.loss(model, part))
        models[worker.name] = model

    society = Society(2, exchange=partial(AllReduce, nan="raise"), train=train).wait()
    society.models = models
    assert len(models) == 2
    check(society, plain_training()[0])


def test_who_joins_after_a_batch_was_left_out_draws_the_batches_of_the_others() -> None:
    """It skipped as many batches as there were steps, and did every step with another batch than the others."""
    drawn: dict[str, dict[int, list[int]]] = {}

    def train(society: Society, worker: ElasticWorker) -> None:
        model = make_model()
        trainer = worker.trainer(model, make_optimizer(model))
        for batch in worker.batches(SAMPLES, BATCH, epochs=STEPS * BATCH // SAMPLES, seed=5):
            step = trainer.num_steps
            if step == 2 and not trainer.num_left_out:
                with pytest.raises(GradientNotFinite):
                    trainer.step(batch, lambda part: float("nan") * society.data.loss(model, part))
                continue
            if step == 4 and worker.rank == 0:
                society.start(2)
                while not society.coordinator._membership.joining:  # pyright: ignore[reportPrivateUsage]
                    time.sleep(0.01)
            trainer.step(batch, lambda part: society.data.loss(model, part))
            drawn.setdefault(worker.name, {})[step] = batch.tolist()

    Society(2, exchange=partial(AllReduce, nan="raise"), train=train).wait()
    of_first = drawn["workers.0#0"]
    assert len(of_first) == STEPS - 1
    assert drawn["workers.1#0"] == of_first
    of_last = drawn["workers.2#0"]
    assert of_last == {step: of_first[step] for step in of_last}


def test_who_joins_after_a_part_ended_early_draws_nothing_more_of_it() -> None:
    """It drew the rest of that part, did its steps with other batches than the others, and then went on alone."""
    drawn: dict[str, list[tuple[int, int, list[int]]]] = {}

    def train(society: Society, worker: ElasticWorker) -> None:
        model = make_model()
        trainer = worker.trainer(model, make_optimizer(model))
        for part in range(2):
            for number, batch in enumerate(worker.batches(SAMPLES, BATCH, seed=part)):
                if worker.name == "workers.0#0" and (part, number) == (1, 1):
                    society.start(2)
                    while not society.coordinator._membership.joining:  # pyright: ignore[reportPrivateUsage]
                        time.sleep(0.01)
                step = trainer.num_steps
                trainer.step(batch, lambda indices: society.data.loss(model, indices))
                drawn.setdefault(worker.name, []).append((part, step, batch.tolist()))
                if step == 1:
                    break

    Society(2, exchange=AllReduce, train=train).wait()
    of_first = drawn["workers.0#0"]
    assert [(part, step) for part, step, _ in of_first] == [(0, 0), (0, 1), (1, 2), (1, 3), (1, 4), (1, 5)]
    assert drawn["workers.1#0"] == of_first
    joined = drawn["workers.2#0"]
    assert joined == of_first[-len(joined) :]


class _LeavingOut:
    """Trains; the gradient of rank 0 is NaN in the first batch. Notes with which batches steps were done."""

    def __init__(self) -> None:
        self.drawn: dict[str, list[list[int]]] = {}
        self.left_out: dict[str, int] = {}
        self.is_known = threading.Event()
        """Set when rank 0 knows that its gradient is refused."""
        self.dies_when_known = False

    def __call__(self, society: Society, worker: ElasticWorker) -> None:
        model = make_model()
        trainer = worker.trainer(model, make_optimizer(model))
        for number, batch in enumerate(worker.batches(SAMPLES, BATCH, epochs=STEPS * BATCH // SAMPLES, seed=5)):
            factor = float("nan") if worker.rank == 0 and number == 0 else 1.0
            try:
                trainer.step(batch, lambda part, factor=factor: factor * society.data.loss(model, part))
                self.drawn.setdefault(worker.name, []).append(batch.tolist())
            except GradientNotFinite:
                if worker.rank == 0:
                    self.is_known.set()
            except Killed:
                if self.dies_when_known:
                    self.is_known.wait(PATIENCE_S)
                raise
        self.left_out[worker.name] = trainer.num_left_out
        society.models[worker.name] = model


@pytest.mark.parametrize("dies_when_known", [False, True])
def test_a_batch_is_left_out_by_all_also_if_one_dies_while_it_tells_of_its_gradients(dies_when_known: bool) -> None:
    """One member knew of the NaN and went on with the next batch, the other did the same step with the first one."""
    train = _LeavingOut()
    train.dies_when_known = dies_when_known
    # Each member sends the facts of the step, the gradients and its findings to two others: the last packet is missing.
    deaths = (Death(2, "packet", 6),)
    society = Society(3, exchange=partial(AllReduce, nan="raise"), deaths=deaths, train=train).wait()
    assert len(train.drawn["workers.0#0"]) == STEPS - 1
    assert train.drawn["workers.1#0"] == train.drawn["workers.0#0"]
    assert train.left_out == {"workers.0#0": 1, "workers.1#0": 1}
    first, second = map(weights_of, society.models.values())
    assert torch.equal(first, second)


def test_a_batch_that_one_member_refuses_before_servers_see_it_is_left_out_by_all() -> None:
    """The others waited for it with that batch, while it went on with the next one."""
    train = _LeavingOut()
    with LocalServers(2) as shards:
        society = Society(3, exchange=partial(ParameterServer, nan="raise"), servers=shards, train=train).wait()
    of_first = train.drawn["workers.0#0"]
    assert len(of_first) == STEPS - 1
    assert list(train.drawn.values()) == [of_first] * 3
    assert set(train.left_out.values()) == {1}
    first, *others = map(weights_of, society.models.values())
    assert all(torch.equal(first, other) for other in others)


def test_a_refused_gradient_is_told_by_the_rank_whose_gradient_it_is() -> None:
    """All ranks raise the error, and that of rank 0 was shown under rank 1, if that was the quicker one."""

    def train(society: Society, worker: ElasticWorker) -> None:
        model = make_model()
        trainer = worker.trainer(model, make_optimizer(model))
        try:
            factor = float("nan") if worker.rank == 0 else 1.0
            trainer.step(torch.arange(BATCH), lambda part: factor * society.data.loss(model, part))
        except GradientNotFinite:
            if worker.rank == 0:
                society.lives[1].end.result(PATIENCE_S)
            raise

    with pytest.raises(GradientNotFinite, match="rank 0 in ") as caught:
        Society(2, exchange=partial(AllReduce, nan="raise"), train=train).wait()
    assert "raised in workers.0#0" in " ".join(caught.value.__notes__)


@pytest.mark.parametrize(
    ("batch", "loss_of", "words"),
    [
        (len, torch.arange(4), "one-dimensional tensor with the indices.* not <built-in function len>"),
        (torch.ones(4, 2), len, r"not a tensor of torch.float32 with shape \(4, 2\)"),
        (torch.arange(4), None, "loss_of is a function.*, not None"),
    ],
)
def test_arguments_of_a_step_that_are_mixed_up_are_told(batch: Any, loss_of: Any, words: str) -> None:
    """The first ones gave `tensor_split() received an invalid combination of arguments`."""

    def train(_society: Society, worker: ElasticWorker) -> None:
        model = make_model()
        worker.trainer(model, make_optimizer(model)).step(batch, loss_of)

    with pytest.raises(TypeError, match=words):
        Society(1, train=train).wait()


def test_a_parameter_that_is_thawed_is_refused() -> None:
    # Its gradient stayed on each worker, and the weights of the members went apart.
    def train(society: Society, worker: ElasticWorker) -> None:
        model: Any = make_model()
        model[0].bias.requires_grad_(False)
        trainer = worker.trainer(model, make_optimizer(model))
        for step, batch in enumerate(worker.batches(SAMPLES, BATCH)):
            model[0].bias.requires_grad_(step == 2)
            trainer.step(batch, partial(society.data.loss, model))

    with pytest.raises(ExchangeInvalid, match=r"'0.bias' is trained now, and was frozen .*with lr=0"):
        Society(2, train=train).wait()


def test_rank_0_may_die_as_well() -> None:
    society = Society(3, deaths=(Death(0, "packet", 9),)).wait()
    assert sorted(society.models) == ["workers.1#0", "workers.2#0"]
    check(society, plain_training()[0])


def test_who_joins_begins_with_the_weights_of_the_others() -> None:
    joined: list[int] = []

    def on_step(society: Society, worker: ElasticWorker, step: int) -> None:
        if step == 2 and worker.rank == 0:
            society.start(2)
            while not society.coordinator._membership.joining:  # pyright: ignore[reportPrivateUsage]
                pass  # the joiner needs no help of this thread
        if worker.name == "workers.2#0":
            joined.append(step)

    society = Society(2, on_step=on_step).wait()
    assert joined == list(range(4, STEPS + 1))  # it asked before step 2 was done, counted from 0
    assert len(society.models) == 3
    check(society, plain_training()[0])


class _Schedule:
    """Counts the steps after which it was called, as a learning-rate schedule does."""

    def __init__(self) -> None:
        self.num_steps = 0

    def step(self) -> None:
        self.num_steps += 1

    def state_dict(self) -> dict[str, int]:
        return vars(self).copy()

    def load_state_dict(self, state: dict[str, int]) -> None:
        vars(self).update(state)


def test_what_is_done_after_a_step_is_in_the_state_of_who_joins() -> None:
    """It got the schedule as it was within the step before, and lowered the rate one step later than the others."""
    seen: dict[str, dict[int, int]] = {}

    def train(society: Society, worker: ElasticWorker) -> None:
        model, schedule = make_model(), _Schedule()
        trainer = worker.trainer(model, make_optimizer(model), carry=[schedule])
        for batch in worker.batches(SAMPLES, BATCH, epochs=STEPS * BATCH // SAMPLES, seed=5):
            if trainer.num_steps in (3, STEPS - 1) and worker.rank == 0:
                society.start(trainer.num_steps)  # the second one joins when no step is left
                while not society.coordinator._membership.joining:  # pyright: ignore[reportPrivateUsage]
                    time.sleep(0.01)
            trainer.step(batch, lambda part: society.data.loss(model, part))
            schedule.step()
            seen.setdefault(worker.name, {})[trainer.num_steps] = schedule.num_steps
        seen.setdefault(worker.name, {})[trainer.num_steps] = schedule.num_steps

    Society(2, train=train).wait()
    assert seen["workers.0#0"] == seen["workers.1#0"] == {step: step for step in range(1, STEPS + 1)}
    assert seen["workers.3#0"] == {step: step for step in range(5, STEPS + 1)}
    assert seen[f"workers.{STEPS - 1}#0"] == {STEPS: STEPS}


def _last_joiner(society: Society, worker: ElasticWorker, steps: dict[str, int]) -> None:
    """Train; a second worker joins in the last step, and notes after how many steps its weights are."""
    model = make_model()
    trainer = worker.trainer(model, make_optimizer(model))
    for batch in worker.batches(SAMPLES, BATCH):
        if trainer.num_steps == SAMPLES // BATCH - 1 and worker.name == "workers.0#0":
            society.start(2)
            while not society.coordinator._membership.joining:  # pyright: ignore[reportPrivateUsage]
                time.sleep(0.01)
        trainer.step(batch, lambda part: society.data.loss(model, part))
    steps[worker.name] = trainer.num_steps


def test_who_joins_when_no_step_is_left_gets_the_weights_even_if_it_looks_for_them_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each worker that finished began another epoch, to which the weights that were sent did not belong."""
    steps: dict[str, int] = {}

    def train(society: Society, worker: ElasticWorker) -> None:
        if worker.name == "workers.2#0":
            mailbox = society.members[2].mailbox
            wait_state = mailbox.wait_state

            def look(view: MembershipView) -> bytes:
                society.wait_until_over()
                return wait_state(view)

            monkeypatch.setattr(mailbox, "wait_state", look)
        _last_joiner(society, worker, steps)

    Society(2, train=train).wait()
    assert steps == dict.fromkeys(("workers.0#0", "workers.1#0", "workers.2#0"), SAMPLES // BATCH)


def test_who_joins_for_a_last_batch_that_is_refused_gets_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """The state of before does not have what the others did about the error: rank 0 sends it again at the end."""
    left_out: dict[str, int] = {}

    def train(society: Society, worker: ElasticWorker) -> None:
        if worker.name == "workers.2#0":
            mailbox = society.members[2].mailbox
            wait_state = mailbox.wait_state

            def look(view: MembershipView) -> bytes:
                society.wait_until_over()
                return wait_state(view)

            monkeypatch.setattr(mailbox, "wait_state", look)
        model = make_model()
        trainer = worker.trainer(model, make_optimizer(model))
        for number, batch in enumerate(worker.batches(SAMPLES, BATCH)):
            if number == 2 and worker.name == "workers.0#0":
                society.start(2)
                while not society.coordinator._membership.joining:  # pyright: ignore[reportPrivateUsage]
                    time.sleep(0.01)
            factor = float("nan") if number == 3 and worker.name == "workers.0#0" else 1.0
            with contextlib.suppress(GradientNotFinite):
                trainer.step(batch, lambda part, factor=factor: factor * society.data.loss(model, part))
        left_out[worker.name] = trainer.num_left_out

    with LocalServers(1) as shards:
        Society(2, exchange=partial(ParameterServer, nan="raise"), servers=shards, train=train).wait()
    assert left_out == {"workers.0#0": 1, "workers.1#0": 1, "workers.2#0": 1}


def test_nobody_finishes_before_the_weights_that_it_sent_have_arrived(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of the training overtook them."""
    steps: dict[str, int] = {}
    order: list[str] = []
    has_finished = threading.Event()

    def train(society: Society, worker: ElasticWorker) -> None:
        if worker.name == "workers.2#0":
            member = society.members[2]

            def take_slowly(name: str, epoch: int, state: bytes) -> Future[None]:
                arrival: Future[None] = Future()

                def arrive() -> None:
                    has_finished.wait(0.3)
                    order.append("arrived")
                    ElasticMember.take_state(member, name, epoch, state)
                    arrival.set_result(None)

                threading.Thread(target=arrive).start()
                return arrival

            monkeypatch.setattr(member, "take_state", take_slowly)
        if worker.name == "workers.0#0":
            finished = society.coordinator.finished

            def note(name: str) -> None:
                if name == "workers.0#0":
                    order.append("finished")
                    has_finished.set()
                finished(name)

            monkeypatch.setattr(society.coordinator, "finished", note)
        _last_joiner(society, worker, steps)

    Society(2, train=train).wait()
    assert order == ["arrived", "finished"]
    assert steps["workers.2#0"] == SAMPLES // BATCH


def test_with_keep_only_what_the_dead_one_had_is_computed_again() -> None:
    society = Society(3, deaths=(Death(2, "vote", 1),), redo="keep", steps=4).wait()
    of_first_step = [(name[8], samples) for name, step, samples in society.computed if step == 0]
    assert sorted(of_first_step) == [("0", 2), ("0", 4), ("1", 2), ("1", 4), ("2", 4)]
    society = Society(3, deaths=(Death(2, "vote", 1),), redo="recompute", steps=4).wait()
    of_first_step = [(name[8], samples) for name, step, samples in society.computed if step == 0]
    assert sorted(of_first_step) == [("0", 4), ("0", 6), ("1", 4), ("1", 6), ("2", 4)]


def test_who_leaves_does_no_more_steps_and_the_others_go_on() -> None:
    def on_step(society: Society, worker: ElasticWorker, step: int) -> None:
        if step == 3 and worker.name == "workers.1#0":
            worker.leave()

    society = Society(3, on_step=on_step).wait()
    assert len(society.losses["workers.1#0"]) == 4
    assert sorted(society.models) == ["workers.0#0", "workers.2#0"]
    check(society, plain_training()[0])


def test_training_begins_without_a_founder_that_does_not_come() -> None:
    society = Society(2, absent=1, timeouts=dataclasses.replace(PATIENCE, start_s=0.1)).wait()
    assert list(society.models) == ["workers.0#0"]
    check(society, plain_training()[0])


def test_training_fails_when_all_are_dead() -> None:
    society = Society(2, deaths=(Death(0, "loss", 4), Death(1, "loss", 6)))
    with pytest.raises(MemberLost, match="nobody is left who has the weights of step"):
        society.wait()


def test_more_members_than_samples_are_no_trouble() -> None:
    society = Society(BATCH + 2, steps=4).wait()
    assert len(society.models) == BATCH + 2


def test_a_step_that_is_done_again_leaves_no_trace_in_buffers_and_draws_the_same_numbers() -> None:
    """Batch statistics are those of one forward for each step, and dropout is the same in both attempts."""
    draws: list[float] = []
    drawn = [threading.Event() for _ in range(SAMPLES // BATCH)]

    def train(society: Society, worker: ElasticWorker) -> None:
        data = Data()
        model = torch.nn.Sequential(torch.nn.BatchNorm1d(6), torch.nn.Dropout(0.5), torch.nn.Linear(6, 2)).double()
        trainer = worker.trainer(model, make_optimizer(model))

        def loss_of(indices: torch.Tensor) -> torch.Tensor:
            if worker.name == "workers.0#0":
                draws.append(float(torch.rand(1)))  # before the dropout, which draws as many as there are samples
            loss = data.loss(model, indices)
            if worker.name == "workers.0#0":
                drawn[trainer.num_steps].set()
            return loss

        for batch in worker.batches(SAMPLES, BATCH):
            if worker.name != "workers.0#0":  # threads of one process share torch's random numbers
                drawn[trainer.num_steps].wait(120)
            trainer.step(batch, loss_of)
        assert int(model[0].num_batches_tracked) == SAMPLES // BATCH  # type: ignore[arg-type]
        society.models[worker.name] = model

    society = Society(2, deaths=(Death(1, "vote", 2),), train=train).wait()
    assert list(society.models) == ["workers.0#0"]
    assert len(draws) == SAMPLES // BATCH + 1
    assert draws[1] == draws[2]  # the second step, twice
    assert len(set(draws)) == SAMPLES // BATCH


def test_with_keep_buffers_hold_every_piece_that_counts() -> None:
    """A piece that was computed before a death is not computed again, and its statistics are not lost."""
    of_first: list[torch.Tensor] = []

    def norm() -> torch.nn.BatchNorm1d:
        return torch.nn.BatchNorm1d(6).double()

    def train(society: Society, worker: ElasticWorker) -> None:
        data = Data()
        model = torch.nn.Sequential(norm(), torch.nn.Linear(6, 2).double())
        trainer = worker.trainer(model, make_optimizer(model))

        def loss_of(indices: torch.Tensor) -> torch.Tensor:
            if worker.name == "workers.0#0":
                of_first.append(indices)
            return data.loss(model, indices)

        for batch in worker.batches(SAMPLES, BATCH):
            trainer.step(batch, loss_of)
        society.models[worker.name] = model

    society = Society(2, deaths=(Death(1, "vote", 2),), train=train, redo="keep").wait()
    assert len(of_first) == SAMPLES // BATCH + 1
    expected = norm()
    for indices in of_first:
        expected(Data().x[indices])
    buffers = dict(society.models["workers.0#0"].named_buffers())
    assert int(buffers["0.num_batches_tracked"]) == len(of_first)
    torch.testing.assert_close(buffers["0.running_mean"], expected.running_mean, rtol=0, atol=1e-12)


@pytest.mark.parametrize("redo", ["recompute", "keep"])
def test_a_refused_step_leaves_no_trace_in_buffers(redo: str) -> None:
    """With redo="keep" the NaN stayed in the running mean, and from then on in all that the model said."""

    def train(society: Society, worker: ElasticWorker) -> None:
        data, model = Data(), torch.nn.Sequential(torch.nn.BatchNorm1d(6), torch.nn.Linear(6, 2)).double()
        trainer = worker.trainer(model, make_optimizer(model))
        before = model[0].running_mean.clone()  # type: ignore[union-attr, operator]
        with pytest.raises(GradientNotFinite):
            trainer.step(torch.arange(BATCH), lambda part: model(data.x[part] * float("nan")).mean())
        assert torch.equal(model[0].running_mean, before)  # type: ignore[arg-type]
        society.models[worker.name] = model

    society = Society(2, exchange=partial(AllReduce, nan="raise"), train=train, redo=redo).wait()
    assert len(society.models) == 2


def test_a_member_goes_on_where_one_that_it_has_not_met_is_scaled_away() -> None:
    """The program tells nobody the address of a worker that is to end: an IndexError ended the training of all."""

    def on_step(society: Society, worker: ElasticWorker, step: int) -> None:
        if step == 2 and worker.rank == 0:
            society.start(2)
            while not society.coordinator._membership.joining:  # pyright: ignore[reportPrivateUsage]
                time.sleep(0.01)
        if step == 3 and worker.rank == 0:
            society.scaled_to = 2
            society.stop(2)

    society = Society(2, on_step=on_step).wait()
    assert {"workers.0#0", "workers.1#0"} <= society.models.keys()
    check(society, plain_training()[0])
    assert any("workers.2#0 joined" in span.why for span in society.coordinator.history())


def test_an_error_of_one_that_left_ends_the_training_also_when_the_others_have_finished() -> None:
    """Its worker was restarted, had nothing to do, and the program ended as if there had been no error."""

    def train(society: Society, worker: ElasticWorker) -> None:
        model = make_model()
        trainer = worker.trainer(model, make_optimizer(model))
        for batch in worker.batches(SAMPLES, BATCH):
            if worker.name == "workers.1#0":
                worker.leave()
            trainer.step(batch, lambda part: society.data.loss(model, part))
        if worker.name == "workers.1#0":
            assert trainer.left
            society.wait_until_over()
            raise OSError("no space left for the weights")

    with pytest.raises(FailedForGood, match="OSError: no space left for the weights") as caught:
        Society(2, train=train).wait()
    assert isinstance(caught.value.__cause__, OSError)


def test_a_change_of_members_just_before_a_step_begins_is_not_overheard(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a step is never begun: through servers it would wait for the memory of the dead one."""
    begun: list[tuple[int, StepRecord]] = []

    def train(society: Society, worker: ElasticWorker) -> None:
        model = make_model()
        trainer = worker.trainer(model, make_optimizer(model))
        begin, shares = trainer.exchange.begin, trainer._shares  # pyright: ignore[reportPrivateUsage]

        def noted(record: StepRecord) -> None:
            begun.append((trainer.epoch, record))
            begin(record)

        def late(batch: torch.Tensor) -> Any:
            if trainer.num_steps == 1 and trainer.epoch == 0:
                society.members[0].mailbox.wait_view(0, 10.0)
            return shares(batch)

        if worker.name == "workers.0#0":
            monkeypatch.setattr(trainer.exchange, "begin", noted)
            monkeypatch.setattr(trainer, "_shares", late)
        for batch in worker.batches(SAMPLES, BATCH):
            if trainer.num_steps == 1 and worker.name == "workers.1#0":
                return  # it has finished, and is a member no more
            trainer.step(batch, lambda indices: Data().loss(model, indices))
        society.models[worker.name] = model

    Society(2, train=train).wait()
    assert [(epoch, record.step) for epoch, record in begun] == [(0, 0), (1, 1), (1, 2), (1, 3)]
    # How much a member's share weighs is said with it, for those who do not hear of the others.
    assert [(record.samples, record.total_samples) for _, record in begun] == [(BATCH / 2, BATCH)] + [
        (BATCH, BATCH)
    ] * 3


def test_random_numbers_of_the_user_are_left_alone() -> None:
    def train(society: Society, worker: ElasticWorker) -> None:
        model = make_model()
        trainer = worker.trainer(model, make_optimizer(model))
        before = torch.get_rng_state()
        for batch in worker.batches(SAMPLES, BATCH):
            trainer.step(batch, lambda indices: Data().loss(model, indices) * torch.rand(1))
        assert torch.equal(before, torch.get_rng_state())
        society.models[worker.name] = model

    assert Society(1, train=train).wait().models


def test_a_member_that_is_there_and_does_not_arrive_is_named() -> None:
    is_over = threading.Event()

    def train(society: Society, worker: ElasticWorker) -> None:
        model = make_model()
        trainer = worker.trainer(model, make_optimizer(model))

        def loss_of(indices: torch.Tensor) -> torch.Tensor:
            if worker.name == "workers.1#0":
                is_over.wait(120)
            return Data().loss(model, indices)

        for batch in worker.batches(SAMPLES, BATCH):
            trainer.step(batch, loss_of)

    society = Society(2, train=train, timeouts=dataclasses.replace(PATIENCE, stalled_s=1.5))
    try:
        with pytest.raises(ExchangeStalled, match="rank 1") as caught:
            society.wait()
        assert caught.value.ranks == (1,)
    finally:
        is_over.set()
    society.wait_for_ends()
