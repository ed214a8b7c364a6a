"""Running moments against numpy's over all that was shown."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ropewalk.rl.networks.mlp import MLP
from ropewalk.rl.networks.normalisation import Normalised, RunningMoments, observe
from tests.rl.networks.specs import IMAGE, NAMED, VECTOR, random_observation


def test_moments_are_those_of_all_values_however_they_are_divided() -> None:
    rng = np.random.default_rng(1)
    values = rng.normal([3.0, -1e6, 0.0], [0.1, 1.0, 0.0], (1000, 3))  # a mean far larger than the deviation
    moments = RunningMoments((3,))
    for part in np.split(values, [1, 2, 500, 500, 999]):
        moments.update(torch.from_numpy(part))
    np.testing.assert_allclose(moments.mean.numpy(), values.mean(0), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(moments.variance.numpy(), values.var(0), rtol=1e-9, atol=1e-12)
    assert float(moments.count) == 1000


def test_values_become_deviations_from_the_mean_and_are_clipped() -> None:
    moments = RunningMoments((1,), clip=2.0)
    values = torch.tensor([[1.0], [3.0], [100.0]])
    assert moments(values).tolist() == [[1], [2], [2]]  # before anything was shown they stay, but for the clip
    moments.update(torch.tensor([[1.0], [5.0]]))  # mean 3, deviation 2
    torch.testing.assert_close(moments(values), torch.tensor([[-1.0], [0.0], [2.0]]))
    assert moments(values).dtype == torch.float32


def test_values_under_the_mask_do_not_count() -> None:
    values = torch.tensor([[[1.0], [torch.nan]], [[5.0], [3.0]]])
    moments = RunningMoments((1,))
    moments.update(values, torch.tensor([[True, False], [True, True]]))
    assert moments.mean.tolist() == [3]
    moments.update(values, torch.zeros(2, 2, dtype=torch.bool))
    assert float(moments.count) == 3


def test_statistics_travel_with_the_weights() -> None:
    one, other = Normalised(MLP((8,)))(VECTOR), Normalised(MLP((8,)))(VECTOR)
    observation = random_observation(VECTOR, 50)
    observe(torch.nn.Sequential(one), observation)
    other.load_state_dict(one.state_dict())
    assert torch.equal(one(observation), other(observation))
    assert not [name for name, _ in one.named_parameters() if "moments" in name]  # no optimizer changes them


def test_only_entries_of_floating_point_numbers_are_normalised() -> None:
    torso = Normalised(MLP(()))(NAMED)
    observation = random_observation(NAMED, 50)
    assert isinstance(observation, dict)
    torso.observe(observation)
    before, after = MLP(())(NAMED)(observation), torso(observation)
    assert torch.equal(before[:, 3:], after[:, 3:])
    torch.testing.assert_close(after[:, :3].mean(0), torch.zeros(3), rtol=0, atol=1e-5)
    torch.testing.assert_close(after[:, :3].std(0, correction=0), torch.ones(3), rtol=0, atol=1e-4)


def test_normalising_bytes_is_refused() -> None:
    with pytest.raises(ValueError, match=r"only observations of floating-point numbers.*uint8"):
        Normalised(MLP())(IMAGE)
