"""What a fleet reports of agents that do not come up: each cause once."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from ropewalk.engines.engine import Engine, JobSpec, JobState, JobStatus
from ropewalk.engines.resources import HostCapacity, Resources
from ropewalk.errors import EngineError, StartFailed
from ropewalk.processes.agent_record import AgentRecord, Home
from ropewalk.processes.engine_client import EngineClient
from ropewalk.processes.fleet import Fleet
from ropewalk.processes.sizing import Share
from ropewalk.settings import load
from ropewalk.supervision.liveness import Lease
from ropewalk.transport.address import UnixAddress
from ropewalk.transport.credentials import AllowList
from tests.patience import PATIENCE_S
from tests.processes.test_session_parts import PretendLoop

SHARE = Share(1, Resources())


class PretendEngine(Engine):
    """Accepts jobs, or refuses them; says of all of them what it is told."""

    name = "pretend"

    def __init__(self) -> None:
        self.status = JobStatus(JobState.PENDING)
        self.said = ""
        self.refusal: Exception | None = None
        self.puzzle: Exception | None = None
        self.specs: list[JobSpec] = []
        self.polled: list[Sequence[str]] = []
        self.rooms: dict[str, HostCapacity] = {}

    def submit_one(self, spec: JobSpec, run_id: str, request_id: str, number: int) -> str:
        if self.refusal:
            raise self.refusal
        self.specs.append(spec)
        return f"job-of-{request_id}"

    def per_job(self, process: Resources) -> int | None:
        if self.puzzle:
            raise self.puzzle
        return super().per_job(process)

    def room(self, id: str) -> HostCapacity | None:
        return self.rooms.get(id)

    def poll(self, ids: Sequence[str]) -> dict[str, JobStatus]:
        self.polled.append(ids)
        if self.puzzle:
            raise self.puzzle
        return dict.fromkeys(ids, self.status)

    def cancel(self, ids: Sequence[str]) -> None: ...

    def find(self, run_id: str) -> list[str]:
        return []

    def logs(self, id: str) -> str:
        return self.said

    def render(self, spec: JobSpec) -> str:
        return ""

    def check(self) -> list[Any]:
        return []


class Told:
    """What the listener of a fleet is told, in order."""

    def __init__(self) -> None:
        self.happened: list[str] = []
        self.lost: list[str] = []
        self.failures: list[Exception] = []

    def listener(self) -> Any:
        return SimpleNamespace(
            on_happened=self.happened.append,
            on_agent_lost=lambda agent, why: self.lost.append(why),
            on_no_agents=self.failures.append,
        )


class Scene:
    """A fleet whose engine is asked in the test's own thread, and whose loop runs when it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.engine, self.told = PretendEngine(), Told()
        self.loop: Any = PretendLoop()
        home = Home("run", folder, load({}, {}, []), UnixAddress(str(folder / "door")), None, None)
        self.fleet = Fleet(self.engine, home, self.loop, AllowList(), self.told.listener())

        def at_once(call: Callable[[], None]) -> None:
            call()

        monkeypatch.setattr(self.fleet._engine, "in_thread", at_once)

    def submit(self, count: int) -> list[AgentRecord]:
        self.fleet._submitting += [SHARE] * count
        self.fleet._submit_all([SHARE] * count)
        self.loop.run()
        return list(self.fleet.agents.values())

    def look(self, s_after_submission: float) -> None:
        """Ask about each agent as the loop does, at a time after its submission."""
        for agent in list(self.fleet.agents.values()):
            agent.submitted -= s_after_submission
            self.fleet._bootstrap.look_at(agent, agent.checked + 10.0)
        self.loop.run()


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Scene:
    return Scene(monkeypatch, tmp_path)


def test_jobs_that_wait_for_the_same_reason_are_reported_together_and_once(scene: Scene) -> None:
    scene.submit(3)
    scene.engine.status = JobStatus(JobState.PENDING, reason="no room now")
    scene.look(1.0)
    assert not scene.told.happened, "most jobs wait for a moment"
    for _ in range(2):
        scene.look(6.0)
    assert scene.told.happened == ["agent-1 (job job-of-agent-1) and 2 others wait: no room now"]
    scene.engine.status = JobStatus(JobState.PENDING, reason="still no room")
    scene.look(6.0)
    assert len(scene.told.happened) == 2, "another reason is reported"


