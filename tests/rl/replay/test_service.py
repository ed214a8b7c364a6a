"""The replay service: lines at limiters, insertions that are done once, deaths of either side, and checkpoints."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ropewalk as rw
from ropewalk.errors import CallCancelled, DeadlineExceeded, LimiterDeadlock, StreamLost
from ropewalk.program.running import RunningProgram
from ropewalk.rl.replay.inserter import Inserter
from ropewalk.rl.replay.insertion import Insertion
from ropewalk.rl.replay.limiters import SampleToInsertRatio
from ropewalk.rl.replay.sampler import Sampler
from ropewalk.rl.replay.service import Replay, ReplayServer
from ropewalk.rl.replay.writer import TrajectoryWriter
from ropewalk.transport.serialization import dumps, loads
from tests.patience import wait_until
from tests.rl.replay.stand_in import fifo, insertion, queue
from tests.scenarios.services import status_of
from tests.scenarios.tasks import note, noted

pytestmark = pytest.mark.usefixtures("shared_session")


class Waiting:
    """A call in a thread of its own, and what came of it."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self.result: Any = None
        self.error: BaseException | None = None
        self._call = call
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.result = self._call()
        except BaseException as error:
            self.error = error

    def join(self) -> Any:
        self._thread.join(60)
        assert not self._thread.is_alive()
        if self.error:
            raise self.error
        return self.result


def values(batch: Any) -> list[float]:
    return batch.columns["value"].ravel().tolist()


def wait_for_calls(server: Any, **numbers: int) -> None:
    """Wait until these numbers of calls wait at limiters."""
    wait_until(lambda: all(server.waiting()[side] == num for side, num in numbers.items()), what=str(numbers))


# --- lines, in one process ---


def test_an_insertion_waits_until_there_is_room() -> None:
    server = ReplayServer([queue(1)])
    assert server.insert(insertion(0))
    late = Waiting(lambda: server.insert(insertion(1)))
    wait_for_calls(server, insert=1)
    assert values(server.sample("queue", 1)) == [0.0]
    assert late.join()
    assert values(server.sample("queue", 5)) == [1000.0]


def test_a_sampler_sleeps_until_all_of_its_items_are_there() -> None:
    server = ReplayServer([queue(8)])
    sampler = Waiting(lambda: values(server.sample("queue", 3, at_least=3)))
    wait_for_calls(server, sample=1)
    (waiting,), woken = server._lines.all_of("sample"), list[int]()
    notify = waiting.woken.notify
    waiting.woken.notify = lambda num=1: woken.append(server.info()["queue"].size) or notify(num)  # type: ignore[method-assign]
    for number in range(3):
        server.insert(insertion(number))
    assert sampler.join() == [0.0, 1000.0, 2000.0]
    assert woken == [3], "it was woken for less than it waits for"


def test_samplers_are_served_in_the_order_in_which_they_came() -> None:
    server = ReplayServer([queue(8)])
    samplers: list[Waiting] = []
    for number, size in enumerate((3, 1, 2)):
        samplers.append(Waiting(lambda size=size: values(server.sample("queue", size, at_least=size))))
        wait_for_calls(server, sample=number + 1)
    server.insert(insertion(0, items=2))  # enough for the second one, which has to wait for the first one
    wait_for_calls(server, sample=3)
    server.insert(insertion(1, items=2))
    assert samplers[0].join() == [0.0, 1.0, 1000.0]
    assert samplers[1].join() == [1001.0]
    server.insert(insertion(2, items=2))
    assert samplers[2].join() == [2000.0, 2001.0]


def test_inserters_are_served_in_the_order_in_which_they_came() -> None:
    server = ReplayServer([queue(1)])
    server.insert(insertion(0, run_id="a#0"))
    inserters: list[Waiting] = []
    for number, run_id in enumerate("bcd"):
        made = insertion(0, run_id=f"{run_id}#0")
        inserters.append(Waiting(lambda made=made: server.insert(made)))
        wait_for_calls(server, insert=number + 1)
    order = [server.sample("queue", 1, deadline_s=60).info.run_ids[0] for _ in range(4)]
    assert order == ["a#0", "b#0", "c#0", "d#0"]
    for each in inserters:
        assert each.join()


def test_a_sampler_takes_what_is_allowed() -> None:
    server = ReplayServer([queue(8)])
    server.insert(insertion(0, items=3))
    assert values(server.sample("queue", 64)) == [0.0, 1.0, 2.0]


def test_a_sampler_that_wants_more_is_content_with_less_when_inserting_waits_too() -> None:
    server = ReplayServer([queue(4)])
    server.insert(insertion(0, items=4))
    sampler = Waiting(lambda: values(server.sample("queue", 64, at_least=64)))
    wait_for_calls(server, sample=1)
    assert server.insert(insertion(1, items=4))
    assert sampler.join() == [0.0, 1.0, 2.0, 3.0]


