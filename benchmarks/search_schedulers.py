"""Counts how many epochs each scheduler takes to find what random search finds, on 64 recorded learning curves.

    python benchmarks/search_schedulers.py                    the table, 20 seeds, in about ten seconds
    python benchmarks/search_schedulers.py --seeds 5 --random 16
    python benchmarks/search_schedulers.py --picture          which of 18 trials trains for how many of 27 epochs

Random search trains `--random` configurations for 81 epochs; how many epochs do others take until one of their trials
has the best accuracy that it has found? Each seed draws configurations, with replacement, and the order in which 4
places report; all schedulers get the same configurations, as many as they ask for. No process is started: an epoch is
an epoch, whichever network trains. The curves are those of `tests/search/record_curves.py`.
"""

from __future__ import annotations

import argparse
import random
import statistics
from collections.abc import Callable

from tests.search.curves import NUM_CONFIGURATIONS, NUM_EPOCHS, curves

from ropewalk.search.schedulers import (
    ASHA,
    AdaptiveASHA,
    Hyperband,
    MedianStopping,
    NoScheduler,
    Scheduler,
    StoppingASHA,
)
from ropewalk.testing.simulated_search import SimulatedSearch
from ropewalk.text_table import text_table

SCHEDULERS: dict[str, Callable[[], Scheduler]] = {
    "NoScheduler()": NoScheduler,
    "MedianStopping(grace=5)": lambda: MedianStopping(grace=5),
    "StoppingASHA(R=81, eta=3)": lambda: StoppingASHA(R=81, eta=3),
    "ASHA(R=81, eta=3)": lambda: ASHA(R=81, eta=3),
    "AdaptiveASHA(R=81, eta=3)": lambda: AdaptiveASHA(R=81, eta=3),
    "AdaptiveASHA(R=81, eta=3, mode='aggressive')": lambda: AdaptiveASHA(R=81, eta=3, mode="aggressive"),
    "AdaptiveASHA(R=81, eta=3, mode='conservative')": lambda: AdaptiveASHA(R=81, eta=3, mode="conservative"),
    "Hyperband(R=81, eta=3)": lambda: Hyperband(R=81, eta=3, iterations=None),
}
MOST_TRIALS = 2000


class Search:
    """A search by a scheduler until an accuracy is found.

    Attributes:
        num_epochs: the number of epochs that all trials have trained until then.
        num_trials: the number of trials that were started.
        has_found: whether one of them has reached the accuracy.
    """

    def __init__(self, scheduler: Scheduler, configurations: list[int], accuracy: float, seed: int) -> None:
        self._configurations, self._accuracy = configurations, accuracy
        self.has_found = False
        search = SimulatedSearch(
            scheduler,
            self._report,
            steps=range(1, NUM_EPOCHS + 1),
            num_trials=len(configurations),
            rng=random.Random(seed),
        )
        while not self.has_found and not search.is_over:
            search.advance()
        self.num_epochs, self.num_trials = search.num_taken, len(search.trials)

    def _report(self, trial: int, step: float) -> float:
        score = curves()[self._configurations[trial]][int(step) - 1]
        self.has_found |= score >= self._accuracy
        return score


def rows(num_seeds: int, num_random: int) -> list[list[str]]:
    """A row for each scheduler."""
    searches: dict[str, list[Search]] = {name: [] for name in SCHEDULERS}
    for seed in range(num_seeds):
        configurations = random.Random(seed).choices(range(NUM_CONFIGURATIONS), k=MOST_TRIALS)
        best = max(max(curves()[number]) for number in configurations[:num_random])
        for name, make in SCHEDULERS.items():
            searches[name].append(Search(make(), configurations, best, seed))
    return [row(name, found, num_random * NUM_EPOCHS) for name, found in searches.items()]


def row(name: str, searches: list[Search], num_all: int) -> list[str]:
    """How a scheduler did, over all seeds."""
    epochs = [search.num_epochs for search in searches]
    return [
        name,
        f"{statistics.mean(epochs):.0f}",
        f"{statistics.mean(epochs) / num_all:.2f}",
        f"{max(epochs) / num_all:.2f}",
        f"{statistics.mean(search.num_trials for search in searches):.0f}",
        f"{sum(search.has_found for search in searches)} of {len(searches)}",
    ]


def picture(num_trials: int = 18, num_epochs: int = 27) -> list[str]:
    """A line for each trial, with a block for each epoch that it trains, for three schedulers side by side."""
    shown: dict[str, Scheduler] = {
        "ASHA(R=27, eta=3)": ASHA(R=27, eta=3),
        "Hyperband(R=27, eta=3)": Hyperband(R=27, eta=3),
        "MedianStopping(grace=3)": MedianStopping(grace=3),
    }
    columns: list[list[str]] = []
    for name, scheduler in shown.items():
        search = SimulatedSearch(
            scheduler,
            lambda trial, step: curves()[trial][int(step) - 1],
            steps=range(1, num_epochs + 1),
            num_trials=num_trials,
        )
        search.run()
        bars = ["█" * int(trial.step) + "·" * (num_epochs - int(trial.step)) for trial in search.trials]
        columns.append([name.ljust(num_epochs), *bars, f"{search.num_taken} epochs".ljust(num_epochs)])
    return ["   ".join(cells).rstrip() for cells in zip(*columns, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20, metavar="N", help="number of orders; default: 20")
    parser.add_argument("--random", type=int, default=32, metavar="N", help="trials of random search; default: 32")
    parser.add_argument("--picture", action="store_true", help="draw which trial trains for how long")
    options = parser.parse_args()
    if options.picture:
        print(*picture(), sep="\n")
        return
    head = ["scheduler", "epochs", "share", "worst share", "trials", "found"]
    print(f"epochs until the best accuracy of random search is found; shares are of its {options.random * NUM_EPOCHS}")
    print(*text_table([head, *rows(options.seeds, options.random)], right=range(1, 6)), sep="\n")


if __name__ == "__main__":
    main()
