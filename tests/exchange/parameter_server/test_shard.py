"""What a parameter server decides, in any order of events: nothing is counted twice, nothing is lost."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ropewalk.errors import ExchangeInvalid
from ropewalk.exchange.compressors.gd_sec import GDSEC
from ropewalk.exchange.compressors.none import NoCompression
from ropewalk.exchange.parameter_server.outcomes import (
    Accepted,
    Behind,
    Enrolled,
    Outdated,
    Pulled,
    ServerSettings,
)
from ropewalk.exchange.parameter_server.pieces import tensor_of
from ropewalk.exchange.parameter_server.server_sgd import ServerSGD
from ropewalk.exchange.parameter_server.shard import Shard
from tests.exchange.parameter_server.worlds import (
    SIZES,
    Pusher,
    enrol,
    formed,
    gradient,
    joined,
    layouts,
    restored,
    start,
)

DENSE = ServerSettings(NoCompression())
OWNER = ServerSettings(NoCompression(), optimizer=ServerSGD(0.1, momentum=0.5))
SPARSE = ServerSettings(GDSEC(c=2.0, beta=0.3))
SPARSE_OWNER = ServerSettings(GDSEC(xi=20.0, beta=0.3), optimizer=ServerSGD(0.1, reduction="sum"))
ALL = {"dense": DENSE, "owner": OWNER, "gd_sec": SPARSE, "gd_sec owner": SPARSE_OWNER}


def play(shard: Shard, workers: list[Pusher], num_steps: int, data: st.DataObject | None = None) -> Shard:
    """Let workers push and pull until all have done `num_steps`; with `data` in any order, with faults."""
    while any(worker.step < num_steps for worker in workers):
        busy = [worker for worker in workers if worker.step < num_steps]
        worker = busy[0] if data is None else data.draw(st.sampled_from(busy))
        fault = "" if data is None else data.draw(st.sampled_from(["", "", "", "late", "again", "restored"]))
        if data and fault == "late" and worker.sent:
            step, key = data.draw(st.sampled_from(sorted(worker.sent)))
            if (step, key) != (worker.step, key) or key in worker.pushed:
                outcome = shard.push(worker.name, worker.epoch, step, key, worker.sent[step, key], 1.0)
                assert isinstance(outcome, Accepted | Behind)
        if fault == "restored":
            shard = restored(shard)
        left = [key for key in SIZES if key not in worker.pushed]
        if left:
            key = left[0] if data is None else data.draw(st.sampled_from(left))
            worker.push(shard, key)
            if fault == "again":
                worker.push(shard, key)
        else:
            worker.pull(shard)
            workers.append(workers.pop(workers.index(worker)))
    return shard


@pytest.mark.parametrize("what", ALL)
@settings(max_examples=4, deadline=None)
@given(data=st.data())
def test_every_order_with_duplicates_late_pushes_and_restored_shards_gives_the_same_rounds(
    what: str, data: st.DataObject
) -> None:
    shard, workers = formed(ALL[what], 3)
    play(shard, list(workers), 4)
    again, others = formed(ALL[what], 3)
    play(again, list(others), 4, data)
    for worker, other in zip(workers, others, strict=True):
        assert worker.got.keys() == other.got.keys()
        for at, result in worker.got.items():
            torch.testing.assert_close(other.got[at], result, rtol=0, atol=0)


def test_a_round_is_the_sum_of_all_members_in_the_order_of_ranks() -> None:
    shard, workers = formed(DENSE, 4)
    play(shard, list(workers), 3)
    for (step, key), result in workers[0].got.items():
        total = sum((gradient(worker.name, step, key) for worker in workers), torch.zeros(SIZES[key]).double())
        torch.testing.assert_close(result, total, rtol=0, atol=0)


def test_a_push_of_a_round_that_is_over_changes_nothing() -> None:
    shard, workers = formed(OWNER, 2)
    play(shard, list(workers), 2)
    before = shard.standing(SIZES)
    rubbish = b"what nobody will ever read"
    assert shard.push("w0", 0, 0, 0, rubbish, 1.0) == Accepted()
    assert shard.standing(SIZES) == before


def test_a_shard_that_lacks_a_step_asks_for_it() -> None:
    shard, workers = formed(OWNER, 2)
    play(shard, list(workers), 1)
    workers[0].message(0)
    assert shard.push("w0", 0, 5, 0, b"", 1.0) == Behind(1)


def test_a_member_is_told_which_of_its_pushes_of_a_step_are_not_here() -> None:
    shard, workers = formed(OWNER, 2)
    play(shard, list(workers), 1)
    before = restored(shard)
    workers[0].push(shard, 0)
    assert shard.behind("w0", 0, 1, [0, 1]) == {1: 1} and shard.behind("w0", 0, 1, [0]) == {}
    assert before.behind("w0", 0, 2, [0, 1]) == {0: 1, 1: 1}, "the step from which they are needed"
    assert before.behind("w1", 0, 0, [0, 1]) == {}
    assert before.behind("w7", 0, 1, [0]) == Outdated(0) and Shard().behind("w0", 0, 1, [0]) == Outdated(-1)


def test_who_is_no_member_or_of_an_older_epoch_is_told_so_and_changes_nothing() -> None:
    shard, workers = formed(DENSE, 2)
    assert shard.push("w7", 0, 0, 0, b"", 1.0) == Outdated(0)
    assert shard.pull("w7", 0, 0, [0]) == Outdated(0)
    assert shard.enrol("w7", 0, ["w7"], 0) == Outdated(0)
    enrol(shard, workers, 2)
    assert shard.push("w0", 1, 0, 0, b"", 1.0) == Outdated(2)
    assert shard.enrol("w0", 1, ["w0", "w1"], 0) == Outdated(2)
    assert Shard().push("w0", 0, 0, 0, b"", 1.0) == Outdated(-1)


def test_every_member_has_to_enrol_again_at_a_shard_that_came_back_with_nothing() -> None:
    """The first one who returns names all members, but has neither the weights nor the memories of the others."""
    shard = Shard()
    shard.introduce(SPARSE_OWNER, layouts())
    assert shard.enrol("w1", 0, ["w0", "w1"], 0) == Enrolled((0, 1), 0)
    assert shard.push("w0", 0, 3, 0, b"", 1.0) == Outdated(-1)
    assert shard.pull("w0", 0, 3, [0]) == Outdated(-1)
    assert isinstance(shard.enrol("w0", 0, ["w0", "w1"], 0), Enrolled)
    assert shard.push("w0", 0, 3, 0, b"", 1.0) == Behind(0)


@settings(max_examples=10, deadline=None)
@given(data=st.data(), what=st.sampled_from(sorted(ALL)))
def test_a_death_in_the_middle_of_a_step_takes_the_step_back_for_all(data: st.DataObject, what: str) -> None:
    """The next epoch begins with the same step, with sums of the survivors (docs/theory.md, "Exchange semantics")."""
    shard, workers = formed(ALL[what], 3)
    play(shard, list(workers), 2)
    # Some pieces of step 2 arrive, from some; one may even be complete and pulled.
    for _ in range(data.draw(st.integers(0, 8))):
        worker = data.draw(st.sampled_from(workers))
        key = data.draw(st.sampled_from(sorted(SIZES)))
        if (key not in worker.pushed and data.draw(st.booleans())) or not worker.pushed:
            worker.push(shard, key)
        elif len(worker.pushed) < 2:
            worker.pull(shard)
    if data.draw(st.booleans()):
        shard = restored(shard)
    dead = data.draw(st.sampled_from(workers))
    survivors = [worker for worker in workers if worker is not dead]
    for worker in survivors:
        worker.abort()
    enrol(shard, survivors, 1)
    assert shard.push(dead.name, 0, 2, 0, b"late", 1.0) == Outdated(1)
    shard = play(shard, list(survivors), 4, data)

    # The same by hand: the two steps of three, and then two steps of the survivors, who never heard of more.
    twin, others = formed(ALL[what], 3)
    play(twin, list(others), 2)
    left = [other for other in others if other.name != dead.name]
    for other in left:
        other.attempt = 1
    enrol(twin, left, 1)
    play(twin, list(left), 4)
    for worker, other in zip(survivors, left, strict=True):
        for at, result in other.got.items():
            torch.testing.assert_close(worker.got[at], result, rtol=0, atol=0)


def test_after_a_death_the_memory_is_the_sum_of_the_survivors() -> None:
    shard, workers = formed(SPARSE, 3)
    play(shard, list(workers), 3)
    enrol(shard, workers[:2], 1)
    standing = shard.standing(SIZES)
    assert standing is not None
    for key in SIZES:
        memory = tensor_of(standing[key].memory or b"", torch.float64)
        total = sum((worker.memory(key) for worker in workers[:2]), torch.zeros(SIZES[key]).double())
        torch.testing.assert_close(memory, total, rtol=0, atol=0)


@pytest.mark.parametrize("beta", [0.3, 1.0])
def test_who_leaves_takes_its_memory_along_and_leaves_its_error(beta: float) -> None:
    """h <- h - h_m, and e_m is added once; so over all rounds nothing of what was computed is lost."""
    shard, workers = formed(ServerSettings(GDSEC(c=1.5, beta=beta, on_unstable="warn")), 3)
    play(shard, list(workers), 4)
    leaver = workers.pop()
    memories = {key: leaver.memory(key) for key in SIZES}
    errors = {key: leaver.error(key) for key in SIZES}
    shard.leave(leaver.name, 0, leaver.step, memories, errors)
    play(shard, list(workers), 7)
    for key in SIZES:
        applied = sum(workers[0].got[step, key] for step in range(7))
        said = sum(
            gradient(w.name, step, key) for w in (*workers, leaver) for step in range(7 if w is not leaver else 4)
        )
        kept = sum(worker.error(key) for worker in workers)
        torch.testing.assert_close(applied + kept, said, rtol=1e-12, atol=1e-12)


def test_a_corrupt_message_reaches_its_sender_and_the_round_goes_on_with_a_better_one() -> None:
    shard, workers = formed(SPARSE, 3)
    shard.push("w1", 0, 0, 0, b"\xff\xff\xff\xff", 1.0)
    workers[0].push(shard, 0)
    workers[2].push(shard, 0)
    told = shard.pull("w1", 0, 0, [0])
    assert isinstance(told, Pulled) and told.behind == {0: 0} and "rank 1" in told.corrupt[0]
    others = shard.pull("w0", 0, 0, [0])
    assert isinstance(others, Pulled) and not others.answers and others.missing == ("w1",)
    play(shard, list(workers), 2)
    twin, undisturbed = formed(SPARSE, 3)
    play(twin, list(undisturbed), 2)
    for at, result in undisturbed[0].got.items():
        torch.testing.assert_close(workers[0].got[at], result, rtol=0, atol=0)


# --- staleness ---


@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 10**6), staleness=st.sampled_from([1, 3, None]))
def test_nobody_gets_further_ahead_than_the_staleness_allows_and_every_push_counts_once(
    seed: int, staleness: int | None
) -> None:
    chance = random.Random(seed)
    plain = ServerSettings(NoCompression(), staleness=staleness, optimizer=ServerSGD(0.1, reduction="sum"))
    shard, workers = formed(plain, 3)
    while busy := [worker for worker in workers if worker.step < 5]:
        worker = chance.choice(busy)
        left = [key for key in SIZES if key not in worker.pushed]
        if left:
            worker.push(shard, chance.choice(left))
        else:
            worker.pull(shard)
        if chance.random() < 0.1:
            shard = restored(shard)
        steps = [other.step for other in workers]
        assert staleness is None or max(steps) - min(steps) <= staleness + 1
    # All that was pushed is in: theta = theta_0 - lr * sum of all gradients.
    standing = shard.standing(SIZES)
    assert standing is not None
    for key, first in start().items():
        total = sum(gradient(worker.name, step, key) for worker in workers for step in range(5))
        weights = tensor_of(standing[key].weights or b"", torch.float64)
        torch.testing.assert_close(weights, first - 0.1 * total, rtol=1e-12, atol=1e-12)


def test_with_a_bound_the_fastest_waits_for_the_slowest() -> None:
    shard, (fast, _slow) = formed(ServerSettings(NoCompression(), staleness=2, optimizer=ServerSGD(0.1)), 2)
    for _ in range(10):
        for key in SIZES:
            fast.push(shard, key)
        fast.pull(shard)
    assert fast.step == 2
    told = shard.pull(fast.name, 0, 2, list(SIZES))
    assert isinstance(told, Pulled) and told.missing == ("w1",)


def test_members_come_and_go_without_a_new_epoch_where_nobody_waits_for_all() -> None:
    shard, workers = formed(ServerSettings(NoCompression(), staleness=None, optimizer=ServerSGD(0.1)), 2)
    assert shard.enrol("w9", 0, ["w9"], 40) == Enrolled((), 40)
    assert isinstance(shard.push("w9", 0, 40, 0, workers[0].message(0), 1.0), Accepted)
    pulled = shard.pull("w9", 0, 40, [0])
    assert isinstance(pulled, Pulled) and pulled.answers[0].size == 3
    assert shard.leave("w9", 0, 41) == Accepted()
    assert shard.push("w9", 0, 41, 0, b"", 1.0) == Outdated(0)


def test_where_rounds_are_not_whole_each_worker_has_a_memory_of_its_own_at_the_server() -> None:
    """The server moves by h_m + S_m of who pushed, which by the identity of GD-SEC is g_m + e_m - e_m'."""
    shard, (worker, _other) = formed(
        ServerSettings(GDSEC(xi=30.0, beta=0.4), staleness=None, optimizer=ServerSGD(0.1, reduction="sum")), 2
    )
    for _ in range(4):
        for key in SIZES:
            worker.push(shard, key)
        worker.pull(shard)
    standing = shard.standing(SIZES)
    assert standing is not None
    for key, first in start().items():
        assert worker.error(key).any()
        said = sum(gradient(worker.name, step, key) for step in range(4)) - worker.error(key)
        weights = tensor_of(standing[key].weights or b"", torch.float64)
        torch.testing.assert_close(weights, first - 0.1 * said, rtol=1e-12, atol=1e-12)


