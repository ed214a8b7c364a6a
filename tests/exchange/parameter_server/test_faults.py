"""Real processes that are killed, and messages that are late, doubled or damaged: the weights do not show it."""

from __future__ import annotations

import functools
import itertools
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import ropewalk as rw
from ropewalk.errors import ExchangeError, MemberLost, MessageCorrupt
from ropewalk.exchange.compressors.gd_sec import GDSEC
from ropewalk.exchange.exchange import StepRecord
from ropewalk.exchange.parameter_server.outcomes import Accepted
from ropewalk.exchange.parameter_server.parameter_server import ParameterServer
from ropewalk.exchange.parameter_server.server_sgd import ServerSGD
from ropewalk.exchange.parameter_server.service import ParameterShard
from ropewalk.program.running import RunningProgram
from ropewalk.program.status import NodeStatus
from tests.exchange.parameter_server.local_servers import LocalServers, LocalShard
from tests.exchange.parameter_server.running import by_members, gradients, groups, member, model, run_steps
from tests.exchange.parameter_server.running import servers as running_servers
from tests.exchange.parameter_server.star_group import StarGroup
from tests.patience import PATIENCE_S, wait_until

STEPS, WORKERS = 12, 2
OPTIMIZER = ServerSGD(0.1, momentum=0.5)
SPARSE = GDSEC(xi=5.0, beta=0.1)


def slope(weights: dict[str, Tensor], rank: int, step: int) -> dict[str, Tensor]:
    """Depends on the weights, so that a mistake in any step is seen in the last."""
    return {name: 0.3 * weights[name] + found for name, found in gradients(rank, step).items()}


def take_step(exchange: ParameterServer, weights: dict[str, Tensor], rank: int, step: int) -> None:
    exchange.begin(StepRecord(step))
    for name, found in slope(weights, rank, step).items():
        exchange.ready(name, found)
    exchange.finish()


@functools.cache
def undisturbed(num_workers: int = WORKERS) -> dict[str, Tensor]:
    """By one process and plain arithmetic, in the order of ranks."""
    mine, velocity = model(), {name: torch.zeros_like(value) for name, value in model().items()}
    for step in range(STEPS):
        found = [slope(mine, rank, step) for rank in range(num_workers)]
        for name in mine:
            mean = functools.reduce(torch.add, (one[name] for one in found)) / num_workers
            velocity[name] = mean if step == 0 else 0.5 * velocity[name] + mean
            mine[name] = mine[name] - 0.1 * velocity[name]
    return mine


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    for name, value in expected.items():
        assert torch.equal(found[name], value), name


# --- killed for real ---


NAMES = ["here", "there"]


class Trainer:
    """A worker in a process of its own; its first life ends by SIGKILL when half of a step is pushed."""

    def __init__(self, servers: rw.Client, options: dict[str, Any], dies_at: int) -> None:
        torch.set_num_threads(1)
        self._servers, self._options, self._dies_at = servers, options, dies_at
        self._weights = model()
        self._over = threading.Event()

    def run(self) -> None:
        group = StarGroup(1, NAMES)
        exchange = ParameterServer(self._servers, piece_bytes=200, **self._options)
        exchange.bind(self._weights.items(), group)
        for step in range(exchange.next_step, STEPS):
            if (step, rw.current_node().generation) == (self._dies_at, 0):
                exchange.begin(StepRecord(step))
                for name, found in list(slope(self._weights, 1, step).items())[:3]:
                    exchange.ready(name, found)
                keys = range(3)  # of pieces: wait until at least one of them has been pushed
                while len(self._servers.pull(NAMES[1], 0, step, keys, 0.0).behind) == len(keys):
                    time.sleep(0.001)
                os.kill(os.getpid(), signal.SIGKILL)
            take_step(exchange, self._weights, 1, step)
        exchange.close()
        self._over.set()
        rw.wait_for_stop()

    @rw.concurrent(1)
    @rw.idempotent
    def weights(self) -> dict[str, Tensor]:
        """The last ones."""
        self._over.wait()
        return self._weights


def node(running: RunningProgram, name: str) -> NodeStatus:
    return next(node for node in running.status().nodes if node.name == name)


