"""Every exception that Ropewalk raises, in one tree.

    RopewalkError
    ├── PoolClosed (ValueError)               the pool takes no more work
    ├── WorkerLost                            a worker died and its task may not be repeated
    │   └── TaskPoisoned                      one task killed `max_deaths` workers in a row
    ├── TaskTimeout (multiprocessing.TimeoutError)   a task ran longer than `task_timeout_s`
    ├── TaskCancelled                         the task was cancelled before it finished
    ├── RemoteError                           a task raised an exception that cannot be rebuilt here
    ├── InitializerFailed                     the pool's initializer raised; no worker can start
    ├── CrashLoop                             processes die faster than the restart budget allows
    ├── StartFailed                           a process or an agent could not be started at all
    ├── NotPicklable (TypeError)              a value cannot be pickled; says which part of it
    ├── TransportError (ConnectionError)
    │   ├── TransportRefused                  the peer rejected this process; says which side to change
    │   ├── LinkClosed                        the peer is gone
    │   └── FrameError                        received bytes are not a valid frame, or exceed a limit
    ├── EngineError                           an engine could not do what was asked
    │   └── UnknownEngine (ValueError)
    ├── CodeRefused (ValueError)              a project's code is too large, unreadable or damaged; names the files
    ├── PeerLost (ConnectionResetError, EOFError)   the other side of a queue, pipe, lock or manager is gone
    │   └── ObjectLost                        a value that was kept on a host is gone with that host; names the host
    ├── WrongHost (RuntimeError)              an object that is bound to its host was sent to another one
    ├── FileNotTrusted (PermissionError)      another user owns, or may change, a file that decides which code runs
    ├── SettingsError (ValueError)            a setting is unknown or has an invalid value
    ├── ProcessLimit                          a host has reached its limit of processes
    ├── CallError                             a call to a service was not answered
    │   ├── ServiceLost (ConnectionError)     the service is gone; says how it ended
    │   ├── DeadlineExceeded (TimeoutError)   the deadline passed before the answer came
    │   ├── CallCancelled                     the caller no longer waits for the call that runs here
    │   ├── CallCycle                         calls wait for each other in a cycle
    │   └── ProgramStopped                    the program is being stopped and takes no more calls
    ├── ProgramFailed                         a node failed, and the program with it; says which node, and why
    ├── FailedForGood                         a restart of the node would fail in the same way; ends the program
    ├── ProgramInvalid (ValueError)           a program cannot be launched; lists every reason
    ├── CheckpointCorrupt                     a saved state is damaged; says which file, and how that was detected
    ├── HandleNotConnected (AttributeError)   a handle was used as if it were a client
    ├── ProfileInvalid (ValueError)           a profile is not a valid graph of operators; says which operator
    ├── TopologyInvalid (ValueError)          the description of devices or links is invalid
    ├── NotTraceable (TypeError)              a model cannot be traced; names the operator and a workaround
    ├── PlanInvalid (ValueError)              the stages are not a valid plan of this model on these devices
    │   └── NoPlanFits                        no plan meets the request; names both numbers and the smallest change
    ├── StreamLost (ConnectionError)          replay lacks earlier parts of a stream, which has to start over
    ├── LimiterDeadlock                       inserters and samplers of a table wait for each other; says which counts
    ├── EvaluationFailed                      evaluations of a population have no fitness, and the run cannot continue
    ├── SearchInvalid (ValueError)            a search cannot run as described; names the parameter or option
    ├── SearchFailed                          a search cannot succeed; says in which way all of its trials fail
    ├── ScheduleInvalid (ValueError)          a schedule breaks a rule or is used outside its range; names the action
    ├── StageFailed                           a stage of a pipeline raised; says which, and in which micro-batch
    ├── LocalExecutorFailed                   a local executor was used after one of its steps had failed
    ├── TrainerFailed                         a trainer was used after it had failed
    ├── NotFinite (ArithmeticError)           experience, a loss or its gradient contains NaN or infinity; says where
    ├── StageLost (ConnectionError)           the process of a stage is gone, and training cannot continue without it
    ├── StageStalled (TimeoutError)           all stages answer, but a step does not finish
    ├── EnvironmentFailed                     an environment of reinforcement learning failed; names the episode's seed
    │   └── EnvironmentLost                   the process of an environment died, or did not answer in time
    ├── StoreError                            a store of runs cannot be read or written at the moment; says which
    │   ├── StoreMissing (FileNotFoundError)  there is no store yet
    │   ├── StoreTooNew                       a newer version of Ropewalk has written the store
    │   └── StoreCorrupt                      the file is damaged or is not a Ropewalk store
    ├── RunNotFound (LookupError)             no run, or more than one, has this id or name; names the near ones
    ├── RunOpen (RuntimeError)                this process already writes a run, and tried to begin another one
    ├── RunStillRunning                       a run that is running cannot be deleted
    ├── RunUnsuitable (ValueError)            a run is in the wrong state for an operation, or lacks a command for it
    └── ExchangeError                         gradients could not be exchanged
        ├── ExchangeInvalid (ValueError)      parts of an exchange do not fit together; says what to use instead
        ├── MemberLost (ConnectionError)      a member of the group is gone; says which, and during which operation
        ├── ExchangeStalled (TimeoutError)    members or tensors did not arrive in time; names them
        ├── ExchangeAborted                   the step was aborted during the exchange
        ├── GradientNotFinite (ArithmeticError)   a gradient contains NaN or infinity; names ranks and parameters
        ├── DescentViolated (ArithmeticError)   a round breaks the descent that is proved for GD-SEC; names the round
        └── MessageCorrupt (ValueError)       a message is not what the compressor can have written; names the sender

Each class keeps its facts as attributes and survives pickling with them, because
errors cross process boundaries. Messages say what happened, with which values,
and what to do next. A note below the message names the page that tells more,
`error_pages/NAME.md`, which `ropewalk explain NAME` shows without a network.
"""

