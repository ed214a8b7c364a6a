"""The verifier: proves that the action lists of a plan keep every law of a pipeline, or names the action at fault.

The laws are independent of each other and of the origin of the lists; each is a function
below. They refer to the lists alone, so they hold whatever the durations are:

    known          actions name stages, workers and micro-batches of the plan
    complete       each forward and backward, once for each micro-batch
    ordered        F before C before B, I before W
    transferred    a tensor that crosses a cut is received before it is needed, and sent after it is made
    versioned      versions of the weights are those of docs/theory.md, "Weight versions"
    updated        a step comes after the backwards of its round and the reductions of their gradients
    bounded        no more micro-batches and versions are kept than the schedule allows
    flowing        no worker waits for ever, with one slot for each link (standstill_of in flow.py)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, NoReturn

from ropewalk.errors import ScheduleInvalid
from ropewalk.pipeline.actions import Action, ActionKind, ReduceGroup
from ropewalk.pipeline.flow import standstill_of
from ropewalk.pipeline.grid import draw_grid
from ropewalk.pipeline.plans import Plan, PlanWorker
from ropewalk.pipeline.schedules import make_schedule
from ropewalk.pipeline.schedules.schedule import Schedule
from ropewalk.pipeline.transfers import Crossings, Passing
from ropewalk.pipeline.updates import concerned, is_after, update

_COMPUTING = (
    ActionKind.FORWARD,
    ActionKind.RECOMPUTE,
    ActionKind.BACKWARD,
    ActionKind.INPUT_GRADIENT,
    ActionKind.WEIGHT_GRADIENT,
)
_ENDING = (ActionKind.BACKWARD, ActionKind.WEIGHT_GRADIENT)


def verify(
    plan: Plan,
    actions: Mapping[PlanWorker, Sequence[Action]],
    schedule: str | Schedule | None = None,
    *,
    num_micro_batches: int | None = None,
) -> None:
    """Prove that action lists, from an empty pipeline to an empty pipeline, obey every law.

    Args:
        plan: the plan that the lists belong to.
        actions: the actions of each worker, in order.
        schedule: the schedule whose versions and bounds the lists must keep; None: the plan's.
        num_micro_batches: number of micro-batches in the lists; None: those of one step. Only a schedule without a
            flush allows more.

    Raises:
        ScheduleInvalid: an action breaks a law; `action` and `worker` name it, and the message draws the place.
    """
    wanted = make_schedule(plan.schedule if schedule is None else schedule)
    lists = _Lists(plan, actions, wanted, plan.micro_batches if num_micro_batches is None else num_micro_batches)
    for law in (_known, _complete, _ordered, _transferred, _versioned, _updated, _bounded, _flowing):
        law(lists)


class _ActionPlace(NamedTuple):
    worker: PlanWorker
    at: int


class _Lists:
    """The lists to verify, and the place of each action."""

    def __init__(
        self, plan: Plan, actions: Mapping[PlanWorker, Sequence[Action]], schedule: Schedule, num_micro_batches: int
    ) -> None:
        self.plan = plan
        self.actions = {worker: list(actions.get(worker, ())) for worker in plan.workers}
        self.schedule = schedule
        self.num_micro_batches = num_micro_batches
        self.crossings = Crossings(plan)
        if strangers := sorted(set(actions) - set(plan.workers)):
            raise ScheduleInvalid(
                f"there are actions of worker {strangers[0]}, which the plan does not have", worker=str(strangers[0])
            )
        self.places: dict[_What, _ActionPlace] = {}
        """The first place of each action, by `_what`."""
        for place, action in self.walk():
            self.places.setdefault(_what(action), place)

    def walk(self) -> Iterator[tuple[_ActionPlace, Action]]:
        for worker, row in self.actions.items():
            for index, action in enumerate(row):
                yield _ActionPlace(worker, index), action

    def find(
        self, kind: ActionKind, stage: int, micro_batch: int, edge: str | None = None, peer: int | None = None
    ) -> int:
        """Return the index of an action in its list; -1 if it is missing."""
        place = self.places.get(_What(kind, stage, micro_batch, edge, peer))
        return -1 if place is None else place.at

    def broken(self, place: _ActionPlace, why: str) -> NoReturn:
        action, worker = self.actions[place.worker][place.at], place.worker
        drawn = draw_grid(self.plan, self.actions, marked=place)
        raise ScheduleInvalid(
            f"{action} of worker {worker} (place {place.at} of its list) {why}\n{drawn}",
            action=str(action),
            worker=str(worker),
        )

    def missing(self, worker: PlanWorker, action: Action, why: str) -> NoReturn:
        raise ScheduleInvalid(
            f"worker {worker} never does {action}: {why}\n{draw_grid(self.plan, self.actions)}",
            action=str(action),
            worker=str(worker),
        )


class _What(NamedTuple):
    """The identity of an action: actions that differ only in the version of weights that they use are the same."""

    kind: ActionKind
    stage: int
    number: int | None
    """The version of a step or reduction; for other kinds the micro-batch."""
    edge: str | None = None
    peer: int | None = None
    group: ReduceGroup | None = None
    replica: int | None = None


def _what(action: Action) -> _What:
    kind = action.kind
    if kind in (ActionKind.STEP, ActionKind.REDUCE):
        return _What(kind, action.stage, action.version, group=action.group, replica=action.replica)
    return _What(kind, action.stage, action.micro_batch, action.edge, action.peer)


# --- the laws ---------------------------------------------------------------------------------------------------------


def _known(lists: _Lists) -> None:
    """Actions name existing stages, micro-batches and peers, are in the list of the worker that runs them, and once."""
    plan = lists.plan
    for place, action in lists.walk():
        stage, b = action.stage, action.micro_batch
        if not 0 <= stage < len(plan.stages):
            lists.broken(place, f"names stage {stage}; the plan has stages 0 to {len(plan.stages) - 1}")
        if stage not in plan.groups[place.worker.group]:
            lists.broken(place, f"is for stage {stage}, which runs on group {plan.placement[stage]}")
        if action.kind in (ActionKind.STEP, ActionKind.REDUCE):
            if action.replica != place.worker.replica or (action.group is None) is (action.kind is ActionKind.REDUCE):
                lists.broken(place, "is for another replica, or does not say rightly whether it is a reduction")
        elif b is None or not 0 <= b < lists.num_micro_batches:
            lists.broken(place, f"names micro-batch {b}; there are 0 to {lists.num_micro_batches - 1}")
        elif plan.worker_of(stage, b) != place.worker or action.replica != place.worker.replica:
            lists.broken(place, f"belongs to worker {plan.worker_of(stage, b)}: replicas take micro-batches in turn")
        if action.kind in (ActionKind.SEND, ActionKind.RECEIVE) and not _is_crossing(lists, action):
            lists.broken(place, "names a tensor that does not pass between these two stages")
        if lists.places[_what(action)] != place:
            lists.broken(place, "was done before")


def _is_crossing(lists: _Lists, action: Action) -> bool:
    if action.peer is None or action.edge is None:
        return False
    kind = ActionKind.BACKWARD if action.is_gradient else ActionKind.FORWARD
    if action.kind is ActionKind.SEND:
        return Passing(action.edge, action.stage, action.peer) in lists.crossings.sent[kind, action.stage]
    return Passing(action.edge, action.peer, action.stage) in lists.crossings.received[kind, action.stage]


def _complete(lists: _Lists) -> None:
    """Every micro-batch has at every stage one F, one B (or one I and one W), and one C if the stage recomputes."""
    for stage in lists.plan.stages:
        for b in range(lists.num_micro_batches):
            worker = lists.plan.worker_of(stage.id, b)
            has = {kind for kind in _COMPUTING if lists.find(kind, stage.id, b) >= 0}
            split = ActionKind.INPUT_GRADIENT in has or ActionKind.WEIGHT_GRADIENT in has
            halves = {ActionKind.INPUT_GRADIENT, ActionKind.WEIGHT_GRADIENT} if split else {ActionKind.BACKWARD}
            wanted = {ActionKind.FORWARD, *halves} | ({ActionKind.RECOMPUTE} if stage.recompute else set[ActionKind]())
            for kind in _COMPUTING:
                if kind in wanted - has:
                    lists.missing(worker, Action(kind, stage.id, worker.replica, b), "each micro-batch needs it")
                if kind in has - wanted:
                    place = _ActionPlace(worker, lists.find(kind, stage.id, b))
                    lists.broken(
                        place,
                        "is not wanted: the whole backward and its halves exclude each other, and only "
                        "stages that recompute run their forward again",
                    )


def _ordered(lists: _Lists) -> None:
    """At each stage a micro-batch runs F, then C if any, then B or I, then W."""
    for place, action in lists.walk():
        if action.kind not in _COMPUTING:
            continue
        assert action.micro_batch is not None
        for kind in _COMPUTING[: _COMPUTING.index(action.kind)]:
            if (before := lists.find(kind, action.stage, action.micro_batch)) > place.at:
                lists.broken(place, f"comes before {lists.actions[place.worker][before]}, which it needs")


def _transferred(lists: _Lists) -> None:
    """F, B and I come after the receives of the tensors that they need, and before the sends of those they make."""
    for place, action in lists.walk():
        b = action.micro_batch
        if b is None:
            continue
        row = lists.actions[place.worker]
        for passing in lists.crossings.received.get((action.kind, action.stage), []):
            transfer = Action(
                ActionKind.RECEIVE, action.stage, action.replica, b, edge=passing.tensor, peer=passing.source
            )
            at = lists.find(ActionKind.RECEIVE, action.stage, b, passing.tensor, passing.source)
            if at < 0:
                lists.missing(place.worker, transfer, f"{action} needs it")
            if at > place.at:
                lists.broken(place, f"comes before {row[at]}, which it needs")
        for passing in lists.crossings.sent.get((action.kind, action.stage), []):
            transfer = Action(
                ActionKind.SEND, action.stage, action.replica, b, edge=passing.tensor, peer=passing.target
            )
            at = lists.find(ActionKind.SEND, action.stage, b, passing.tensor, passing.target)
            if at < 0:
                lists.missing(place.worker, transfer, f"stage {passing.target} needs what {action} makes")
            if at < place.at:
                lists.broken(_ActionPlace(place.worker, at), f"comes before {action}, which makes it")


def _versioned(lists: _Lists) -> None:
    """Computing actions name the version of the schedule's formula, and that version has been made."""
    newest: Counter[tuple[PlanWorker, int]] = Counter()
    for place, action in lists.walk():
        key = (place.worker, action.stage)
        if action.kind is ActionKind.STEP:
            newest[key] += 1
            if action.version != newest[key]:
                lists.broken(place, f"should make version {newest[key]}, the next of this stage")
        elif action.kind in _COMPUTING:
            assert action.micro_batch is not None
            wanted = lists.schedule.version(lists.plan, action.stage, action.micro_batch)
            if action.version != wanted:
                lists.broken(place, f"should use version {wanted} of the weights")
            if wanted > newest[key]:
                lists.broken(place, f"uses version {wanted}, but no step before it has made more than {newest[key]}")


