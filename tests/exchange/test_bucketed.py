"""Exchanges in buckets, with members that are threads: means, steps that are taken back, state by name, members."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from ropewalk.errors import ExchangeAborted, ExchangeInvalid, ExchangeStalled, GradientNotFinite, MemberLost
from ropewalk.exchange.all_gather import AllGather
from ropewalk.exchange.all_reduce import AllReduce
from ropewalk.exchange.bucketed import BucketedExchange
from ropewalk.exchange.buckets import BucketEntry, Layout
from ropewalk.exchange.compressors import ErrorFeedback, LowRank, RandomK, TopK
from ropewalk.exchange.compressors.gd_sec import GDSEC
from ropewalk.exchange.exchange import ExchangeReport, StepRecord
from ropewalk.exchange.exchange_maker import make_exchange
from ropewalk.exchange.groups.thread_group import ThreadGroup, run_members
from ropewalk.exchange.observers import Observer

NAMED = [("a", torch.zeros(6, 5)), ("b", torch.zeros(5)), ("c", torch.zeros(4, 5)), ("d", torch.zeros(4))]
#: Four parameters in three buckets.
SMALL: Any = {"bucket_bytes": 90, "first_bucket_bytes": 20}
GD_SEC = GDSEC(c=2.0, beta=0.1)


def gradients(rank: int, step: int) -> dict[str, Tensor]:
    chance = torch.Generator().manual_seed(97 * rank + step)
    return {name: torch.randn(parameter.shape, generator=chance) for name, parameter in NAMED}


def exchanged(exchange: BucketedExchange, step: int, rank: int, samples: float = 1.0, scale: float = 1.0) -> Any:
    """One step: the means, by name, and its report."""
    given = {name: grad * scale for name, grad in gradients(rank, step).items()}
    exchange.begin(StepRecord(step, samples=samples, scale=scale))
    for name in reversed(given):
        exchange.ready(name, given[name])
    return given, exchange.finish()


def members(make: Callable[[], BucketedExchange], body: Callable[[BucketedExchange, ThreadGroup], Any], size: int = 3):
    def run(group: ThreadGroup) -> Any:
        exchange = make()
        exchange.bind(NAMED, group)
        try:
            return body(exchange, group)
        finally:
            exchange.close()

    return run_members(ThreadGroup.make(size), run)


def same(first: Any, second: Any) -> bool:
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(same(first[key], second[key]) for key in first)
    return torch.equal(first, second) if isinstance(first, Tensor) else first == second


def mean(step: int, samples: tuple[float, ...] = (1.0, 1.0, 1.0)) -> dict[str, Tensor]:
    given = [gradients(rank, step) for rank in range(len(samples))]
    return {
        name: torch.stack([weight * grads[name] for weight, grads in zip(samples, given, strict=True)]).sum(0)
        / sum(samples)
        for name, _ in NAMED
    }


WHOLE: dict[str, Callable[[], BucketedExchange]] = {
    "all-reduce": lambda: AllReduce(**SMALL),
    "sparse": lambda: AllGather("none", mode="sparse", **SMALL),
    "dense": lambda: AllGather(GD_SEC, mode="dense", **SMALL),
    "bypass": lambda: AllGather(GD_SEC, mode="bypass", **SMALL),
}


@pytest.mark.parametrize("make", WHOLE.values(), ids=WHOLE)
@pytest.mark.parametrize("samples", [(1.0, 1.0, 1.0), (3.0, 0.0, 1.5), (0.0, 0.0, 0.0)])
def test_gradients_become_the_mean_weighted_by_samples(make, samples) -> None:
    def body(exchange: BucketedExchange, group: ThreadGroup) -> Any:
        return [exchanged(exchange, step, group.rank, samples[group.rank]) for step in range(3)]

    ends = members(make, body)
    for step in range(3):
        assert same(ends[0][step][0], ends[1][step][0]) and same(ends[1][step][0], ends[2][step][0])
        for name, found in ends[0][step][0].items():
            wanted = mean(step, samples)[name] if sum(samples) else torch.zeros_like(found)
            torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)
        assert ends[0][step][1].samples == sum(samples)


def test_what_is_sent_is_counted_by_parameter_and_adds_up() -> None:
    for make in (lambda: AllReduce("half", **SMALL), lambda: AllGather(GD_SEC, mode="sparse", **SMALL)):
        reports: list[ExchangeReport] = members(
            make, lambda exchange, group: [exchanged(exchange, step, group.rank) for step in range(2)][1][1]
        )
        for report in reports:
            assert report.sent_bytes == sum(report.layers.values()) > 0
            assert report.layers.keys() <= {name for name, _ in NAMED}
        assert sum(report.sent_bytes for report in reports) == sum(report.received_bytes for report in reports)


def test_parameters_that_were_not_ready_count_as_zeros() -> None:
    def body(exchange: BucketedExchange, group: ThreadGroup) -> Tensor:
        exchanged(exchange, 0, group.rank)
        exchange.begin(StepRecord(1))
        grad = torch.ones(5)
        if group.rank != 1:
            exchange.ready("b", grad)
        exchange.finish()
        return grad

    ends = members(lambda: AllReduce(**SMALL), body)
    assert ends[0].tolist() == pytest.approx([2 / 3] * 5)
    assert ends[1].tolist() == [1.0] * 5


def test_state_is_kept_in_gradients_without_their_scale() -> None:
    def body(scale: float) -> Callable[[BucketedExchange, ThreadGroup], Any]:
        return lambda exchange, group: (
            [exchanged(exchange, step, group.rank, scale=scale)[0] for step in range(3)],
            exchange.state_dict()["state"],
        )

    for make in (lambda: AllGather(GD_SEC, mode="sparse", **SMALL), lambda: AllReduce(ErrorFeedback(LowRank(1)))):
        for (plain, state), (scaled, state_scaled) in zip(
            members(make, body(1.0)), members(make, body(64.0)), strict=True
        ):
            assert same(state, state_scaled)
            assert all(torch.equal(plain[2][name] * 64, scaled[2][name]) for name in plain[2])


KEPT: dict[str, Callable[[], BucketedExchange]] = {
    "gd_sec": lambda: AllGather(GDSEC(c=100, beta=0.01), mode="sparse"),
    "top_k": lambda: AllGather(ErrorFeedback(TopK(density=0.1)), mode="sparse"),
    "random_k": lambda: AllReduce(ErrorFeedback(RandomK(0.1))),
}


def in_batches(exchange: BucketedExchange, sizes: list[float]) -> tuple[list[Tensor], Tensor]:
    """Exchange the same gradients in batches of some sizes: the means of one parameter, and what is kept back of it."""
    means: list[Tensor] = []
    for step, samples in enumerate(sizes):
        exchange.begin(StepRecord(step, samples=samples))
        given = {name: torch.ones(parameter.shape) * bool(samples) for name, parameter in NAMED}
        for name, grad in given.items():
            exchange.ready(name, grad)
        exchange.finish()
        means.append(given["a"])
    return means, exchange.errors()["a"]


@pytest.mark.parametrize("make", KEPT.values(), ids=KEPT)
def test_what_is_kept_means_the_same_after_a_short_batch(make) -> None:
    ends = members(make, lambda exchange, _: in_batches(exchange, [128.0] * 30 + [3.0] + [128.0] * 3))
    even = members(make, lambda exchange, _: in_batches(exchange, [1.0] * 34))
    for (means, error), (even_means, even_error) in zip(ends, even, strict=True):
        torch.testing.assert_close(torch.stack(means), torch.stack(even_means), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(error, even_error, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("make", KEPT.values(), ids=KEPT)
def test_who_has_no_samples_leaves_the_mean_of_the_others_as_large(make) -> None:
    def body(exchange: BucketedExchange, group: ThreadGroup) -> Any:
        means, error = in_batches(exchange, [1.0] * 30 + [float(group.rank == 0)] * 60)
        return torch.stack(means).sum(0), error

    ends = members(make, body)
    # Every step has a mean of 1, however many members it is of; what is not applied yet is kept back.
    assert torch.allclose(ends[0][0] + sum(error for _, error in ends), torch.tensor(90.0), rtol=1e-3)


@pytest.mark.parametrize("mode", ["sparse", "dense", "bypass"])
def test_a_step_in_which_nobody_has_samples_changes_nothing(mode: str) -> None:
    def body(exchange: BucketedExchange, group: ThreadGroup) -> Any:
        for step in range(4):
            exchanged(exchange, step, group.rank)
        saved = exchange.state_dict()
        exchange.close()
        going = AllGather(GD_SEC, mode=mode, **SMALL)
        going.bind(NAMED, group)
        going.load_state_dict(saved)
        given, report = exchanged(going, 4, group.rank, samples=0.0)
        kept = going.state_dict()["state"]
        going.close()
        return given, report, saved["state"], kept

    for given, report, before, after in members(lambda: AllGather(GD_SEC, mode="sparse", **SMALL), body):
        assert not any(grad.any() for grad in given.values())
        assert (report.skipped, report.samples) == (0, 0.0)
        assert any(error.any() for error in before["encoder.error"].values())
        assert same(after, before)


def test_a_step_that_is_taken_back_leaves_no_trace() -> None:
    for make in (
        lambda: AllGather(GD_SEC, mode="sparse", **SMALL),
        lambda: AllGather(ErrorFeedback(TopK(0.2)), mode="dense", **SMALL),
        lambda: AllReduce(ErrorFeedback(RandomK(0.5)), **SMALL),
    ):

        def with_detour(exchange: BucketedExchange, group: ThreadGroup) -> Any:
            exchanged(exchange, 0, group.rank)
            before = exchange.state_dict()["state"]
            exchange.begin(StepRecord(1))
            for name, grad in gradients(group.rank, 99).items():
                exchange.ready(name, grad)
            exchange.wait()
            exchange.abort(group.epoch - 1)  # of an earlier group: nothing
            exchange.abort(group.epoch)
            assert same(exchange.state_dict()["state"], before)
            return exchanged(exchange, 1, group.rank)[0]

        def straight(exchange: BucketedExchange, group: ThreadGroup) -> Any:
            return [exchanged(exchange, step, group.rank)[0] for step in range(2)][1]

        for detour, plain in zip(members(make, with_detour), members(make, straight), strict=True):
            assert same(detour, plain)


def test_an_abort_from_another_thread_wakes_who_waits() -> None:
    def body(exchange: BucketedExchange, group: ThreadGroup) -> str:
        if group.rank == 1:
            woken.wait(120)
            return ""
        exchange.begin(StepRecord(0))
        exchange.ready("d", torch.ones(4))
        aborter = threading.Thread(target=exchange.abort, args=(group.epoch,))
        aborter.start()
        with pytest.raises((ExchangeAborted, RuntimeError)) as caught:
            exchange.wait()
        aborter.join()
        woken.set()
        return str(caught.value)

    woken = threading.Event()
    assert "step" in members(lambda: AllReduce(**SMALL), body, size=2)[0]


def test_survivors_of_a_death_go_on_from_the_state_before_the_step() -> None:
    later = ThreadGroup.make(2, epoch=1)

    def body(exchange: BucketedExchange, group: ThreadGroup) -> Any:
        exchanged(exchange, 0, group.rank)
        before = exchange.state_dict()["state"]
        exchange.begin(StepRecord(1))
        exchange.ready("d", gradients(group.rank, 1)["d"])
        if group.rank == 2:
            group.leave()
            exchange.abort(group.epoch)
            return None
        with pytest.raises(MemberLost, match="member 2"):
            exchange.wait()
        exchange.abort(group.epoch)
        assert same(exchange.state_dict()["state"], before)
        exchange.regroup(later[group.rank])
        return exchanged(exchange, 1, group.rank)[0], exchange.state_dict()["state"]

    (first, state), (second, other), _ = members(lambda: AllGather(GD_SEC, mode="sparse", **SMALL), body)
    assert same(first, second)
    for name in state["decoder.memory"]:
        total = state["encoder.memory"][name] + other["encoder.memory"][name]
        torch.testing.assert_close(state["decoder.memory"][name], total, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("make", [lambda: AllGather(GD_SEC, mode="sparse"), lambda: AllReduce(LowRank(1))])
def test_who_joins_takes_what_is_the_same_everywhere(make) -> None:
    later = ThreadGroup.make(3, epoch=1)

    def meet(exchange: BucketedExchange, rank: int) -> Any:
        ready.wait()
        exchange.regroup(later[rank])
        # Taken back, so that what is left is what was supplied.
        exchange.begin(StepRecord(3))
        exchange.wait()
        exchange.abort(1)
        state = exchange.state_dict()["state"]
        return state, [exchanged(exchange, step, rank)[0] for step in (3, 4)][1]

    def old(exchange: BucketedExchange, group: ThreadGroup) -> Any:
        for step in range(3):
            exchanged(exchange, step, group.rank)
        return meet(exchange, group.rank)

    def join() -> None:
        exchange = make()
        exchange.bind(NAMED, later[2])
        joined.append(meet(exchange, 2))
        exchange.close()

    ready, joined = threading.Barrier(3), list[Any]()
    joiner = threading.Thread(target=join)
    joiner.start()
    ends = members(make, old, size=2)
    joiner.join()
    ends += joined
    states = [state for state, _ in ends]
    for state, means in ends:
        assert same(means, ends[0][1])
        for kind in ("decoder.memory", "applied", "encoder.Q"):
            assert same(state.get(kind), states[0].get(kind)), kind
    assert "applied" in states[2] or "encoder.Q" in states[2]
    for name, found in states[2].get("decoder.memory", {}).items():
        total = states[0]["encoder.memory"][name] + states[1]["encoder.memory"][name]
        torch.testing.assert_close(found, total, rtol=1e-5, atol=1e-6)


def test_state_goes_on_in_other_buckets_and_in_another_exchange() -> None:
    def straight(exchange: BucketedExchange, group: ThreadGroup) -> Any:
        return [exchanged(exchange, step, group.rank)[0] for step in range(6)][5]

    def changing(exchange: BucketedExchange, group: ThreadGroup) -> Any:
        for step in range(2):
            exchanged(exchange, step, group.rank)
        exchange.set_bucket_bytes(1 << 20)
        for step in range(2, 4):
            exchanged(exchange, step, group.rank)
        saved = exchange.state_dict()
        exchange.close()
        other = AllGather(GD_SEC, mode="sparse", bucket_bytes=1, first_bucket_bytes=1)
        other.bind(NAMED, group)
        other.load_state_dict(saved)
        found = [exchanged(other, step, group.rank)[0] for step in range(other.next_step, 6)]
        other.close()
        return found[1]

    def make() -> BucketedExchange:
        return AllGather(GD_SEC, mode="sparse", **SMALL)

    for one, other in zip(members(make, straight), members(make, changing), strict=True):
        assert same(one, other)


@pytest.mark.parametrize(
    "make",
    [
        lambda: AllGather(GD_SEC, mode="sparse", **SMALL),
        lambda: AllGather(ErrorFeedback(TopK(0.25)), mode="sparse", **SMALL),
        lambda: AllReduce(ErrorFeedback(LowRank(1)), **SMALL),
    ],
)
def test_a_state_from_before_the_first_step_leads_back_to_it(make: Callable[[], BucketedExchange]) -> None:
    def body(exchange: BucketedExchange, group: ThreadGroup) -> Any:
        saved = exchange.state_dict()
        first = [exchanged(exchange, step, group.rank)[0] for step in range(3)]
        exchange.load_state_dict(saved)
        assert exchange.next_step == 0
        return first, [exchanged(exchange, step, group.rank)[0] for step in range(3)]

    for first, again in members(make, body):
        assert all(same(one, other) for one, other in zip(first, again, strict=True))


def test_state_of_three_members_serves_two() -> None:
    def save(exchange: BucketedExchange, group: ThreadGroup) -> Any:
        for step in range(3):
            exchanged(exchange, step, group.rank)
        return exchange.state_dict()

    def make() -> BucketedExchange:
        return AllGather(GD_SEC, mode="sparse", **SMALL)

    saved = members(make, save)

    def load(exchange: BucketedExchange, group: ThreadGroup) -> Any:
        exchange.load_state_dict(saved[group.rank])
        exchanged(exchange, 3, group.rank)
        return exchange.state_dict()["state"]

    first, second = members(make, load, size=2)
    for name, found in first["decoder.memory"].items():
        total = first["encoder.memory"][name] + second["encoder.memory"][name]
        torch.testing.assert_close(found, total, rtol=1e-5, atol=1e-6)


def test_entering_bypass_sends_what_was_kept_back_once() -> None:
    def body(exchange: BucketedExchange, group: ThreadGroup) -> Any:
        found = [exchanged(exchange, step, group.rank)[0] for step in range(3)]
        saved = exchange.state_dict()
        errors = exchange.errors()
        exchange.close()
        past = AllGather(GD_SEC, mode="bypass", **SMALL)
        past.bind(NAMED, group)
        past.load_state_dict(saved)
        found += [exchanged(past, step, group.rank)[0] for step in (3, 4)]
        left = past.errors()
        past.close()
        return found, errors, left

    ends = members(lambda: AllGather(GD_SEC, mode="sparse", **SMALL), body)
    assert any(error.any() for _, errors, _ in ends for error in errors.values())
    for name, _ in NAMED:
        applied = sum(ends[0][0][step][name] for step in range(5))
        torch.testing.assert_close(applied, sum(mean(step)[name] for step in range(5)), rtol=1e-4, atol=1e-5)
        assert not any(left[name].any() for _, _, left in ends)


def test_errors_of_one_member_are_taken_over_by_another() -> None:
    def body(exchange: BucketedExchange, group: ThreadGroup) -> Any:
        exchanged(exchange, 0, group.rank)
        exchanged(exchange, 1, group.rank)
        own = exchange.errors()
        exchange.take_errors({"a": torch.ones(6, 5)})
        return own, exchange.errors()

    for before, after in members(lambda: AllGather(GD_SEC, mode="sparse", **SMALL), body):
        assert torch.equal(after["a"], before["a"] + 1)
        assert torch.equal(after["c"], before["c"])


def test_errors_stay_readable_when_buckets_change_and_when_a_state_was_loaded() -> None:
    # Between that and the next step there were none.
    def body(exchange: BucketedExchange, group: ThreadGroup) -> Any:
        exchanged(exchange, 0, group.rank)
        exchanged(exchange, 1, group.rank)
        own, saved = exchange.errors(), exchange.state_dict()
        exchange.set_bucket_bytes(1 << 20, 1 << 20)
        rebucketed = exchange.errors()
        exchange.close()
        other = AllGather(GD_SEC, mode="sparse", **SMALL)
        other.bind(NAMED, group)
        other.load_state_dict(saved)
        loaded = other.errors()
        other.close()
        return own, rebucketed, loaded

    for own, rebucketed, loaded in members(lambda: AllGather(GD_SEC, mode="sparse", **SMALL), body):
        assert any(error.any() for error in own.values()) and own.keys() == rebucketed.keys() == loaded.keys()
        for name, error in own.items():
            assert torch.equal(rebucketed[name], error) and torch.equal(loaded[name], error)


def test_a_gradient_that_is_not_finite_is_named_on_every_member() -> None:
    def body(exchange: BucketedExchange, group: ThreadGroup) -> Any:
        exchange.begin(StepRecord(0))
        for name, grad in gradients(group.rank, 0).items():
            exchange.ready(name, grad * (float("nan") if (name, group.rank) == ("c", 1) else 1))
        with pytest.raises(GradientNotFinite, match="rank 1 in c") as caught:
            exchange.finish()
        exchange.abort(group.epoch)
        exchanged(exchange, 0, group.rank)
        return caught.value.ranks, caught.value.parameters

    assert members(lambda: AllReduce(nan="raise", **SMALL), body) == [((1,), ("c",))] * 3


def test_payloads_that_cannot_be_summed_are_refused_by_all_reduce() -> None:
    with pytest.raises(ExchangeInvalid, match=r"AllGather\('top_k'\).*ParameterServer\(.*compressor='top_k'\)"):
        AllReduce("top_k")
    with pytest.raises(ExchangeInvalid, match="auto, sparse, dense, bypass"):
        AllGather("top_k", mode="fast")


def test_a_compressor_gets_the_exchange_that_suits_it() -> None:
    assert isinstance(make_exchange("half"), AllReduce)
    assert isinstance(make_exchange(GD_SEC), AllGather)
    exchange = AllReduce()
    assert make_exchange(exchange) is exchange
    with pytest.raises(ExchangeInvalid, match="3 is neither an exchange"):
        make_exchange(3)  # pyright: ignore[reportArgumentType]


def test_calls_out_of_order_are_refused_with_what_to_do() -> None:
    (group,) = ThreadGroup.make(1)
    exchange = AllReduce()
    with pytest.raises(RuntimeError, match="not bound"):
        exchange.begin(StepRecord(0))
    exchange.bind(NAMED, group)
    with pytest.raises(RuntimeError, match="bound already"):
        exchange.bind(NAMED, group)
    with pytest.raises(RuntimeError, match="outside of a step"):
        exchange.ready("a", torch.zeros(6, 5))
    exchange.begin(StepRecord(0))
    with pytest.raises(RuntimeError, match="step 0 is open"):
        exchange.begin(StepRecord(1))
    with pytest.raises(KeyError, match="no parameter 'x'"):
        exchange.ready("x", torch.zeros(1))
    with pytest.raises(ExchangeInvalid, match="sparse=False"):
        exchange.ready("b", torch.zeros(5).to_sparse())
    exchange.ready("b", torch.zeros(5))
    with pytest.raises(RuntimeError, match="ready already"):
        exchange.ready("b", torch.zeros(5))
    with pytest.raises(RuntimeError, match="step 0 is open"):
        exchange.state_dict()
    exchange.finish()
    exchange.close()
    exchange.close()


def test_members_in_different_steps_are_refused() -> None:
    def body(exchange: BucketedExchange, group: ThreadGroup) -> None:
        exchanged(exchange, group.rank, group.rank)

    with pytest.raises(ExchangeInvalid, match="rank 0: 0, rank 1: 1"):
        members(AllReduce, body, size=2)


class Broken(Observer):
    """Raises in one place, as an observer does whose disk is full."""

    def __init__(self, where: str) -> None:
        self._where = where

    def phase(self, name: str, bucket: int, began: float, ended: float) -> None:
        self._raise_at(name)

    def sent(self, bucket: int, mode: str, num_values: int) -> None:
        self._raise_at("sent")

    def note(self, text: str) -> None:
        self._raise_at("note")

    def failed(self, error: BaseException) -> None:
        raise OSError("again")

    def _raise_at(self, where: str) -> None:
        if where == self._where:
            raise OSError(f"no space left at {where}")


def waited(exchange: BucketedExchange) -> BaseException | None:
    """What `wait` raises; not the end of the test if it hangs."""
    raised: list[BaseException | None] = []

    def wait() -> None:
        try:
            exchange.wait()
            raised.append(None)
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    thread.join(120)
    assert raised, "wait() hangs"
    return raised[0]


@pytest.mark.parametrize("where", ["queue", "agree", "sent", "transfer", "note"])
def test_an_observer_that_raises_fails_the_step_and_hangs_nobody(where: str) -> None:
    (group,) = ThreadGroup.make(1)
    exchange = AllGather(GD_SEC, mode="sparse", observers=[Broken(where)], nan="skip", **SMALL)
    exchange.bind(NAMED, group)
    exchange.begin(StepRecord(0))
    exchange.ready("b", torch.full((5,), float("nan")))
    error = waited(exchange)
    assert isinstance(error, OSError) and str(error) == f"no space left at {where}"
    exchange.close()


CARRIED = [
    Layout((BucketEntry("d", (4,)), BucketEntry("c", (4, 5)))),
    Layout((BucketEntry("b", (5,)), BucketEntry("a", (6, 5)))),
]


def carried(exchange: BucketedExchange, flats: list[Tensor]) -> BaseException | None:
    """One step by `carry`, as the hook of DDP does it."""
    errors: list[BaseException | None] = []
    through = threading.Event()

    def done(error: BaseException | None) -> None:
        errors.append(error)
        if len(errors) == len(CARRIED):
            through.set()

    exchange.open_carried(StepRecord(exchange.next_step))
    for index, (layout, flat) in enumerate(zip(CARRIED, flats, strict=True)):
        exchange.carry(index, layout, flat, last=index == len(CARRIED) - 1, done=done)
    assert through.wait(120), "a bucket does not come back"
    return errors[-1]


def test_a_stall_in_the_first_carried_step_names_who_is_missing() -> None:
    def body(group: ThreadGroup) -> BaseException | None:
        exchange = AllReduce()
        exchange.uniform = True
        exchange.bind(NAMED, group)
        if group.rank == 0:
            error = carried(exchange, [torch.ones(24), torch.ones(35)])
            gave_up.set()
        else:
            error = None
            assert gave_up.wait(120)
        exchange.close()
        return error

    gave_up = threading.Event()
    error, _ = run_members(ThreadGroup.make(2, timeout_s=0.4), body)
    assert isinstance(error, ExchangeStalled) and error.ranks == (1,)
    assert "rank 1 has not begun" in str(error)


def test_a_carried_step_that_waits_long_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    def body(group: ThreadGroup) -> None:
        exchange = AllReduce(stall_warning_s=0.1)
        exchange.uniform = True
        exchange.bind(NAMED, group)
        if group.rank == 1:
            for _ in range(2000):
                if "rank 1 has not begun" in caplog.text:
                    break
                threading.Event().wait(0.01)
        assert carried(exchange, [torch.ones(24), torch.ones(35)]) is None
        exchange.close()

    run_members(ThreadGroup.make(2), body)
    assert "rank 1 has not begun" in caplog.text


def test_after_a_carried_step_that_failed_for_all_the_next_one_begins() -> None:
    def body(exchange: BucketedExchange, group: ThreadGroup) -> float:
        flats = [torch.ones(24), torch.ones(35)]
        flats[0][3] = float("nan") if group.rank == 1 else 1.0
        assert isinstance(carried(exchange, flats), GradientNotFinite)
        flats = [torch.full((24,), 2.0 * group.rank), torch.ones(35)]
        assert carried(exchange, flats) is None
        return float(flats[0][0])

    assert members(lambda: AllReduce(nan="raise"), body, size=2) == [1.0, 1.0]


def test_who_stops_in_the_middle_of_a_step_cannot_meet_another_call_of_the_others() -> None:
    def body(exchange: BucketedExchange, group: ThreadGroup) -> str:
        exchange.begin(StepRecord(0))
        exchange.ready("d", torch.ones(4))
        exchange.ready("c", torch.ones(4, 5)).wait()  # the first bucket is back
        if group.rank == 0:
            exchange.abort(group.epoch)
            exchange.begin(StepRecord(0))
        with pytest.raises((ExchangeAborted, ExchangeStalled, MemberLost)) as raised:
            exchange.finish()
        return type(raised.value).__name__

    def run(group: ThreadGroup) -> str:
        exchange = AllReduce(**SMALL)
        exchange.bind(NAMED, group)
        try:
            return body(exchange, group)
        finally:
            exchange.close()

    assert run_members(ThreadGroup.make(2, timeout_s=3.0), run)[0] == "ExchangeAborted"


@pytest.mark.parametrize("make", [AllReduce, lambda: AllGather(GD_SEC)])
def test_a_step_whose_nan_is_passed_on_is_not_called_skipped(make: Callable[[], BucketedExchange]) -> None:
    def body(exchange: BucketedExchange, group: ThreadGroup) -> Any:
        grad = torch.full((5,), float("nan") if group.rank else 1.0)
        exchange.begin(StepRecord(0))
        exchange.ready("b", grad)
        report = exchange.finish()
        return bool(grad.isnan().all()), report.skipped, exchange.skipped

    assert members(make, body, size=2) == [(True, 0, False)] * 2


@pytest.mark.parametrize(
    "make", [lambda: AllReduce(**SMALL), lambda: AllGather("none", **SMALL), lambda: AllReduce("half")]
)
def test_a_bucket_of_parameters_without_elements_is_exchanged(make: Callable[[], BucketedExchange]) -> None:
    """It has one of its own where it alone has its dtype; the step failed with a division by zero, or StopIteration."""
    named = [("weight", torch.zeros(3)), ("empty", torch.zeros(0, 4, dtype=torch.float64))]

    def run(group: ThreadGroup) -> list[float]:
        exchange = make()
        exchange.bind(named, group)
        try:
            given = {"weight": torch.full((3,), float(group.rank)), "empty": torch.zeros(0, 4, dtype=torch.float64)}
            exchange.begin(StepRecord(0))
            for name, gradient in given.items():
                exchange.ready(name, gradient)
            exchange.finish()
            return given["weight"].tolist()
        finally:
            exchange.close()

    assert run_members(ThreadGroup.make(2), run) == [[0.5] * 3] * 2


@pytest.mark.parametrize("exchange", ["half", "quantized", "sign", "gd_sec", AllGather("none")])
def test_complex_parameters_are_refused_where_messages_hold_real_numbers(exchange: Any) -> None:
    """`half` and `quantized` dropped the imaginary part of every gradient, with a warning of torch or numpy at most."""
    parameters = [("real", torch.zeros(3)), ("phase", torch.zeros(2, 2, dtype=torch.complex64))]
    with pytest.raises(ExchangeInvalid, match=r"carries real numbers, and phase of the parameters are torch.complex64"):
        make_exchange(exchange).bind(parameters, ThreadGroup.make(1)[0])


def test_complex_gradients_are_averaged_without_a_compressor() -> None:
    def body(group: ThreadGroup) -> Tensor:
        exchange, gradient = AllReduce(), torch.full((2,), complex(1, 4 * group.rank), dtype=torch.complex64)
        exchange.bind([("phase", torch.zeros_like(gradient))], group)
        exchange.begin(StepRecord(0))
        exchange.ready("phase", gradient)
        exchange.finish()
        exchange.close()
        return gradient

    for mean in run_members(ThreadGroup.make(2), body):
        assert mean.tolist() == [1 + 2j, 1 + 2j]
