"""The exchange over real servers: what it computes, by whatever way."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from ropewalk.errors import ExchangeAborted, ExchangeInvalid, ExchangeStalled, GradientNotFinite
from ropewalk.exchange.all_reduce import AllReduce
from ropewalk.exchange.compressors import COMPRESSORS, Compressor, ErrorFeedback, TopK
from ropewalk.exchange.compressors.gd_sec import GDSEC
from ropewalk.exchange.exchange import StepRecord
from ropewalk.exchange.groups.thread_group import ThreadGroup
from ropewalk.exchange.parameter_server.parameter_server import ParameterServer
from ropewalk.exchange.parameter_server.pieces import PIECE_BYTES
from ropewalk.exchange.parameter_server.server_sgd import ServerSGD
from tests.exchange.parameter_server.local_servers import LocalServers
from tests.exchange.parameter_server.running import (
    by_members,
    gradients,
    groups,
    member,
    model,
    run_steps,
    servers,
)
from tests.exchange.parameter_server.star_group import StarGroup
from tests.patience import PATIENCE_S

SIZE = 3
Means = list[list[dict[str, Tensor]]]


def exchanged(
    num_shards: int = 2,
    num_steps: int = 3,
    samples: Callable[[int], float] = lambda _rank: 1.0,
    **options: Any,
) -> Means:
    """The means of each step, by rank, through servers of their own."""
    members = groups(SIZE)

    def body(rank: int) -> list[dict[str, Tensor]]:
        with member(client, members[rank], **options) as exchange:
            return run_steps(exchange, rank, range(num_steps), samples)

    with servers(num_shards) as running:
        client = running.client("servers")
        return by_members(body, SIZE)


def trained(num_steps: int = 4, **options: Any) -> list[dict[str, Tensor]]:
    """The weights of each member after `num_steps` with servers that own them."""
    members = groups(SIZE)

    def body(rank: int) -> dict[str, Tensor]:
        # Only rank 0 has the right weights; the others get them from the servers.
        mine = model() if rank == 0 else {name: torch.zeros_like(value) for name, value in model().items()}
        with member(client, members[rank], mine, **options) as exchange:
            run_steps(exchange, rank, range(num_steps))
        return mine

    with servers() as running:
        client = running.client("servers")
        return by_members(body, SIZE)


def assert_close(found: dict[str, Tensor], expected: dict[str, Tensor], relative: float) -> None:
    """Differences are at most the share `relative` of the largest magnitude."""
    largest = max(float(value.abs().max()) for value in expected.values())
    for name, value in expected.items():
        assert float((found[name] - value).abs().max()) <= relative * largest, name


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    for name, value in expected.items():
        assert torch.equal(found[name], value), name


# --- the server averages gradients ---


@pytest.mark.parametrize("num_shards", [1, 3])
def test_a_synchronous_reduction_equals_all_reduce_to_1e_6_of_the_largest_magnitude(num_shards: int) -> None:
    members = groups(SIZE)

    def reduce(rank: int) -> list[dict[str, Tensor]]:
        exchange = AllReduce()
        exchange.bind(model().items(), members[rank])
        try:
            return run_steps(exchange, rank, range(3), lambda rank: rank + 1.0)
        finally:
            exchange.close()

    expected = by_members(reduce, SIZE)
    means = exchanged(num_shards, samples=lambda rank: rank + 1.0)
    for rank in range(SIZE):
        for step in range(3):
            assert_close(means[rank][step], expected[rank][step], 1e-6)
            assert_same(means[rank][step], means[0][step])


@pytest.mark.parametrize("kind", COMPRESSORS)
def test_every_compressor_says_through_servers_what_it_says_to_a_decoder(kind: str) -> None:
    """The members of the family are tried as they are made by default, with state over two rounds."""
    compressor: Compressor = COMPRESSORS[kind]() if kind != "error_feedback" else ErrorFeedback(TopK(0.1))
    means = exchanged(num_steps=2, compressor=compressor, sparse_answers=False)
    for step in range(2):
        for rank in range(1, SIZE):
            assert_same(means[rank][step], means[0][step])
        assert any(value.any() for value in means[0][step].values())


@pytest.mark.parametrize("compressor", [GDSEC(c=3.0, beta=0.1), ErrorFeedback(TopK(0.1)), TopK(0.2)])
def test_sparse_answers_give_the_means_of_dense_ones(compressor: Compressor) -> None:
    dense = exchanged(num_steps=4, compressor=compressor, sparse_answers=False)
    sparse = exchanged(num_steps=4, compressor=compressor, sparse_answers=True)
    for step in range(4):
        assert_close(sparse[0][step], dense[0][step], 1e-6)
        assert_same(sparse[2][step], sparse[0][step])


def test_gd_sec_through_servers_loses_nothing_but_delays() -> None:
    """ghat = grad + e^k - e^{k+1}: all that was applied and what is kept are all that was computed."""
    members = groups(SIZE)

    def body(rank: int) -> tuple[list[dict[str, Tensor]], dict[str, Tensor], Any]:
        with member(client, members[rank], compressor=GDSEC(c=5.0, beta=0.1)) as exchange:
            return run_steps(exchange, rank, range(6)), exchange.errors(), exchange.report()

    with servers() as running:
        client = running.client("servers")
        found = by_members(body, SIZE)
    for name in model():
        applied = sum(SIZE * found[0][0][step][name].double() for step in range(6))
        kept = sum(errors[name].double() for _, errors, _ in found)
        computed = sum(gradients(rank, step)[name].double() for rank in range(SIZE) for step in range(6))
        torch.testing.assert_close(applied + kept, computed, rtol=1e-5, atol=1e-5)
    report = found[0][2]
    assert report.steps == 6 and 0 < report.density < 1 and report.error_norm > 0
    assert report.sent_bytes == sum(report.layers.values())
    assert set(report.layers) <= set(model())


def test_what_is_not_ready_and_who_has_no_samples_take_part_with_nothing() -> None:
    members = groups(2)

    def body(rank: int) -> dict[str, Tensor]:
        with member(client, members[rank]) as exchange:
            found = gradients(rank, 0)
            exchange.begin(StepRecord(0, samples=[0.0, 4.0][rank], scale=8.0))
            for name in found:
                if (rank, name) != (1, "scale"):
                    exchange.ready(name, found[name])
            exchange.finish()
            return found

    with servers() as running:
        client = running.client("servers")
        means = by_members(body, 2)
    expected = {**gradients(1, 0), "scale": torch.zeros(())}
    means[1]["scale"] = torch.zeros(())  # nobody gave it a place to be written to
    for rank in range(2):
        assert_close(means[rank], expected, 1e-6)


def test_works_wait_for_their_own_parameter_and_strange_words_are_refused() -> None:
    members = groups(1)
    with servers() as running, member(running.client("servers"), members[0]) as exchange:
        found = gradients(0, 0)
        with pytest.raises(RuntimeError, match="outside of a step"):
            exchange.ready("scale", found["scale"])
        exchange.begin(StepRecord(0))
        with pytest.raises(KeyError, match="no parameter is called 'scales'"):
            exchange.ready("scales", found["scale"])
        works = [exchange.ready(name, found[name]) for name in found]
        with pytest.raises(RuntimeError, match="ready already in step 0"):
            exchange.ready("scale", found["scale"])
        for work in works:
            work.wait()
            assert work.done
        exchange.finish()
        with pytest.raises(RuntimeError, match="bound already"):
            exchange.bind(model().items(), members[0])


def test_gradients_that_do_not_lie_in_one_piece_of_memory_get_their_mean_too() -> None:
    members = groups(1)
    with servers(1) as running, member(running.client("servers"), members[0], piece_bytes=100) as exchange:
        grad = torch.arange(280.0).reshape(7, 40).t()
        exchange.begin(StepRecord(0, samples=2.0))
        exchange.ready("embedding", grad)
        exchange.finish()
        assert torch.equal(grad, torch.arange(280.0).reshape(7, 40).t())


# --- the server owns the weights ---


def test_servers_that_own_the_weights_do_what_the_optimizer_does() -> None:
    weights = trained(optimizer=ServerSGD(0.1, momentum=0.9, weight_decay=0.01))
    parameters = {name: torch.nn.Parameter(value.double()) for name, value in model().items()}
    optimizer = torch.optim.SGD(parameters.values(), lr=0.1, momentum=0.9, weight_decay=0.01)
    for step in range(4):
        for name, parameter in parameters.items():
            parameter.grad = sum((gradients(rank, step)[name].double() for rank in range(SIZE)), torch.zeros(())) / SIZE
        optimizer.step()
    for rank in range(SIZE):
        assert_close(weights[rank], {name: value.detach() for name, value in parameters.items()}, 1e-6)
        assert_same(weights[rank], weights[0])


@pytest.mark.parametrize("chosen", ["none", GDSEC(xi=3.0, beta=0.1)])
def test_asynchronous_with_staleness_0_equals_synchronous(chosen: str | Compressor) -> None:
    optimizer = ServerSGD(0.1, momentum=0.5)
    expected = trained(compressor=chosen, optimizer=optimizer)
    for mode in ("bounded", "asynchronous"):
        found = trained(compressor=chosen, optimizer=optimizer, mode=mode, staleness=0)
        for rank in range(SIZE):
            assert_same(found[rank], expected[rank])


@pytest.mark.parametrize("options", [{"mode": "bounded", "staleness": 1}, {"mode": "asynchronous"}])
def test_without_rounds_every_gradient_is_applied_once(options: dict[str, Any]) -> None:
    """Plain SGD is a sum, whatever the order; nobody knows the last weights but who asks when all are done."""
    members = groups(SIZE)
    optimizer = ServerSGD(0.1, reduction="sum")

    def body(rank: int) -> None:
        with member(client, members[rank], optimizer=optimizer, **options) as exchange:
            run_steps(exchange, rank, range(5))

    with servers() as running:
        client = running.client("servers")
        by_members(body, SIZE)
        last = model()
        with member(client, groups(1)[0], last, optimizer=optimizer, **options):
            pass
    expected = after({(rank, step) for rank in range(SIZE) for step in range(5)})
    assert_close(last, expected, 1e-6)


@pytest.mark.parametrize("sparse_answers", [False, True])
def test_gd_sec_in_the_papers_form_equals_plain_numpy_to_the_bit(sparse_answers: bool) -> None:
    """Algorithm 1 of the paper, with its own weights at every worker, on least squares."""
    size, rounds, alpha, xi, beta = 4, 30, 0.002, 40_000.0, 0.01
    generator = np.random.default_rng(5)
    parts = [(generator.standard_normal((20, 12)), generator.standard_normal(20)) for _ in range(size)]

    def slope(rank: int, theta: np.ndarray) -> np.ndarray:
        x, y = parts[rank]
        return x.T @ (x @ theta - y)

    members = groups(size)
    compressor = GDSEC(xi=xi, alpha=alpha, beta=beta)

    def body(rank: int) -> tuple[list[np.ndarray], int]:
        theta = torch.zeros(12, dtype=torch.float64)
        path: list[np.ndarray] = []
        options = {"optimizer": ServerSGD(alpha, reduction="sum"), "sparse_answers": sparse_answers}
        with member(client, members[rank], {"theta": theta}, compressor=compressor, **options) as exchange:
            for step in range(rounds):
                exchange.begin(StepRecord(step))
                exchange.ready("theta", torch.from_numpy(slope(rank, theta.numpy())))
                exchange.finish()
                path.append(theta.numpy().copy())
            return path, exchange.report().sent_bytes

    with servers(1) as running:
        client = running.client("servers")
        found = by_members(body, size)

    theta = before = np.zeros(12)
    h, errors, memories = np.zeros(12), np.zeros((size, 12)), np.zeros((size, 12))
    silent = 0
    for step in range(rounds):
        threshold = xi / size * np.abs(theta - before)
        said = np.zeros((size, 12))
        for rank in range(size):
            difference = slope(rank, theta) - memories[rank] + errors[rank]
            said[rank] = np.where(np.abs(difference) > threshold, difference, 0)
            errors[rank] = difference - said[rank]
            memories[rank] = memories[rank] + beta * said[rank]
        silent += int((said == 0).sum())
        if sparse_answers:
            ghat = h + (((said[0] + said[1]) + said[2]) + said[3])
            h = h + beta * (((said[0] + said[1]) + said[2]) + said[3])
        else:
            ghat = (((h + said[0]) + said[1]) + said[2]) + said[3]
            for one in said:
                h = h + beta * one
        theta, before = theta - alpha * ghat, theta
        for path, _ in found:
            assert np.array_equal(path[step], theta), step
    assert rounds * size * 12 // 4 < silent < rounds * size * 12
    assert found[0][1] < rounds * 12 * 8


# --- faults that members see ---


def test_a_stall_names_who_is_missing_and_what() -> None:
    members = groups(2)
    with servers() as running:
        client = running.client("servers")
        with member(client, members[0], timeout_s=0.4) as exchange:
            found = gradients(0, 0)
            exchange.begin(StepRecord(0))
            for name in found:
                exchange.ready(name, found[name])
            with pytest.raises(ExchangeStalled, match=r"for member 1; missing are embedding, first\.bias") as caught:
                exchange.finish()
            assert caught.value.ranks == (1,)
            assert (0, "last.weight") in caught.value.tensors


def test_a_step_that_was_taken_back_leaves_no_trace_and_survivors_go_on() -> None:
    """Rank 2 has pushed half of its step when it goes; the others redo the step without it."""
    compressor = GDSEC(c=3.0, beta=0.1)
    first, second = groups(3), groups(2, epoch=1)
    # As a coordinator sees to it: nobody begins an epoch while others are still in a step of the one before.
    done, begun = threading.Barrier(3, timeout=PATIENCE_S), threading.Barrier(3, timeout=PATIENCE_S)

    def body(rank: int) -> list[dict[str, Tensor]]:
        with member(client, first[rank], compressor=compressor) as exchange:
            run_steps(exchange, rank, range(2))
            done.wait()
            found = gradients(rank, 2)
            exchange.begin(StepRecord(2))
            for name in list(found)[: 2 if rank == 2 else None]:
                exchange.ready(name, found[name])
            if rank == 2:
                return []
            exchange.abort(0)
            with pytest.raises(ExchangeAborted, match="step 2 was taken back"):
                exchange.finish()
            with pytest.raises(ExchangeAborted, match="call regroup first"):
                exchange.begin(StepRecord(2))
            exchange.regroup(second[rank])
            return run_steps(exchange, rank, range(2, 4))

    def undisturbed(rank: int) -> list[dict[str, Tensor]]:
        with member(client, first[rank], compressor=compressor) as exchange:
            run_steps(exchange, rank, range(2))
            begun.wait()
            if rank == 2:
                return []
            exchange.regroup(second[rank])
            return run_steps(exchange, rank, range(2, 4))

    with servers() as running:
        client = running.client("servers")
        found = by_members(body, 3)
    with servers() as running:
        client = running.client("servers")
        expected = by_members(undisturbed, 3)
    for rank in range(2):
        for step in range(2):
            assert_same(found[rank][step], expected[rank][step])


def test_who_waits_for_the_memories_of_members_that_are_gone_can_be_woken_up() -> None:
    first, second, third = groups(2), groups(2, epoch=1), groups(1, epoch=2)
    both = threading.Barrier(2)
    with servers() as running:
        client = running.client("servers")

        def body(rank: int) -> list[dict[str, Tensor]]:
            with member(client, first[rank], compressor=GDSEC(c=3.0, beta=0.1)) as exchange:
                run_steps(exchange, rank, range(2))
                both.wait(PATIENCE_S)  # or the next epoch could begin before the other one has its last sum
                if rank == 1:
                    return []
                exchange.regroup(second[0])  # the other one never comes
                waker = threading.Timer(0.2, exchange.abort, [1])
                waker.start()
                with pytest.raises(ExchangeAborted, match="members of epoch 1 did not all enrol"):
                    exchange.begin(StepRecord(2))
                waker.join()
                exchange.regroup(third[0])
                return run_steps(exchange, rank, range(2, 4))

        means = by_members(body, 2)
    assert len(means[0]) == 2


def test_an_abort_at_any_moment_of_an_enrolment_is_heard() -> None:
    """Also where all others have enrolled already, and nothing is waited for any more."""
    group, later = groups(1), groups(1, epoch=1)
    moments: list[str] = []
    with LocalServers(1) as shards, member(shards, group[0], compressor=GDSEC(c=3.0, beta=0.1)) as exchange:

        def abort(name: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
            if name in moments:
                moments.remove(name)
                exchange.abort(0)
            return args

        shards[0].change = abort
        for moment in ("enrol", "standing"):
            moments.append(moment)
            with pytest.raises(ExchangeAborted, match="members of epoch 0 did not all enrol"):
                exchange.begin(StepRecord(0))
        exchange.regroup(later[0])
        assert len(run_steps(exchange, 0, range(2))) == 2


@pytest.mark.parametrize("options", [{}, {"compressor": GDSEC(c=3.0)}, {"optimizer": ServerSGD(0.1)}])
def test_a_server_without_any_piece_is_no_trouble(options: dict[str, Any]) -> None:
    """A small model is one piece, and the second server has none: also where members change."""
    first, second = groups(2), groups(2, epoch=1)
    between = threading.Barrier(2)

    def body(rank: int) -> list[dict[str, Tensor]]:
        with member(client, first[rank], piece_bytes=PIECE_BYTES, **options) as exchange:
            means = run_steps(exchange, rank, range(2))
            between.wait(120)
            exchange.regroup(second[rank])
            return means + run_steps(exchange, rank, range(2, 4))

    with servers(2) as running:
        client = running.client("servers")
        means = by_members(body, 2)
    if "optimizer" not in options:
        assert_same(means[0][3], means[1][3])


@pytest.mark.parametrize("sparse_answers", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_memories_and_errors_of_gradients_in_16_bits_travel_in_32(dtype: torch.dtype, sparse_answers: bool) -> None:
    first, second = groups(2), groups(2, epoch=1)
    between = threading.Barrier(2)

    def body(rank: int) -> Tensor:
        theta, found = torch.zeros(6, dtype=dtype), torch.zeros(6, dtype=dtype)
        options: dict[str, Any] = {"compressor": GDSEC(c=3.0, beta=0.1), "sparse_answers": sparse_answers}
        with member(client, first[rank], {"theta": theta}, **options) as exchange:
            for step in range(6):
                if step == 2:
                    between.wait(120)
                    exchange.regroup(second[rank])
                if step == 4 and not sparse_answers and rank == 1:
                    assert exchange.errors()["theta"].any()
                    exchange.leave()
                    return theta
                found = torch.linspace(-1, 2 + rank, 6).to(dtype) * (step + 1)
                exchange.begin(StepRecord(step))
                exchange.ready("theta", found)
                exchange.finish()
            return found

    with LocalServers(1) as client:
        means = by_members(body, 2)
    assert means[0].isfinite().all() and means[0].any()
    assert not sparse_answers or torch.equal(means[0], means[1])


def test_a_state_goes_on_the_same_with_other_pieces_and_other_servers() -> None:
    compressor = GDSEC(c=4.0, beta=0.1)
    members = groups(SIZE)

    def whole(rank: int) -> list[dict[str, Tensor]]:
        with member(client, members[rank], compressor=compressor) as exchange:
            return run_steps(exchange, rank, range(5))

    def first(rank: int) -> dict[str, Any]:
        with member(client, members[rank], compressor=compressor) as exchange:
            run_steps(exchange, rank, range(3))
            return exchange.state_dict()

    def second(rank: int) -> list[dict[str, Tensor]]:
        with member(client, members[rank], compressor=compressor, piece_bytes=90) as exchange:
            exchange.load_state_dict(states[rank])
            return run_steps(exchange, rank, range(3, 5))

    results: list[Any] = []
    for num_shards, body in ((2, whole), (2, first), (3, second)):
        with servers(num_shards) as running:
            client = running.client("servers")
            states = results[-1] if results else []
            results.append(by_members(body, SIZE))
    for rank in range(SIZE):
        for at in range(2):
            # The sum of the memories is made anew, and so rounds a little differently.
            assert_close(results[2][rank][at], results[0][rank][3 + at], 1e-6)


@pytest.mark.parametrize(
    "options",
    [
        {"compressor": GDSEC(c=4.0, beta=0.1), "sparse_answers": True},
        {"compressor": GDSEC(c=4.0, beta=0.1), "sparse_answers": False},
        {"compressor": ErrorFeedback(TopK(0.25))},
    ],
)
def test_a_state_from_before_the_first_step_leads_back_to_it(options: dict[str, Any]) -> None:
    """The last applied update stayed at the workers, and the sum of their memories at the servers."""
    members = groups(SIZE)

    def steps(exchange: ParameterServer, rank: int, first: int) -> list[dict[str, Tensor]]:
        means: list[dict[str, Tensor]] = []
        for step in range(3):
            found = gradients(rank, step)
            exchange.begin(StepRecord(first + step))
            for name in reversed(found):
                exchange.ready(name, found[name])
            exchange.finish()
            means.append(found)
        return means

    def body(rank: int) -> tuple[list[dict[str, Tensor]], list[dict[str, Tensor]]]:
        with member(client, members[rank], **options) as exchange:
            saved = copy.deepcopy(exchange.state_dict())
            first = steps(exchange, rank, 0)
            barrier.wait(PATIENCE_S)  # the servers have one epoch: all go back together
            exchange.load_state_dict(saved)
            return first, steps(exchange, rank, 3)

    barrier = threading.Barrier(SIZE)
    with servers() as running:
        client = running.client("servers")
        for first, again in by_members(body, SIZE):
            for one, other in zip(first, again, strict=True):
                assert_same(one, other)


def test_who_leaves_is_not_waited_for_and_nothing_of_it_is_lost() -> None:
    members = groups(SIZE)
    compressor = GDSEC(c=5.0, beta=0.1)

    def body(rank: int) -> tuple[list[dict[str, Tensor]], dict[str, Tensor]]:
        with member(client, members[rank], compressor=compressor, sparse_answers=False) as exchange:
            means = run_steps(exchange, rank, range(3))
            if rank == 1:
                exchange.leave()
                return means, {}
            return means + run_steps(exchange, rank, range(3, 7)), exchange.errors()

    with servers() as running:
        client = running.client("servers")
        found = by_members(body, SIZE)
    for name in model():
        means = [one[name].double() for one in found[0][0]]
        applied = sum(mean * (3 if step < 3 else 2) for step, mean in enumerate(means))
        kept = sum(found[rank][1][name].double() for rank in (0, 2))
        rounds = {0: 7, 1: 3, 2: 7}
        computed = sum(gradients(r, step)[name].double() for r, n in rounds.items() for step in range(n))
        torch.testing.assert_close(applied + kept, computed, rtol=1e-5, atol=1e-5)


def test_members_of_an_asynchronous_server_come_and_go_as_they_like() -> None:
    options: dict[str, Any] = {"optimizer": ServerSGD(0.1, reduction="sum"), "mode": "asynchronous"}
    found = {name: torch.zeros_like(value) for name, value in model().items()}
    with servers() as running:
        client = running.client("servers")
        with member(client, StarGroup(0, ["first"]), **options) as exchange:
            run_steps(exchange, 0, range(3))
            with member(client, StarGroup(0, ["second"]), found, **options) as late:
                assert late.next_step == 3
                run_steps(late, 1, range(3, 5))
                assert_close(found, after({(0, 0), (0, 1), (0, 2), (1, 3), (1, 4)}), 1e-6)
                late.leave()
            run_steps(exchange, 0, range(3, 5))
        with member(client, StarGroup(0, ["first"]), found, **options):
            pass
    assert_close(found, after({(0, step) for step in range(5)} | {(1, 3), (1, 4)}), 1e-6)


def after(pushed: set[tuple[int, int]]) -> dict[str, Tensor]:
    """Weights from which these gradients, by rank and step, were subtracted with a rate of 0.1."""
    return {
        name: value.double() - 0.1 * sum(gradients(rank, step)[name].double() for rank, step in pushed)
        for name, value in model().items()
    }


# --- what must not stay in a state ---


@pytest.mark.parametrize("compressor", [GDSEC(c=3.0, beta=0.1), ErrorFeedback(TopK(0.3))])
def test_infinite_gradients_are_refused_before_anything_is_said_and_the_step_can_be_begun_again(
    compressor: Compressor,
) -> None:
    """One worker finds infinities, the other waits; both end as if there had been none."""
    members = groups(2)

    def body(rank: int, disturbed: bool) -> tuple[list[dict[str, Tensor]], dict[str, Tensor]]:
        with member(client, members[rank], compressor=compressor) as exchange:
            means = run_steps(exchange, rank, range(2))
            if rank == 1 and disturbed:
                bad = gradients(1, 2)
                bad["scale"].fill_(torch.inf)
                before = exchange.errors()
                exchange.begin(StepRecord(2, scale=1024.0))
                for name in reversed(bad):
                    exchange.ready(name, bad[name])
                with pytest.raises(GradientNotFinite, match="rank 1, of 1 parameters such as scale") as caught:
                    exchange.finish()
                assert (caught.value.ranks, caught.value.parameters) == ((1,), ("scale",))
                assert_same(exchange.errors(), before)
                exchange.abort(0)  # as after any other failure
            return means + run_steps(exchange, rank, range(2, 5)), exchange.errors()

    found: list[Any] = []
    for disturbed in (False, True):
        with LocalServers(2) as client:
            found.append(by_members(lambda rank, disturbed=disturbed: body(rank, disturbed), 2))
    for rank in range(2):
        for step in range(5):
            assert_same(found[1][rank][0][step], found[0][rank][0][step])
        assert_same(found[1][rank][1], found[0][rank][1])


def test_where_nothing_is_kept_infinite_gradients_pass_to_all_and_the_next_step_is_sound() -> None:
    members = groups(2)

    def body(rank: int) -> list[dict[str, Tensor]]:
        with member(client, members[rank]) as exchange:
            bad = gradients(rank, 0)
            bad["scale"].fill_(torch.inf if rank else 1.0)
            exchange.begin(StepRecord(0))
            for name, value in bad.items():
                exchange.ready(name, value)
            exchange.finish()
            return [bad, *run_steps(exchange, rank, [1])]

    with LocalServers(1) as client:
        means = by_members(body, 2)
    for first, second in means:
        assert first["scale"].isinf()
        assert all(value.isfinite().all() for value in second.values())


@pytest.mark.parametrize("compressor", [GDSEC(c=100.0, beta=0.01), ErrorFeedback(TopK(0.5))])
def test_a_short_batch_does_no_harm_where_the_total_is_known(compressor: Compressor) -> None:
    """What is kept is in units of the mean, and so fits a step of any number of samples."""
    members = groups(2)

    def body(rank: int) -> list[float]:
        means: list[float] = []
        with member(client, members[rank], {"theta": torch.zeros(4)}, compressor=compressor) as exchange:
            for step in range(6):
                samples = [3.0, 5.0] if step == 3 else [128.0, 128.0]
                exchange.begin(StepRecord(step, samples=samples[rank], total_samples=sum(samples)))
                found = torch.ones(4)
                exchange.ready("theta", found)
                assert exchange.finish().samples == sum(samples)
                means.append(float(found.max()))
        return means

    with LocalServers(1) as client:
        means = by_members(body, 2)[0]
    assert max(means) <= 4.5, means  # of gradients that are 1, with what was kept of some steps before


def test_a_short_batch_is_refused_where_something_is_kept_and_no_total_is_known() -> None:
    group = groups(1)
    hint = r"samples=3 and no total_samples.*samples=128.*drop_last=True.*AllGather"
    with LocalServers(1) as client, member(client, group[0], compressor=GDSEC(c=3.0)) as exchange:
        run_steps(exchange, 0, range(2), lambda _rank: 128.0)
        with pytest.raises(ExchangeInvalid, match=hint):
            exchange.begin(StepRecord(2, samples=3.0))
        run_steps(exchange, 0, [2], lambda _rank: 128.0)
        with pytest.raises(ExchangeInvalid, match="has total_samples, and the one before had samples=128"):
            exchange.begin(StepRecord(3, samples=3.0, total_samples=3.0))
    with LocalServers(1) as client, member(client, group[0]) as exchange:
        run_steps(exchange, 0, [0], lambda _rank: 128.0)
        run_steps(exchange, 0, [1], lambda _rank: 3.0)


def test_members_that_mean_different_totals_are_told() -> None:
    group = groups(1)
    with LocalServers(1) as client, member(client, group[0], compressor=GDSEC(c=3.0)) as exchange:
        exchange.begin(StepRecord(0, samples=2.0, total_samples=8.0))
        with pytest.raises(ExchangeInvalid, match=r"are 0\.25 times total_samples=8"):
            exchange.finish()


# --- what does not fit ---


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        ({"mode": "asynchronous"}, r"optimizer=ServerSGD\(lr\)"),
        ({"mode": "bounded", "optimizer": ServerSGD(0.1)}, "staleness=2"),
        ({"mode": "synchronous", "staleness": 3}, 'mode="bounded"'),
        ({"nan": "skip"}, "AllReduce and AllGather have all four"),
        ({"mode": "eventual"}, '"synchronous", "bounded" or "asynchronous"'),
        ({"compressor": GDSEC(), "mode": "asynchronous", "optimizer": ServerSGD(0.1)}, r"GDSEC\(xi=...\)"),
        ({"compressor": GDSEC(xi=1.0)}, "reduction='sum'"),
        ({"optimizer": ServerSGD(0.1), "mode": "asynchronous", "sparse_answers": True}, "staleness=0"),
    ],
)
def test_parts_that_do_not_fit_are_refused_with_what_to_use(options: dict[str, Any], hint: str) -> None:
    with pytest.raises(ExchangeInvalid, match=hint):
        ParameterServer(None, **options)


def test_complex_parameters_are_refused() -> None:
    with LocalServers(1) as servers, pytest.raises(ExchangeInvalid, match="carries real numbers, and phase of the"):
        ParameterServer(servers).bind([("phase", torch.zeros(2, dtype=torch.complex64))], ThreadGroup.make(1)[0])


def test_a_number_of_servers_is_no_client_of_them() -> None:
    # It failed in the first step: object of type 'int' has no len().
    with pytest.raises(ExchangeInvalid, match=r"client of the shards, not their number 2; .* servers=2\)"):
        ParameterServer(2)
