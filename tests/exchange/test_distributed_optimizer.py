"""`DistributedOptimizer` and broadcasts, with members that are threads of this process."""

import contextlib
import copy
import io
import math
import warnings

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam, Optimizer
from torch.utils.checkpoint import checkpoint

from ropewalk.errors import ExchangeInvalid, GradientNotFinite
from ropewalk.exchange.all_gather import AllGather
from ropewalk.exchange.all_reduce import AllReduce
from ropewalk.exchange.broadcasting import broadcast_optimizer_state, broadcast_parameters
from ropewalk.exchange.compressors.error_feedback import ErrorFeedback
from ropewalk.exchange.compressors.gd_sec import GDSEC
from ropewalk.exchange.compressors.random_k import RandomK
from ropewalk.exchange.compressors.top_k import TopK
from ropewalk.exchange.distributed_optimizer import DistributedOptimizer
from ropewalk.exchange.groups.thread_group import ThreadGroup, run_members
from ropewalk.exchange.parameter_server.parameter_server import ParameterServer
from ropewalk.exchange.parameter_server.server_sgd import ServerSGD

X = torch.randn(24, 3, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
Y = torch.randn(24, 2, generator=torch.Generator().manual_seed(8), dtype=torch.float64)
RANKS = 3


@pytest.fixture(scope="module", autouse=True)
def _first_optimizer() -> None:
    # The first one makes torch import its compiler: seconds, which no member shall spend in its first step.
    SGD([torch.zeros(1)])


class Net(nn.Module):
    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 4).double(), nn.Linear(4, 2).double()
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(self.first(x)))


def _loss(model: nn.Module, rows: slice) -> torch.Tensor:
    return (model(X[rows]) - Y[rows]).square().mean()


def _rows(rank: int, step: int = 0, size: int = 4) -> slice:
    start = (step * RANKS + rank) * size % 24
    return slice(start, start + size)


def _weights(model: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def _gradients(model: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None])


def _members(body, size: int = RANKS):
    """Run `body(group)` on all members, and close what they made."""
    return run_members(ThreadGroup.make(size), body)


def _same(tensors) -> bool:
    return all(torch.equal(tensors[0], other) for other in tensors[1:])


def _alone(make_optimizer, steps: int, each=None) -> torch.Tensor:
    """One process that computes the gradients of all ranks."""
    model = Net()
    optimizer = make_optimizer(model.parameters())
    for step in range(steps):
        optimizer.zero_grad()
        for rank in range(RANKS):
            (_loss(model, _rows(rank, step)) / RANKS).backward()
        optimizer.step()
        if each is not None:
            each(optimizer)
    return _weights(model)


@contextlib.contextmanager
def _distributed(optimizer: Optimizer, model: nn.Module, group, exchange=None, **options):
    named = options.pop("named", None) or model.named_parameters()
    distributed = DistributedOptimizer(optimizer, exchange or AllReduce(), named, group, **options)
    try:
        yield distributed
    finally:
        distributed.close()


@pytest.mark.parametrize(
    "make", [lambda p: SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01), lambda p: Adam(p, lr=0.01)], ids=["sgd", "adam"]
)
def test_members_step_as_one_process_with_all_samples_would(make) -> None:
    def member(group):
        model = Net(group.rank)
        with _distributed(make(model.parameters()), model, group) as optimizer:
            broadcast_parameters(model, group)
            for step in range(4):
                optimizer.zero_grad()
                _loss(model, _rows(group.rank, step)).backward()
                optimizer.step()
        return _weights(model)

    ends = _members(member)
    assert _same(ends)
    torch.testing.assert_close(ends[0], _alone(make, 4), rtol=1e-10, atol=1e-12)


def test_a_server_that_steps_by_itself_is_refused() -> None:
    model = nn.Linear(2, 1)
    with pytest.raises(ExchangeInvalid, match=r"the server steps already, by ServerSGD.*and SGD would step once more"):
        DistributedOptimizer(
            SGD(model.parameters(), 0.1),
            ParameterServer(optimizer=ServerSGD(0.1)),
            named_parameters=model.named_parameters(),
            group=ThreadGroup.make(1)[0],
        )


