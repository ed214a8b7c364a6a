"""The driver: the process beside the launcher that uses Ray, and puts an actor on a node for each job.

    launcher ── RayEngine ══ driver ──── actor ── keeper ──┬── job
       a line of JSON each way     gRPC     orders, news   └── orphans of the job

Ray's client connects a process to one cluster at a time, starts threads, prints, handles signals and frees its memory
only when the process ends; a process of its own keeps all this from the user's. The actor is not detached: it ends with
the driver, the driver with the launcher, and the keeper (see `keeper`) with the actor. If any of these dies, so does
the job.

Ray reports a lost node after 14 to 64 s, and a node that is cut off not at all. So the driver polls each actor once a
second, and reports one that does not answer as lost; an actor that is not polled ends its job.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import importlib
import json
import os
import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, BinaryIO

from ropewalk.engines import ray_actor
from ropewalk.engines.ray_address import why_not_ray
from ropewalk.engines.ray_jobs import (
    PREFIX,
    PlacementGroup,
    RayJob,
    first_lines,
    holds,
    keeper_words,
    quoted,
    run_of,
    signal_words,
)

_PATIENCE_S = 1.0
"""Seconds that a call for news waits in the actor."""
_PAUSE_S = 0.5
"""Seconds after which an actor that could not be reached is tried again."""
_ANSWER_S = 3.0
"""The timeout for a request to an actor on behalf of the user, such as its job's output."""


