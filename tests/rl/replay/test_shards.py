"""Several replay servers as one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import ropewalk as rw
from ropewalk.errors import ServiceLost
from ropewalk.rl.replay.inserter import Inserter
from ropewalk.rl.replay.insertion import NewItems
from ropewalk.rl.replay.limiters import MinSize, SampleToInsertRatio
from ropewalk.rl.replay.sampler import Sampler
from ropewalk.rl.replay.selectors.ordered import Fifo
from ropewalk.rl.replay.selectors.prioritized import Prioritized
from ropewalk.rl.replay.selectors.uniform import Uniform
from ropewalk.rl.replay.service import Replay, ReplayServer
from ropewalk.rl.replay.shards import ShardedReplay
from ropewalk.rl.replay.table import ReplayTable
from tests.patience import wait_until
from tests.rl.replay.stand_in import insertion, queue
from tests.scenarios.services import status_of

pytestmark = pytest.mark.usefixtures("shared_session")


def uniform() -> ReplayTable:
    return ReplayTable("t", sampler=Uniform(), remover=Fifo(), max_size=100, limiter=MinSize(1))


def prioritized() -> ReplayTable:
    return ReplayTable("t", sampler=Prioritized(0.5), remover=Fifo(), max_size=100, limiter=MinSize(1))


def servers(num: int, table: ReplayTable) -> list[ReplayServer]:
    return [ReplayServer([table]) for _ in range(num)]


def fill(shard: Any, items: int, run_id: str, priority: float | None = None) -> None:
    made = insertion(0, run_id=run_id, items=items, tables=["t"])
    if priority is not None:
        made = replace(made, items={"t": NewItems(made.items["t"].columns, np.full(items, priority))})
    assert shard.insert(made)


def test_each_run_id_has_its_shard_and_all_shards_are_used() -> None:
    replay = ShardedReplay(servers(3, uniform()))
    for group in range(30):
        assert replay.insert(insertion(0, run_id=f"{group}#0", tables=["t"]))
        assert not replay.insert(insertion(0, run_id=f"{group}#0", tables=["t"]))
    assert all(shard.info()["t"].inserts for shard in replay.shards)
    assert replay.info()["t"].size == replay.info()["t"].inserts == 30


@pytest.mark.parametrize(
    ("table", "priorities", "shares"),
    [
        (uniform(), (None, None), (0.25, 0.75)),
        (prioritized(), (9.0, 1.0), (0.5, 0.5)),
        (prioritized(), (0.0, 0.0), (0.25, 0.75)),
    ],
)
def test_shards_are_sampled_in_proportion_to_their_weights(
    table: ReplayTable, priorities: tuple[float | None, float | None], shares: tuple[float, float]
) -> None:
    """Ten and thirty items; with priorities 9 and 1 and exponent 0.5, those of the first weigh three times as much."""
    shards = servers(2, table)
    replay = ShardedReplay(shards, seed=1)
    for number, (shard, items) in enumerate(zip(shards, (10, 30), strict=True)):
        fill(shard, items, f"{number}#0", priorities[number])
    draws: Counter[int] = Counter()
    with Sampler(replay, "t", 4, ahead=1) as sampler:
        for _ in range(2):  # the weights are known when each shard has answered once
            next(sampler)
        for _ in range(1000):
            batch = next(sampler)
            (shard,) = set((batch.info.keys % 2).tolist())
            draws[shard] += 1
            expected = shares[shard] / (10, 30)[shard]
            np.testing.assert_allclose(batch.info.probability, expected)
            assert batch.info.table_size == 40
    assert draws[0] / 1000 == pytest.approx(shares[0], abs=0.06)


def test_keys_lead_back_to_the_items_of_their_shard() -> None:
    shards = servers(2, prioritized())
    replay = ShardedReplay(shards)
    for number, shard in enumerate(shards):
        fill(shard, 5, f"{number}#0")
    with Sampler(replay, "t", 40, ahead=1) as sampler:
        keys = np.unique(np.concatenate([next(sampler).info.keys for _ in range(6)]))
    assert len(keys) == 10
    ignored = np.int64(2 * 77 + 1)
    assert replay.update_priorities("t", np.array([keys[0], keys[-1], ignored]), np.zeros(3)) == 2
    left = {key * 2 + number for number, shard in enumerate(shards) for key in shard.sample("t", 50).info.keys.tolist()}
    assert left == set(keys[1:-1].tolist())
    assert replay.delete("t", keys[:4]) == 4
    assert replay.info()["t"].size == 6
    replay.reset("t")
    assert replay.info()["t"].size == 0


def test_a_limiter_is_set_in_all_shards() -> None:
    replay = ShardedReplay(servers(2, uniform()))
    replay.set_limiter("t", SampleToInsertRatio(1, min_size=10))
    assert all("min_size=10" in shard.info()["t"].sample_waits_for for shard in replay.shards)


def test_when_a_shard_is_lost_for_good_the_others_go_on_and_its_streams_begin_anew_there() -> None:
    program = rw.Program("shards")
    for number in range(2):
        program.add(Replay([queue(100)]), name=f"replay{number}", essential=False)
    with program.launch() as running:
        running.wait_ready()
        replay = ShardedReplay([running.client("replay0"), running.client("replay1")])
        inserters = [Inserter(replay) for _ in range(6)]
        for group, inserter in enumerate(inserters):
            inserter.insert(insertion(0, run_id=f"{group}#0"))
            inserter.flush()
        lost = [f"{group}#0" for group in range(6) if replay.shard_of(f"{group}#0") == 1]
        assert 0 < len(lost) < 6
        with Sampler(replay, "queue", 1, ahead=1) as sampler:
            seen = [next(sampler).info.run_ids[0] for _ in range(2)]
            running.kill("replay1", 0)
            wait_until(lambda: status_of(running, "replay1").state != "running")
            for inserter, group in zip(inserters, range(6), strict=True):
                inserter.insert(insertion(1, run_id=f"{group}#0"))
                inserter.flush()
            # Those of the lost shard may have been sampled, or be on their way here.
            while len([run_id for run_id in seen if run_id.endswith("~1")]) < len(lost):
                seen.append(next(sampler).info.run_ids[0])
        assert {run_id for run_id in seen if run_id.endswith("~1")} == {f"{run_id}~1" for run_id in lost}
        assert list(replay.lost) == [1] and "replay1" in replay.lost[1]


def test_streams_of_other_shards_stay_where_they_are_when_one_is_lost() -> None:
    replay = ShardedReplay(servers(4, uniform()))
    run_ids = [f"{group}#0" for group in range(200)]
    for gone in (2, 0):
        before = {run_id: replay.shard_of(run_id) for run_id in run_ids}
        replay.give_up(gone, ServiceLost("was killed"))
        after = {run_id: replay.shard_of(run_id) for run_id in run_ids}
        assert all(after[run_id] == before[run_id] for run_id in run_ids if before[run_id] != gone)
        moved = Counter(after[run_id] for run_id in run_ids if before[run_id] == gone)
        assert set(moved) == set(range(4)) - set(replay.lost) and min(moved.values()) >= 10


def test_every_call_goes_on_with_the_others_when_it_finds_a_shard_lost_for_good() -> None:
    program = rw.Program("shards")
    for number in range(2):
        program.add(Replay([uniform()]), name=f"replay{number}", essential=False)
    with program.launch() as running:
        running.wait_ready()
        clients = [running.client(f"replay{number}") for number in range(2)]
        fill(clients[0], 5, "0#0")
        keys = np.unique(clients[0].sample("t", 50).info.keys)
        of_lost = next(f"{group}#0" for group in range(99) if ShardedReplay(clients).shard_of(f"{group}#0") == 1)
        ahead = Inserter(ShardedReplay(clients))
        ahead.insert(insertion(0, run_id=of_lost, tables=["t"]))
        ahead.flush()
        running.kill("replay1", 0)
        wait_until(lambda: status_of(running, "replay1").state != "running")
        both = np.concatenate([keys * 2, keys * 2 + 1])
        calls: list[tuple[Callable[[ShardedReplay], object], object]] = [
            (lambda replay: replay.update_priorities("t", both, np.ones(len(both))), len(keys)),
            (lambda replay: replay.delete("t", both[[0, -1]]), 1),
            (lambda replay: replay.set_limiter("t", MinSize(2)), None),
            (lambda replay: replay.info()["t"].size, len(keys) - 1),
            (lambda replay: len(replay.tables()), 1),
            (lambda replay: replay.end_stream(of_lost), None),
            (lambda replay: replay.reset("t"), None),
        ]
        for call, expected in calls:
            assert call(ShardedReplay(clients)) == expected
        ahead.insert(insertion(0, run_id="another#0", tables=["t"]))  # ends the stream in the lost shard
        ahead.flush()
        behind = Inserter(ShardedReplay(clients))
        behind.insert(insertion(0, run_id=of_lost, tables=["t"]))
        behind.flush()
        assert clients[0].info()["t"].size == 2


def test_without_any_shard_left_the_error_says_what_became_of_them() -> None:
    replay = ShardedReplay(servers(2, uniform()))
    for shard in range(2):
        replay.give_up(shard, ServiceLost(f"shard {shard} was killed"))
    with pytest.raises(ServiceLost, match="all 2 shards of replay are lost: shard 0 was killed; shard 1 was killed"):
        replay.info()
    with pytest.raises(ValueError, match="needs 1 to 64 shards, not 0"):
        ShardedReplay([])