def _updated(lists: _Lists) -> None:
    """A step comes after the backwards of its round, not of later ones, and after the reductions of their gradients."""
    plan, schedule = lists.plan, lists.schedule
    for worker in plan.workers:
        num_updates = -(-lists.num_micro_batches // schedule.round_size(plan, plan.groups[worker.group][0]))
        updates = [
            update(plan, worker, [version] * len(plan.stages), norm=schedule.norm)
            for version in range(1, num_updates + 1)
        ]
        due = {_what(action) for expected in updates for action in expected}
        for at, action in enumerate(lists.actions[worker]):
            if action.kind in (ActionKind.STEP, ActionKind.REDUCE) and _what(action) not in due:
                lists.broken(
                    _ActionPlace(worker, at), "is not called for: there is no such update, or nobody to reduce with"
                )
        for expected in updates:
            _updated_once(lists, worker, expected)


def _updated_once(lists: _Lists, worker: PlanWorker, expected: Sequence[Action]) -> None:
    """Check one update at one worker."""
    places: dict[Action, _ActionPlace] = {}
    for action in expected:
        if (place := lists.places.get(_what(action))) is None:
            lists.missing(worker, action, "the update needs it")
        places[action] = place
    for action, place in places.items():
        about = concerned(lists.plan, worker, action)
        for stage in about:
            _ends_round(lists, place, stage)
        for other in expected:
            later = other.kind is ActionKind.REDUCE and places[other].at > place.at
            if later and is_after(action, other) and about & concerned(lists.plan, worker, other):
                lists.broken(place, f"comes before {other}, which it needs")


def _ends_round(lists: _Lists, place: _ActionPlace, stage: int) -> None:
    """A step or reduction comes after all backwards of a stage that belong to it, and before all others."""
    row = lists.actions[place.worker]
    version, size = row[place.at].version, lists.schedule.round_size(lists.plan, stage)
    assert version is not None
    for b in range(place.worker.replica, lists.num_micro_batches, lists.plan.stages[stage].replicas):
        end = max(lists.find(kind, stage, b) for kind in _ENDING)
        if b // size < version and end > place.at:
            lists.broken(place, f"comes before {row[end]}, whose gradient belongs to it")
        if b // size >= version and end < place.at:
            lists.broken(place, f"comes after {row[end]}, whose gradient belongs to a later update")


def _bounded(lists: _Lists) -> None:
    """No worker keeps more micro-batches or versions of its weights than the schedule allows."""
    plan, schedule = lists.plan, lists.schedule
    for worker in plan.workers:
        stages = plan.groups[worker.group]
        bounds = {stage: (schedule.in_flight_at(plan, stage), schedule.held_at(plan, stage)) for stage in stages}
        most_versions = {
            stage: 1 + schedule.extra_versions(plan.workers_after(stage), plan.stages[stage].replicas, len(plan.stages))
            for stage in stages
        }
        most_together = schedule.held_by(plan, worker.group)
        in_flight: Counter[int] = Counter()
        """Micro-batches between F and B or I; and those between F and the end of the backward, with their versions."""
        held: dict[int, dict[int | None, int | None]] = {stage: {} for stage in stages}
        newest = dict.fromkeys(stages, 0)
        for at, action in enumerate(lists.actions[worker]):
            stage, place = action.stage, _ActionPlace(worker, at)
            if action.kind in (ActionKind.BACKWARD, ActionKind.INPUT_GRADIENT):
                in_flight[stage] -= 1
            if action.kind in _ENDING:
                del held[stage][action.micro_batch]
            if action.kind is ActionKind.STEP:
                newest[stage] += 1
            if action.kind is ActionKind.FORWARD:
                in_flight[stage] += 1
                held[stage][action.micro_batch] = action.version
                most_in_flight, most_held = bounds[stage]
                together = sum(map(len, held.values()))
                _at_most(lists, place, in_flight[stage], most_in_flight, "micro-batches between forward and backward")
                _at_most(lists, place, len(held[stage]), most_held, "micro-batches before the end of their backward")
                _at_most(lists, place, together, most_together, "micro-batches at all stages of its worker")
            if action.kind in (ActionKind.FORWARD, ActionKind.STEP):
                versions = {newest[stage], *held[stage].values()}
                _at_most(lists, place, len(versions), most_versions[stage], "versions of its stage's weights")


def _at_most(lists: _Lists, place: _ActionPlace, number: int, most: int, what: str) -> None:
    if number > most:
        lists.broken(place, f"makes it {number} {what}; {lists.schedule.name} keeps at most {most}")


def _flowing(lists: _Lists) -> None:
    """With one slot for each link, every worker reaches the end of its list."""
    if (found := standstill_of(lists.plan, lists.actions)) is not None:
        worker, at, why = found
        lists.broken(_ActionPlace(worker, at), why)