# --- what does not fit ---


def test_settings_that_do_not_fit_are_refused_with_what_to_use() -> None:
    with pytest.raises(ExchangeInvalid, match=r"optimizer=ServerSGD\(lr\)"):
        ServerSettings(NoCompression(), staleness=1)
    with pytest.raises(ExchangeInvalid, match=r"GDSEC\(xi=...\)"):
        ServerSettings(GDSEC(), staleness=None, optimizer=ServerSGD(0.1))
    assert ServerSettings(GDSEC(xi=1.0), staleness=3, optimizer=ServerSGD(0.1)).staleness == 3


def test_workers_that_disagree_are_refused() -> None:
    shard, _ = formed(DENSE, 2)
    with pytest.raises(ExchangeInvalid, match="this one ServerSettings"):
        shard.introduce(OWNER, layouts())
    with pytest.raises(ExchangeInvalid, match="the same piece_bytes"):
        shard.introduce(DENSE, {0: layouts()[0]})


def test_pushes_are_let_go_only_when_a_later_state_was_kept_for_sure() -> None:
    shard, workers = formed(OWNER, 2)
    told: list[int] = []
    for step in range(6):
        play(shard, list(workers), step + 1)
        shard.state_dict()
        outcome = shard.push("w0", 0, 0, 0, b"", 1.0)
        assert isinstance(outcome, Accepted)
        told.append(outcome.durable)
    assert told == [0, 0, 1, 2, 3, 4]


