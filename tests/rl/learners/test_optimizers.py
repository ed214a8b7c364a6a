from __future__ import annotations

import pickle

import pytest
import torch

from ropewalk.rl.learners.optimizers import TorchAdam, TorchRMSProp


@pytest.mark.parametrize("settings", [TorchAdam(1e-3, (0.8, 0.9), 1e-5), TorchRMSProp(1e-3, 0.9, 0.1, 0.5)])
def test_settings_are_compared_printed_pickled_and_hashed(settings: TorchAdam | TorchRMSProp) -> None:
    assert pickle.loads(pickle.dumps(settings)) == settings == eval(repr(settings))
    assert hash(settings) == hash(eval(repr(settings)))
    assert type(settings)(2e-3) != settings


def test_the_optimizers_of_torch_get_the_settings() -> None:
    parameter = torch.nn.Parameter(torch.ones(2))
    (adam,) = TorchAdam(1e-3, (0.8, 0.9), 1e-5)([parameter]).param_groups
    assert (adam["lr"], adam["betas"], adam["eps"]) == (1e-3, (0.8, 0.9), 1e-5)
    (rmsprop,) = TorchRMSProp(1e-3, 0.9, 0.1, 0.5)([parameter]).param_groups
    assert (rmsprop["lr"], rmsprop["alpha"], rmsprop["eps"], rmsprop["momentum"]) == (1e-3, 0.9, 0.1, 0.5)