def test_gradients_are_averaged_when_backward_returns_so_clipping_is_right() -> None:
    def member(group):
        model = Net()
        with _distributed(SGD(model.parameters(), lr=0.1), model, group) as optimizer:
            _loss(model, _rows(group.rank)).backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 0.01)
            optimizer.step()
        return norm.reshape(1), _weights(model)

    ends = _members(member)
    assert _same([norm for norm, _ in ends]) and _same([weights for _, weights in ends])
    assert ends[0][0] > 0.01


def test_means_are_weighted_by_samples() -> None:
    sizes = (2, 6, 16)

    def member(group):
        model = Net()
        start = sum(sizes[: group.rank])
        with _distributed(SGD(model.parameters(), lr=1.0), model, group) as optimizer:
            optimizer.samples = sizes[group.rank]
            _loss(model, slice(start, start + sizes[group.rank])).backward()
            optimizer.step()
        return _weights(model)

    model = Net()
    optimizer = SGD(model.parameters(), lr=1.0)
    _loss(model, slice(0, 24)).backward()
    optimizer.step()
    torch.testing.assert_close(_members(member)[0], _weights(model), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("how", ["no_sync", "passes", "synchronize"])
def test_accumulated_gradients_travel_once(how: str) -> None:
    def member(group):
        model = Net()
        passes = 3 if how == "passes" else 1
        with _distributed(SGD(model.parameters(), lr=0.1), model, group, backward_passes_per_step=passes) as optimizer:
            for step in range(2):
                optimizer.zero_grad()
                for part in range(3):
                    local = how == "synchronize" or (how == "no_sync" and part < 2)
                    with optimizer.no_sync() if local else contextlib.nullcontext():
                        _loss(model, _rows(group.rank, step + part)).backward()
                if how == "synchronize":
                    optimizer.synchronize()
                    optimizer.synchronize()
                optimizer.step()
            assert optimizer.report().steps == 2
        return _weights(model)

    model = Net()
    optimizer = SGD(model.parameters(), lr=0.1)
    for step in range(2):
        optimizer.zero_grad()
        for part in range(3):
            for rank in range(RANKS):
                (_loss(model, _rows(rank, step + part)) / RANKS).backward()
        optimizer.step()
    ends = _members(member)
    assert _same(ends)
    torch.testing.assert_close(ends[0], _weights(model), rtol=1e-10, atol=1e-12)


def test_gradients_of_no_sync_after_a_mean_travel_at_the_step() -> None:
    def member(group):
        model = Net()
        with _distributed(SGD(model.parameters(), lr=0.1), model, group) as optimizer:
            _loss(model, _rows(group.rank, 0)).backward()
            with optimizer.no_sync():
                _loss(model, _rows(group.rank, 1)).backward()
            optimizer.step()
        return _weights(model)

    assert _same(_members(member))


def test_compressors_keep_their_state_in_unscaled_gradients() -> None:
    def member(group, scaled: bool):
        model = Net()
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0, enabled=scaled)
        exchange = AllGather(ErrorFeedback(TopK(0.2)), mode="sparse")
        with _distributed(SGD(model.parameters(), lr=0.1), model, group, exchange, grad_scaler=scaler) as optimizer:
            for step in range(5):
                optimizer.zero_grad()
                scaler.scale(_loss(model, _rows(group.rank, step))).backward()
                scaler.step(optimizer)
                scaler.update(1024.0 if step == 2 else 4.0)
        return _weights(model)

    plain = _members(lambda group: member(group, False))
    assert torch.equal(_members(lambda group: member(group, True))[0], plain[0])


def test_a_second_backward_without_zero_grad_adds_to_the_mean() -> None:
    def member(group):
        model = Net()
        with _distributed(SGD(model.parameters(), lr=0.1), model, group) as optimizer:
            for part in range(2):
                _loss(model, _rows(group.rank, part)).backward()
            optimizer.step()
        return _weights(model)

    model = Net()
    optimizer = SGD(model.parameters(), lr=0.1)
    for part in range(2):
        for rank in range(RANKS):
            (_loss(model, _rows(rank, part)) / RANKS).backward()
    optimizer.step()
    torch.testing.assert_close(_members(member)[2], _weights(model), rtol=1e-10, atol=1e-12)