def test_the_deadline_of_a_sampler_gives_what_there_is_or_says_what_is_missing() -> None:
    server = ReplayServer([fifo(limiter=SampleToInsertRatio(2, min_size=3))])
    with pytest.raises(
        DeadlineExceeded, match=r"table 'fifo' allowed no sample within 0\.01 s: .* 0 of min_size=3 items"
    ):
        server.sample("fifo", 4, deadline_s=0.01)
    other = ReplayServer([queue(8)])
    other.insert(insertion(0, items=3))
    assert len(other.sample("queue", 64, deadline_s=0.01, at_least=64)) == 3


def test_samplers_that_wait_or_would_have_to_are_ended_and_what_is_there_can_still_be_taken() -> None:
    server = ReplayServer([queue(2)])
    waiting = Waiting(lambda: server.sample("queue", 1))
    wait_for_calls(server, sample=1)
    server.end_sampling()
    with pytest.raises(CallCancelled, match="no batch will come any more"):
        waiting.join()
    with pytest.raises(CallCancelled, match="no batch will come any more"):
        server.sample("queue", 1)
    assert server.insert(insertion(0))
    assert values(server.sample("queue", 1)) == [0.0]


def test_another_limiter_frees_those_who_wait() -> None:
    server = ReplayServer([fifo(limiter=SampleToInsertRatio(1, min_size=3))])
    sampler = Waiting(lambda: values(server.sample("fifo", 1)))
    wait_for_calls(server, sample=1)
    server.insert(insertion(0, tables=["fifo"]))
    wait_for_calls(server, sample=1)
    server.set_limiter("fifo", SampleToInsertRatio(1, min_size=1))
    assert sampler.join() == [0.0]


def test_a_table_that_does_not_exist_is_named() -> None:
    server = ReplayServer([queue(1)])
    with pytest.raises(ValueError, match=r"there is no table 'queu'; did you mean 'queue'\?"):
        server.sample("queu", 1)
    with pytest.raises(ValueError, match="there is no table 'other'"):
        server.insert(insertion(0, tables=["other"]))


def test_inserters_and_samplers_that_wait_for_each_other_are_told_with_the_counts() -> None:
    """The insertion is for two tables, and nobody samples the one that is full."""
    server = ReplayServer([queue(1, "seen"), queue(1, "full")], deadlock_s=0.05)
    server.insert(insertion(0, tables=["seen", "full"]))
    server.sample("seen", 1)
    inserting = Waiting(lambda: server.insert(insertion(1, tables=["seen", "full"])))
    sampling = Waiting(lambda: server.sample("seen", 1))
    for each in (inserting, sampling):
        with pytest.raises(
            LimiterDeadlock, match="inserting waits for table 'full': 1 items were inserted and 0"
        ) as caught:
            each.join()
        assert caught.value.waited_s >= 0.05
    assert server.waiting() == {"insert": 0, "sample": 0}


def test_a_sampler_that_waits_alone_is_no_deadlock() -> None:
    server = ReplayServer([queue(1)], deadlock_s=0.01)
    sampling = Waiting(lambda: values(server.sample("queue", 1)))
    wait_for_calls(server, sample=1)
    inserting = [
        Waiting(lambda number=number: server.insert(insertion(0, run_id=f"{number}#0"))) for number in range(3)
    ]
    assert sampling.join() == [0.0]
    for _ in range(2):
        server.sample("queue", 1)
    for each in inserting:
        assert each.join()


def test_a_sampler_is_told_when_all_streams_have_ended_and_no_item_will_come() -> None:
    server = ReplayServer([queue(4)], deadlock_s=0.05)
    with TrajectoryWriter(server, keep=1) as first:
        first.append({"value": np.zeros(1)})
        first.create_item("queue", {"value": first.history["value"][-1]})
    second = Inserter(server)
    second.insert(insertion(0))
    second.flush()
    assert len(server.sample("queue", 2)) == 2
    with pytest.raises(DeadlineExceeded):
        server.sample("queue", 1, deadline_s=0.2)  # the second stream may go on
    second.close()
    with pytest.raises(LimiterDeadlock, match=r"all streams that inserted have ended \(2\).*it has 0 items") as caught:
        server.sample("queue", 1)
    assert caught.value.table == "queue" and caught.value.waited_s >= 0.05


# --- exactly once ---


def test_an_insertion_that_comes_twice_is_done_once() -> None:
    server = ReplayServer([queue(8)])
    assert server.insert(insertion(0)) and not server.insert(insertion(0))
    assert server.insert_many([insertion(0), insertion(1)], 0) == [False, True]
    assert server.info()["queue"].inserts == 2


