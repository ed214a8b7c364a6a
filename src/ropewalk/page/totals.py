"""`Totals`: what all processes of a thing use together, and its rate, from the samples of what was seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ropewalk.page.watcher import Seen, ViewSample, cores_of

UP = frozenset({"running", "idle", "ready", "waiting", "paused"})
"""States of processes that are up."""
_RATE_OVER_S = 5.0


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over the processes of a thing.

    Attributes:
        up: processes that run.
        processes: all of them.
        cores: CPU seconds that they use in a second; None before it is known.
        memory_bytes: resident memory of all.
        restarts: caused by failures.
        rate: what is completed in a second; None if it is not known.
        rate_of: what the rate counts, such as "tasks"; "" for what processes count themselves.
        rates: the last rates, oldest first, for a small curve.
    """

    up: int
    processes: int
    cores: float | None
    memory_bytes: int
    restarts: int
    rate: float | None
    rate_of: str
    rates: tuple[float, ...]


def totals(seen: Seen) -> Totals:
    """Add up the processes of a thing, as far as they are known."""
    view = seen.view
    samples = list(seen.samples)
    key = next((name for name, value in view.facts.items() if _is_rate(name, value)), "")
    if key:
        rates = [sample.facts[key] for sample in samples if key in sample.facts]
        rate = rates[-1] if rates else None
    else:
        rates = _rates(samples)
        rate = rates[-1] if rates else None
    return Totals(
        up=sum(process.state in UP for process in view.processes),
        processes=len(view.processes),
        cores=_cores(seen.recent()),
        memory_bytes=sum(process.memory_bytes for process in view.processes),
        restarts=sum(process.restarts for process in view.processes),
        rate=rate,
        rate_of=key.removesuffix("_per_s").replace("_", " "),
        rates=tuple(rates),
    )


def _is_rate(name: str, value: object) -> bool:
    counts = name.endswith("_per_s") and not f"_{name}".endswith("_bytes_per_s")
    return counts and isinstance(value, int | float)


def _rates(samples: Sequence[ViewSample]) -> list[float]:
    """Return what all processes completed in a second, at each sample over the seconds before it."""
    rates: list[float] = []
    if not any(done for sample in samples[-1:] for done, _, _ in sample.processes.values()):
        return rates  # nothing is counted
    first = 0
    for index, sample in enumerate(samples[1:], 1):
        while first < index - 1 and samples[first].at < sample.at - _RATE_OVER_S:
            first += 1
        before = samples[first]
        done = sum(
            max(0, now[0] - before.processes[name][0])  # a process that was restarted counts from 0 again
            for name, now in sample.processes.items()
            if name in before.processes
        )
        if sample.at > before.at:
            rates.append(done / (sample.at - before.at))
    return rates


def _cores(recent: Sequence[ViewSample]) -> float | None:
    if len(recent) < 2 or not recent[-1].processes:
        return None
    shares = (cores_of(name, (recent[0], recent[-1])) for name in recent[-1].processes)
    return sum(share for share in shares if share is not None)


__all__ = ["UP", "Totals", "totals"]
