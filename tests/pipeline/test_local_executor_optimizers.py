"""Optimizers of stages: groups by the names of parameters, and those that cannot be cut into stages."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, LinearLR, SequentialLR

from ropewalk.pipeline.local_executor import LocalExecutor
from ropewalk.pipeline.stages.optimizer_maker import OptimizerMaker, RateSchedule
from ropewalk.pipeline.tracing.tracer import trace
from ropewalk.training.trainer import Trainer
from tests.pipeline.played_plans import even_cut, plan_of
from tests.pipeline.reference_process import MicroBatched, trained_state

pytestmark = pytest.mark.usefixtures("one_thread")

Named = list[tuple[str, nn.Parameter]]


def model_of() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.LayerNorm(6), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3))


def player_of(model: nn.Module, optimizer: Any, num_stages: int = 2, **options: Any) -> LocalExecutor:
    graph = trace(model, (torch.randn(4, 6),))
    plan = plan_of(graph, even_cut(graph, num_stages), micro_batches=2)
    return LocalExecutor(graph, functional.cross_entropy, optimizer, plan, **options)


def batch() -> tuple[Tensor, Tensor]:
    return torch.randn(8, 6), torch.randint(3, (8,))


def decayed(named_parameters: Named) -> torch.optim.Optimizer:
    """Weights of layers decay; biases, norms and the last layer's learning rate are other."""
    decay = [p for name, p in named_parameters if name.endswith("weight") and p.dim() > 1 and name != "5.weight"]
    plain = [p for _, p in named_parameters if p.dim() == 1]
    head = [p for name, p in named_parameters if name == "5.weight"]
    groups: list[dict[str, Any]] = [
        {"params": decay, "weight_decay": 0.3},
        {"params": plain, "weight_decay": 0.0},
        {"params": head, "lr": 1e-1},
    ]
    return torch.optim.AdamW(groups, lr=1e-2)


def named(named_parameters: Named) -> torch.optim.Optimizer:
    return torch.optim.AdamW(named_parameters, lr=1e-2)


@pytest.mark.parametrize("optimizer", [decayed, named])
def test_groups_by_name_equal_those_of_one_process(optimizer: Callable[[Named], torch.optim.Optimizer]) -> None:
    model = model_of()
    executor = player_of(model, optimizer, 3)
    of_reference = copy.deepcopy(model)
    reference = MicroBatched(
        of_reference,
        functional.cross_entropy,
        lambda _: optimizer(list(of_reference.named_parameters())),
        2,
    )
    for _ in range(3):
        x, y = batch()
        executor.step(x, y)
        reference.step(x, y)
    found, wanted = executor.state_dict(), trained_state(reference)
    for name, tensor in wanted["parameters"].items():
        assert torch.equal(found["parameters"][name], tensor), name
    assert all("param_names" not in options for options in found["options"].values())


def test_groups_go_on_under_another_cut_and_when_versions_change_hands() -> None:
    model = model_of()
    first = player_of(model, decayed, 3, schedule="pipedream")
    x, y = batch()
    first.step(x, y)
    state = first.state_dict()
    second = player_of(model, decayed, 1)
    second.load_state_dict(state)
    rates = {name: options["lr"] for name, options in second.state_dict()["options"].items()}
    assert rates["5.weight"] == 1e-1 and {rate for name, rate in rates.items() if name != "5.weight"} == {1e-2}
    third = player_of(model, named, 2, schedule="pipedream")
    third.step(x, y)
    fourth = player_of(model, named, 3)
    fourth.load_state_dict(third.state_dict())
    fourth.step(x, y)


def by_layer(named_parameters: Named) -> torch.optim.Optimizer:
    """Each layer has a group of its own, and learns slower than the next one."""
    layers = sorted({name.partition(".")[0] for name, _ in named_parameters})
    return torch.optim.SGD(
        [
            {"params": [p for name, p in named_parameters if name.startswith(layer)], "lr": 0.01 * 2 ** int(layer)}
            for layer in layers
        ]
    )