def test_insertions_of_a_stream_that_overtake_each_other_are_done_in_order() -> None:
    server = ReplayServer([queue(8)])
    later = Waiting(lambda: server.insert_many([insertion(1)], 0))
    assert server.insert_many([insertion(0)], 0) == [True]
    assert later.join() == [True]
    assert values(server.sample("queue", 2)) == [0.0, 1000.0]


def test_a_stream_of_which_insertions_are_missing_is_refused_with_both_numbers() -> None:
    server = ReplayServer([queue(8)])
    server.insert(insertion(0))
    with pytest.raises(
        StreamLost, match="insertion 5 of stream 0#0 came, and replay has the insertions before 1 only"
    ) as caught:
        server.insert_many([insertion(5)], 5)
    assert (caught.value.run_id, caught.value.expected, caught.value.sequence) == ("0#0", 1, 5)
    assert server.info()["queue"].inserts == 1


def test_an_insertion_that_waits_for_one_that_was_lost_is_told_by_a_later_call() -> None:
    """A call repeated after a restart knows less of what was acknowledged than later ones: it once waited for ever."""
    server = ReplayServer([queue(8)])
    server.insert(insertion(0))  # the checkpoint; insertion 1 was acknowledged after it, and lost
    repeated = Waiting(lambda: server.insert_many([insertion(2)], 1))
    with pytest.raises(StreamLost, match="insertion 3 of stream 0#0 came, and replay has the insertions before 1 only"):
        server.insert_many([insertion(3)], 2)
    with pytest.raises(StreamLost, match="insertion 2 of stream 0#0 came, and replay has the insertions before 1 only"):
        repeated.join()


def test_the_next_life_of_an_actor_ends_the_stream_of_the_one_before() -> None:
    server = ReplayServer([queue(8)])
    kept = insertion(0, run_id="2#0")
    server.insert(Insertion(kept.run_id, 0, kept.rows, kept.items, {"value": 0}))
    server.insert(insertion(0, run_id="2#1"))
    with pytest.raises(ValueError, match="ended"):
        server.insert(insertion(1, run_id="2#0"))


def test_the_state_has_all_that_was_inserted() -> None:
    server, other = ReplayServer([queue(8)]), ReplayServer([queue(8)])
    server.insert(insertion(0, items=3))
    server.sample("queue", 1)
    state = server.state_dict()
    server.sample("queue", 1)  # the state is what it was
    server.insert(insertion(1, items=3))
    payload = dumps(state.value)
    other.load_state_dict(loads(payload.pickle, payload.buffers))
    assert (other.life().restored, other.life().sizes) == (True, {"queue": 2})
    assert not other.insert(insertion(0, items=3))
    assert values(other.sample("queue", 2)) == [1.0, 2.0]
    assert (
        other.life()
        .describe()
        .endswith("was lost and came back restored from its last checkpoint, with these items: 2 in 'queue'")
    )


def test_keys_of_items_that_were_lost_are_not_those_of_later_ones() -> None:
    """Priorities that came late, for items that a restored server had lost, were written to others."""
    server = ReplayServer([fifo(8, "queue")])
    server.insert(insertion(0, items=2))
    payload = dumps(server.state_dict().value)
    kept = server._tables.keys("queue")
    given = set[int]()
    for _ in range(4):
        server.insert(insertion(1, items=2))
        later = server._tables.keys("queue")[2:]
        assert len(later) == 2 and not given & set(later.tolist())
        given |= set(later.tolist())
        server = ReplayServer([fifo(8, "queue")])
        server.load_state_dict(loads(payload.pickle, payload.buffers))
        assert server.update_priorities("queue", kept, np.ones(2)) == 2, "those that came back have their keys"
        assert server.update_priorities("queue", later, np.ones(2)) == 0
        payload = dumps(server.state_dict().value)


# --- programs: deaths ---


@contextmanager
def launched(program: rw.Program) -> Generator[RunningProgram]:
    with program.launch() as running:
        running.wait_ready()
        yield running


def insert_twice(replay: Any, run_id: str) -> None:
    """An actor whose second insertion waits at the limiter."""
    replay.insert(insertion(0, run_id=run_id))
    replay.insert(insertion(1, run_id=run_id))


def test_an_actor_that_is_killed_while_its_insertion_waits_leaves_nothing_of_it_and_its_place_is_free() -> None:
    program = rw.Program("killed")
    replay = program.add(Replay([queue(1)]), name="replay")
    program.add(rw.Worker(insert_twice, replay, "9#0"), name="actor", essential=False)
    with launched(program) as running:
        client = running.client("replay")
        wait_for_calls(client, insert=1)
        running.kill("actor", 0)
        wait_for_calls(client, insert=0)
        assert client.sample("queue", 8).info.run_ids == ("9#0",)
        assert client.insert(insertion(0, run_id="8#0"))
        assert (client.info()["queue"].inserts, client.info()["queue"].samples) == (2, 1)