from __future__ import annotations

import multiprocessing
from typing import Any

from ropewalk.escaping import escaped_lines
from ropewalk.last_line import LEARN_MORE


class RopewalkError(Exception):
    """The base class of all exceptions of Ropewalk.

    Subclasses take their facts as keyword arguments; the facts are kept as
    attributes and pickled with the message, and so is the note that names the
    page of the error. Messages quote text from other processes and hosts, so
    `str` escapes the control characters in them.
    """

    _note = ""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.__module__ == __name__:  # a class of another module has the page of the class that it refines
            cls._note = f"{LEARN_MORE}{cls.__name__}"

    def __init__(self, message: str = "", **facts: Any) -> None:
        super().__init__(message)
        if self._note:
            self.add_note(self._note)
        self.__dict__.update(facts)  # those of a copy have its notes, which must not be there twice

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
        cause: a description of how the worker died.
        last_output: the last lines that the worker printed.
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
    """A task ran longer than the pool's `task_timeout_s`; its worker was stopped.

    Attributes:
        index: position of the task in its map, or None for `apply`.
        timeout_s: the limit, in seconds.
    """

    index: int | None = None
    timeout_s: float = 0.0


class TaskCancelled(RopewalkError):
    """The pool was terminated, the iterator dropped, or the awaiting coroutine cancelled before the task finished."""


class RemoteError(RopewalkError):
    """A task raised an exception that cannot be rebuilt in this process; only its text is available.

    Attributes:
        type_name: module and name of the exception's class, such as "mylib.MyError".
    """

    type_name: str = ""


class InitializerFailed(RopewalkError):
    """The pool's initializer raised in a worker; `__cause__` is the exception that it raised."""


class CrashLoop(RopewalkError):
    """Processes died more often than the restart budget allows.

    Attributes:
        deaths: the cause of each death, oldest first.
    """

    deaths: tuple[str, ...] = ()


class StartFailed(RopewalkError):
    """A process or an agent could not be started."""


class NotPicklable(RopewalkError, TypeError):
    """A value cannot be sent to another process.

    Attributes:
        path: the part of the value that cannot be pickled, such as "args[0].model.lock".
    """

    path: str = ""


class TransportError(RopewalkError, ConnectionError):
    """The connection between two processes failed."""


class TransportRefused(TransportError):
    """The peer rejected this process; the message says why."""

    reason: str = ""
    """What the peer said, if it gave a reason itself."""


class LinkClosed(TransportError):
    """The process at the other end of the link is gone, or the link was closed here."""


