"""Every exception that Ropewalk raises, in one tree.

    RopewalkError
    ├── PoolClosed (ValueError)               the pool takes no more work
    ├── WorkerLost                            a worker died and its task may not be repeated
    │   └── TaskPoisoned                      one task killed `max_deaths` workers in a row
    ├── TaskTimeout (multiprocessing.TimeoutError)   a task ran longer than `task_timeout_s`
    ├── TaskCancelled                         the task was given up before it ended
    ├── RemoteError                           a task raised something that cannot be rebuilt here
    ├── InitializerFailed                     the pool's initializer raised; no worker can start
    ├── CrashLoop                             processes die faster than the restart budget allows
    ├── StartFailed                           a process or an agent could not be started at all
    ├── NotPicklable (TypeError)              a value cannot travel; says where inside it the trouble is
    ├── TransportError (ConnectionError)
    │   ├── TransportRefused                  the other side does not accept us, and says which side to change
    │   ├── LinkClosed                        the other side is gone
    │   └── FrameError                        bytes that are not a frame of ours, or over a limit
    ├── EngineError                           an engine could not do what was asked
    │   └── UnknownEngine (ValueError)
    ├── CodeRefused (ValueError)              a project's code is too large, unreadable or damaged; names the files
    ├── PeerLost (ConnectionResetError, EOFError)   the other side of a queue, pipe, lock or manager is gone
    │   └── ObjectLost                        a value that stayed with the workers is gone with its host; names it
    ├── WrongHost (RuntimeError)              an object that is bound to its host was sent to another one
    ├── FileNotTrusted (PermissionError)      a file that decides what runs is of another user, or others may change it
    ├── SettingsError (ValueError)            a setting is unknown or has a value it cannot have
    ├── ProcessLimit                          a host holds as many processes as it may
    ├── CallError                             a call to a service was not answered
    │   ├── ServiceLost (ConnectionError)     the service is gone; says how it ended
    │   ├── DeadlineExceeded (TimeoutError)   the deadline passed before the answer came
    │   ├── CallCancelled                     nobody waits for the answer of the call that runs here any more
    │   ├── CallCycle                         calls that wait for each other go round in a circle
    │   └── ProgramStopped                    the program is being stopped, and takes no more calls
    ├── ProgramFailed                         a node failed and with it the program; says which, and why
    ├── ProgramInvalid (ValueError)           a program cannot be launched; lists every reason
    ├── CheckpointCorrupt                     a saved state is damaged; says which file, and how that was seen
    ├── HandleNotConnected (AttributeError)   a handle was used as if it were a client already
    ├── ProfileInvalid (ValueError)           a profile is no graph of operators with costs; says which operator
    ├── TopologyInvalid (ValueError)          devices or links cannot be as they are described
    ├── NotTraceable (TypeError)              a model's graph cannot be seen; names the operator and the way out
    ├── PlanInvalid (ValueError)              stages that are no plan of this model on these devices
    │   └── NoPlanFits                        no plan does what is asked; names both numbers and the smallest change
    ├── EvaluationFailed                      evaluations of a population have no fitness, and the run cannot go on
    ├── ScheduleInvalid (ValueError)          a schedule breaks a rule or is used out of its range; names the action
    ├── StageFailed                           a stage of a pipeline raised; says which, and at which micro-batch
    ├── LocalExecutorFailed                   a player was used after one of its steps had failed; the cause is why
    ├── TrainerFailed                         the same of a trainer on processes
    ├── StageLost (ConnectionError)           the process of a stage is gone, and training cannot go on without it
    ├── StageStalled (TimeoutError)           stages answer, and a step does not come to its end
    └── ExchangeError                         gradients could not be exchanged
        ├── ExchangeInvalid (ValueError)      parts of an exchange that do not fit; says what to use instead
        ├── MemberLost (ConnectionError)      a member of the group is gone; says which, and in what
        ├── ExchangeStalled (TimeoutError)    members or tensors that do not arrive; names them
        ├── ExchangeAborted                   the step was taken back while this waited
        ├── GradientNotFinite (ArithmeticError)   NaN or infinity in a gradient; names ranks and parameters
        ├── DescentViolated (ArithmeticError)   a round in which what is proved of GD-SEC does not hold; names it
        └── MessageCorrupt (ValueError)       bytes that no encoder can have sent; says whose

Each class keeps its facts as fields and survives pickling with them, because
errors cross process borders. Messages say what happened, with which values,
and what to do next.
"""

