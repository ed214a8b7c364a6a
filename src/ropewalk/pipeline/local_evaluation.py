"""Evaluates a model with the stages of a local executor, in one thread, over links of its own."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, cast

from ropewalk.pipeline.plans import PlanWorker
from ropewalk.pipeline.stages.evaluation import Evaluated, EvalWorker, StageEvaluation
from ropewalk.pipeline.stages.in_memory_links import InMemoryLinks
from ropewalk.pipeline.stages.losses import Loss, kind_of
from ropewalk.pipeline.stages.micro_batches import split
from ropewalk.pipeline.stages.stage_worker import StageWorker
from ropewalk.pipeline.taking_turns import take_turns
from ropewalk.pipeline.tracing.model_inputs import as_arguments


def evaluated(
    evaluation: StageEvaluation,
    trained: Mapping[PlanWorker, StageWorker],
    loss: Loss,
    batches: Iterable[tuple[Any, Any]],
    *,
    wants_loss: bool,
) -> Iterator[Evaluated]:
    """Evaluate mini-batches, with enough of them under way to keep all stages busy.

    Args:
        evaluation: the stages in evaluation mode.
        trained: the stage workers whose weights and buffers are used.
        loss: computes the loss from outputs and labels.
        batches: pairs (x, y).
        wants_loss: whether to compute the loss; otherwise the outputs are returned.

    Yields:
        The result of each mini-batch, in order.

    Raises:
        TypeError: a mini-batch is not a pair.
        StageFailed: the model or the loss raised.
    """
    plan, graph = evaluation.plan, evaluation.graph.for_eval
    links = InMemoryLinks(plan, 1)
    workers = {worker: EvalWorker(worker, evaluation, one.stages, links, loss) for worker, one in trained.items()}
    first, remaining = 0, iter(batches)
    while chunk := list(islice(remaining, 2 * len(plan.workers))):
        for number, pair in enumerate(chunk, first):
            x, y = checked_pair(pair)
            args, kwargs = as_arguments(x)
            (piece,) = split(graph.bind(*args, **kwargs), y, 1, whole=graph.whole_inputs)
            for stage in {*evaluation.input_stages, evaluation.output_stage}:
                workers[plan.worker_of(stage, number)].admit(stage, number, piece, wants_loss=wants_loss)
        queues = {worker: deque(found) for worker, found in evaluation.actions(first, len(chunk)).items()}
        take_turns(queues, workers, lambda worker, action: workers[worker].perform(action))
        for number in range(first, first + len(chunk)):
            yield workers[plan.worker_of(evaluation.output_stage, number)].results.pop(number)
        first += len(chunk)


def checked_pair(pair: Any) -> tuple[Any, Any]:
    """Return a mini-batch if it is a pair (x, y).

    Raises:
        TypeError: the mini-batch is not a pair.
    """
    if isinstance(pair, tuple | list) and len(row := cast("Sequence[Any]", pair)) == 2:
        return row[0], row[1]
    raise TypeError(
        f"evaluate takes mini-batches that are pairs (x, y), as a DataLoader gives them, but one of them is "
        f"{kind_of(pair)}; for one mini-batch give [(x, y)]"
    )
