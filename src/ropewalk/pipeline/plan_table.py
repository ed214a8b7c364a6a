"""A plan as text: a line for each stage, the transfers between stages, and the bottleneck.

resnet50 on 4 devices, 1 GB/s: 2 stages, one_f_one_b, 16 micro-batches

stage  operators           devices   forward  backward  computing   memory  in flight
    0  node1 .. node142    0-2        31.2 ms   70.1 ms       97 %  3.1 GiB          2
    1  node143 .. node176  3            9.8 ms   21.0 ms       95 %  1.2 GiB          1
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ropewalk.pipeline.prediction import Prediction, StagePrediction
from ropewalk.quantities import counted, shown_duration, shown_size
from ropewalk.text_table import text_table

if TYPE_CHECKING:  # `plans.py` imports this module
    from ropewalk.pipeline.plans import Plan

HEADINGS = ("stage", "operators", "devices", "forward", "backward", "computing", "memory", "in flight")


def plan_table(plan: Plan, prediction: Prediction) -> str:
    """Show a plan and its prediction as text for a terminal or a log.

    Args:
        plan: the plan to show.
        prediction: its times and memory.
    """
    rows = [HEADINGS, *(stage_row(plan, stage, prediction.stages[stage]) for stage in range(len(plan.stages)))]
    numbers = [column for column, heading in enumerate(HEADINGS) if heading not in ("operators", "devices")]
    lines = text_table(rows, right=numbers)
    return "\n".join([headline(plan, prediction), "", *lines, "", *remarks(plan, prediction)])


def headline(plan: Plan, prediction: Prediction) -> str:
    """Summarise a plan in one line: topology, number of stages, schedule and micro-batches."""
    return (
        f"{prediction.topology}: {counted(len(plan.stages), 'stage')}, {plan.schedule}, "
        f"{counted(plan.micro_batches, 'micro-batch', 'es')} in a step"
    )


def stage_row(plan: Plan, number: int, predicted: StagePrediction) -> tuple[str, ...]:
    """Return the cells of one stage's row, one for each of `HEADINGS`."""
    stage = plan.stages[number]
    ends = stage.operators[0] if len(stage.operators) == 1 else f"{stage.operators[0]} .. {stage.operators[-1]}"
    return (
        str(number),
        f"{ends} ({len(stage.operators)})",
        shown_devices(stage.devices),
        shown_duration(predicted.forward_s),
        shown_duration(predicted.backward_s) + (" recomputing" if stage.recompute else ""),
        f"{100 * predicted.busy:.0f} %",
        shown_size(predicted.memory.total),
        str(predicted.in_flight),
    )


def remarks(plan: Plan, prediction: Prediction) -> Iterator[str]:
    """Yield lines about the plan as a whole."""
    copies = f"data parallelism on {prediction.num_devices}"
    yield (
        f"step        {shown_duration(prediction.step_s)} simulated, {prediction.samples_per_s:.4g} samples/s, "
        f"{100 * prediction.idle:.1f} % idle: {prediction.simulated_speedup_over_one:.2f} x one device, "
        f"{prediction.simulated_speedup_over_data_parallel:.2f} x {copies}"
    )
    bound = ""
    if prediction.lower_bound_s is not None and prediction.gap is not None:
        least = (
            ""
            if prediction.least_objective_s == prediction.objective_s
            else (f"the least found {shown_duration(prediction.least_objective_s)}, slower by the clock; ")
        )
        bound = f" ({least}bound {shown_duration(prediction.lower_bound_s)}, gap {100 * prediction.gap:.1f} %)"
    yield (
        f"objective   {shown_duration(prediction.objective_s)} by {prediction.cost_model}{bound}: "
        f"{prediction.speedup_over_one:.2f} x one device, {prediction.speedup_over_data_parallel:.2f} x {copies}"
    )
    if prediction.memory_bytes is not None and prediction.data_parallel_bytes > prediction.memory_bytes:
        needed, limit = shown_size(prediction.data_parallel_bytes), shown_size(prediction.memory_bytes)
        yield f"note        {copies} needs {needed} on each device, and there are {limit}"
    for note in prediction.notes:
        yield f"note        {note}"
    for link in prediction.links:
        yield (
            f"link        stage {link.source} -> {link.target}: {shown_size(link.forward_bytes)} forward, "
            f"{shown_size(link.backward_bytes)} back in a step"
        )
    for tie in plan.tied:
        yield f"tied        {tie.parameter} in stages {', '.join(map(str, tie.stages))}"
    yield f"bottleneck  {prediction.bottleneck}"
    yield f"planned     in {shown_duration(prediction.planning_s)} by {prediction.partitioner}"


def plan_in_words(plan: Plan, schedule: str) -> str:
    """Summarise a plan in one line, with the schedule that runs it.

    Example: "2 stages on 3 + 1 workers, gpipe, 8 micro-batches in a step".

    Args:
        plan: the plan.
        schedule: the name of the schedule.
    """
    widths = [plan.stages[stages[0]].replicas for stages in plan.groups]
    workers = counted(len(plan.workers), "worker")
    if max(widths) > 1 and len(widths) > 1:
        workers = f"{' + '.join(map(str, widths))} workers"
    batches = counted(plan.micro_batches, "micro-batch", "es")
    return f"{counted(len(plan.stages), 'stage')} on {workers}, {schedule}, {batches} in a step"


def shown_stages(stages: Sequence[int]) -> str:
    """Return the stages of one worker as text: "stage 3", or "stages 0, 2"."""
    return f"stage{'' if len(stages) == 1 else 's'} {', '.join(map(str, stages))}"


def shown_devices(devices: Sequence[int]) -> str:
    """Return devices as ranges: "0-2,5"."""
    ranges: list[list[int]] = []
    for device in sorted(devices):
        if ranges and device == ranges[-1][1] + 1:
            ranges[-1][1] = device
        else:
            ranges.append([device, device])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)