def test_the_engine_is_asked_about_all_that_wait_together_and_not_again_before_it_has_answered(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was asked once a second for each of them: with many in a queue, or a slow squeue, questions and their threads
    piled up without end.
    """
    scene.submit(3)
    asked: list[Callable[[], None]] = []
    monkeypatch.setattr(scene.fleet._engine, "in_thread", asked.append)
    for _ in range(5):
        scene.look(1.0)
    [ask] = asked
    ask()
    scene.loop.run()
    assert scene.engine.polled == [["job-of-agent-1", "job-of-agent-2", "job-of-agent-3"]]
    scene.look(1.0)
    assert len(asked) == 2, "the next question"


def test_the_reason_why_no_job_will_ever_run_is_reported_once_and_ends_the_wait(scene: Scene) -> None:
    scene.submit(4)
    scene.engine.status = JobStatus(JobState.PENDING, reason="no node holds it", hopeless=True)
    scene.look(6.0)
    assert not scene.fleet.agents
    assert [why for why in scene.told.lost if why] == [
        "the agent agent-1 is gone: its job job-of-agent-1 will never run: no node holds it"
    ]
    assert len(scene.told.lost) == 4, "each is handled, whether it is reported or not"
    [failure] = scene.told.failures
    assert isinstance(failure, StartFailed) and "will never run: no node holds it" in str(failure)


def test_the_first_job_whose_node_does_not_see_the_launchers_folder_ends_the_wait(scene: Scene) -> None:
    scene.submit(1)
    scene.engine.status = JobStatus(JobState.ENDED, reason="node n1 cannot open /home/ada/jobs", hopeless=True)
    scene.look(1.0)
    words = "its job job-of-agent-1 could not begin: node n1 cannot open /home/ada/jobs"
    assert scene.told.lost == [f"the agent agent-1 is gone: {words}"]
    assert [str(failure) for failure in scene.told.failures] == [f"no agent could join this run. The last one: {words}"]


@pytest.mark.parametrize("door", [False, True])
def test_what_every_host_lacks_is_told_once_with_the_remedy_and_ends_the_wait(scene: Scene, door: bool) -> None:
    # Over ssh, where the launcher comes to the agent's door, hosts without Ropewalk were tried 29 times.
    agents = scene.submit(3)
    missing = "ModuleNotFoundError: No module named 'msgspec'"
    scene.engine.said = f"Traceback (most recent call last):\n  File ...\n{missing}\n"
    scene.engine.status = JobStatus(JobState.ENDED, exit_code=1)
    if door:
        for agent in agents:
            scene.fleet._bootstrap._never_met(agent, "its door is closed")
        scene.loop.run()
    else:
        scene.look(1.0)
    [told] = [why for why in scene.told.lost if why]
    assert told.startswith(f"the agent agent-1 is gone: its job job-of-agent-1 ended before it was up: {missing}. That")
    assert "pip install ropewalk" in told and "Traceback" not in told
    [failure] = scene.told.failures
    assert "no agent could join this run" in str(failure) and missing in str(failure)


def test_failed_starts_of_a_bad_minute_are_not_held_against_a_loss_days_later(scene: Scene) -> None:
    # The verdict stayed: the run ended when its last host was preempted, with "6 starts failed" of days before.
    steady, *others = scene.submit(7)
    link: Any = SimpleNamespace(close=lambda: None)
    steady.link, steady.pid = link, 1
    for agent in others:
        scene.fleet._last_loss = -10.0  # not the same event as the one before
        scene.fleet.lost(agent, "its disk is full")
    [told] = scene.told.happened
    assert told.startswith("agents are not replaced for a minute: 6 starts failed")
    scene.fleet._last_loss = -10.0
    scene.fleet.lost(steady, "nothing was heard of it for 2.5 s")
    assert not scene.told.failures and not scene.fleet.agents, "another one is submitted"


def test_a_refusal_that_repeats_is_reported_once_until_an_agent_is_accepted(scene: Scene) -> None:
    scene.submit(1)
    for refusals in (1, 2):
        for number in range(3):
            scene.engine.refusal = EngineError(f"exceeded quota, try {number}")
            scene.submit(2)
        assert scene.told.happened == ["no more agents can be had: exceeded quota, try 0"] * refusals
        scene.engine.refusal = None
        scene.submit(1)
    assert not scene.told.failures


def test_an_agent_that_cannot_be_made_ends_the_wait(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # Its share counted as coming, and its processes were waited for without end.
    def fail(*_: object) -> None:
        raise ValueError("an address of its folder cannot be sent")

    monkeypatch.setattr(scene.fleet._bootstrap, "prepare", fail)
    scene.submit(2)
    assert not scene.fleet._submitting
    assert [str(failure) for failure in scene.told.failures] == [
        "no agent could be submitted: an address of its folder cannot be sent"
    ]
    assert "an agent could not be made" in caplog.text


def test_a_refusal_of_the_first_agent_ends_the_wait(scene: Scene) -> None:
    scene.engine.refusal = EngineError("exceeded quota")
    scene.submit(3)
    assert [str(failure) for failure in scene.told.failures] == ["no agent could be submitted: exceeded quota"]
    assert not scene.told.happened


AWAY = EngineError("sbatch failed: Unable to contact slurm controller (connect failure)", is_passing=True)


def test_an_outage_of_the_engines_server_is_waited_for_and_told_once(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A run that had no agents at the moment ended when slurmctld was away for more than 20 s.
    now_s = [1000.0]
    monkeypatch.setattr("ropewalk.processes.fleet.time.monotonic", lambda: now_s[0])
    scene.fleet.want([Resources()])
    scene.loop.run()
    [agent] = scene.fleet.agents.values()
    scene.engine.refusal = AWAY
    scene.fleet.lost(agent, "its node has failed")
    for _ in range(3):
        now_s[0] += 100.0
        scene.fleet.want([Resources()])
        scene.loop.run()
        assert not scene.fleet.agents and not scene.fleet._submitting
        scene.fleet.want([Resources()])
        assert scene.fleet._paused_until > now_s[0], "it is asked every few seconds"
    scene.engine.refusal = None
    now_s[0] += 100.0
    scene.fleet.want([Resources()])
    scene.loop.run()
    assert len(scene.fleet.agents) == 1 and not scene.told.failures
    assert scene.told.happened == [
        f"no agents can be had until the engine answers again; it is asked every 5 s: {AWAY}",
        "the engine answers again, after 5m00s",
    ]


def test_an_outage_is_waited_for_also_when_the_engine_is_asked_about_another_kind_of_processes(scene: Scene) -> None:
    scene.fleet.prepare(Resources(), lambda _: None)
    scene.loop.run()
    scene.engine.puzzle = AWAY
    scene.fleet.want([Resources(cpus=3)])
    scene.loop.run()
    assert not scene.told.failures and len(scene.told.happened) == 1
    scene.engine.puzzle, scene.fleet._paused_until = None, 0.0
    scene.fleet.want([Resources(cpus=3)])
    scene.loop.run()
    assert len(scene.fleet.agents) == 1 and scene.told.happened[1].startswith("the engine answers again, after ")


def test_an_engine_that_has_never_answered_ends_the_wait(scene: Scene) -> None:
    """Its options may be wrong."""
    scene.engine.puzzle = AWAY
    scene.fleet.want([Resources()])
    scene.loop.run()
    assert [str(failure) for failure in scene.told.failures] == [str(AWAY)] and not scene.told.happened


def test_a_silent_engine_is_warned_of_once_until_it_has_answered(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    scene.submit(2)
    for outages in (1, 2):
        scene.engine.puzzle = AWAY
        for _ in range(3):
            scene.look(6.0)
        assert [record.getMessage() for record in caplog.records] == [f"the engine does not answer: {AWAY}"] * outages
        scene.engine.puzzle = None
        scene.look(6.0)


def test_a_mistake_in_an_engine_is_told_to_those_who_wait_for_it(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    # It ended a thread of the launcher, and a pool waited for ever for agents that were counted as coming.
    scene.engine.refusal = KeyError("JobID")
    scene.submit(2)
    assert [str(failure) for failure in scene.told.failures] == [
        "no agent could be submitted: the engine pretend failed with KeyError: 'JobID'; the log has the traceback"
    ]
    assert not scene.fleet._submitting and caplog.records[0].exc_info
    scene.engine.puzzle = ValueError("could not parse 'idle~'")
    problems: list[EngineError | None] = []
    for _ in range(2):
        scene.fleet.prepare(Resources(cpus=3), problems.append)
        scene.loop.run()
    assert [str(problem) for problem in problems] == [
        "the engine pretend failed with ValueError: could not parse 'idle~'; the log has the traceback"
    ] * 2
    assert scene.fleet._engine.look("job") is None and not scene.fleet._engine.has_ended("job")
    assert len([record for record in caplog.records if record.exc_info]) == 2, "each is logged once"


def test_an_engine_that_no_thread_can_ask_is_asked_later(monkeypatch: pytest.MonkeyPatch) -> None:
    # Its question stayed open, and all later ones about such processes waited for the answer to it.
    loop: Any = PretendLoop()
    client, problems = EngineClient(PretendEngine(), loop), queue.SimpleQueue[EngineError | None]()

    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        client.prepare(Resources(), problems.put)
    while problems.empty():
        loop.run()
    assert problems.get() is None and Resources() in client.per_job


def test_new_jobs_are_kept_away_from_hosts_that_were_lost_a_short_time_ago(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost, drained, never_up, _ = scene.submit(4)
    for pid, agent in enumerate((lost, drained), start=100):
        agent.pid = pid
    drained.draining = "preempted"
    for agent in (lost, drained, never_up):
        scene.fleet.lost(agent, "nothing was heard of it")
    scene.submit(1)
    assert [list(spec.away_from) for spec in scene.engine.specs[-2:]] == [[], [lost.job]]
    for agent in scene.submit(20):
        agent.pid = 1
        scene.fleet.lost(agent, "nothing was heard of it")
    scene.submit(1)
    assert len(scene.engine.specs[-1].away_from) == 16, "the list is bounded"
    monkeypatch.setattr("ropewalk.processes.fleet._AWAY_S", 0.0)
    scene.submit(1)
    assert not scene.engine.specs[-1].away_from, "the engine knows by now which hosts are gone"


def up(scene: Scene, *wanted: Share) -> list[AgentRecord]:
    """Agents that came up at once."""
    scene.fleet._submitting += wanted
    scene.fleet._submit_all(list(wanted))
    scene.loop.run()
    agents = list(scene.fleet.agents.values())[-len(wanted) :]
    for number, agent in enumerate(agents):
        agent.pid, agent.host = 100 + number, f"n{number}"
        agent.link = agent.link or SimpleNamespace()  # pyright: ignore[reportAttributeAccessIssue]
    return agents


CPU, WIDE, GPU = Resources(), Resources(cpus=8), Resources(gpus=1)


def test_processes_of_several_kinds_go_to_the_agents_that_came_for_them(scene: Scene) -> None:
    wide, gpus = up(scene, Share(2, WIDE), Share(2, GPU))
    scene.fleet._submitting.append(Share(2, CPU))  # the third one is still waiting in its queue
    fleet = scene.fleet
    assert fleet.place("small", CPU, 6) is None, "its own is coming"
    assert [fleet.place(f"learner{number}", GPU, 6) for number in range(2)] == [gpus, gpus]
    assert [fleet.place(f"actor{number}", WIDE, 6) for number in range(2)] == [wide, wide]
    [small] = up(scene, Share(2, CPU))
    assert fleet.place("small", CPU, 6) is small


def test_room_that_another_kind_left_is_used_but_not_that_of_gpus(scene: Scene) -> None:
    wide, gpus = up(scene, Share(2, WIDE), Share(2, GPU))
    placed = [scene.fleet.place(f"small{number}", CPU, 20) for number in range(17)]
    assert placed == [wide] * 16 + [None], "an agent of its own may come"
    assert gpus.processes == {}


def test_where_no_more_hosts_may_come_a_larger_one_takes_more_than_the_smallest_has_room_for(scene: Scene) -> None:
    # Over ssh to hosts with 1 and 3 GPUs, each was given one process, and the third was refused: the GPU was in use.
    rooms = {"job-of-agent-1": HostCapacity(8, 1), "job-of-agent-2": HostCapacity(8, 3)}
    scene.engine.rooms |= rooms
    scene.fleet._most = 2
    small, large = up(scene, Share(1, GPU), Share(1, GPU))
    scene.fleet._last_news = -10.0  # they are up for a while
    placed = [scene.fleet.place(f"rank{number}", GPU, 4) for number in range(4)]
    assert placed.count(small) == 1 and placed.count(large) == 3
    scene.loop.run()
    assert not scene.told.happened, "none shares anything"
    assert scene.fleet.place("fifth", GPU, 5) is small, "the emptiest one says that it has none left"


def test_where_no_more_hosts_may_come_what_has_no_room_is_placed_all_the_same(scene: Scene) -> None:
    scene.fleet._home = replace(scene.fleet._home, settings=load({"hosts": 1}, {}, []))
    [whole] = up(scene, Share(4, CPU))
    assert scene.fleet.place("learner", GPU, 1) is whole, "its agent looks for GPUs, and says what it has"


def test_what_needs_the_gpu_of_a_process_that_leaves_waits_for_its_end(scene: Scene) -> None:
    scene.fleet._home = replace(scene.fleet._home, settings=load({"hosts": 1}, {}, []))
    [only] = up(scene, Share(1, GPU))
    assert scene.fleet.place("before", GPU, 1) is only
    only.leaving.add("before")
    assert scene.fleet.place("after", GPU, 1) is None, "its agent would have no GPU for it"
    scene.fleet.release(only, "before")
    assert scene.fleet.place("after", GPU, 1) is only and not only.leaving


def test_leases_are_looked_at_five_times_each_and_when_the_first_one_ends(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Ten looks in each second were a quarter of what an idle launcher of five agents cost.
    scene.fleet._home = replace(scene.fleet._home, settings=load({"lease_s": 10.0}, {}, []))
    agents = up(scene, Share(1, CPU), Share(1, CPU))
    now = time.monotonic()
    for agent in agents:
        agent.link = SimpleNamespace(received_bytes=0)  # pyright: ignore[reportAttributeAccessIssue]
        agent.lease = Lease(10.0, now - 9.5)
        for before_s in (8.0, 6.0, 4.0, 2.0, 0.0):
            agent.lease.state(now - before_s)
    agents[0].lease.heard(now)
    later: list[tuple[float, Callable[[], object]]] = []
    monkeypatch.setattr(scene.loop, "call_later", lambda delay_s, call: later.append((delay_s, call)))
    scene.fleet._look()
    delay_s, look = later.pop()
    assert delay_s <= 0.5, "the other one is lost then"
    agents[1].lease.heard(time.monotonic())
    look()
    assert later.pop()[0] == 2.0 and not later


@pytest.mark.parametrize("unanswered", ["find", "poll", "cancel"])
def test_what_a_cluster_does_not_answer_at_the_end_keeps_no_job_and_no_engine(unanswered: str) -> None:
    """Jobs were not cancelled after a question that had failed, and the engine's threads and connections stayed."""
    ended: list[str] = []

    class Unanswered(PretendEngine):
        def cancel(self, ids: Sequence[str]) -> None:
            ended.extend(ids)
            if unanswered == "cancel":
                raise EngineError("squeue did not answer within 20 s")

        def close(self) -> None:
            ended.append("closed")

    def refuse(*_: object) -> Any:
        raise EngineError("squeue did not answer within 20 s")

    engine: Any = Unanswered()
    engine.status = JobStatus(JobState.ENDED, 0)
    if unanswered != "cancel":
        setattr(engine, unanswered, refuse)
    is_all_over = EngineClient(engine, PretendLoop()).close("run", ["up", "waits"], [])  # pyright: ignore[reportArgumentType]
    assert is_all_over == (unanswered == "poll"), "else jobs that nobody knows of may be left"
    assert ended == ["up", "waits", "closed"]


def test_an_engine_that_hangs_at_the_end_is_named_with_what_it_was_asked_and_left(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # A session waited for a minute for a controller that was down, timeout after timeout, and said nothing.
    asked, answers = threading.Event(), threading.Event()
    closed = threading.Event()

    class Hanging(PretendEngine):
        def find(self, run_id: str) -> list[str]:
            asked.set()
            answers.wait(PATIENCE_S)
            return []

        def close(self) -> None:
            closed.set()

    monkeypatch.setattr("ropewalk.processes.engine_client._CLOSE_TOLD_S", 0.01)
    monkeypatch.setattr("ropewalk.processes.engine_client._CLOSE_S", 0.02)
    engine = Hanging()
    engine.status = JobStatus(JobState.ENDED, 0)
    try:
        assert not EngineClient(engine, PretendLoop()).close("7e57", ["up"], [])  # pyright: ignore[reportArgumentType]
        assert not closed.is_set()
        waits, left = [record.getMessage() for record in caplog.records]
        assert waits.startswith(
            "the engine pretend has been asked for 0.01 s which jobs run 7e57 has; it is waited for"
        )
        assert "was asked which jobs run 7e57 has, has not answered, and is waited for no longer" in left
        assert "`ropewalk stop 7e57 --engine pretend` ends jobs that are left" in left
    finally:
        answers.set()
    assert asked.is_set() and closed.wait(PATIENCE_S), "its thread goes on"
    assert EngineClient(engine, PretendLoop()).close("7e57", ["up"], [])  # pyright: ignore[reportArgumentType]