class Driver:
    """Answers the engine's requests, one at a time, and receives news of its jobs in between."""

    def __init__(self, ray: Any, facts: Mapping[str, Any]) -> None:
        self._ray = ray
        self._facts = facts
        self._actor_class = ray.remote(ray_actor.JobActor)
        self._jobs: dict[str, RayJob] = {}
        self._groups: list[PlacementGroup] = []
        self._news: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._numbers = 0

    def serve(self, questions: BinaryIO, answers: BinaryIO) -> None:
        """Serve until the engine is gone, or closes and has no jobs."""
        doing: dict[str, Callable[..., object]] = {
            "submit": self._submit,
            "poll": self._poll,
            "cancel": self._cancel,
            "find": self._find,
            "log": self._log,
            "nodes": self._nodes,
            "live": lambda: sum(not job.is_over and not job.is_silent for job in self._jobs.values()),
        }

        def answer(line: bytes) -> None:
            question = json.loads(line)
            number = question.pop("number")
            try:
                reply = {"answer": doing[question.pop("do")](**question)}
            except RayRefused as error:
                reply = {"refused": str(error)}
            except Exception as error:  # Ray raises many types; the engine reports the error to the user
                reply = {"refused": f"Ray could not do that: {error}", "trace": traceback.format_exc()}
            answers.write(json.dumps({**reply, "number": number}).encode() + b"\n")
            answers.flush()

        def read() -> None:
            for line in questions:
                self._news.put(lambda line=line: answer(line))
            self._news.put(None)

        def watch_launcher() -> None:  # forked children of the launcher hold our standard input open
            launcher = os.getppid()
            while os.getppid() == launcher:
                time.sleep(1.0)
            self._news.put(None)

        for act in (read, watch_launcher):
            threading.Thread(target=act, daemon=True).start()
        while (event := self._news.get()) is not None:
            event()

    # Requests

    def _submit(
        self,
        run: str,
        request: str,
        bundle: dict[str, float],
        actor: dict[str, Any],
        orders: Sequence[dict[str, Any]],
        strategy: str,
    ) -> list[str]:
        names = [f"{PREFIX}{quoted(run)}/{quoted(request)}/{number}" for number in range(len(orders))]
        self._refuse_what_never_fits(bundle, len(orders), strategy)
        free = [
            (group, place)
            for group in self._groups
            if (group.run, group.bundle) == (run, bundle)
            for place, job in enumerate(group.places)
            if job is None
        ][: len(orders)]
        if num_new := len(orders) - len(free):
            target = self._target(run, bundle, strategy) if num_new == 1 else ""
            where: dict[str, Any] = {"bundle_label_selector": [{"ray.io/node-id": target}]} if target else {}
            handle = self._ray.util.placement_group([bundle] * num_new, strategy=strategy, **where)
            group = PlacementGroup(run, bundle, handle, [None] * num_new, target)
            self._groups.append(group)
            free += [(group, place) for place in range(num_new)]
        jobs: list[RayJob] = []
        try:
            for name, (group, place), order in zip(names, free, orders, strict=True):
                jobs.append(self._start(name, group, place, actor, order))
        except ValueError as error:  # another launcher has an actor of that name
            for job in jobs:
                self._give_back(job, "lost", "")
            raise RayRefused(str(error)) from error
        finally:
            self._remove_empty_groups()
        self._jobs |= {job.name: job for job in jobs}
        return names

    def _poll(self, ids: Sequence[str]) -> dict[str, tuple[str, int | None, str]]:
        self._hear_what_is_there()
        foreign = self._foreign() if set(ids) - self._jobs.keys() else []
        waits_for = functools.cache(self._waits_for)  # takes milliseconds, and is the same for all jobs
        return {id: self._status(id, foreign, waits_for) for id in ids}

    def _status(
        self, id: str, foreign: Sequence[str], waits_for: Callable[[PlacementGroup], str]
    ) -> tuple[str, int | None, str]:
        job = self._jobs.get(id)
        if job is None:
            return ("running", None, "of another launcher") if id in foreign else ("lost", None, "unknown to Ray")
        if job.is_silent:
            silence_s = time.monotonic() - job.heard
            return "lost", None, f"its actor {job.place} has not answered for {silence_s:.1f} s; {self._node(job)}"
        if job.state != "pending":
            return job.state, job.code, job.why or job.place
        return "pending", None, waits_for(job.group)

    def _cancel(self, ids: Sequence[str]) -> None:
        jobs = [self._jobs[id] for id in ids if id in self._jobs and not self._jobs[id].is_over]
        for job in jobs:
            if job.state == "running" and not job.is_silent:
                self._talk(job, "end")
            else:
                self._give_back(job, "ended", "cancelled before it began" if job.state == "pending" else "cancelled")
        self._hear_until(lambda: all(job.is_over for job in jobs), _ANSWER_S)
        for job in jobs:
            if not job.is_over:
                self._give_back(job, "ended", "cancelled; its actor did not say that it has ended")
        for name in set(ids) & set(self._foreign()) if set(ids) - self._jobs.keys() else ():
            with contextlib.suppress(ValueError):  # it has just ended
                self._ray.kill(self._ray.get_actor(name), no_restart=True)

    def _find(self) -> list[tuple[str, str]]:
        """Return run and id of all jobs that have not ended, also of other launchers."""
        self._hear_what_is_there()
        mine = [job.name for job in self._jobs.values() if not job.is_over and not job.is_silent]
        return [(run_of(name), name) for name in [*mine, *self._foreign()]]

    def _log(self, id: str) -> str:
        self._hear_what_is_there()
        job = self._jobs.get(id)
        if job is None:
            return ""
        if job.state == "running" and not job.is_silent:
            number = self._talk(job, "log")
            self._hear_until(lambda: job.is_over or job.answered >= number, _ANSWER_S)
        return job.log

    def _nodes(self) -> list[dict[str, Any]]:
        return [
            {
                "id": node["NodeID"],
                "ip": node["NodeManagerAddress"],
                "name": node["NodeManagerHostname"],
                "resources": node["Resources"],
            }
            for node in self._ray.nodes()
            if node["Alive"]
        ]

    # Jobs

    def _start(
        self, name: str, group: PlacementGroup, place: int, actor: dict[str, Any], order: dict[str, Any]
    ) -> RayJob:
        strategy = self._ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(group.handle, place)
        made = self._actor_class.options(
            name=name,
            max_restarts=0,
            max_task_retries=0,
            max_concurrency=4,
            scheduling_strategy=strategy,
            **actor,
        ).remote(self._facts["silence_s"])
        job = RayJob(name, group, made, json.dumps({**order, "do": "start", "number": 0, "job": name}).encode() + b"\n")
        group.places[place] = job
        self._when_done(job, made.start.remote(self._facts["python"]), self._started)
        return job

    def _started(self, job: RayJob, where: tuple[str, str, int]) -> None:
        job.node, ip, pid = where
        job.place = f"on node {ip} (process {pid})"
        order, job.order = job.order, b""
        if not job.is_over:
            job.heard = time.monotonic()
            job.state = "running"
            self._send(job, order, _PATIENCE_S, self._heard_and_ask)

    def _heard_and_ask(self, job: RayJob, reply: tuple[bytes, str | None]) -> None:
        self._heard(job, reply)
        if not job.is_over:
            self._ask_for_news(job)

    def _ask_for_news(self, job: RayJob) -> None:
        self._send(job, b"", _PATIENCE_S, self._heard_and_ask)

    def _heard(self, job: RayJob, reply: tuple[bytes, str | None]) -> None:
        job.heard = time.monotonic()
        lines, last_words = reply
        for line in lines.splitlines():
            news = json.loads(line)
            if news["news"] == "ended":
                job.code, job.log = news["code"], news["log"]
                self._give_back(job, "ended", news["why"] or signal_words(news["code"]))
            elif news["news"] == "refused":
                job.code = 127
                self._give_back(job, "ended", f"it could not be started {job.place}: {news['why']}")
            elif news["news"] == "done" and news["to"]:
                job.log = news["answer"] if isinstance(news["answer"], str) else job.log
                job.answered = max(job.answered, news["to"])
        if last_words is not None and not job.is_over:
            self._give_back(job, "lost", keeper_words(job.place, last_words.strip()))

    def _talk(self, job: RayJob, do: str) -> int:
        """Send an order by a call of its own, which is not queued after the call that waits for news."""
        self._numbers += 1
        line = json.dumps({"do": do, "job": job.name, "number": self._numbers}).encode() + b"\n"
        self._send(job, line, _PATIENCE_S, self._heard)
        return self._numbers

    def _send(self, job: RayJob, orders: bytes, patience_s: float, then: Callable[[RayJob, Any], None]) -> None:
        self._when_done(job, job.actor.talk.remote(orders, patience_s), then)

    def _when_done(self, job: RayJob, reference: Any, then: Callable[[RayJob, Any], None]) -> None:
        future: Future[Any] = reference.future()

        def happened() -> None:
            if job.is_over:
                return
            try:
                result = future.result()
            except Exception as error:  # of many types, all of which mean that the actor cannot be reached
                if "Unavailable" in type(error).__name__:  # it may come back; if not, it times out
                    self._later(lambda: None if job.is_over else self._ask_for_news(job))
                else:
                    self._give_back(job, "lost", f"its actor {job.place} is gone: {first_lines(error)}")
            else:
                then(job, result)

        future.add_done_callback(lambda _: self._news.put(happened))

    def _later(self, act: Callable[[], None]) -> None:
        timer = threading.Timer(_PAUSE_S, self._news.put, [act])
        timer.daemon = True
        timer.start()

    def _give_back(self, job: RayJob, state: str, why: str) -> None:
        job.state, job.why = state, why
        job.order = b""
        with contextlib.suppress(Exception):  # it is gone already
            self._ray.kill(job.actor, no_restart=True)
        job.group.places = [None if other is job else other for other in job.group.places]
        self._remove_empty_groups()

    def _remove_empty_groups(self) -> None:
        for group in [group for group in self._groups if not any(group.places)]:
            self._groups.remove(group)
            self._ray.util.remove_placement_group(group.handle)

    # The cluster

    def _foreign(self) -> list[str]:
        names = self._ray.util.list_named_actors()
        return [name for name in names if name.startswith(PREFIX) and name not in self._jobs]

    def _waits_for(self, group: PlacementGroup) -> str:
        state = self._ray.util.placement_group_table(group.handle).get("state", "unknown")
        if state == "CREATED":
            return "its actor is being started"
        free = {name: self._ray.available_resources().get(name, 0) for name in group.bundle}
        return f"waits for {len(group.places)} places with {group.bundle}; free in the whole cluster: {free} ({state})"

    def _node(self, job: RayJob) -> str:
        is_alive = job.node in [node["id"] for node in self._nodes()]
        return f"Ray calls its node {'alive' if is_alive else 'dead'}"

    def _target(self, run: str, bundle: Mapping[str, float], strategy: str) -> str:
        """Return the node that a single job must have; empty leaves the choice to Ray.

        A launcher submits its agents one by one, and Ray applies a strategy only within one placement group.
        """
        if not strategy.startswith("STRICT"):  # Ray spreads single places by itself
            return ""
        living = [job for job in self._jobs.values() if job.group.run == run and not job.is_over]
        used = collections.Counter(job.node or job.group.target for job in living)
        nodes = [node["id"] for node in self._nodes() if holds(node["resources"], bundle)]
        if strategy == "STRICT_PACK":
            nodes = [node for node in nodes if used[node]] or nodes
        if strategy == "STRICT_SPREAD":
            nodes = [node for node in nodes if not used[node]]
            if not nodes:
                raise RayRefused(f"placement STRICT_SPREAD wants a node for each job, and all nodes have one of {run}")
        free = self._ray._private.state.available_resources_per_node()  # Ray's public API does not have it
        return min(nodes, key=lambda node: (not holds(free.get(node, {}), bundle), used[node]), default="")

    def _refuse_what_never_fits(self, bundle: Mapping[str, float], count: int, strategy: str) -> None:
        nodes = self._nodes()
        fitting = [node for node in nodes if holds(node["resources"], bundle)]
        if not fitting:
            largest = {name: max((node["resources"].get(name, 0) for node in nodes), default=0) for name in bundle}
            raise RayRefused(
                f"no node of the Ray cluster can hold a job with {bundle}; the largest of its {len(nodes)} nodes have "
                f"{largest}. Ask for less, or add a node"
            )
        if strategy == "STRICT_SPREAD" and count > len(fitting):
            raise RayRefused(
                f"placement STRICT_SPREAD wants {count} nodes with {bundle}, but the Ray cluster has {len(fitting)}; "
                "use fewer hosts, or placement SPREAD"
            )

    # Events

    def _hear_what_is_there(self) -> None:
        self._hear_until(lambda: self._news.empty(), 1.0)

    def _hear_until(self, condition: Callable[[], bool], patience_s: float) -> None:
        """Process news until a condition is true; no request comes while one is being answered."""
        deadline = time.monotonic() + patience_s
        while not condition() and (left_s := deadline - time.monotonic()) > 0:
            with contextlib.suppress(queue.Empty):
                event = self._news.get(timeout=left_s)
                if event is None:  # the engine is gone
                    self._news.put(None)
                    return
                event()


