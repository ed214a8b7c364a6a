from __future__ import annotations

import pickle
import subprocess
import sys

import pytest
import torch

from ropewalk.rl.learners.optimizers import OptimizerFactory, TorchAdam, TorchRMSProp


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


@pytest.mark.parametrize(
    ("settings", "plain"),
    [
        (TorchAdam(1e-2, (0.8, 0.9), 1e-5), lambda p: torch.optim.Adam(p, 1e-2, (0.8, 0.9), 1e-5, fused=True)),
        (TorchRMSProp(1e-2, 0.9, 0.1, 0.5), lambda p: torch.optim.RMSprop(p, 1e-2, 0.9, 0.1, momentum=0.5)),
    ],
)
def test_steps_and_states_are_those_of_torch_bit_for_bit(settings: OptimizerFactory, plain: OptimizerFactory) -> None:
    parameters = [torch.nn.Parameter(torch.linspace(-1, 1, 6)) for _ in range(2)]
    optimizers = [settings(parameters[:1]), plain(parameters[1:])]

    def steps(num: int) -> None:
        for _ in range(num):
            for parameter, optimizer in zip(parameters, optimizers, strict=True):
                optimizer.zero_grad()
                (parameter.sin() * parameter).sum().backward()
                optimizer.step()
        assert torch.equal(*parameters)

    steps(3)
    states = [optimizer.state_dict() for optimizer in optimizers]
    assert str(states[0]) == str(states[1])
    for optimizer, state in zip(optimizers, reversed(states), strict=True):  # each goes on from the other's state
        optimizer.load_state_dict(pickle.loads(pickle.dumps(state)))
    steps(2)


def test_training_imports_neither_the_compiler_of_torch_nor_what_traces_models() -> None:
    script = (
        "import sys; from ropewalk import rl;"
        "impala, a2c = rl.IMPALA(unroll=4, envs=2, batch_size=1), rl.A2C(unroll=4, envs=2);"
        "[rl.Experiment(each, rl.Gymnasium('CartPole-v1'), rl.MLP((4,)), steps=50).run(log='silent')"
        " for each in (impala, a2c)];"
        "assert not {'sympy', 'torch._dynamo'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
