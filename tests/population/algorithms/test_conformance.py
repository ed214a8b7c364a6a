"""Every algorithm that is listed goes through the conformance suite."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ropewalk.population import (
    CMAES,
    PBT,
    POET,
    SNES,
    Algorithm,
    Genetic,
    GridArchive,
    MAPElites,
    NoiseTable,
    NoveltyES,
    OpenAIES,
    PBTReplay,
    evaluate,
)
from ropewalk.population.algorithms import ALGORITHMS
from ropewalk.population.open_ended.niche import ESConfig
from ropewalk.population.open_ended.reproduction import Reproduction
from ropewalk.testing.algorithm_conformance import AlgorithmConformance
from tests.population.algorithms import surrogate
from tests.population.open_ended.islands import Islands
from tests.population.open_ended.islands import fitness as climb

NOISE = NoiseTable(2**14)
START = np.zeros(4)


class TestOpenAIES(AlgorithmConformance):
    def make_algorithm(self) -> Algorithm[Any]:
        return OpenAIES(START, population=8, sigma=0.1, observation_shape=(2,), noise=NOISE, seed=1)


class TestSNES(AlgorithmConformance):
    def make_algorithm(self) -> Algorithm[Any]:
        return SNES(START, population=8, noise=NOISE, seed=1)


class TestCMAES(AlgorithmConformance):
    def make_algorithm(self) -> Algorithm[Any]:
        return CMAES(START, population=8, seed=1)


class TestGenetic(AlgorithmConformance):
    def make_algorithm(self) -> Algorithm[Any]:
        return Genetic(START, population=12, parents=3, sigma=0.1, validated=2, episodes=2, noise=NOISE, seed=1)


class TestNoveltyES(AlgorithmConformance):
    def make_algorithm(self) -> Algorithm[Any]:
        return NoveltyES(START, population=8, members=2, sigma=0.1, k=2, noise=NOISE, seed=1)


class TestMAPElites(AlgorithmConformance):
    def make_algorithm(self) -> Algorithm[Any]:
        return MAPElites(4, GridArchive((5, 5), [(-2.0, 2.0), (-2.0, 2.0)]), population=8, seed=1)


class TestPOET(AlgorithmConformance):
    def make_algorithm(self) -> Algorithm[Any]:
        learning = ESConfig(pairs=4, sigma=0.3, learning_rate=0.1)
        reproduction = Reproduction(every=2, children=4, capacity=4)
        return POET(2, Islands(), learning=learning, reproduction=reproduction, transfer_every=2, noise=NOISE, seed=1)

    def fitness(self, *arguments: Any) -> float:
        return climb(arguments[0], arguments[1])


class TestPBT(AlgorithmConformance):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.folders = (tmp_path / str(number) for number in itertools.count())

    def make_algorithm(self) -> Algorithm[Any]:
        self.folder = next(self.folders)
        return PBT(surrogate.SPACE, population=4, interval=2, folder=self.folder, seed=1)

    def make_again(self, algorithm: Algorithm[Any]) -> Algorithm[Any]:
        left = self.folder
        again = self.make_algorithm()
        shutil.copytree(left, self.folder, dirs_exist_ok=True)  # a folder belongs to one run
        return again

    def fitness(self, *arguments: Any) -> float:
        return surrogate.train(*arguments)

    def state_of(self, algorithm: Any) -> bytes:
        schedules = [algorithm.schedule(member) for member in range(4)]
        return repr(schedules).encode()


class TestPBTReplay(TestPBT):
    generations = 4

    def make_algorithm(self) -> Algorithm[Any]:
        learner: Any = super().make_algorithm()
        found = evaluate(learner, surrogate.train, generations=4)
        self.folder = next(self.folders)
        return PBTReplay(found.algorithm.schedule(), folder=self.folder)

    def state_of(self, algorithm: Any) -> bytes:
        member = algorithm.incumbent()
        return repr((algorithm.generation, member and member.state)).encode()


def test_every_algorithm_is_in_here() -> None:
    suites = {name.removeprefix("Test") for name, value in globals().items() if name.startswith("Test") and value}
    assert suites == {place.partition(":")[2] for place in ALGORITHMS.values()}