def test_parameters_that_a_member_does_not_use_get_the_mean_of_the_others() -> None:
    def member(group):
        model = Net()
        with _distributed(SGD(model.parameters(), lr=0.1), model, group) as optimizer:
            hidden = torch.tanh(model.first(X[_rows(group.rank)]))
            loss = hidden.square().mean() if group.rank == 1 else model.last(hidden).square().mean()
            loss.backward()
            gradient = _gradients(model.last)
            optimizer.step()
        return gradient, _weights(model)

    ends = _members(member)
    assert _same([gradient for gradient, _ in ends]) and ends[1][0].abs().sum() > 0
    assert _same([weights for _, weights in ends])


def test_a_member_without_a_batch_counts_nothing() -> None:
    def member(group):
        model = Net()
        with _distributed(SGD(model.parameters(), lr=0.1), model, group) as optimizer:
            optimizer.zero_grad()
            if group.rank != 1:
                _loss(model, _rows(group.rank)).backward()
            optimizer.step()
            assert optimizer.last_report is not None and optimizer.last_report.samples == 2.0
        return _weights(model)

    assert _same(_members(member))


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_backward_within_a_backward_ends_with_the_outer_one(reentrant: bool) -> None:
    def member(group):
        first, middle, last = Net(1), Net(2), Net(3)
        model = nn.ModuleList([first, middle, last])
        with _distributed(SGD(model.parameters(), lr=0.1), model, group) as optimizer:
            hidden = checkpoint(
                lambda v: last(middle(v).repeat(1, 2)[:, :3]),
                first(X[_rows(group.rank)]).repeat(1, 2)[:, :3],
                use_reentrant=reentrant,
            )
            hidden.square().mean().backward()
            assert optimizer.report().steps == 1
        return _gradients(model)

    gradients = _members(member)
    assert _same(gradients)
    assert all(part.abs().sum() > 0 for part in gradients[0].split(26))


@pytest.mark.parametrize("scaled", [False, True])
def test_joined_members_take_the_same_steps(scaled: bool) -> None:
    batches = (2, 5, 4)

    def member(group):
        model = Net()
        inner = SGD(model.parameters(), lr=0.1, momentum=0.9)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0) if scaled else None
        with _distributed(inner, model, group, grad_scaler=scaler) as optimizer:
            scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
            for step in range(batches[group.rank]):
                optimizer.zero_grad()
                loss = _loss(model, _rows(group.rank, step))
                if scaler is None:
                    loss.backward()
                    optimizer.step()
                else:
                    scaler.scale(loss).backward()
                    scaler.step(optimizer)
                    scaler.update()
                scheduler.step()
            last = optimizer.join(scheduler.step)
        return last, _weights(model), inner.param_groups[0]["lr"]

    ends = _members(member)
    assert [last for last, _, _ in ends] == [1, 1, 1]
    assert _same([weights for _, weights, _ in ends]) and {rate for _, _, rate in ends} == {0.1 / 4}

    model = Net()
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
    for step in range(5):
        optimizer.zero_grad()
        here = [rank for rank in range(3) if step < batches[rank]]
        for rank in here:
            (_loss(model, _rows(rank, step)) / len(here)).backward()
        optimizer.step()
        scheduler.step()
    torch.testing.assert_close(ends[0][1], _weights(model), rtol=1e-10, atol=1e-12)


def test_who_joined_stays_while_others_step_without_gradients() -> None:
    def member(group):
        model = Net()
        with _distributed(SGD(model.parameters(), lr=0.1), model, group) as optimizer:
            for step in range(1 if group.rank else 3):
                optimizer.zero_grad()
                if step != 1:
                    _loss(model, _rows(group.rank, step)).backward()
                optimizer.step()
            return optimizer.join(), _weights(model)

    ends = _members(member)
    assert [last for last, _ in ends] == [0, 0, 0] and _same([weights for _, weights in ends])