@pytest.mark.parametrize(
    "lr_schedule",
    [
        lambda optimizer: LambdaLR(optimizer, lambda update: 1 / (1 + update)),
        lambda optimizer: CosineAnnealingLR(optimizer, 20),
        lambda optimizer: SequentialLR(
            optimizer, [LinearLR(optimizer, 0.1, total_iters=3), CosineAnnealingLR(optimizer, 20)], [3]
        ),
    ],
)
@pytest.mark.parametrize("num_stages", [(3, 1), (1, 3), (3, 2)])
def test_schedules_of_groups_go_on_under_another_cut(lr_schedule: RateSchedule, num_stages: tuple[int, int]) -> None:
    # A LambdaLR took the base rates of the stage that held the first parameter, or raised if that had fewer groups.
    x, y = batch()
    optimizers, (before, after) = OptimizerMaker(by_layer, lr_schedule), num_stages
    first, undisturbed = (player_of(model_of(), optimizers, num) for num in (before, after))
    for executor in (first, undisturbed):
        for _ in range(4):
            executor.step(x, y)
    resumed = player_of(model_of(), optimizers, after)
    resumed.load_state_dict(first.state_dict())
    for _ in range(3):
        resumed.step(x, y)
        undisturbed.step(x, y)
        found, wanted = (one.state_dict()["options"] for one in (resumed, undisturbed))
        assert {name: options["lr"] for name, options in found.items()} == {
            name: options["lr"] for name, options in wanted.items()
        }


def test_an_optimizer_that_leaves_out_a_whole_stage_is_told_what_to_do() -> None:
    # It was torch's "optimizer got an empty parameter list", in the middle of a function that works in one process.
    def of_the_head(named_parameters: Named) -> torch.optim.Optimizer:
        return torch.optim.SGD([p for name, p in named_parameters if name.startswith("5")], 0.1)

    with pytest.raises(ValueError, match=r"leaves out all .* has, 0.weight, 0.bias.*requires_grad_\(False\)"):
        player_of(model_of(), of_the_head)

    def in_a_group(named_parameters: Named) -> torch.optim.Optimizer:
        head = [p for name, p in named_parameters if name.startswith("5")]
        return torch.optim.SGD([{"params": head}], 0.1)

    player = player_of(model_of(), in_a_group)
    before = player.state_dict()["parameters"]
    player.step(*batch())
    after = player.state_dict()["parameters"]
    assert {name for name in before if not torch.equal(before[name], after[name])} == {"5.weight", "5.bias"}


def with_replicas(replicas: tuple[int, ...], lr_schedule: RateSchedule | None = None) -> LocalExecutor:
    graph = trace(model_of(), (torch.randn(4, 6),))
    plan = plan_of(graph, even_cut(graph, len(replicas)), micro_batches=4, replicas=replicas)
    maker = OptimizerMaker(lambda given: torch.optim.SGD(given, 0.1), lr_schedule, lr_scale="pipedream")
    return LocalExecutor(graph, functional.cross_entropy, maker, plan)