class RayRefused(Exception):
    """A request failed; the message is for the user."""


def _found_address(address: str) -> str:
    """Return the address to which Ray resolves `auto`; empty if that is not known, or there is nothing to resolve."""
    if address != "auto":
        return ""
    services: Any = importlib.import_module("ray._private.services")
    return str(services.canonicalize_bootstrap_address(address) or "")


def main() -> None:
    """Connect as the first line on the standard input says, and serve."""
    # Ray and its children print to the standard output, from which the engine reads answers.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    questions = sys.stdin.buffer
    facts = json.loads(questions.readline())

    def say(**words: object) -> None:
        answers.write(json.dumps({**words, "number": facts["number"]}).encode() + b"\n")
        answers.flush()

    tls = os.environ.get("RAY_USE_TLS") == "1"
    if problem := why_not_ray(facts["address"], tls=tls):  # before Ray is imported, which takes seconds
        say(refused=problem)
        return
    try:
        ray: Any = importlib.import_module("ray")
        if problem := why_not_ray(_found_address(facts["address"]), tls=tls):
            say(refused=problem)
            return
        importlib.import_module("ray.util.scheduling_strategies")
        importlib.import_module("ray.cloudpickle").register_pickle_by_value(ray_actor)
        ray.init(
            address=facts["address"],
            namespace=facts["namespace"],
            runtime_env=facts["runtime_env"],
            log_to_driver=False,
            logging_level="ERROR",
        )
    except Exception as error:  # of many types; the engine adds advice
        say(refused=f"{type(error).__name__}: {first_lines(error)}")
        return
    say(answer=ray.__version__)
    try:
        Driver(ray, facts).serve(questions, answers)
    finally:
        threading.Timer(_ANSWER_S, os._exit, [1]).start()  # disconnecting from a cluster that is cut off hangs
        ray.shutdown()
        os._exit(0)


if __name__ == "__main__":
    main()
