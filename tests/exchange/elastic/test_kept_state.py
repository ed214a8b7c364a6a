"""GD-SEC's memories and errors when members come and go, against plain code that follows the recorded membership."""

from __future__ import annotations

import functools
import threading
from collections.abc import Sequence

import pytest
import torch

from ropewalk.exchange.all_gather import AllGather
from ropewalk.exchange.buckets import BucketEntry, Layout
from ropewalk.exchange.compressors.compressor import Encoder, Round
from ropewalk.exchange.compressors.gd_sec import GDSEC
from ropewalk.exchange.elastic.membership import StepSpan
from ropewalk.exchange.elastic.shares import batches, share_out
from ropewalk.exchange.elastic.worker import ElasticWorker
from tests.exchange.elastic.society import (
    BATCH,
    SAMPLES,
    Data,
    Death,
    Killed,
    Society,
    make_model,
    make_optimizer,
    weights_of,
)

STEPS = 16
SECURE = GDSEC(c=5.0, beta=0.05)


def follow(history: Sequence[StepSpan], left: set[str]) -> tuple[torch.Tensor, float]:
    """What one process comes to that plays all members: its weights, and how much was sent of all that there is."""
    data, model = Data(), make_model()
    optimizer = make_optimizer(model)
    named = list(model.named_parameters())
    layout = Layout(tuple(BucketEntry.of(name, part) for name, part in named)[::-1])
    encoders: dict[str, Encoder] = {}
    decoder = SECURE.decoder(layout)
    applied = None
    out, gradient = (torch.zeros(layout.numel, dtype=torch.float64) for _ in range(2))
    num_sent = num_values = 0
    order = batches(SAMPLES, BATCH, epochs=STEPS, seed=5)
    for span in history:
        for name in span.members:
            encoders.setdefault(name, SECURE.encoder(layout))
        for name in [name for name in encoders if name not in span.members]:
            gone = encoders.pop(name)
            if name in left:
                assert gone.error is not None
                encoders[span.members[0]].take_error(gone.error)
        decoder.remember(torch.stack([_memory(encoders[name]) for name in span.members]).sum(0))
        for step in range(span.begin, span.end):
            messages: dict[int, memoryview] = {}
            batch = next(order)
            for rank, (name, (piece,)) in enumerate(share_out(batch, span.members).items()):
                optimizer.zero_grad()
                data.loss(model, piece).backward()
                layout.fill(gradient, {name: part.grad for name, part in named if part.grad is not None})
                gradient *= len(piece) / len(batch)
                round_ = Round(step, rank, len(span.members), len(piece), applied)
                message = encoders[name].encode(gradient, round_)
                messages[rank] = memoryview(message.data.tobytes())
                num_sent += message.num_values
                num_values += layout.numel
            decoder.decode(messages, out)
            for name in span.members:
                encoders[name].commit()
            decoder.commit()
            applied = out.clone()
            for name, part in layout.views(out):
                model.get_parameter(name).grad = part.clone()
            optimizer.step()
    return weights_of(model), num_sent / max(num_values, 1)


def _memory(encoder: Encoder) -> torch.Tensor:
    assert encoder.memory is not None
    return encoder.memory


@pytest.mark.parametrize(
    ("first_leaves", "deaths"),
    [
        (False, ()),
        (False, (Death(2, "voted", 9), Death(3, "loss", 6))),
        (True, (Death(2, "packet", 40),)),
        (True, (Death(2, "voted", 9), Death(3, "loss", 6))),
    ],
)
def test_memories_and_errors_follow_the_members(first_leaves: bool, deaths: tuple[Death, ...]) -> None:
    leaver = "workers.0#0" if first_leaves else "workers.1#0"

    def on_step(society: Society, worker: ElasticWorker, step: int) -> None:
        if step == 2 and worker.name == "workers.1#0":
            society.start(4)
        if step == 5 and worker.name == leaver:
            worker.leave()

    exchange = functools.partial(AllGather, SECURE, mode="sparse")
    society = Society(4, exchange, deaths=deaths, on_step=on_step, steps=STEPS).wait()
    history = society.coordinator.history()
    assert any("left" in span.why for span in history)
    assert any("joined" in span.why for span in history)
    weights, density = follow(history, {leaver})
    assert density < 0.8
    for model in society.models.values():
        torch.testing.assert_close(weights_of(model), weights, rtol=0, atol=1e-10)