def moved(executor: LocalExecutor, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    before = executor.state_dict()["parameters"]
    executor.step(x, y)
    after = executor.state_dict()["parameters"]
    return {name: after[name] - before[name] for name in before}


def test_rates_scaled_by_replicas_are_those_of_the_plan_that_goes_on() -> None:
    # They were saved with the factor of the plan: stages merged into one were refused, since their rates differed, and
    # a stage that had lost its replicas went on with the rate for all of them.
    wide, (x, y) = with_replicas((1, 2)), batch()
    wide.step(x, y)
    state = wide.state_dict()
    assert {options["lr"] for options in state["options"].values()} == {0.1}
    one = with_replicas((1,))
    one.load_state_dict(state)
    plain, doubled = moved(one, x, y), moved(wide, x, y)
    for name, step in plain.items():
        factor = 2.0 if name.startswith(("3", "5")) else 1.0
        assert torch.allclose(doubled[name], factor * step, rtol=1e-3, atol=1e-6), name


def test_a_schedule_that_sets_the_rate_itself_is_scaled_too() -> None:
    # `OneCycleLR` and the like put their own rate in the place of the scaled one.
    cycle = partial(torch.optim.lr_scheduler.OneCycleLR, max_lr=0.2, total_steps=10, cycle_momentum=False)
    x, y = batch()
    plain, doubled = (moved(with_replicas(replicas, cycle), x, y) for replicas in ((1, 1), (1, 2)))
    assert torch.allclose(doubled["5.weight"], 2 * plain["5.weight"], rtol=1e-4)
    assert torch.allclose(doubled["0.weight"], plain["0.weight"], rtol=1e-4)


def test_classes_with_their_arguments_and_functions_get_plain_parameters() -> None:
    executor = player_of(model_of(), partial(torch.optim.SGD, lr=0.1))
    assert executor.step(*batch()).done

    def with_other_names(parameters: list[nn.Parameter], named_parameters: Any = None) -> torch.optim.Optimizer:
        assert named_parameters is None
        return torch.optim.SGD(parameters, 0.1)

    assert player_of(model_of(), with_other_names).step(*batch()).done


class Prodigy(torch.optim.SGD):
    """Stands in for the one of that name."""


class Searching(torch.optim.SGD):
    """Needs to run the model again."""

    def step(self, closure: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return super().step(closure)


@pytest.mark.parametrize(
    ("optimizer", "words"),
    [
        (lambda ps: torch.optim.LBFGS(ps), "LBFGS searches along one line through all parameters.* such as SGD"),
        (lambda ps: Prodigy(ps, 0.1), "Prodigy estimates one distance for all parameters"),
        (lambda ps: Searching(ps, 0.1), "Searching runs the model again within its step"),
    ],
)
def test_optimizers_that_couple_stages_are_refused_by_name(optimizer: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        player_of(model_of(), optimizer)


def test_an_optimizer_of_the_users_own_model_is_refused() -> None:
    model = model_of()
    with pytest.raises(
        ValueError, match=r"8 tensors .* not among the parameters .* shape \(6, 6\); a stage trains cop"
    ):
        player_of(model, lambda _: torch.optim.SGD(model.parameters(), 0.1))


class Configures(nn.Sequential):
    """Makes its own optimizer, with groups, as the models of many scripts do."""

    def configure_optimizers(self, weight_decay: float, learning_rate: float) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), learning_rate, weight_decay=weight_decay)

    def optimizer(self) -> torch.optim.Optimizer:
        return self.configure_optimizers(0.1, 1e-3)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("configure_optimizers", r"configure_optimizers\(weight_decay.* cannot be: missing a required argument: 'lear"),
        ("optimizer", r"Configures.optimizer\(\) .*cannot be: too many positional arguments; it makes an optimizer of"),
    ],
)
def test_a_function_of_the_users_own_model_is_refused_with_the_one_to_write(name: str, words: str) -> None:
    model = Configures(*model_of())
    with pytest.raises(TypeError, match=words) as refusal:
        player_of(model, getattr(model, name))
    assert "a stage trains others, which are its own" in str(refusal.value)
    assert "def optimizer(named_parameters): ..." in str(refusal.value)
    with pytest.raises(TypeError, match="optimizer is called with one argument"):
        Trainer(model, functional.mse_loss, getattr(model, name))


@pytest.mark.parametrize("kind", ["Adafactor", "Muon", "RAdam", "ASGD", "Rprop"])
def test_optimizers_that_treat_each_parameter_for_itself_do_not_depend_on_the_cut(kind: str) -> None:
    torch.manual_seed(1)
    model = nn.Sequential(*[layer for _ in range(2) for layer in (nn.Linear(6, 6, bias=False), nn.Tanh())])
    batches = [(torch.randn(4, 6), torch.randn(4, 6)) for _ in range(3)]
    found: list[dict[str, Tensor]] = []
    for num_stages in (1, 3):
        graph = trace(model, (batches[0][0],))
        plan = plan_of(graph, even_cut(graph, num_stages), micro_batches=2)
        make = partial(getattr(torch.optim, kind), lr=1e-2)
        executor = LocalExecutor(graph, functional.mse_loss, make, plan)
        for x, y in batches:
            executor.step(x, y)
        found.append(executor.state_dict()["parameters"])
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


def test_the_state_of_another_optimizer_is_refused_and_not_its_options_taken() -> None:
    model, (x, y) = model_of(), batch()
    of_adam = player_of(model, torch.optim.Adam)
    of_adam.step(x, y)
    of_sgd = player_of(model, partial(torch.optim.SGD, lr=0.1, momentum=0.9))
    with pytest.raises(ValueError, match=r"of another optimizer: it has the options .*betas.* here has .*momentum"):
        of_sgd.load_state_dict(of_adam.state_dict())
    of_the_same = player_of(model, torch.optim.Adam)
    of_the_same.load_state_dict(of_adam.state_dict())