class FrameError(TransportError):
    """Received bytes are not a valid frame, or a frame is larger than its limit."""

    peer_protocol: int = 0
    """The protocol version of the peer if it differs from the version of this side; else 0."""


class EngineError(RopewalkError):
    """An engine could not do what was asked of it."""


class UnknownEngine(EngineError, ValueError):
    """No engine has the given name."""


class CodeRefused(RopewalkError, ValueError):
    """The code of a project cannot be sent: it is too large, cannot be read, or arrived damaged."""


class PeerLost(RopewalkError, ConnectionResetError, EOFError):
    """The other side of a shared object is gone: the process or the host that it lived in.

    `multiprocessing` raises either `ConnectionResetError` or `EOFError`, depending on timing, so this class is both.

    Attributes:
        peer: the place of the object, or the process that held the other end.
    """

    peer: str = ""


class ObjectLost(PeerLost):
    """A value that was kept on a host is gone, because the host or the process that kept it there is gone.

    Attributes:
        host: the host that kept the value.
    """

    host: str = ""


class WrongHost(RopewalkError, RuntimeError):
    """An object that lives in the memory of one host was sent to another host, or is used there."""


class FileNotTrusted(RopewalkError, PermissionError):
    """A file that decides which code runs belongs to another user, or another user may change it.

    Attributes:
        path: the file, as the caller named it.
        place: the path that is not safe: the file itself, or a folder or link that leads to it.
        owner: the user id that owns `place`.
        mode: the permission bits of `place`.
    """

    path: str = ""
    place: str = ""
    owner: int = -1
    mode: int = 0


class SettingsError(RopewalkError, ValueError):
    """A setting is unknown or has an invalid value."""


class ProcessLimit(RopewalkError):
    """A host has reached its limit of processes (`max_processes`)."""


class CallError(RopewalkError):
    """A call to a service was not answered by its method."""


