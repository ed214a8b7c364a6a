"""A training report as text for a terminal: a line for each worker, one for each stage, and a summary.

one_f_one_b on 2 workers, 4 micro-batches in a step; the last 12 of 12 steps

worker  stages  computing  passing  updating  waiting  other  process  tensors  planned  copies
0.0     0            62 %      1 %       2 %     33 %    2 %  310 MiB        -   12 MiB       0
1.0     1            81 %      1 %       2 %     14 %    2 %  305 MiB        -    9 MiB       0

stage  forward  planned  backward  planned  versions
    0  10.2 ms    10 ms   20.1 ms    20 ms         1
    1  10.1 ms    10 ms   20.3 ms    20 ms         1

memory      the whole process at its peak, with Python and torch; planned are its tensors
step        96.3 ms, 93 ms planned (3.5 % longer), 91 ms possible with these times; 332 samples/s
bubble      19 % of the time the busiest worker does not compute; workers are 26 % idle, 24 % planned
waiting     worker 0.0: starved by stage 1 32 %, sums 1 %
link        worker 0.0 -> 1.0: 1.2 MiB in a step, 1.2 MiB planned; 14.4 MiB in all

With an exchange, what it sends goes over connections of its own, and has lines of its own:

link        worker 0.0 -> 0.1: 0.5 KiB in a step besides the exchange; 6 KiB in all
exchange    worker 0.0: 1.2 MiB sent in a step, 25 % of a dense ring all-reduce, and 56 B of headers; ...
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ropewalk.quantities import counted, shown_duration, shown_size
from ropewalk.text_table import text_table

if TYPE_CHECKING:  # reports draw themselves with this
    from ropewalk.exchange.exchange import ExchangeReport
    from ropewalk.training.report import LinkReport, StageReport, TrainingReport, WorkerReport

_UNKNOWN = "-"


def report_table(report: TrainingReport) -> str:
    """Show a report as text."""
    return "\n".join(
        [_headline(report), "", *_workers(report), "", *_stages(report), "", *_remarks(report)],
    )


def _headline(report: TrainingReport) -> str:
    seen = f"{report.num_steps:.4g}"
    steps = (
        "the only step" if report.num_steps_of_run == 1 else f"the last {seen} of {report.num_steps_of_run:.4g} steps"
    )
    if report.num_steps == report.num_steps_of_run > 1:
        steps = f"all {seen} steps"
    return (
        f"{report.schedule} on {counted(len(report.workers), 'worker')}, "
        f"{counted(report.micro_batches, 'micro-batch', 'es')} in a step; {steps}"
    )


def _workers(report: TrainingReport) -> Iterator[str]:
    headings = (
        "worker",
        "stages",
        "computing",
        "passing",
        "updating",
        "waiting",
        "other",
        "process",
        "tensors",
        "planned",
        "copies",
    )
    yield from text_table([headings, *map(_worker, report.workers)], right=range(2, len(headings)))


def _worker(worker: WorkerReport) -> tuple[str, ...]:
    return (
        worker.worker,
        ", ".join(map(str, worker.stages)),
        _percent(worker.computing),
        _percent(worker.passing),
        _percent(worker.updating),
        _percent(sum(worker.waiting.values())),
        _percent(worker.other),
        shown_size(worker.peak_memory_bytes) if worker.peak_memory_bytes else _UNKNOWN,
        _UNKNOWN if worker.peak_device_bytes is None else shown_size(worker.peak_device_bytes),
        _UNKNOWN if worker.predicted_memory_bytes is None else shown_size(worker.predicted_memory_bytes),
        f"{worker.copies_per_update:.2g}",
    )


def _stages(report: TrainingReport) -> Iterator[str]:
    headings = ("stage", "forward", "planned", "backward", "planned", "versions")
    yield from text_table([headings, *map(_stage, report.stages)], right=range(len(headings)))


def _stage(stage: StageReport) -> tuple[str, ...]:
    return (
        str(stage.stage),
        shown_duration(stage.forward_s),
        _UNKNOWN if stage.predicted_forward_s is None else shown_duration(stage.predicted_forward_s),
        shown_duration(stage.backward_s),
        _UNKNOWN if stage.predicted_backward_s is None else shown_duration(stage.predicted_backward_s),
        str(stage.versions_held or _UNKNOWN),
    )


def _remarks(report: TrainingReport) -> Iterator[str]:
    on_device = any(worker.peak_device_bytes is not None for worker in report.workers)
    tensors = (
        "tensors at their peak, measured on the accelerator and planned" if on_device else "planned are its tensors"
    )
    yield f"memory      the whole process at its peak, with Python and torch; {tensors}"
    yield f"step        {_step(report)}"
    planned = "" if report.predicted_idle is None else f", {_percent(report.predicted_idle)} planned"
    yield (
        f"bubble      {_percent(report.bubble)} of the time the busiest worker does not compute; workers are "
        f"{_percent(report.idle)} idle{planned}"
    )
    for worker in report.workers:
        if causes := ", ".join(f"{why} {_percent(share)}" for why, share in worker.waiting.items() if share >= 0.005):
            yield f"waiting     worker {worker.worker}: {causes}"
    if not any(worker.waiting for worker in report.workers):
        yield "waiting     not recorded: workers took turns in one thread, and the turns of others are under other"
    has_exchange = any(worker.exchange is not None for worker in report.workers)
    yield from (f"link        {_link(link, has_exchange=has_exchange)}" for link in report.links)
    for worker in report.workers:
        if worker.num_snapshots:
            yield (
                f"snapshots   worker {worker.worker}: {worker.num_snapshots}, "
                f"which took {100 * worker.snapshots:.2g} % of its time"
            )
    for worker in report.workers:
        if worker.exchange is not None:
            yield f"exchange    worker {worker.worker}: {_exchange(worker.exchange, report.num_steps_of_run)}"
    for worker in report.workers:
        yield from (f"note        worker {worker.worker}: {note}" for note in worker.notes)


def _compared(measured_s: float, planned_s: float) -> str:
    """Return how the duration of a step compares with the planned one, in words."""
    ratio = measured_s / planned_s
    if ratio >= 2:
        return f"{ratio:.1f} times as long"
    return f"{abs(100 * (ratio - 1)):.1f} % {'longer' if ratio >= 1 else 'shorter'}"


def _step(report: TrainingReport) -> str:
    planned = ""
    if report.predicted_step_s:
        planned = (
            f", {shown_duration(report.predicted_step_s)} planned ({_compared(report.step_s, report.predicted_step_s)})"
        )
    rate = "" if report.samples_per_s is None else f"; {report.samples_per_s:.4g} samples/s"
    possible = f"{shown_duration(report.ideal_step_s)} possible with these times"
    return f"{shown_duration(report.step_s)}{planned}, {possible}{rate}"


def _link(link: LinkReport, *, has_exchange: bool) -> str:
    besides = " besides the exchange" if has_exchange else ""
    planned = "" if link.predicted_step_bytes is None else f", {shown_size(link.predicted_step_bytes)} planned"
    return (
        f"worker {link.source} -> {link.target}: {shown_size(link.step_bytes)} in a step{besides}{planned}; "
        f"{shown_size(link.total_bytes)} in all"
    )


def _exchange(exchange: ExchangeReport, num_steps: float) -> str:
    """Return what an exchange has sent; in a step of the training, which may have several updates or none."""
    sent, per_step = exchange.sent_bytes, max(num_steps, 1.0)
    against = f", {100 * sent / exchange.dense_bytes:.3g} % of a dense ring all-reduce" if exchange.dense_bytes else ""
    headers = shown_size(exchange.header_bytes / per_step)
    return f"{shown_size(sent / per_step)} sent in a step{against}, and {headers} of headers; {shown_size(sent)} in all"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