from __future__ import annotations

import multiprocessing
from typing import Any

from ropewalk.escaping import escaped_lines


class RopewalkError(Exception):
    """The root of everything that Ropewalk raises on its own account.

    Subclasses take their facts as keyword arguments; the facts are kept as
    attributes and pickled with the message. Messages quote what other
    processes and hosts said, so their text never acts on a terminal.
    """

    def __init__(self, message: str = "", **facts: Any) -> None:
        super().__init__(message)
        self.__dict__.update(facts)

    def __str__(self) -> str:
        return escaped_lines(super().__str__())

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args, self.__dict__.copy())


def _rebuild(cls: type[RopewalkError], args: tuple[Any, ...], facts: dict[str, Any]) -> RopewalkError:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(facts)
    return error


class PoolClosed(RopewalkError, ValueError):
    """The pool was closed, terminated, or belongs to another process."""


class WorkerLost(RopewalkError):
    """A worker died while it ran a task that may not be repeated.

    Attributes:
        worker: name of the worker, such as "pool-1.3".
        index: position of the task in its map, or None for `apply`.
        cause: what is known of the death, in words.
        last_output: the last lines the worker printed.
    """

    worker: str = ""
    index: int | None = None
    cause: str = ""
    last_output: str = ""


class TaskPoisoned(WorkerLost):
    """One task killed `max_deaths` workers in a row, so it is not tried again.

    Attributes:
        deaths: one line per death, oldest first: worker, host and cause.
    """

    deaths: tuple[str, ...] = ()


class TaskTimeout(RopewalkError, multiprocessing.TimeoutError):
    """A task ran longer than the pool's `task_timeout_s`; its worker was ended.

    Attributes:
        index: position of the task in its map, or None for `apply`.
        timeout_s: the limit, in seconds.
    """

    index: int | None = None
    timeout_s: float = 0.0


class TaskCancelled(RopewalkError):
    """The pool was terminated, or the iterator dropped, before the task ended."""


class RemoteError(RopewalkError):
    """A task raised an exception that cannot be rebuilt in this process; its text is all there is.

    Attributes:
        type_name: module and name of the exception's class, such as "mylib.MyError".
    """

    type_name: str = ""


class InitializerFailed(RopewalkError):
    """The pool's initializer raised in a worker; its own exception is the cause."""


class CrashLoop(RopewalkError):
    """Processes died more often than the restart budget allows.

    Attributes:
        deaths: the causes, oldest first.
    """

    deaths: tuple[str, ...] = ()


class StartFailed(RopewalkError):
    """A process or an agent could not be started."""


class NotPicklable(RopewalkError, TypeError):
    """A value cannot be sent to another process.

    Attributes:
        path: where inside the value the trouble is, such as "args[0].model.lock".
    """

    path: str = ""


class TransportError(RopewalkError, ConnectionError):
    """Something between two processes failed."""


class TransportRefused(TransportError):
    """The other side does not accept this process, and says why."""


class LinkClosed(TransportError):
    """The process at the other end of the link is gone, or the link was closed here."""


class FrameError(TransportError):
    """Received bytes are not one of our frames, or a frame is larger than its limit."""

    #: The protocol of the peer, if it speaks another one than this side; else 0.
    peer_protocol: int = 0


class EngineError(RopewalkError):
    """An engine could not do what was asked of it."""


class UnknownEngine(EngineError, ValueError):
    """No engine has the name that was given."""


class CodeRefused(RopewalkError, ValueError):
    """The code of a project does not travel: it is too large, cannot be read, or came damaged."""


class PeerLost(RopewalkError, ConnectionResetError, EOFError):
    """The other side of a shared object is gone: the process or the host that it lived in.

    What `multiprocessing` raises in such a case depends on the moment, so this is both of it.

    Attributes:
        peer: where the object was, or who held the other end.
    """

    peer: str = ""