class ServiceLost(CallError, ConnectionError):
    """The service that was called is gone, or ended while it ran the call.

    Attributes:
        service: name of the node.
        replica: index of the replica.
        cause: how the service ended, in one line.
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
    """The call that this method is answering was cancelled: its caller is gone or gave up, or the service is stopping.

    `wait_for` and `CurrentCall.check` raise it in the method; the caller never sees it.

    Attributes:
        call: service and method, such as "replay.insert".
        reason: why the call was cancelled.
    """

    call: str = ""
    reason: str = ""


class CallCycle(CallError):
    """A chain of calls, each made while the previous call waits for it, forms a cycle.

    Attributes:
        chain: the calls, outermost first.
    """

    chain: tuple[str, ...] = ()


class ProgramStopped(CallError):
    """The program is being stopped, and its services accept no new calls.

    A node that ends with this exception counts as finished, not as failed.
    """


class ProgramFailed(RopewalkError):
    """A node failed and was not restarted; `__cause__` is the exception that it raised, if it raised one.

    Attributes:
        node: name of the node that failed first.
        replica: index of the replica.
        reason: how it failed, in one line.
        last_output: the last lines that it printed.
        deaths: how its earlier attempts ended, oldest first, if it was restarted.
        exit_code: its exit code as a shell reports it: 128 and the number of the signal that killed it; 1 if it raised
            an exception or could not be started.
    """

    node: str = ""
    replica: int = 0
    exit_code: int = 1
    reason: str = ""
    last_output: str = ""
    deaths: tuple[str, ...] = ()


class FailedForGood(RopewalkError):
    """Raised by the code of a node that would fail in the same way if it were restarted.

    The node is not restarted, whatever its restart rule. If it is essential, the program fails at once, with this
    exception as the cause.
    """


class ProgramInvalid(RopewalkError, ValueError):
    """A program cannot be launched as it is.

    Attributes:
        problems: every problem that was found, one line each.
    """

    problems: tuple[str, ...] = ()


class CheckpointCorrupt(RopewalkError):
    """The saved state of a service or of a training run is damaged, and so is every older copy of it.

    Attributes:
        path: the newest of the damaged files.
    """

    path: str = ""


class HandleNotConnected(RopewalkError, AttributeError):
    """A handle was used like a client, outside a node or before launch.

    Attributes:
        handle: name of the node that it stands for.
    """

    handle: str = ""


class ProfileInvalid(RopewalkError, ValueError):
    """A profile is not a valid graph of operators: it has a cycle, an unknown or repeated id, or a negative time."""


class TopologyInvalid(RopewalkError, ValueError):
    """The description of devices or links is invalid: no devices, no bandwidth, or a text that cannot be parsed."""


class NotTraceable(RopewalkError, TypeError):
    """A model cannot be traced to a graph, or its graph cannot be cut at the requested place.

    Attributes:
        operator: module path of the operator that prevents it, if that is known.
    """

    operator: str = ""


class PlanInvalid(RopewalkError, ValueError):
    """The stages are not a valid plan of this model on these devices."""


class NoPlanFits(PlanInvalid):
    """No plan meets the request; the message names both numbers and the smallest change that would make one fit.

    Attributes:
        needed: the least that any plan needs, in the unit that the message names (bytes, devices or operators).
        available: the amount that is available, in the same unit.
    """

    needed: float = 0
    available: float = 0


class StreamLost(RopewalkError, ConnectionError):
    """Replay lacks earlier insertions of a stream, because it was lost and restored from an older state, or not at all.

    Attributes:
        run_id: the stream.
        expected: number of the insertion that replay would take next.
        sequence: number of the insertion that came.
    """

    run_id: str = ""
    expected: int = 0
    sequence: int = 0


class LimiterDeadlock(RopewalkError):
    """The limiter of a table allows neither the insertion nor the samples that callers wait for, or no item will come.

    Attributes:
        table: name of the table.
        waited_s: seconds of the wait in which nothing has changed.
    """

    table: str = ""
    waited_s: float = 0.0


class EvaluationFailed(RopewalkError):
    """A fitness is NaN where NaN is not allowed, or all evaluations fail."""


class SearchInvalid(RopewalkError, ValueError):
    """A space, a configuration, a sampler or another part of a search is invalid.

    Attributes:
        parameter: name of the hyperparameter that is the problem; empty if it is none.
    """

    parameter: str = ""


class SearchFailed(RopewalkError):
    """A search cannot succeed: every trial fails in the same way, or none logs its metric."""


class ScheduleInvalid(RopewalkError, ValueError):
    """A sequence of actions breaks a rule, or a schedule is used outside its range.

    Attributes:
        action: the printed form of the first action that breaks the rule; empty if the range is the problem.
        worker: the printed form of the worker whose action it is.
    """

    action: str = ""
    worker: str = ""


class StageFailed(RopewalkError):
    """A stage raised while it carried out an action; `__cause__` is the exception that it raised.

    Attributes:
        stage: id of the stage.
        replica: index of the replica.
        micro_batch: index of the micro-batch; None in an optimiser step.
        version: version of the weights that the action used, or was to produce.
        operator: the operator of the model that raised, if that is known.
        action: the printed form of the action.
    """

    stage: int = 0
    replica: int = 0
    micro_batch: int | None = None
    version: int | None = None
    operator: str = ""
    action: str = ""


class LocalExecutorFailed(RopewalkError):
    """A local executor was used after one of its steps had failed; `__cause__` is the original error.

    Attributes:
        step: the number of the step that failed, from 0; in a drain, of the step that would have been next.
    """

    step: int = 0


class TrainerFailed(RopewalkError):
    """A trainer was used after it had failed; `__cause__` is the original error."""


class NotFinite(RopewalkError, ArithmeticError):
    """Experience, a loss or its gradient contains NaN or infinity.

    Attributes:
        column: name of the column, loss or gradient.
        run_id: the life of the actor whose experience it is.
        env: index of the environment within its group.
        step: number of the step within the run id, from 0.
        keys: keys of the items of the batch, where a learner found it.
        run_ids: which lives of which actors made those items.
    """

    column: str = ""
    run_id: str = ""
    env: int = 0
    step: int = 0
    keys: tuple[int, ...] = ()
    run_ids: tuple[str, ...] = ()


class StageLost(RopewalkError, ConnectionError):
    """The process of a stage is gone, and training cannot continue without it.

    Attributes:
        stages: ids of the stages that the process ran.
        cause: a description of how the process ended.
    """

    stages: tuple[int, ...] = ()
    cause: str = ""


class StageStalled(RopewalkError, TimeoutError):
    """All stages still answer, but a step does not finish.

    Attributes:
        waited_s: how long the trainer waited for the step, in seconds.
    """

    waited_s: float = 0.0


class EnvironmentFailed(RopewalkError):
    """An environment fails again and again, or a resumed one does not repeat its steps.

    Attributes:
        group: its group of environments.
        env: its index within the group.
        episode: number of the episode.
        seed: the seed that the episode began with; None if it began without one.
    """

    group: int = 0
    env: int = 0
    episode: int = 0
    seed: int | None = None


class EnvironmentLost(EnvironmentFailed):
    """The process of an isolated environment died, or did not answer in time and was killed.

    Attributes:
        cause: how the process ended.
        stacks: the stacks of its threads, if it did not answer.
    """

    cause: str = ""
    stacks: str = ""


class StoreError(RopewalkError):
    """A store of runs cannot be read or written at the moment; what was stored before is not affected.

    Attributes:
        where: path of the store, or its URL without the password.
    """

    where: str = ""


class StoreMissing(StoreError, FileNotFoundError):
    """There is no store at this path yet."""


class StoreTooNew(StoreError):
    """A newer version of Ropewalk has written the store.

    Attributes:
        revision: revision of its tables.
    """

    revision: str = ""


class StoreCorrupt(StoreError):
    """The file is damaged or is not a Ropewalk store; it was not changed."""


class RunNotFound(RopewalkError, LookupError):
    """No run of a store has this id or name, or more than one has it.

    Attributes:
        ref: the text that was looked for.
        candidates: ids of the runs that it may mean.
    """

    ref: str = ""
    candidates: tuple[str, ...] = ()


class RunOpen(RopewalkError, RuntimeError):
    """This process already writes a run, and tried to begin another one inside it.

    Attributes:
        run: id of the run.
    """

    run: str = ""


class RunStillRunning(RopewalkError):
    """A run that is running, or one that belongs to it, cannot be deleted.

    Attributes:
        runs: ids of the runs that are running.
    """

    runs: tuple[str, ...] = ()


class RunUnsuitable(RopewalkError, ValueError):
    """A run is in the wrong state for this operation, or lacks the command or checkpoint that it needs."""


class ExchangeError(RopewalkError):
    """Gradients could not be exchanged."""


class ExchangeInvalid(ExchangeError, ValueError):
    """Parts of an exchange do not fit together, or an argument is invalid; the message says what to use instead."""


class MemberLost(ExchangeError, ConnectionError):
    """A member of the group is gone.

    Attributes:
        ranks: ranks of the lost members, in the epoch in which the loss was detected.
        members: names of the lost members.
        epoch: epoch of the group.
    """

    ranks: tuple[int, ...] = ()
    members: tuple[str, ...] = ()
    epoch: int = 0


class ExchangeStalled(ExchangeError, TimeoutError):
    """Members, or some of their gradients, did not arrive in time.

    Attributes:
        ranks: ranks of the members that have not arrived.
        tensors: (rank, name) of each gradient that is not ready, as far as that is known.
        waited_s: how long they were waited for, in seconds.
    """

    ranks: tuple[int, ...] = ()
    tensors: tuple[tuple[int, str], ...] = ()
    waited_s: float = 0.0


class ExchangeAborted(ExchangeError):
    """The step was aborted during the exchange; its gradients have to be computed again.

    Attributes:
        epoch: epoch of the group in which the step began.
    """

    epoch: int = 0


class GradientNotFinite(ExchangeError, ArithmeticError):
    """A gradient contains NaN or infinity.

    Attributes:
        ranks: ranks of the members whose gradients contain it.
        parameters: names of the parameters, as far as they are known here.
        step: number of the step.
    """

    ranks: tuple[int, ...] = ()
    parameters: tuple[str, ...] = ()
    step: int = 0


class DescentViolated(ExchangeError, ArithmeticError):
    """A quantity that provably decreases did not decrease.

    Attributes:
        round: number of the round in which that was detected, from 0.
        potential: the quantity in that round.
        allowed: the largest value that the proof allows.
    """

    round: int = 0
    potential: float = 0.0
    allowed: float = 0.0


class MessageCorrupt(ExchangeError, ValueError):
    """A message holds bytes that no encoder of this bucket can have produced.

    Attributes:
        rank: rank of the sender.
    """

    rank: int = -1
