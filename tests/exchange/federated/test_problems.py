from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ropewalk.exchange.federated.problems import (
    LinearRegression,
    LogisticRegression,
    Problem,
    SoftmaxRegression,
    shard,
)

MADE = torch.Generator().manual_seed(1)
FEATURES = torch.randn(23, 4, generator=MADE, dtype=torch.float64)
CLASSES = torch.randint(3, (23,), generator=MADE)


def problems() -> list[Problem]:
    """With 5 workers, of which some have 5 rows and some 4."""
    return [
        LinearRegression(shard(FEATURES, FEATURES @ torch.ones(4, dtype=torch.float64) + CLASSES, 5), 0.1),
        LogisticRegression(shard(FEATURES, (CLASSES > 0).double() * 2 - 1, 5, unlike=0.5), 0.1),
        SoftmaxRegression(shard(FEATURES, CLASSES, 5, unlike=1.0), 0.1, 3),
    ]


@pytest.mark.parametrize("problem", problems(), ids=lambda problem: type(problem).__name__)
def test_gradients_and_hessian_are_derivatives_of_the_value(problem: Problem) -> None:
    theta = torch.randn(problem.num_weights, generator=MADE, dtype=torch.float64)

    def value(at: Tensor) -> Tensor:
        scores = problem.shards.features @ at.view(problem.num_features, problem.num_outputs)
        losses = (problem.losses(scores, problem.shards.targets) * problem.shards.weights).sum()
        return losses + problem.ridge / 2 * at @ at

    assert float(value(theta)) == pytest.approx(problem.value(theta), rel=1e-14)
    gradient = torch.autograd.functional.jacobian(value, theta)  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
    hessian = torch.autograd.functional.hessian(value, theta)  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
    assert torch.allclose(problem.gradients(theta).sum(0), gradient, atol=1e-13)  # pyright: ignore[reportArgumentType, reportUnknownArgumentType]
    assert torch.allclose(problem.hessian(theta), hessian, atol=1e-13)  # pyright: ignore[reportArgumentType, reportUnknownArgumentType]
    assert float(torch.linalg.eigvalsh(hessian)[-1]) <= problem.smoothness * (1 + 1e-12)  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]


@pytest.mark.parametrize("problem", problems(), ids=lambda problem: type(problem).__name__)
def test_newton_finds_the_optimum(problem: Problem) -> None:
    assert float(problem.gradients(problem.optimum).sum(0).abs().max()) < 1e-12


def test_every_row_is_with_one_worker() -> None:
    for unlike in (0.0, 0.3, 1.0):
        shards = shard(FEATURES, CLASSES, 5, unlike=unlike)
        assert sorted(shards.num_rows.tolist()) == [4, 4, 5, 5, 5]
        rows = shards.features[shards.weights > 0]
        assert sorted(rows[:, 0].tolist()) == sorted(FEATURES[:, 0].tolist())
    kinds = [set(row[there].tolist()) for row, there in zip(shards.targets, shards.weights > 0, strict=True)]
    assert sum(map(len, kinds)) <= 3 + 5 - 1, "sorted by target, workers share at most the classes at their borders"
    with pytest.raises(ValueError, match="23 rows cannot be spread over 24 workers"):
        shard(FEATURES, CLASSES, 24)
    with pytest.raises(ValueError, match=r"not by 1\.5"):
        shard(FEATURES, CLASSES, 5, unlike=1.5)


def test_gradients_of_drawn_rows_are_right_on_average() -> None:
    problem = problems()[2]
    theta = torch.randn(problem.num_weights, generator=MADE, dtype=torch.float64)
    drawn = torch.stack([problem.gradients(theta, batch=2, made=MADE) for _ in range(4000)])
    spread = drawn.std(0) / 4000**0.5
    assert ((drawn.mean(0) - problem.gradients(theta)).abs() <= 5 * spread + 1e-12).all()


def test_gradients_of_some_workers_are_those_of_all() -> None:
    theta = torch.randn(problems()[1].num_weights, generator=MADE, dtype=torch.float64)
    some = torch.tensor([3, 1])
    assert torch.equal(problems()[1].gradients(theta, some), problems()[1].gradients(theta)[some])
