from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from ropewalk.page.pictures.losses import losses, smoothed
from ropewalk.page.style import Style


def points(series: Mapping[str, Any]) -> list[Any]:
    """Its points, of which those between gaps are drawn as marks."""
    return [point["value"] if isinstance(point, dict) else point for point in series["data"]]


def test_each_loss_is_a_point_and_the_mean_follows() -> None:
    data = {"step": [3, 4, 5], "loss": [2.0, None, 1.0], "gradient_norm": [None, None, None]}
    raw, mean = losses(data, Style())["series"]
    assert points(raw) == points(mean) == [[3, 2.0], [4, None], [5, 1.0]]


def test_norms_of_gradients_have_an_axis_of_their_own() -> None:
    option = losses({"step": [0, 1], "loss": [2.0, 1.0], "gradient_norm": [None, 5.0]}, Style())
    assert points(option["series"][2]) == [[0, None], [1, 5.0]] and len(option["yAxis"]) == 2
    assert losses({"step": [], "loss": [], "gradient_norm": []}, Style()) == {}


def test_a_loss_that_falls_is_near_its_mean_whether_there_are_few_steps_or_many() -> None:
    for num in (2, 40, 400):
        losses = [1.0 - step / num for step in range(num)]
        assert smoothed(losses)[-1] == pytest.approx(losses[-1], abs=0.05)
    noisy = [float(step % 2) for step in range(400)]
    assert smoothed(noisy)[-1] == pytest.approx(0.5, abs=0.03)


def test_a_constant_stays_what_it_is() -> None:
    assert smoothed([3.0] * 50) == pytest.approx([3.0] * 50)