@pytest.mark.parametrize("nan", ["skip", "raise"])
def test_a_grad_scaler_that_came_down_to_one_still_sees_infinities(nan) -> None:
    def member(group):
        model = Net()
        scaler = torch.amp.GradScaler("cpu", init_scale=1.0)
        parameters = SGD(model.parameters(), lr=0.1)
        with _distributed(parameters, model, group, AllReduce(nan=nan), grad_scaler=scaler) as optimizer:
            scaler.scale(_loss(model, _rows(group.rank)) * (math.inf if group.rank == 2 else 1.0)).backward()
            scaler.step(optimizer)
            scaler.update()
        return scaler.get_scale(), _weights(model)

    ends = _members(member)
    assert {scale for scale, _ in ends} == {0.5} and torch.equal(ends[0][1], _weights(Net()))


def test_a_grad_scaler_sees_the_infinity_of_any_member_and_all_skip_together() -> None:
    def member(group):
        model = Net()
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        with _distributed(SGD(model.parameters(), lr=0.1), model, group, grad_scaler=scaler) as optimizer:
            for step in range(3):
                optimizer.zero_grad()
                loss = _loss(model, _rows(group.rank, step))
                if step == 1 and group.rank == 2:
                    loss = loss * math.inf
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
            return _weights(model), scaler.get_scale(), optimizer.report().skipped

    ends = _members(member)
    assert _same([weights for weights, _, _ in ends]) and ends[0][0].isfinite().all()
    assert {scale for _, scale, _ in ends} == {512.0}


def test_nan_of_one_member_raises_on_all_and_training_can_go_on() -> None:
    def member(group):
        model = Net()
        with _distributed(SGD(model.parameters(), lr=0.1), model, group, AllReduce(nan="raise")) as optimizer:
            with pytest.raises(GradientNotFinite) as raised:
                (_loss(model, _rows(group.rank)) * (math.nan if group.rank == 1 else 1.0)).backward()
            assert raised.value.ranks == (1,) and "first.weight" in raised.value.parameters
            optimizer.zero_grad()
            _loss(model, _rows(group.rank)).backward()
            optimizer.step()
        return _weights(model)

    ends = _members(member)
    assert _same(ends)
    torch.testing.assert_close(ends[0], _alone(lambda p: SGD(p, lr=0.1), 1), rtol=1e-10, atol=1e-12)


def test_a_step_with_nan_is_skipped_by_all_members() -> None:
    def member(group):
        model = Net()
        inner = SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
        with _distributed(inner, model, group, AllReduce(nan="skip")) as optimizer:
            for step in range(3):
                optimizer.zero_grad()
                bad = step == 1 and group.rank == 0
                (_loss(model, _rows(group.rank, step)) * (math.nan if bad else 1.0)).backward()
                before = _weights(model)
                optimizer.step()
                assert torch.equal(before, _weights(model)) is (step == 1)
            report = optimizer.report()
            assert report.skipped == 1 and any("rank 0 in" in note for note in report.notes)
        return _weights(model)

    assert _same(_members(member))


def test_closures_see_the_mean_loss() -> None:
    def member(group):
        model = Net()
        inner = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=4, line_search_fn="strong_wolfe")
        with _distributed(inner, model, group) as optimizer:

            def closure():
                optimizer.zero_grad()
                loss = _loss(model, _rows(group.rank))
                loss.backward()
                return loss

            loss = optimizer.step(closure)
        return loss, _weights(model)

    ends = _members(member)
    assert _same([loss for loss, _ in ends]) and _same([weights for _, weights in ends])


def test_a_step_with_a_closure_and_nan_is_skipped_by_all_members() -> None:
    def member(group):
        model = Net()
        inner = SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
        with _distributed(inner, model, group, AllReduce(nan="skip")) as optimizer:

            def step(factor: float) -> object:
                def closure():
                    optimizer.zero_grad()
                    loss = _loss(model, _rows(group.rank)) * factor
                    loss.backward()
                    return loss

                return optimizer.step(closure)

            assert step(1.0) is not None
            before = _weights(model)
            assert step(float("nan") if group.rank == 0 else 1.0) is None
            assert torch.equal(_weights(model), before)
            assert step(1.0) is not None
            return not torch.equal(_weights(model), before), _weights(model)

    ends = _members(member)
    assert all(moved for moved, _ in ends) and _same([weights for _, weights in ends])