@pytest.mark.usefixtures("shared_session")
def test_a_worker_is_killed_in_mid_push_and_later_a_shard_and_the_weights_are_those_of_an_undisturbed_run() -> None:
    program = rw.Program("faults")
    shards = program.add(
        rw.Service(ParameterShard), name="servers", restart="on_failure", checkpoint_s=0.05, preload=["torch"]
    )
    trainer = rw.Service(Trainer, shards, {"optimizer": OPTIMIZER}, 4)
    program.add(trainer, name="trainer", restart="on_failure", preload=["torch"])
    mine = model()
    with program.launch("processes") as running:
        client = running.client("servers")
        with member(client, StarGroup(0, NAMES), mine, piece_bytes=200, optimizer=OPTIMIZER) as exchange:
            for step in range(STEPS):
                if step == 8:
                    os.kill(node(running, "servers").pid, signal.SIGKILL)
                take_step(exchange, mine, 0, step)
        theirs = running.client("trainer").weights()
        # The second life of the trainer has the pushes since step 4. Is the server's state older, it needs a third one.
        assert node(running, "servers").restarts == 1 and node(running, "trainer").restarts in (1, 2)
    assert_same(mine, undisturbed())
    assert_same(theirs, undisturbed())


# --- killed at any moment, with and without a state ---


def trained_with(
    servers: LocalServers, disturb: Callable[[int], None], *, leave: bool = False, **options: Any
) -> list[dict[str, Tensor]]:
    """The weights after all steps; `disturb(step)` is called before rank 0 takes a step, and may do what it likes."""
    members = groups(WORKERS)
    # The pushes of a member that has ended are gone: a shard that forgets them first could not repeat the others' step.
    all_done = threading.Barrier(WORKERS)

    def body(rank: int) -> dict[str, Tensor]:
        weights = model()
        with member(servers, members[rank], weights, timeout_s=PATIENCE_S, **options) as exchange:
            for step in range(STEPS):
                if rank == 0:
                    disturb(step)
                take_step(exchange, weights, rank, step)
            all_done.wait(PATIENCE_S)
            if leave:
                exchange.leave()
        return weights

    return by_members(body, WORKERS)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(1, 6))])
def test_shards_that_come_back_from_any_state_or_from_none_are_sent_what_they_lack(seed: int) -> None:
    chance = random.Random(seed)
    with LocalServers(2) as servers:
        kills: list[threading.Timer] = []

        def disturb(step: int) -> None:
            if step == STEPS - 1:  # a member that has done all its steps does not hear that a shard lacks the last
                for kill in kills:
                    kill.join()
                return
            for shard in servers:
                if chance.random() < 0.3:
                    shard.save()
                if chance.random() < 0.3:
                    kills.append(threading.Timer(chance.random() * 0.01, shard.kill))
                    kills[-1].start()

        for weights in trained_with(servers, disturb, optimizer=OPTIMIZER):
            assert_same(weights, undisturbed())


