"""Who is told where services are, with which token; and where ranks meet."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ropewalk.calls.directory import ReplicaLocation
from ropewalk.processes.messages import Retired, RetiredProcess
from ropewalk.program.announcer import LAUNCHER, Announcer
from ropewalk.program.directory import DirectoryView, Table
from ropewalk.program.messages import NodeReady, Placed, RendezvousAt, Sizes, UnitName
from ropewalk.program.restart_rule import Restart
from ropewalk.program.supervisor import Supervisor
from ropewalk.program.units import Units
from ropewalk.transport.tokens import TokenList
from tests.program.recording import RecordingHosting, name_of, service, worker
from tests.transport.test_credentials import knows

STORE, ACTOR = name_of("store"), name_of("actor")


def _nothing(*_: object) -> None: ...


class Announcing:
    """An announcer of a program of one service, which may restart, and one worker, both started."""

    def __init__(self, *, threads: bool = False) -> None:
        self.units = Units([service("store", restart="on_failure"), worker("actor", replicas=2)])
        self.supervisor = Supervisor(self.units.rules())
        self.hosting = RecordingHosting(shares_host=threads)
        self.view = DirectoryView(_nothing, lambda: None)
        self.announcer = Announcer(self.units, self.view)
        self.announcer.begin(self.hosting)
        self.supervisor.begin(0)
        for name in (STORE, ACTOR):
            self.units.begin(name)
        self.publish()

    def publish(self) -> None:
        self.announcer.publish(self.supervisor)

    def comes_up(self, name: UnitName, target: int = 1) -> None:
        unit = self.units.find(name)
        assert unit
        unit.address = self.hosting.address(name)
        self.announcer.host_up(unit)
        self.announcer.node_ready(unit, NodeReady(name, name.unit, target))
        self.supervisor.ready(name.unit, name.replica, name.generation, 0)
        self.publish()

    def dies(self, name: UnitName) -> None:
        unit = self.units.find(name)
        assert unit
        self.units.end(unit)
        self.announcer.host_gone(unit)
        self.supervisor.ended(name.unit, name.replica, name.generation, False, "was killed", 0)
        self.publish()

    def told(self, name: UnitName) -> list[Any]:
        news = [message for to, message in self.hosting.told if to == name]
        self.hosting.told = [(to, message) for to, message in self.hosting.told if to != name]
        return news


@pytest.fixture
def announcing() -> Announcing:
    return Announcing()


def test_who_asks_hears_all_that_is_known_and_then_every_change(announcing: Announcing) -> None:
    announcing.announcer.subscribe("store", "actor.0#0", ACTOR)
    assert announcing.told(ACTOR) == [Placed("store", 0, "waiting", "", 0, "", 0, ""), Sizes("store", 1)]
    announcing.comes_up(STORE)
    (up,) = announcing.told(ACTOR)
    assert (up.state, up.address, up.target) == ("up", announcing.hosting.address(STORE), 1)
    announcing.publish()
    assert announcing.told(ACTOR) == [] and announcing.told(STORE) == []
    announcing.dies(STORE)
    # The first restart comes at once, so it starts already.
    assert announcing.told(ACTOR) == [Placed("store", 0, "waiting", "", 0, "", 1, "it was killed")]


def test_a_token_lets_in_the_host_that_it_was_made_for_and_nobody_else(announcing: Announcing) -> None:
    announcing.comes_up(STORE)
    announcing.announcer.subscribe("store", "actor.0#0", ACTOR)
    token = announcing.told(ACTOR)[0].token
    at_store = TokenList(announcing.hosting.key_of(STORE))
    assert knows(at_store, "actor.0#0", token)
    assert not knows(at_store, "actor.1#0", token) and not knows(at_store, LAUNCHER, token)
    assert not knows(TokenList(announcing.hosting.key_of(name_of("store", 0, 1))), "actor.0#0", token)


def test_a_token_is_good_with_the_certificate_of_its_host_alone(announcing: Announcing) -> None:
    announcing.hosting.fingerprints[ACTOR] = "a" * 64
    for name in (STORE, ACTOR):
        announcing.comes_up(name)
    announcing.announcer.subscribe("store", "actor.0#0", ACTOR)
    token = announcing.told(ACTOR)[0].token
    at_store = TokenList(announcing.hosting.key_of(STORE))
    assert knows(at_store, "actor.0#0", token, "a" * 64)
    assert not knows(at_store, "actor.0#0", token, "b" * 64) and not knows(at_store, "actor.0#0", token)


@pytest.mark.parametrize("is_lost", [False, True])
def test_services_are_told_together_of_all_that_go_in_one_moment(announcing: Announcing, is_lost: bool) -> None:
    """S4: a process of a lost host came back with its old token."""
    second = name_of("actor", 1)
    announcing.units.begin(second)
    announcing.hosting.fingerprints[ACTOR] = "a" * 64
    for name in (STORE, ACTOR, second):
        announcing.comes_up(name)
    for name in (ACTOR, second):
        unit = announcing.units.find(name)
        assert unit
        announcing.units.end(unit)
        announcing.announcer.host_gone(unit, is_lost=is_lost)
    announcing.hosting.time.turn()
    gone = [RetiredProcess("actor.0#0", "a" * 64, is_lost), RetiredProcess("actor.1#0", "", is_lost)]
    assert [message for message in announcing.told(STORE) if isinstance(message, Retired)] == [Retired(gone)]
    assert not any(isinstance(message, Retired) for message in announcing.told(ACTOR)), "nobody calls it"


def test_the_launcher_hears_in_its_own_view_with_a_token_of_its_own(announcing: Announcing) -> None:
    announcing.comes_up(STORE)
    announcing.announcer.subscribe("store", LAUNCHER, None)
    place = announcing.view.find("store", 0)
    assert place == ReplicaLocation("up", announcing.hosting.address(STORE), 1, place.token)
    assert knows(TokenList(announcing.hosting.key_of(STORE)), LAUNCHER, place.token)
    assert announcing.hosting.told == []


def test_a_host_that_is_gone_is_told_nothing_and_forgotten(announcing: Announcing) -> None:
    announcing.announcer.subscribe("store", "actor.0#0", ACTOR)
    announcing.told(ACTOR)
    announcing.dies(ACTOR)
    announcing.comes_up(STORE)
    assert announcing.told(ACTOR) == []


def test_nothing_grows_with_restarts(announcing: Announcing) -> None:
    for generation in range(100):
        store, actor = name_of("store", 0, generation), name_of("actor", 0, generation)
        for unit in list(announcing.units):
            unit.address = announcing.hosting.address(unit.name)
            announcing.announcer.host_up(unit)
        announcing.announcer.subscribe("store", announcing.hosting.host_id(actor), actor)
        for unit in list(announcing.units):
            announcing.units.end(unit)
            announcing.announcer.host_gone(unit)
        for name in (store, actor):
            announcing.units.begin(UnitName(name.unit, name.replica, generation + 1))
    facts = vars(announcing.announcer)
    assert facts["_keys"] == {} and facts["_subscribers"] == {"store": {}}


def test_threads_share_a_host_which_stays_when_a_unit_ends() -> None:
    announcing = Announcing(threads=True)
    announcing.comes_up(STORE)
    announcing.announcer.subscribe("store", "threads", UnitName("", 0, 0))
    announcing.told(UnitName("", 0, 0))
    announcing.dies(STORE)
    assert [news.state for news in announcing.told(UnitName("", 0, 0))] == ["waiting"]


def test_nobody_is_told_of_workers(announcing: Announcing) -> None:
    announcing.announcer.subscribe("actor", LAUNCHER, None)
    announcing.announcer.subscribe("actor", "store.0#0", STORE)
    announcing.comes_up(ACTOR, target=0)
    assert announcing.view.replicas("actor") == 2
    assert announcing.told(STORE) == [Sizes("actor", 2)], "a worker has no place"


def test_ranks_are_told_where_to_meet_when_all_are_there_and_which_they_are_on_their_host(
    announcing: Announcing, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = name_of("actor", 1)
    at = RendezvousAt("actor", 0, "agent-1", "10.0.0.1", 4711)
    announcing.announcer.rendezvous(at)
    assert announcing.told(ACTOR) == []
    announcing.comes_up(ACTOR, target=0)
    announcing.units.begin(second)
    assert announcing.told(ACTOR) == [], "the second one has no process yet"
    announcing.comes_up(second, target=0)
    assert announcing.told(ACTOR) == [msgspec.structs.replace(at, local_rank=0, local_size=2)]
    assert announcing.told(second) == [msgspec.structs.replace(at, local_rank=1, local_size=2, rank=1)]
    monkeypatch.setattr(announcing.hosting, "host_of", lambda name: f"n{name.replica}")
    announcing.announcer.rendezvous(at)
    places = [announcing.told(name)[0] for name in (ACTOR, second)]
    assert [(each.rank, each.local_rank, each.group_rank, each.num_groups) for each in places] == [
        (0, 0, 0, 2),
        (1, 0, 1, 2),
    ]
    assert announcing.told(STORE) == []


def test_ranks_of_another_generation_are_not_sent_there(announcing: Announcing) -> None:
    announcing.announcer.rendezvous(RendezvousAt("actor", 0, "", "127.0.0.1", 4711))
    announcing.dies(ACTOR)
    announcing.told(ACTOR)
    new = name_of("actor", 0, 1)
    announcing.units.begin(new)
    unit = announcing.units.find(new)
    assert unit
    announcing.announcer.host_up(unit)
    announcing.announcer.rendezvous(RendezvousAt("actor", 0, "", "127.0.0.1", 4712))
    assert announcing.told(new) == []


def test_when_the_program_stops_a_death_that_was_healed_is_no_reason(announcing: Announcing) -> None:
    # `rw.stop()` ended calls with "it was killed by SIGKILL after 3.9 s", though the service had come back long before.
    announcing.announcer.subscribe("store", "actor.0#0", ACTOR)
    announcing.comes_up(STORE)
    announcing.dies(STORE)
    assert announcing.told(ACTOR)[-1].cause == "it was killed"
    again = name_of("store", 0, 1)
    announcing.units.begin(again)
    announcing.comes_up(again)
    announcing.supervisor.stop(2, "it was asked to")
    announcing.dies(again)
    assert announcing.told(ACTOR)[-1] == Placed(
        "store", 0, "stopped", "", 0, "", 1, "the program stops: it was asked to"
    )


def test_a_death_that_was_not_healed_is_the_reason_also_when_the_program_stops(announcing: Announcing) -> None:
    announcing.announcer.subscribe("store", "actor.0#0", ACTOR)
    announcing.comes_up(STORE)
    announcing.dies(STORE)
    announcing.units.begin(name_of("store", 0, 1))
    announcing.supervisor.stop(2, "it was asked to")
    announcing.dies(name_of("store", 0, 1))
    assert announcing.told(ACTOR)[-1] == Placed("store", 0, "stopped", "", 0, "", 1, "it was killed")


def test_a_service_is_told_as_up_while_those_that_share_its_process_still_start(announcing: Announcing) -> None:
    announcing.announcer.subscribe("store", "actor.0#0", ACTOR)
    announcing.told(ACTOR)
    unit = announcing.units.find(STORE)
    assert unit
    unit.address = announcing.hosting.address(STORE)
    announcing.announcer.host_up(unit)
    announcing.announcer.node_ready(unit, NodeReady(STORE, "store", 7))
    announcing.publish()
    assert [(news.state, news.target) for news in announcing.told(ACTOR)] == [("up", 7)]


def test_when_the_program_stops_those_that_had_stopped_before_are_told_with_its_reason() -> None:
    announcing = Announcing()
    rule = Restart("never", strategy="together")
    announcing.units = Units([service("store", replicas=2, restart=rule, essential=False), worker("actor")])
    announcing.supervisor = Supervisor(announcing.units.rules())
    announcing.announcer = Announcer(announcing.units, announcing.view)
    announcing.announcer.begin(announcing.hosting)
    announcing.supervisor.begin(0)
    other = name_of("store", 1)
    for name in (STORE, other, ACTOR):
        announcing.units.begin(name)
        announcing.comes_up(name)
    announcing.announcer.subscribe("store", "actor.0#0", ACTOR)
    announcing.dies(STORE)  # and its gang with it
    announcing.dies(other)
    announcing.told(ACTOR)
    announcing.supervisor.stop(1, "enough")
    announcing.publish()
    assert announcing.told(ACTOR) == [Placed("store", 1, "stopped", "", 0, "", 0, "the program stops: enough")]


def test_a_change_of_one_replica_costs_no_look_at_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each start and end went through all replicas: the end of 200 took 0.42 s of processor time, that of 400 1.7."""
    announcing = Announcing()
    looked: list[int] = []
    original = Table._placed

    def placed(table: Table, name: str, replica: int, *args: Any) -> Placed:
        looked.append(replica)
        return original(table, name, replica, *args)

    monkeypatch.setattr(Table, "_placed", placed)
    announcing.units = Units([service("store", restart="on_failure", replicas=3)])
    announcing.supervisor = Supervisor(announcing.units.rules())
    announcing.announcer = Announcer(announcing.units, announcing.view)
    announcing.announcer.begin(announcing.hosting)
    announcing.supervisor.begin(0)
    announcing.publish()
    assert looked == [0, 1, 2]
    second = name_of("store", 1)
    announcing.units.begin(second)
    announcing.comes_up(second)
    announcing.dies(second)
    assert set(looked[3:]) == {1}
