"""Sobol sequences: the suite of samplers, and how evenly they cover a space."""

from __future__ import annotations

from collections import Counter

from ropewalk.population.hyperparameters import Uniform
from ropewalk.search.samplers import SAMPLERS
from ropewalk.search.samplers.sampler import Sampler
from ropewalk.search.space import SearchSpace
from ropewalk.testing.sampler_conformance import SamplerConformance
from tests.search.samplers.asking import asked


class TestSobol(SamplerConformance):
    trials = 80

    def make_sampler(self) -> Sampler:
        return SAMPLERS.make("sobol", {})


def test_a_sobol_sequence_covers_each_quarter_of_the_plane_equally() -> None:
    """In its first 64 points each square of 8 x 8 has one point: it is a (t, 6, 2)-net with t = 0."""
    found = asked("sobol", SearchSpace({"x": Uniform(0.0, 8.0), "y": Uniform(0.0, 8.0)}), 64)
    assert set(Counter((int(each["x"]), int(each["y"])) for each in found).values()) == {1}
