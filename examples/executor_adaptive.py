"""Sample a function where it is interesting with adaptive, whose runners take any Executor: here ours.

    pip install adaptive
    python examples/executor_adaptive.py

    Learner1D ── ask: where next? ──▶ Runner ── submit ──▶ Executor ═══▶ peak(x)
        ▲                                                                  │
        └───────────────────────── tell: value there ◀─────────────────────┘

The learner asks for points between which the curve bends most. Each value changes what is asked next, so results are
wanted one by one as they come: work for futures, not for a map. Nijholt, Weston, Hoofwijk, Akhmerov: Adaptive, 2019.
"""

from __future__ import annotations

from typing import Any

import adaptive

import ropewalk as rw

WORKERS = 2
OFFSET, WIDTH = 0.3, 0.02


def peak(x: float) -> float:
    """A line with a narrow peak on it, which a grid of as many points would miss."""
    return x + WIDTH**2 / (WIDTH**2 + (x - OFFSET) ** 2)


def sample(executor: rw.Executor, num_points: int) -> Any:
    """A learner that knows the function at `num_points` points at least."""
    learner: Any = adaptive.Learner1D(peak, bounds=(-1, 1))  # pyright: ignore[reportArgumentType]  # it types `Real`
    adaptive.BlockingRunner(learner, npoints_goal=num_points, executor=executor)
    return learner


def main(num_points: int = 60) -> dict[float, float]:
    with rw.Executor(WORKERS) as executor:
        data: dict[float, float] = dict(sample(executor, num_points).data)
    near = sum(abs(x - OFFSET) < 5 * WIDTH for x in data)
    top = max(data, key=lambda x: data[x] - x)
    print(f"{len(data)} points, {near} of them in the tenth of the interval where the peak is")
    print(f"its top is at {top:.3f}, in truth at {OFFSET}")
    return data


if __name__ == "__main__":
    main()
