"""Convex problems spread over workers: rounds and bytes to an objective error, for GD-SEC and its presets.

    python benchmarks/federated.py                                  all problems and schemes, some minutes
    python benchmarks/federated.py --problems breast_cancer --schemes gd_sec cgd
    python benchmarks/federated.py --json FILE --markdown FILE

Sum form, float64, step 1 / L from zero, optimum by Newton's method; the same c and beta for every problem. Bytes are
those of the messages as they are packed for the wire, against 8 for each weight, worker and round of gradient descent.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
from pool_rows import Line
from sklearn import datasets
from table import machine, markdown, show
from torch import Tensor

from ropewalk.exchange.compressors.gd_sec import GDSEC
from ropewalk.exchange.federated.problems import (
    LinearRegression,
    LogisticRegression,
    Problem,
    SoftmaxRegression,
    shard,
)
from ropewalk.exchange.federated.simulation import Federation
from ropewalk.exchange.presets import cgd, componentwise_lag, gradient_descent, no_error_correction, qgd, top_j

RIDGE = 0.01
TARGET = 1e-5

SCHEMES: dict[str, Callable[[], GDSEC]] = {
    "gradient_descent": gradient_descent,
    "gd_sec": lambda: GDSEC(c=100, beta=0.01),
    "gd_sec, 7 levels": lambda: GDSEC(c=100, beta=0.01, values="levels(7)"),
    "no_error_correction": lambda: no_error_correction(c=100, beta=0.01),
    "componentwise_lag": componentwise_lag,
    "cgd": cgd,
    "top_j, 1 %": lambda: top_j(0.01),
    "top_j, 10 %": lambda: top_j(0.1),
    "qgd, 7 levels": lambda: qgd(7),
}
#: Held to 1.1 x the rounds and 5 % of the bytes, on these; the others inform.
JUDGED = "gd_sec"
REACHED = ("digits, even or odd", "digits, ten classes", "breast_cancer")


def loaded(name: str, *, scaled: bool = True) -> tuple[Tensor, Tensor]:
    """Rows with a column of ones, and targets; of variance 1 where `scaled`."""
    features, targets = getattr(datasets, f"load_{name}")(return_X_y=True)
    rows = torch.tensor(features, dtype=torch.float64)
    rows = (rows - rows.mean(0)) / rows.std(0, correction=0) if scaled else rows / rows.max()
    return torch.cat([rows, torch.ones(len(rows), 1, dtype=torch.float64)], 1), torch.tensor(targets)


def digits_parity(unlike: float = 0.0) -> Problem:
    rows, labels = loaded("digits", scaled=False)
    return LogisticRegression(shard(rows, (1 - 2 * (labels % 2)).double(), 10, unlike=unlike), RIDGE)


def digits_softmax(num_workers: int = 10, unlike: float = 0.0) -> Problem:
    return SoftmaxRegression(shard(*loaded("digits", scaled=False), num_workers, unlike=unlike), RIDGE, 10)


def breast_cancer() -> Problem:
    rows, labels = loaded("breast_cancer")
    return LogisticRegression(shard(rows, labels.double() * 2 - 1, 5), RIDGE)


def diabetes() -> Problem:
    rows, targets = loaded("diabetes")
    return LinearRegression(shard(rows, (targets - targets.mean()) / targets.std(), 5), RIDGE)


PROBLEMS: dict[str, Callable[[], Problem]] = {
    "digits, even or odd": digits_parity,
    "digits, ten classes": digits_softmax,
    "digits, ten classes, each worker another digit": lambda: digits_softmax(unlike=1.0),
    "100 workers with 18 digits each": lambda: digits_softmax(100),
    "breast_cancer": breast_cancer,
    "diabetes": diabetes,
}


@dataclass(frozen=True)
class Solved:
    """One run."""

    problem: str
    scheme: str
    rounds: int
    reached: bool
    objective_error: float
    #: Against gradient descent's until it is there.
    share_up: float
    share_down: float
    seconds: float


def solve(problem: str, schemes: dict[str, Callable[[], GDSEC]]) -> Iterator[Solved]:
    made = PROBLEMS[problem]()
    descent_rounds = Federation(made, gradient_descent()).run(10_000, TARGET).num_rounds
    for name, scheme in schemes.items():
        began = time.perf_counter()
        run = Federation(made, scheme()).run(round(1.5 * descent_rounds), TARGET)
        down = descent_rounds * made.num_weights * 8
        yield Solved(
            problem,
            name,
            run.num_rounds,
            run.reached,
            run.objective_error,
            run.uplink_bytes / (down * made.num_workers),
            run.downlink_bytes / down,
            time.perf_counter() - began,
        )


def judged(solved: list[Solved]) -> Iterator[Line]:
    for one in solved:
        descent = next(each for each in solved if (each.problem, each.scheme) == (one.problem, "gradient_descent"))
        ratio = one.rounds / descent.rounds
        is_judged = one.scheme == JUDGED and one.problem in REACHED
        ending = f"{one.rounds} rounds ({ratio:.3f} x)" if one.reached else f"stands at {one.objective_error:.1e}"
        yield Line(
            f"{one.problem}: {one.scheme}",
            "<= 1.1 x the rounds, <= 5 % of the bytes" if is_judged else "",
            f"{ending}, {one.share_up:.2%} up, {one.share_down:.2%} down",
            one.reached and ratio <= 1.1 and one.share_up <= 0.05 if is_judged else None,
        )


def main() -> int:
    parser = argparse.ArgumentParser(description="Rounds and bytes of convex problems, by scheme.")
    parser.add_argument("--problems", nargs="+", metavar="WORD", default=[""], help="names with one of these in them")
    parser.add_argument("--schemes", nargs="+", metavar="WORD", default=[""], help="names with one of these in them")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write all numbers as JSON")
    parser.add_argument("--markdown", type=pathlib.Path, metavar="FILE", help="write the table for gd_sec.md")
    options = parser.parse_args()
    torch.set_num_threads(1)
    schemes = {
        name: scheme
        for name, scheme in SCHEMES.items()
        if name == "gradient_descent" or any(word in name for word in options.schemes)
    }
    solved: list[Solved] = []
    print(machine(), flush=True)
    for problem in PROBLEMS:
        if any(word in problem for word in options.problems):
            for one in solve(problem, schemes):
                solved.append(one)
                print(one, file=sys.stderr, flush=True)
    lines = list(judged(solved))
    show(lines, ())
    if options.json:
        content: dict[str, Any] = {"machine": machine(), "solved": [asdict(one) for one in solved]}
        options.json.write_text(json.dumps(content, indent=1) + "\n")
    if options.markdown:
        options.markdown.write_text(f"{machine()}\n\n{markdown(lines, ())}")
    return int(any(line.holds is False for line in lines))


if __name__ == "__main__":
    sys.exit(main())