def test_who_is_stopped_in_a_long_step_hands_over_as_well() -> None:
    is_over = threading.Event()

    def in_loss(society: Society, worker: ElasticWorker, step: int) -> None:
        if step == 6 and worker.name == "workers.1#0":
            society.stop(1)
            is_over.wait(120)

    def on_step(society: Society, worker: ElasticWorker, step: int) -> None:
        if step == 7:
            is_over.set()

    exchange = functools.partial(AllGather, SECURE, mode="sparse")
    society = Society(3, exchange, in_loss=in_loss, on_step=on_step, steps=STEPS).wait()
    history = society.coordinator.history()
    assert [span.why for span in history[:2]] == ["3 workers begin", "workers.1#0 left"]
    assert history[1].begin == 6
    weights, _ = follow(history, {"workers.1#0"})
    assert len(society.models) == 2
    for model in society.models.values():
        torch.testing.assert_close(weights_of(model), weights, rtol=0, atol=1e-10)


def test_who_is_stopped_between_two_steps_hands_over_as_well() -> None:
    """It was in a long validation, and its residuals were lost with it."""
    is_over = threading.Event()

    def on_step(society: Society, worker: ElasticWorker, step: int) -> None:
        if step == 6 and worker.name == "workers.1#0":
            society.stop(1)
            is_over.wait(10)  # where it hands nothing over, the others wait for it
        elif step == 7:
            is_over.set()

    exchange = functools.partial(AllGather, SECURE, mode="sparse")
    society = Society(3, exchange, on_step=on_step, steps=STEPS).wait()
    history = society.coordinator.history()
    assert [span.why for span in history[:2]] == ["3 workers begin", "workers.1#0 left"]
    assert history[1].begin == 6
    weights, _ = follow(history, {"workers.1#0"})
    assert len(society.models) == 2
    for model in society.models.values():
        torch.testing.assert_close(weights_of(model), weights, rtol=0, atol=1e-10)


@pytest.mark.parametrize("dies", ["workers.0#0", "workers.2#0"])
def test_what_a_leaver_kept_back_counts_once_whoever_dies_before_the_next_commit(dies: str) -> None:
    is_taken = threading.Event()

    def on_step(society: Society, worker: ElasticWorker, step: int) -> None:
        if step == 4 and worker.name == "workers.1#0":
            worker.leave()

    def in_loss(society: Society, worker: ElasticWorker, step: int) -> None:
        if worker.size == 2:
            if worker.rank == 0:
                is_taken.set()
            if worker.name == dies and is_taken.wait(120):
                raise Killed("after rank 0 has the will")

    exchange = functools.partial(AllGather, SECURE, mode="sparse")
    society = Society(3, exchange, in_loss=in_loss, on_step=on_step, steps=STEPS).wait()
    history = society.coordinator.history()
    assert [len(span.members) for span in history[:3]] == [3, 2, 1]
    assert history[1].begin == history[1].end  # no step was done in between
    weights, _ = follow([history[0], *history[2:]], {"workers.1#0"})
    for model in society.models.values():
        torch.testing.assert_close(weights_of(model), weights, rtol=0, atol=1e-10)


@pytest.mark.parametrize(("exchange", "words"), [(SECURE, ", what it had kept back is lost"), ("none", "")])
def test_a_death_is_in_the_report_with_what_is_lost(exchange: object, words: str) -> None:
    notes: dict[str, tuple[str, ...]] = {}
    lost: dict[str, tuple[str, ...]] = {}

    def on_step(society: Society, worker: ElasticWorker, step: int) -> None:
        notes[worker.name] = worker.joined_trainer.report().notes
        lost[worker.name] = worker.joined_trainer.lost
        if step == 6 and worker.name == "workers.1#0":
            worker.leave()  # with all that it has, so nobody notes it

    Society(4, exchange, deaths=(Death(3, "loss", 3),), on_step=on_step).wait()
    for name in ("workers.0#0", "workers.2#0"):
        assert notes[name] == (f"step 2: workers.3#0 died{words}",)
        assert lost[name] == ("workers.3#0",)


def test_what_a_leaver_kept_back_is_not_lost() -> None:
    """The reference that forgets it comes to something else, so the test above sees it."""
    history = [
        StepSpan(0, ("workers.0#0", "workers.1#0"), 0, 6, "2 workers begin"),
        StepSpan(1, ("workers.0#0",), 6, 12, "workers.1#0 left"),
    ]
    kept, _ = follow(history, {"workers.1#0"})
    forgotten, _ = follow(history, set())
    assert (kept - forgotten).abs().max() > 1e-4