def test_a_state_from_before_the_first_worker_lets_no_push_go() -> None:
    """A checkpoint may be taken while the model of the workers is not known yet."""
    shard = Shard()
    shard.state_dict()
    workers = joined(shard, OWNER, 2)
    told: list[int] = []
    for step in range(5):
        play(shard, workers, step + 1)
        shard.state_dict()
        outcome = shard.push("w0", 0, 0, 0, b"", 1.0)
        assert isinstance(outcome, Accepted)
        told.append(outcome.durable)
    assert told == [0, 0, 1, 2, 3]


# --- said again ---


def test_an_enrolment_that_is_said_again_changes_nothing() -> None:
    """A client says it again for every message that was refused; nobody is waited for once more."""
    shard, workers = formed(SPARSE, 2)
    play(shard, list(workers), 2)
    names = [worker.name for worker in workers]
    memories = [{key: worker.memory(key).clone() for key in SIZES} for worker in workers]
    for worker in (workers[0], workers[1], workers[0], workers[0]):
        worker.epoch = 1
        rank = workers.index(worker)
        outcome = shard.enrol(worker.name, 1, names, 2, memories[rank], ticket=f"of {worker.name}")
        assert isinstance(outcome, Enrolled)
    shard = restored(shard)
    assert shard.standing(SIZES) is not None
    play(shard, list(workers), 4)
    before = shard.standing(SIZES)
    shard.enrol("w0", 1, names, 2, memories[0], ticket="of w0")
    assert shard.standing(SIZES) == before
    # A later one of the same epoch, as after a loaded state, counts: memories of all are summed up anew.
    shard.enrol("w0", 1, names, 4, memories[0], ticket="later")
    assert shard.standing(SIZES) is None
    shard.enrol("w1", 1, names, 4, memories[1], ticket="later too")
    assert shard.standing(SIZES) is not None
