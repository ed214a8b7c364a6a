"""Stages that compute on a GPU: what one process computes there, to the bit, deaths and checkpoints included."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from ropewalk.engines.resources import Resources
from ropewalk.errors import PlanInvalid, StageFailed
from ropewalk.pipeline.tracing.tracer import trace
from ropewalk.training.counters import WorkerCounters
from ropewalk.training.stage_device import stage_device
from ropewalk.training.trainer import Trainer
from ropewalk.training.trainer_options import ProcessOptions
from tests.pipeline.played_plans import even_cut, plan_of
from tests.training.faulty_training import (
    SEED,
    Job,
    Learnt,
    assert_near,
    assert_same,
    batch,
    go_through,
)
from tests.training.faulty_training import WIDTH as JOB_WIDTH
from tests.training.test_faults import KILLED_AT, all_of

NUM_WORDS, WIDTH = 20, 16


pytestmark = pytest.mark.usefixtures("shared_session")


class Reader(nn.Module):
    """Makes tensors in its forward, on the device of what it reads, and has a buffer that is not saved."""

    mask: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(NUM_WORDS, WIDTH)
        self.places = nn.Embedding(8, WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.norm = nn.LayerNorm(WIDTH)
        self.out = nn.Linear(WIDTH, NUM_WORDS)
        self.register_buffer("mask", torch.triu(torch.full((8, 8), float("-inf")), 1), persistent=False)

    def forward(self, words: Tensor) -> Tensor:
        x = self.words(words) + self.places(torch.arange(words.shape[1], device=words.device))
        y, _ = self.attention(x, x, x, attn_mask=self.mask, need_weights=False)
        y = x + y + torch.ones(WIDTH, device=words.device)
        return self.out(functional.dropout(self.norm(y), 0.1, self.training))


def reader() -> Reader:
    torch.manual_seed(3)
    return Reader()


def sentences(step: int) -> tuple[Tensor, Tensor]:
    words = torch.randint(NUM_WORDS, (12, 8), generator=torch.Generator().manual_seed(step))
    return words, words.roll(-1, 1)


def loss_of(scores: Tensor, words: Tensor) -> Tensor:
    return functional.cross_entropy(scores.flatten(0, 1), words.flatten())


def adam(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, 1e-2)


def on_gpu(job: Job, **options: Any) -> Trainer:
    return job.trainer(None, device="cuda", **options)


def inline(job: Job) -> Learnt:
    """In one thread, on the GPU."""
    with Trainer(
        copy.deepcopy(job.graph.model),
        job.loss_fn,
        job.optimizer,
        job.plan_of(job.graph),
        example_inputs=torch.zeros(4, JOB_WIDTH),
        seed=SEED,
        processes=ProcessOptions(device="cuda"),
        inline=True,
    ) as trainer:
        return go_through(trainer, job)


def counted(trainer: Trainer) -> list[WorkerCounters]:
    run = trainer._run
    assert run is not None
    return list(run.counters().values())


@pytest.mark.parametrize("schedule", ["one_f_one_b", "gpipe", "pipedream", "pipedream_2bw", "zb_h1", "zb_v"])
def test_processes_compute_on_the_gpu_what_one_thread_does(schedule: str) -> None:
    job = Job(schedule)
    expected = inline(job)
    with on_gpu(job) as trainer:
        found = go_through(trainer, job)
        assert all(one.peak_device_bytes for one in counted(trainer)), "it computed on the GPU"
    assert_same(found, expected)


def test_replicas_on_a_gpu_average_as_one_process_does() -> None:
    job = Job(replicas=2)
    with on_gpu(job) as trainer:
        assert_near(go_through(trainer, job), inline(job), within=1e-5)


@pytest.mark.parametrize("compressor", ["none", "gd_sec", "top_k"])
def test_replicas_exchange_gradients_that_are_on_a_gpu(compressor: str) -> None:
    job = Job(replicas=2)
    with on_gpu(job, exchange=compressor, clip_norm=None) as trainer:
        found = go_through(trainer, job)
    assert all(tensor.isfinite().all() for tensor in found.state["parameters"].values())
    if compressor == "none":
        assert_near(found, inline(job), within=1e-5)


@pytest.mark.parametrize("schedule", KILLED_AT)
def test_stages_that_are_killed_go_on_from_snapshots_with_the_same_bits(schedule: str) -> None:
    job = Job(schedule)
    kills = [(pattern, after) for pattern, after in KILLED_AT[schedule] if not pattern.startswith("A")]
    with all_of(kills) as injected, on_gpu(job) as trainer:
        found = go_through(trainer, job)
        assert len(trainer.events) == len(injected)
    assert [one.num_fired for one in injected] == [1] * len(injected)
    assert_same(found, inline(job))


def test_a_model_that_makes_tensors_makes_them_on_the_gpu() -> None:
    graph = trace(reader(), sentences(0)[0])
    plan = plan_of(graph, even_cut(graph, 2), micro_batches=3)
    with Trainer(graph, loss_of, adam, plan, processes=ProcessOptions(device="cuda"), seed=1) as trainer:
        handles = [trainer.step(*sentences(step % 3)) for step in range(60)]
        assert float(handles[-1].metrics().loss) < 0.75 * float(handles[0].metrics().loss)
        loss, scores = trainer.evaluate([sentences(0)]), trainer.predict(sentences(0)[0])
        trained = trainer.to_module()
    assert scores.device.type == "cpu" and not next(trained.parameters()).is_cuda
    torch.testing.assert_close(scores, trained.eval()(sentences(0)[0]), rtol=1e-3, atol=1e-3)
    assert loss == pytest.approx(float(loss_of(scores, sentences(0)[1])), rel=1e-3)


def test_a_model_on_the_gpu_and_batches_there_are_trained_there() -> None:
    trainer = Trainer(reader().cuda(), loss_of, adam, 2, micro_batches=3, schedule="gpipe")
    with trainer:
        handles = [trainer.step(*(one.cuda() for one in sentences(step))) for step in range(4)]
        handles[-1].metrics()
        assert all(one.peak_device_bytes for one in counted(trainer))
        assert next(trainer.to_module().parameters()).is_cuda


def test_a_checkpoint_of_the_gpu_goes_on_on_the_cpu(tmp_path: Path) -> None:
    job = Job()
    with on_gpu(job) as trainer:
        for step in range(4):
            trainer.step(*batch(step))
        trainer.save(tmp_path).wait()
        state = trainer.state_dict()
    with job.trainer(None, device="cpu", example_inputs=batch(0)[0]) as trainer:
        trainer.load(tmp_path)
        found = trainer.state_dict()
        assert all(torch.equal(found["parameters"][name], one) for name, one in state["parameters"].items())
        trainer.step(*batch(4)).metrics()


def test_a_process_that_was_given_a_gpu_takes_it() -> None:
    job = Job(num_groups=1)
    with on_gpu(job, resources=Resources(gpus=1), snapshots=None) as trainer:
        trainer.step(*batch(0)).metrics()
        assert counted(trainer)[0].peak_device_bytes


def test_bfloat16_trains_on_the_gpu() -> None:
    job = Job()
    with on_gpu(job, autocast=torch.bfloat16) as trainer:
        found = go_through(trainer, job)
    whole = inline(job)
    torch.testing.assert_close(found.losses[0], whole.losses[0], rtol=0.05, atol=0.05)
    assert found.losses[0] != whole.losses[0], "it computed in bfloat16"


def test_planning_for_the_gpu_measures_there() -> None:
    model = nn.Sequential(*[part for _ in range(3) for part in (nn.Linear(64, 64), nn.ReLU())])
    x = torch.randn(32, 64)
    with Trainer(model, nn.MSELoss(), adam, 2, processes=ProcessOptions(device="cuda"), micro_batches=4) as trainer:
        losses = [float(trainer.step(x, x).metrics().loss) for _ in range(10)]
    assert losses[-1] < losses[0]
    assert not next(model.parameters()).is_cuda


def test_a_gpu_that_is_not_there_is_refused_by_name() -> None:
    with pytest.raises(PlanInvalid, match=r"'cuda:9'.*sees 1 GPUs"):
        stage_device("cuda:9", 0)
    with pytest.raises((StageFailed, PlanInvalid), match="cuda:9"):
        with Job().trainer(None, device="cuda:9") as trainer:
            trainer.step(*batch(0)).metrics()