class ObjectLost(PeerLost):
    """A value that was held with the workers is gone, with the host that had it or with the process that kept it there.

    Attributes:
        host: where it was.
    """

    host: str = ""


class WrongHost(RopewalkError, RuntimeError):
    """An object that lives in the memory of one host was sent to another host, or is wanted there."""


class FileNotTrusted(RopewalkError, PermissionError):
    """A file that decides which code runs belongs to another user, or another user may change it.

    Attributes:
        path: the file, as it was named.
        place: what is wrong: the file itself, or a folder or link on the way to it.
        owner: user id of the place.
        mode: permissions of the place.
    """

    path: str = ""
    place: str = ""
    owner: int = -1
    mode: int = 0


class SettingsError(RopewalkError, ValueError):
    """A setting is unknown or has a value that it cannot have."""


class ProcessLimit(RopewalkError):
    """A host already holds as many processes as it may."""


class CallError(RopewalkError):
    """A call to a service was not answered by its method."""


class ServiceLost(CallError, ConnectionError):
    """The service that was called is gone, or went while it ran the call.

    Attributes:
        service: name of the node.
        replica: which of its replicas.
        cause: how it ended, in one line.
        started: whether the call may have run there; if not, repeating it is harmless.
    """

    service: str = ""
    replica: int = 0
    cause: str = ""
    started: bool = False


class DeadlineExceeded(CallError, TimeoutError):
    """The deadline passed before the answer came.

    Attributes:
        call: service and method, such as "learner.step".
    """

    call: str = ""


class CallCancelled(CallError):
    """The call that the running code serves is over: its caller is gone or gave it up, or the service is being stopped.

    Raised in the method, by `wait_for` and `CurrentCall.check`; the caller never sees it.

    Attributes:
        call: service and method, such as "replay.insert".
        reason: why it is over, in words.
    """

    call: str = ""
    reason: str = ""


class CallCycle(CallError):
    """A chain of calls, each made while the one before it waits, goes round in a circle.

    Attributes:
        chain: the calls, outermost first.
    """

    chain: tuple[str, ...] = ()


class ProgramStopped(CallError):
    """The program is being stopped: its services answer no new calls. A node that ends with it ended well."""


class ProgramFailed(RopewalkError):
    """A node failed, and nothing could restart it; its own exception, if it raised one, is the cause.

    Attributes:
        node: name of the node that failed first.
        replica: which of its replicas.
        reason: how it failed, in one line.
        last_output: the last lines that it printed.
        deaths: how its earlier attempts ended, oldest first, if it was restarted.
    """

    node: str = ""
    replica: int = 0
    reason: str = ""
    last_output: str = ""
    deaths: tuple[str, ...] = ()


class ProgramInvalid(RopewalkError, ValueError):
    """A program cannot be launched as it is.

    Attributes:
        problems: everything that was found, one line each.
    """

    problems: tuple[str, ...] = ()


class CheckpointCorrupt(RopewalkError):
    """The saved state of a service, or of a training, is damaged, and so is what could serve in its place.

    Attributes:
        path: the newest of the files.
    """

    path: str = ""


class HandleNotConnected(RopewalkError, AttributeError):
    """A handle was used like a client, outside a node or before launch.

    Attributes:
        handle: name of the node that it stands for.
    """

    handle: str = ""


class ProfileInvalid(RopewalkError, ValueError):
    """A profile is no graph of operators with costs: a circle, an unknown or repeated id, a negative time."""


class TopologyInvalid(RopewalkError, ValueError):
    """Devices or links cannot be as they are described: none of them, no bandwidth, an unreadable text."""


class NotTraceable(RopewalkError, TypeError):
    """The graph of a model cannot be seen, or not cut where it was asked to be.

    Attributes:
        operator: module path of the operator in the way, if one is known.
    """

    operator: str = ""


class PlanInvalid(RopewalkError, ValueError):
    """Stages that are no plan of this model on these devices."""