class GatedServer(ReplayServer):
    """Saves the state that it had when a file was there the last time."""

    def __init__(self, gate: str) -> None:
        super().__init__([queue(100)])
        self._gate = gate
        self._gated: Any = None

    @rw.concurrent(1)
    def state_dict(self) -> Any:
        with self._lock:
            is_open = os.path.exists(self._gate)
            if is_open or self._gated is None:
                payload = dumps(super().state_dict().value)
                self._gated = loads(payload.pickle, payload.buffers)
            if is_open:
                os.rename(self._gate, f"{self._gate}.taken")
        return self._gated


def save(client: Any, gate: str) -> None:
    """Have the state saved, and wait until it is stored: another one is taken only after that."""
    for _ in range(2):
        Path(gate).touch()
        wait_until(lambda: client.info() and os.path.exists(f"{gate}.taken"), what="a checkpoint")
        os.unlink(f"{gate}.taken")


@pytest.mark.parametrize("saved", [True, False])
def test_after_replay_was_killed_streams_begin_anew_and_no_item_is_there_twice(tmp_path: Path, saved: bool) -> None:
    gate = str(tmp_path / "gate")
    program = rw.Program("restored")
    if saved:
        program.add(rw.Service(GatedServer, gate), name="replay", restart="on_failure", checkpoint_s=0.001)
    else:
        program.add(Replay([queue(100)]), name="replay", restart="on_failure", checkpoint_s=3600)
    with launched(program) as running:
        client = running.client("replay")
        inserter, sampler = Inserter(client), Sampler(client, "queue", 1, ahead=1)
        inserter.insert(insertion(0, items=2))
        assert values(next(sampler)) == [0.0]
        inserter.flush()
        if saved:
            save(client, gate)
        inserter.insert(insertion(1, items=2))
        inserter.flush()
        running.kill("replay", 0)
        wait_until(lambda: status_of(running, "replay").restarts == 1, what="the death of replay")
        inserter.insert(insertion(2, items=2))
        inserter.insert(insertion(3, items=2))
        inserter.flush()
        batches = [next(sampler) for _ in range(5 if saved else 4)]
        expected = ([1.0] if saved else []) + [2000.0, 2001.0, 3000.0, 3001.0]
        assert [value for batch in batches for value in values(batch)] == expected
        assert [batch.info.run_ids for batch in batches[-4:]] == [("0#0~1",)] * 4
        info = client.info()["queue"]
        assert (info.inserts, info.size, info.samples) == ((6, 0, 6) if saved else (4, 0, 4))
        (loss,) = sampler.losses
        assert loss == (
            "replay was lost and came back restored from its last checkpoint, with these items: 1 in 'queue'"
            if saved
            else "replay was lost and came back empty"
        )
        sampler.close()


def test_a_sampler_can_be_cancelled_and_has_a_deadline() -> None:
    program = rw.Program("cancelled")
    program.add(Replay([queue(1)]), name="replay")
    with launched(program) as running:
        client = running.client("replay")
        future = client.sample.future("queue", 1)
        wait_for_calls(client, sample=1)
        assert future.cancel()
        wait_for_calls(client, sample=0)
        with rw.deadline(0.05), pytest.raises(DeadlineExceeded):
            client.sample("queue", 1)
        wait_for_calls(client, sample=0)
        with pytest.raises(DeadlineExceeded, match="the table has 0 of min_size=1 items"):
            client.sample("queue", 1, deadline_s=0.01)


def wait_and_tell(call: str, replay: Any, path: str) -> None:
    """Wait at a limiter until the end, and note how that came."""
    try:
        if call == "insert":
            inserter = Inserter(replay, ahead=1)
            for number in range(4):
                inserter.insert(insertion(number))
        else:
            next(Sampler(replay, "other", 1))
    except (rw.ProgramStopped, CallCancelled) as error:
        note(path, f"{call}:{type(error).__name__}")


def test_a_stop_ends_samplers_and_inserters_that_wait(tmp_path: Path) -> None:
    path = str(tmp_path / "notes")
    program = rw.Program("stopped")
    replay = program.add(Replay([queue(1), queue(1, "other")], deadlock_s=1000), name="replay")
    for call in ("insert", "sample"):
        program.add(rw.Worker(wait_and_tell, call, replay, path), name=call)
    with program.launch() as running:
        running.wait_ready()
        wait_for_calls(running.client("replay"), insert=1, sample=2)
        running.stop(grace_s=100)
    assert sorted(noted(path)) == ["insert:ProgramStopped", "sample:ProgramStopped"]