def test_members_that_have_what_the_others_lack_after_two_restarts_send_it_again() -> None:
    """Each shard is lost when one member has its answers, and the other has not: nobody asks for the former."""
    members, exchanges, lost = groups(2), [], threading.Event()

    def holding(worker: str) -> Callable[[str, tuple[Any, ...]], tuple[Any, ...]]:
        def change(word: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
            assert not (word == "pull" and args[0] == worker) or lost.wait(PATIENCE_S)
            return args

        return change

    def body(rank: int) -> None:
        weights = model()
        with member(servers, members[rank], weights, timeout_s=PATIENCE_S, optimizer=OPTIMIZER) as exchange:
            exchanges.append((rank, exchange))
            take_step(exchange, weights, rank, 0)
            # The one who is first done with step 0 may have been sent everything before it has looked at the other
            # server: it sends what that one lacks in its next step.
            take_step(exchange, weights, rank, 1)

    def have_all_they_can() -> bool:
        # Rank 0 gets no answer of server 0, and rank 1 none of server 1.
        return len(exchanges) == 2 and all(
            exchange._done == set(exchange._model.keys[1 - rank]) for rank, exchange in exchanges
        )

    def forget() -> None:
        wait_until(have_all_they_can, what="the answers of one server for each member")
        for shard in servers:
            shard.forget()
        lost.set()

    with LocalServers(2) as servers:
        for at, shard in enumerate(servers):
            shard.change = holding(members[at].members[at])
        by_members(lambda part: forget() if part == 2 else body(part), 3)
    (_, first), (_, second) = exchanges
    assert_same(first._model._parameters, second._model._parameters)


#: What workers say to shards, and how many times this test has a shard forget everything just before.
WORDS = {"introduce": 6, "enrol": 4, "standing": 4, "push": 6, "pull": 6, "leave": 4}


@pytest.mark.parametrize(
    "word", [pytest.param(word, marks=[pytest.mark.soak] * (word in ("introduce", "pull"))) for word in WORDS]
)
def test_a_shard_may_forget_everything_before_any_word(word: str) -> None:
    # A shard that was killed between `introduce` and `enrol` took a worker as a member of nothing: KeyError in `push`.
    def forget_at(servers: LocalServers, due: Iterator[bool], name: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
        if name == word and next(due):
            servers[0].forget()
        return args

    for number in range(WORDS[word]):
        due = itertools.chain([False] * number, [True], itertools.repeat(False))
        with LocalServers(2) as servers:
            servers[0].change = servers[1].change = functools.partial(forget_at, servers, due)
            for weights in trained_with(servers, lambda _step: None, leave=True, optimizer=OPTIMIZER):
                assert_same(weights, undisturbed())
        assert not next(due), f"{word!r} was said at most {number} times"


@pytest.mark.parametrize("sparse_answers", [pytest.param(False, marks=pytest.mark.soak), True])
def test_the_memory_of_gd_sec_comes_back_too(sparse_answers: bool) -> None:
    options: dict[str, Any] = {"compressor": SPARSE, "optimizer": OPTIMIZER, "sparse_answers": sparse_answers}
    with LocalServers(2) as servers:
        expected = trained_with(servers, lambda _step: None, **options)
    with LocalServers(2) as servers:

        def disturb(step: int) -> None:
            if step == 3:
                servers[0].save()
            if step in (2, 6):
                servers[0].kill()
            if step == 7:
                servers[1].kill()

        for found, undone in zip(trained_with(servers, disturb, **options), expected, strict=True):
            assert_same(found, undone)


def test_a_shard_older_than_the_last_change_of_members_waits_for_nobody_twice() -> None:
    """All its refusals make the worker enrol once more, or again; memories of one alone are waited for by nobody."""
    first, second = groups(WORKERS), groups(WORKERS, epoch=1)
    with LocalServers(1) as servers:

        def body(rank: int) -> list[dict[str, Tensor]]:
            with member(servers, first[rank], compressor=GDSEC(c=3.0, beta=0.1), timeout_s=PATIENCE_S) as exchange:
                run_steps(exchange, rank, range(2))
                between.wait(120)
                if rank == 0:
                    servers[0].save()
                between.wait(120)
                exchange.regroup(second[rank])
                means = run_steps(exchange, rank, range(2, 4))
                between.wait(120)
                if rank == 0:
                    servers[0].kill()
                between.wait(120)
                return means + run_steps(exchange, rank, range(4, 6))

        for _ in range(3):
            between = threading.Barrier(WORKERS)
            means = by_members(body, WORKERS)
            for step in range(4):
                assert_same(means[0][step], means[1][step])
            servers[0].forget()


def test_a_shard_that_forgot_weights_of_an_earlier_epoch_is_not_given_the_first_ones_again() -> None:
    # Rank 0 still had the weights that training began with, and gave them: the next steps went on from there.
    first, second = groups(1), groups(1, epoch=1)
    weights = model()
    with LocalServers(1) as servers, member(servers, first[0], weights, optimizer=OPTIMIZER) as exchange:
        for step in range(3):
            take_step(exchange, weights, 0, step)
        exchange.regroup(second[0])
        take_step(exchange, weights, 0, 3)
        servers[0].forget()
        with pytest.raises(ExchangeError, match="came back without any state, and its weights up to step 3"):
            take_step(exchange, weights, 0, 4)


def test_a_server_that_owns_nothing_goes_on_at_once() -> None:
    members = groups(WORKERS)
    with LocalServers(2) as servers:

        def body(rank: int) -> list[dict[str, Tensor]]:
            with member(servers, members[rank], replay_bytes=0) as exchange:
                first = run_steps(exchange, rank, range(3))
                if rank == 0:
                    servers[1].kill()
                return first + run_steps(exchange, rank, range(3, 5))

        means = by_members(body, WORKERS)
    for step in range(5):
        assert_same(means[0][step], means[1][step])
        expected = sum((gradients(rank, step)["embedding"] for rank in range(WORKERS)), torch.zeros(())) / WORKERS
        torch.testing.assert_close(means[0][step]["embedding"], expected)


def test_a_shard_older_than_what_workers_have_kept_says_what_to_change() -> None:
    with LocalServers(1) as servers, member(servers, groups(1)[0], optimizer=OPTIMIZER, replay_bytes=0) as exchange:
        weights = model()
        for step in range(3):
            take_step(exchange, weights, 0, step)
        servers[0].kill()
        with pytest.raises(ExchangeError, match="more replay_bytes than 0"):
            take_step(exchange, weights, 0, 3)


# --- late, doubled and damaged ---


def test_late_and_doubled_pushes_change_nothing() -> None:
    with LocalServers(2) as servers:
        heard: list[tuple[LocalShard, tuple[Any, ...]]] = []

        def disturb(step: int) -> None:
            for shard, args in random.Random(step).sample(heard, min(10, len(heard))):
                assert shard.call("push", args) == Accepted()
            servers[0].call("push", ("member 1", -1, step, 0, b"of an epoch that is over", 1.0))

        for shard in servers:

            def hear(name: str, args: tuple[Any, ...], shard: LocalShard = shard) -> tuple[Any, ...]:
                # What rank 1 pushes: all of it is over when rank 0 begins a later step.
                if name == "push" and args[0] == "member 1" and args[2] < STEPS - 1 and args[1] == 0:
                    heard.append((shard, args))
                return args

            shard.change = hear
        for weights in trained_with(servers, disturb, optimizer=OPTIMIZER):
            assert_same(weights, undisturbed())


def test_a_push_that_is_damaged_on_the_way_is_sent_again_and_nobody_else_hears_of_it() -> None:
    with LocalServers(2) as servers:
        damaged: list[int] = []

        def damage(name: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
            if name == "push" and args[2] == 5 and args[0] == "member 0" and not damaged:
                damaged.append(args[3])
                return (*args[:4], b"\xff" * len(args[4]), args[5])
            return args

        servers[0].change = damage
        for weights in trained_with(servers, lambda _step: None, optimizer=OPTIMIZER):
            assert_same(weights, undisturbed())
        assert damaged


def test_a_message_that_is_never_readable_reaches_who_pushed_it_and_the_round_goes_on_without_harm() -> None:
    members = groups(WORKERS)
    is_damaging = True

    def damage(name: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
        if is_damaging and name == "push" and args[0] == "member 1":
            return (*args[:4], b"\xff" * len(args[4]), args[5])
        return args

    with LocalServers(1) as servers:
        servers[0].change = damage
        harmed, repaired = threading.Event(), threading.Event()

        def body(rank: int) -> dict[str, Tensor]:
            nonlocal is_damaging
            found = gradients(rank, 0)
            if rank == 1:
                with member(servers, members[1]) as exchange, pytest.raises(MessageCorrupt, match="cannot read piece"):
                    run_steps(exchange, 1, [0])
                is_damaging = False
                harmed.set()
                with member(servers, members[1]) as exchange:  # the same worker, with its wits together
                    return run_steps(exchange, 1, [0])[0]
            with member(servers, members[0]) as exchange:
                found = run_steps(exchange, 0, [0])[0]
            assert harmed.is_set()
            repaired.set()
            return found

        means = by_members(body, WORKERS)
    assert_same(means[0], means[1])
    expected = (gradients(0, 0)["embedding"] + gradients(1, 0)["embedding"]) / 2
    torch.testing.assert_close(means[0]["embedding"], expected)


def test_a_server_that_is_gone_for_good_is_a_lost_member() -> None:
    with running_servers(1, restart="never", essential=False) as running:
        client = running.client("servers")
        with member(client, groups(1)[0], timeout_s=8.0) as exchange:
            run_steps(exchange, 0, [0])
            running.scale("servers", 0)
            wait_until(lambda: not running.status().nodes)  # until it has ended it may still answer
            with pytest.raises(MemberLost, match="a parameter server is gone"):
                run_steps(exchange, 0, [1])