def test_experts_are_averaged_over_a_smaller_group() -> None:
    everyone = ThreadGroup.make(4)
    pairs = [ThreadGroup.make(2), ThreadGroup.make(2)]

    def member(group):
        model = Net()
        pair = pairs[group.rank // 2][group.rank % 2]
        experts = [(name, parameter) for name, parameter in model.named_parameters() if name.startswith("last")]
        rest = [(name, parameter) for name, parameter in model.named_parameters() if name.startswith("first")]
        inner = SGD(model.parameters(), lr=0.1)
        with (
            _distributed(inner, model, pair, named=experts, partial=True) as expert_optimizer,
            _distributed(expert_optimizer, model, group, named=rest, partial=True) as optimizer,
        ):
            for _ in range(2):
                optimizer.zero_grad()
                _loss(model, slice(group.rank * 4, group.rank * 4 + 4)).backward()
                optimizer.step()
        return model.first.weight.detach(), model.last.weight.detach()

    ends = run_members(everyone, member)
    assert _same([shared for shared, _ in ends])
    experts = [expert for _, expert in ends]
    assert _same(experts[:2]) and _same(experts[2:]) and not torch.equal(experts[0], experts[2])


@pytest.mark.parametrize("named", [True, False])
def test_a_parameter_that_is_thawed_later_is_exchanged_too(named: bool) -> None:
    # Its gradient stayed local: the weights of the members went apart, and nothing was said.
    def member(group):
        model = Net()
        model.first.requires_grad_(False)
        optimizer = DistributedOptimizer(
            SGD(model.parameters(), lr=0.1), AllReduce(), model.named_parameters() if named else None, group
        )
        for step in range(4):
            if step == 2:
                model.first.requires_grad_(True)
            optimizer.zero_grad()
            _loss(model, _rows(group.rank, step)).backward()
            optimizer.step()
        optimizer.close()
        return _weights(model)

    ends = _members(member)
    alone = Net()
    alone.first.requires_grad_(False)
    plain = SGD(alone.parameters(), lr=0.1)
    for step in range(4):
        if step == 2:
            alone.first.requires_grad_(True)
        plain.zero_grad()
        torch.stack([_loss(alone, _rows(rank, step)) for rank in range(RANKS)]).mean().backward()
        plain.step()
    assert _same(ends) and torch.allclose(ends[0], _weights(alone))


def test_a_parameter_group_added_later_is_exchanged_too() -> None:
    def member(group):
        model = Net()
        optimizer = DistributedOptimizer(
            SGD(model.last.named_parameters(), lr=0.1), AllReduce(), model.last.named_parameters(), group
        )
        for step in range(4):
            if step == 2:
                optimizer.add_param_group({"params": [("first.weight", model.first.weight)], "lr": 0.05})
            optimizer.zero_grad()
            _loss(model, _rows(group.rank, step)).backward()
            optimizer.step()
        optimizer.close()
        return model.first.weight.detach()

    ends = _members(member)
    assert _same(ends) and not torch.equal(ends[0], Net().first.weight)


@pytest.mark.parametrize(
    "make",
    # "auto" decides by time, which no run repeats.
    [AllReduce, lambda: AllReduce(RandomK(0.3)), lambda: AllGather(GDSEC(), mode="sparse")],
    ids=["none", "random_k", "gd_sec"],
)
def test_a_checkpoint_continues_bit_for_bit_and_a_plain_one_loads_too(make) -> None:
    def member(group):
        def go_on(optimizer, model, steps) -> None:
            for step in steps:
                optimizer.zero_grad()
                _loss(model, _rows(group.rank, step)).backward()
                optimizer.step()

        model = Net()
        with _distributed(SGD(model.parameters(), lr=0.1, momentum=0.9), model, group, make()) as optimizer:
            go_on(optimizer, model, range(3))
            written = io.BytesIO()
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, written)
            go_on(optimizer, model, range(3, 5))
        written.seek(0)
        state = torch.load(written, weights_only=True)
        again = Net(5)
        again.load_state_dict(state["model"])
        with _distributed(SGD(again.parameters(), lr=0.1, momentum=0.9), again, group, make()) as optimizer:
            optimizer.load_state_dict(state["optimizer"])
            go_on(optimizer, again, range(3, 5))
            plain = SGD(again.parameters(), lr=0.5)
            optimizer.load_state_dict(plain.state_dict())
            assert optimizer.param_groups[0]["lr"] == 0.5
        return torch.equal(_weights(model), _weights(again))

    assert _members(member) == [True] * RANKS


