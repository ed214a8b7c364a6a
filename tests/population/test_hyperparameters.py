"""Distributions of hyperparameters: what is drawn and perturbed stays inside, and can be saved."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ropewalk.population.hyperparameters import (
    Choice,
    Distribution,
    Integers,
    LogUniform,
    Uniform,
    draw_all,
    perturb_or_resample,
    plain,
)

SPACE: dict[str, Any] = {
    "rate": LogUniform(1e-4, 1e-1),
    "dropout": Uniform(0.0, 0.5),
    "layers": Integers(1, 5),
    "activation": Choice(["relu", "tanh", "gelu"]),
    "batch": 32,
}


def is_inside(values: dict[str, Any]) -> bool:
    return (
        1e-4 <= values["rate"] <= 1e-1
        and 0.0 <= values["dropout"] <= 0.5
        and 1 <= values["layers"] <= 5
        and values["activation"] in ("relu", "tanh", "gelu")
        and values["batch"] == 32
    )


@given(seed=st.integers(0, 2**32), factor=st.sampled_from([0.5, 0.8, 1.2, 3.0]))
@settings(max_examples=30, deadline=None)
def test_what_is_drawn_and_perturbed_stays_inside(seed: int, factor: float) -> None:
    rng = np.random.default_rng(seed)
    values = draw_all(SPACE, rng)
    assert is_inside(values)
    for _ in range(4):
        values = perturb_or_resample(SPACE, values, rng, 0.25, (factor, 1 / factor))
        assert is_inside(values)
        assert {type(value) for value in values.values()} <= {int, float, str}


def test_the_same_random_numbers_draw_the_same() -> None:
    first, second = (draw_all(SPACE, np.random.default_rng(3)) for _ in range(2))
    assert first == second != draw_all(SPACE, np.random.default_rng(4))


def test_logarithms_are_drawn_evenly() -> None:
    rng = np.random.default_rng(0)
    drawn = [LogUniform(1e-4, 1.0).draw(rng) for _ in range(4000)]
    assert np.mean(np.array(drawn) < 1e-2) == pytest.approx(0.5, abs=0.03)


def test_whole_numbers_move_however_small_they_are() -> None:
    assert [Integers(1, 9).perturb(value, 1.2) for value in (1, 2, 8, 9)] == [2, 3, 9, 9]
    assert [Integers(1, 9).perturb(value, 0.8) for value in (1, 2, 8, 9)] == [1, 1, 6, 7]


def test_a_choice_moves_to_what_stands_beside_it() -> None:
    choice = Choice([8, 16, 32])
    assert [choice.perturb(value, 1.2) for value in (8, 16, 32)] == [16, 32, 32]
    assert [choice.perturb(value, 0.8) for value in (8, 16, 32)] == [8, 8, 16]


@pytest.mark.parametrize("each", [Uniform(-8.0, 8.0), Uniform(-8.0, 8.0, step=1.0), Integers(-8, 8)])
def test_a_factor_above_one_leads_upwards_below_zero_too(each: Uniform | Integers) -> None:
    assert [each.perturb(value, 2.0) for value in (-4, 3)] == [-2, 6]
    assert [each.perturb(value, 0.5) for value in (-4, 4)] == [-8, 2]


def test_all_are_drawn_anew_or_all_are_perturbed_at_the_ends_of_the_probability() -> None:
    values = {"rate": 1e-2, "dropout": 0.1, "layers": 2, "activation": "tanh", "batch": 32}
    perturbed = perturb_or_resample(SPACE, values, np.random.default_rng(0), 0.0, (1.2,))
    assert perturbed == {"rate": 1.2e-2, "dropout": 0.12, "layers": 3, "activation": "gelu", "batch": 32}
    rates = {perturb_or_resample(SPACE, values, np.random.default_rng(n), 1.0, (1.2,))["rate"] for n in range(20)}
    assert len(rates) == 20


def test_numbers_of_numpy_become_plain_and_objects_are_refused() -> None:
    assert type(plain(np.float32(0.5), "x")) is float
    assert type(plain(np.int64(5), "x")) is int
    with pytest.raises(TypeError, match=r"optimizer is .* of type object; hyperparameters are numbers"):
        draw_all({"optimizer": object()}, np.random.default_rng(0))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Uniform(2, 1), "low=2 and high=1"),
        (lambda: LogUniform(0, 1), "low of LogUniform must be above 0, not 0"),
        (lambda: Integers(5, 3), "low=5 and high=3"),
        (lambda: Choice([]), "at least one value"),
        (lambda: Choice([object()]), "a value of Choice is"),
    ],
)
def test_bounds_that_cannot_be_are_refused_with_their_values(make: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        make()


def test_anything_with_draw_and_perturb_is_a_distribution() -> None:
    class Coin:
        def draw(self, rng: np.random.Generator) -> bool:
            return bool(rng.random() < 0.5)

        def perturb(self, value: bool, factor: float) -> bool:
            return not value

    assert isinstance(Coin(), Distribution)
    assert perturb_or_resample({"coin": Coin()}, {"coin": True}, np.random.default_rng(0), 0.0, (2,)) == {"coin": False}


def test_steps_are_decimal_numbers_between_the_bounds() -> None:
    stepped = Uniform(0.0, 0.55, 0.1)
    assert stepped.size == 6 and [stepped.at(index / 6) for index in range(7)] == [0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.5]
    rng = np.random.default_rng(0)
    assert {stepped.draw(rng) for _ in range(200)} == {0, 0.1, 0.2, 0.3, 0.4, 0.5}
    assert [stepped.perturb(value, 1.2) for value in (0.0, 0.3, 0.5)] == [0.1, 0.4, 0.5]
    assert [stepped.perturb(value, 0.8) for value in (0.0, 0.3, 0.5)] == [0.0, 0.2, 0.4]
    assert [stepped.nearest(value) for value in (-1, 0.26, 2)] == [0.0, 0.3, 0.5]
    every_third = Integers(1, 9, 3)
    assert every_third.size == 3 and {every_third.draw(rng) for _ in range(50)} == {1, 4, 7}
    assert [every_third.perturb(value, 1.2) for value in (1, 4, 7)] == [4, 7, 7]
    assert [every_third.perturb(value, 0.8) for value in (1, 4, 7)] == [1, 1, 4]


def test_shares_of_a_distribution_are_its_values() -> None:
    assert [LogUniform(1e-4, 1.0).at(share) for share in (0, 0.5, 1)] == [1e-4, 1e-2, 1.0]
    assert [Uniform(-1, 3).at(share) for share in (0, 0.5, 1)] == [-1, 1, 3]
    assert [Integers(1, 4).at(share) for share in (0, 0.26, 0.5, 1)] == [1, 2, 3, 4]
    assert [Integers(1, 1000, log=True).at(share) for share in (0, 0.1, 0.5, 1)] == [1, 1, 22, 1000]
    assert [Choice(["a", "b"]).at(share) for share in (0, 0.5, 1)] == ["a", "b", "b"]


@pytest.mark.parametrize(
    "each", [Uniform(0, 1), Uniform(0, 1, 0.2), LogUniform(1, 9), Integers(1, 9, 2), Choice([1, 2])]
)
def test_what_is_drawn_is_one_of_the_values(each: Any) -> None:
    rng = np.random.default_rng(1)
    drawn = {each.draw(rng) for _ in range(100)}
    assert len(drawn) == (100 if each.size is None else each.size)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Uniform(0, 1, 0), "step of Uniform must be above 0 and finite, not 0"),
        (lambda: Integers(1, 3, 0), "step of Integers must be at least 1, not 0"),
        (lambda: Integers(0, 3, log=True), "low of at least 1 and step=1, not low=0 and step=1"),
        (lambda: Integers(1, 3, 2, log=True), "not low=1 and step=2"),
        (lambda: Integers(1, 2.5), "are integers, not 2.5"),  # pyright: ignore[reportArgumentType]
    ],
)
def test_steps_that_cannot_be_are_refused_with_their_values(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