class NoPlanFits(PlanInvalid):
    """No plan does what was asked; says what was needed, what there is, and the smallest change that would do.

    Attributes:
        needed: the least that any plan needs (bytes, devices or operators, as the message says).
        available: what there is of it.
    """

    needed: float = 0
    available: float = 0


class EvaluationFailed(RopewalkError):
    """A fitness is NaN where that is not to be, or nothing but failed evaluations comes back."""


class ScheduleInvalid(RopewalkError, ValueError):
    """A stream of actions breaks a rule, or a schedule is used out of its range.

    Attributes:
        action: the first action that breaks the rule, as it prints; empty if the range is the trouble.
        worker: whose action it is, as it prints.
    """

    action: str = ""
    worker: str = ""


class StageFailed(RopewalkError):
    """A stage raised while it carried out an action; what it raised is the cause.

    Attributes:
        stage: id of the stage.
        replica: which of its replicas.
        micro_batch: which micro-batch; None in a step.
        version: of the weights it computed with, or was to make.
        operator: the operator of the model in which it happened, if that is known.
        action: the action, as it prints.
    """

    stage: int = 0
    replica: int = 0
    micro_batch: int | None = None
    version: int | None = None
    operator: str = ""
    action: str = ""


class LocalExecutorFailed(RopewalkError):
    """A player was used after one of its steps had failed; why it failed is the cause.

    Attributes:
        step: the number of the step that failed, from 0; in a drain, of the step that would have been next.
    """

    step: int = 0


class TrainerFailed(RopewalkError):
    """A trainer was used after it had failed; why it failed is the cause."""


class StageLost(RopewalkError, ConnectionError):
    """The process of a stage is gone, and training cannot go on without it.

    Attributes:
        stages: ids of the stages it ran.
        cause: what is known of its end, in words.
    """

    stages: tuple[int, ...] = ()
    cause: str = ""


class StageStalled(RopewalkError, TimeoutError):
    """All stages answer when they are asked, but a step does not come to its end.

    Attributes:
        waited_s: seconds that were waited for it.
    """

    waited_s: float = 0.0


class ExchangeError(RopewalkError):
    """Gradients could not be exchanged."""


class ExchangeInvalid(ExchangeError, ValueError):
    """Parts of an exchange that do not fit together, or a value that it cannot have; says what to use instead."""


class MemberLost(ExchangeError, ConnectionError):
    """A member of the group is gone.

    Attributes:
        ranks: of the members that are gone, in the epoch in which this was seen.
        members: their names.
        epoch: of the group.
    """

    ranks: tuple[int, ...] = ()
    members: tuple[str, ...] = ()
    epoch: int = 0


class ExchangeStalled(ExchangeError, TimeoutError):
    """Members, or gradients of theirs, did not arrive in time.

    Attributes:
        ranks: of those who are waited for.
        tensors: (rank, name) of gradients that are not ready, as far as that is known.
        waited_s: for how long.
    """

    ranks: tuple[int, ...] = ()
    tensors: tuple[tuple[int, str], ...] = ()
    waited_s: float = 0.0


class ExchangeAborted(ExchangeError):
    """The step was taken back while this waited; its gradients are to be computed again.

    Attributes:
        epoch: of the group in which the step had begun.
    """

    epoch: int = 0


class GradientNotFinite(ExchangeError, ArithmeticError):
    """A gradient has NaN or infinity in it.

    Attributes:
        ranks: of the members whose gradients they are.
        parameters: names, as far as they are known here.
        step: the step.
    """

    ranks: tuple[int, ...] = ()
    parameters: tuple[str, ...] = ()
    step: int = 0


class DescentViolated(ExchangeError, ArithmeticError):
    """A quantity that is proved to descend did not.

    Attributes:
        round: the round in which that was seen, from 0.
        potential: the quantity then.
        allowed: the most that it may be.
    """

    round: int = 0
    potential: float = 0.0
    allowed: float = 0.0


class MessageCorrupt(ExchangeError, ValueError):
    """Bytes that no encoder of this bucket can have made.

    Attributes:
        rank: whose message it is.
    """

    rank: int = -1