def test_broadcasts_bring_all_to_the_state_of_the_root() -> None:
    def member(group):
        net, norm = Net(group.rank), nn.BatchNorm1d(2).double()
        model = nn.Sequential(net, norm, nn.Linear(2, 1).half())
        norm.num_batches_tracked = torch.tensor(group.rank)
        inner = Adam(net.parameters(), lr=0.1 * (group.rank + 1))
        if group.rank == 1:
            _loss(net, _rows(0)).backward()
            inner.step()
        with _distributed(inner, net, group) as optimizer:
            broadcast_parameters(model, group, root=1, fused_bytes=64)
            broadcast_optimizer_state(optimizer, group, root=1)
            moments = [state["exp_avg"].flatten() for state in inner.state.values()]
        return copy.deepcopy(model.state_dict()), torch.cat(moments), inner.param_groups[0]["lr"]

    ends = _members(member)
    for state, moments, rate in ends:
        assert all(torch.equal(tensor, ends[1][0][name]) for name, tensor in state.items())
        assert torch.equal(moments, ends[1][1]) and rate == 0.2
    assert int(ends[0][0]["1.num_batches_tracked"]) == 1
    with pytest.raises(ExchangeInvalid, match=r"no rank 3 .* group of 1"):
        broadcast_parameters(Net(), ThreadGroup.make(1)[0], root=3)


def test_a_failed_backward_is_cleared_by_zero_grad() -> None:
    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, *grads):
            raise RuntimeError("in the middle")

    (group,) = ThreadGroup.make(1)
    model = Net()
    with _distributed(SGD(model.parameters(), lr=0.1), model, group) as optimizer:
        with pytest.raises(RuntimeError, match="in the middle"):
            model.last(Fails.apply(torch.tanh(model.first(X)))).sum().backward()
        optimizer.zero_grad()
        _loss(model, slice(0, 24)).backward()
        optimizer.step()
        assert optimizer.report().steps == 1
    assert not torch.equal(_weights(model), _weights(Net()))


def test_every_member_builds_the_same_model_or_is_told() -> None:
    def member(group):
        model = Net()
        named = dict(model.named_parameters())
        if group.rank == 1:
            del named["last.bias"]
        with _distributed(SGD(named.values(), lr=0.1), model, group, named=list(named.items())):
            with pytest.raises(ExchangeInvalid, match=r"last\.bias"):
                _loss(model, _rows(group.rank)).backward()

    _members(member)


def test_names_are_checked_at_the_door() -> None:
    (group,) = ThreadGroup.make(1)
    model = Net()
    named = list(model.named_parameters())
    with pytest.raises(ExchangeInvalid, match=r"parameter 3 of group 0 .* partial=True"):
        DistributedOptimizer(SGD(model.parameters()), AllReduce(), named[:3], group)
    with pytest.raises(ExchangeInvalid, match="same name"):
        DistributedOptimizer(SGD(model.parameters()), AllReduce(), [*named, named[0]], group)
    with pytest.raises(ExchangeInvalid, match="at least 1, not 0"):
        DistributedOptimizer(SGD(model.parameters()), AllReduce(), named, group, backward_passes_per_step=0)


def test_it_is_an_optimizer_to_schedulers_and_printers() -> None:
    (group,) = ThreadGroup.make(1)
    model = Net()
    inner = Adam(model.parameters(), lr=0.1)
    with _distributed(inner, model, group, named=None) as optimizer, warnings.catch_warnings():
        warnings.simplefilter("error")
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.5, total_steps=10)
        calls: list[str] = []
        optimizer.register_step_post_hook(lambda *_: calls.append("stepped"))
        for _ in range(3):
            optimizer.zero_grad(set_to_none=False)
            _loss(model, slice(0, 24)).backward()
            optimizer.step()
            scheduler.step()
        assert calls == ["stepped"] * 3
        assert scheduler.get_last_lr() == [inner.param_groups[0]["lr"]]
        assert "Adam" in repr(optimizer) and "rank 0 of 1" in repr(optimizer)
        assert optimizer.state is inner.state and isinstance(optimizer, Optimizer)
