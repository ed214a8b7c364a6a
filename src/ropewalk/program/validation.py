"""Finds the problems of a program before anything starts: all of them at once, each with the node's name.

Nothing is started or called. Arguments are pickled, because only trying shows whether they can be.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

import psutil

from ropewalk.calls.client import Client, why_not_sent
from ropewalk.engines.resources import usable_cpus
from ropewalk.errors import NotPicklable
from ropewalk.near_names import did_you_mean
from ropewalk.processes.gpus import VISIBLE, Gpus
from ropewalk.program.handle import Handle, handles_in, of_kind_in, pickled_handles, vertex_of
from ropewalk.program.node import Node, NodeSpec
from ropewalk.quantities import counted, shown_size
from ropewalk.transport.serialization import dumps_code

if TYPE_CHECKING:
    from ropewalk.program.program import Program

Mode = Literal["processes", "threads"]
"""Whether each node of a program is a process, or all are threads of the launcher, for a debugger."""


@dataclass(frozen=True, slots=True)
class Machine:
    """The resources of one machine for the nodes of a program."""

    cpus: int
    memory_bytes: int
    gpus: int


def this_machine() -> Machine:
    """The CPUs and GPUs that this process may use, and all memory."""
    return Machine(usable_cpus(), psutil.virtual_memory().total, Gpus(os.environ).count)


def problems_of(program: Program, *, mode: Mode, machine: Machine | None, copy: bool = True) -> Iterator[str]:
    """Everything that prevents a program from being launched, one line each.

    Args:
        program: the program to check.
        mode: whether nodes will be processes, or threads of one process.
        machine: the machine on which all of it will run; None if an engine chooses the hosts.
        copy: whether anything will be pickled.
    """
    specs = program.specs
    if not specs:
        yield "the program has no nodes; add one, as in program.add(Worker(main))"
    yield from _names(program)
    for unit in _units(specs):
        yield from (f"{unit}: {problem}" for problem in _numbers(unit))
        if machine is not None:
            yield from (f"{unit}: {problem}" for problem in _excess(unit, machine))
    if machine is not None and mode == "processes":
        yield from _too_many_gpus(_units(specs), machine.gpus)
    for unit, problem in program.mistakes:
        yield f"{unit}: {problem}"
    for spec in specs:
        misplaced = _misplaced(program, spec)
        yield from (f"{spec}: {problem}" for problem in misplaced.values())
        found = itertools.chain(spec.node.problems(), _handles(program, spec), _pickles(spec, copy, misplaced))
        yield from (f"{spec}: {problem}" for problem in found)
        if mode == "threads":
            yield from (f"{spec}: {problem}" for problem in _threads(spec))


def _units(specs: Iterable[NodeSpec]) -> Iterable[NodeSpec]:
    """One node of each process; options of the process are the same in all of its nodes."""
    return {spec.unit: spec for spec in reversed(list(specs))}.values()


def _names(program: Program) -> Iterator[str]:
    kinds: dict[str, list[str]] = {}
    for spec in program.specs:
        kinds.setdefault(spec.name, []).append(spec.node.kind)
    for name, those in kinds.items():
        if len(those) > 1:
            yield f"{len(those)} nodes are named {name!r} ({', '.join(those)}); give each another name="
    for name in program.declared:
        if name not in kinds:
            hint = did_you_mean(name, kinds)
            yield f"{name!r} was declared, but never added; add it with program.add(..., name={name!r}){hint}"


def _numbers(spec: NodeSpec) -> Iterator[str]:
    if spec.replicas < 1:
        yield f"replicas must be at least 1, not {spec.replicas}"
    if spec.checkpoint_s is not None and not 0 < spec.checkpoint_s < float("inf"):
        yield f"checkpoint_s must be a number of seconds above 0, or None, not {spec.checkpoint_s!r}"
    for name, value in spec.environment.items():
        pair: tuple[object, object] = (name, value)  # the user may not use a type checker
        if not all(isinstance(part, str) for part in pair) or "=" in name or "\0" in name + value:
            yield f"environment needs names and values that are strings, not {name!r}: {value!r}"


def _excess(spec: NodeSpec, machine: Machine) -> Iterator[str]:
    asked = spec.resources
    if asked.cpus > machine.cpus:
        yield f"asks for {asked.cpus:g} CPUs for each replica, but only {machine.cpus} can be used here"
    if asked.gpus > machine.gpus:
        yield f"asks for {counted(asked.gpus, 'GPU')} for each replica, but this machine has {machine.gpus}"
    if asked.memory_bytes is not None and asked.memory_bytes > machine.memory_bytes:
        has = shown_size(machine.memory_bytes)
        yield f"asks for {shown_size(asked.memory_bytes)} for each replica, but this machine has {has}"


def _too_many_gpus(units: Iterable[NodeSpec], num_gpus: int) -> Iterator[str]:
    """A process without the GPU that it asked for would compute on the CPU, or fail where nobody looks for it."""
    wanted = [unit for unit in units if 0 < unit.resources.gpus <= num_gpus and VISIBLE not in unit.environment]
    asking = sorted(wanted, key=str)
    total = sum(unit.replicas * unit.resources.gpus for unit in asking)
    if total > num_gpus:
        named = ", ".join(f"{unit} for {unit.replicas} x {unit.resources.gpus}" for unit in asking)
        yield f"its nodes ask for {total} GPUs in all ({named}), and this machine has {num_gpus}; start fewer replicas"


def _handles(program: Program, spec: NodeSpec) -> Iterator[str]:
    for argument, handle in _handles_of(spec):
        vertex = vertex_of(handle)
        known = handle.name in program.names
        if vertex.program is not None and vertex.program is not program:
            yield f"{argument} is a handle to {handle.name!r} of another program, which runs for itself"
        elif not known and handle.name not in program.declared:
            yield f"{argument} is a handle to {handle.name!r}, which is not a node of this program"
        elif known and handle.methods is None:
            target = vertex.node
            kind = f"a {target.kind}, which" if target is not None else "a node that"
            yield (
                f"{argument} is a handle to {handle.name!r}, {kind} cannot be called; "
                "only a Service and what wraps one can (a circle of caches cannot)"
            )
        elif known and isinstance(handle.address, int):
            size = next(other.replicas for other in specs_named(program, handle.name))
            if handle.address >= size:
                yield f"{argument} is replica {handle.address} of {handle.name!r}, which has {size}, counted from 0"


def _misplaced(program: Program, spec: NodeSpec) -> dict[str, str]:
    """Nodes and clients that were passed in place of a handle: the problem, by argument."""
    found: dict[str, str] = {}
    for path, value in spec.node.arguments().items():
        for step, node in of_kind_in(value, cast("type[Node[Any]]", Node)):
            added = next((f" {other.name!r}" for other in program.specs if other.node is node), "")
            handle = f"the handle that program.add(...) returned for{added}" if added else "a handle to it"
            how = (
                ""
                if added
                else f": `handle = program.add({node.kind.capitalize()}(...))` adds it, and returns the handle"
            )
            itself = f"{path + step} is a {node.kind} ({node.label}) itself, of which no client can arrive"
            found[path] = f"{itself}; give {handle}{how}"
        for step, client in of_kind_in(value, Client):
            found[path] = f"{path + step} is {client!r}, and cannot be sent: {why_not_sent(client)}"
    return found


def specs_named(program: Program, name: str) -> Iterator[NodeSpec]:
    """The nodes with a given name; more than one is an error."""
    return (spec for spec in program.specs if spec.name == name)


def _handles_of(spec: NodeSpec) -> Iterator[tuple[str, Handle[Any]]]:
    for path, value in spec.node.arguments().items():
        for step, handle in handles_in(value):
            yield path + step, handle


def _pickles(spec: NodeSpec, copy: bool, known: Collection[str]) -> Iterator[str]:
    """Arguments that cannot be pickled, except those with a worse problem."""
    for path, value in spec.node.arguments().items():
        if path in known:
            continue
        noted = pickled_handles.set([])
        try:
            dumps_code(value, what=path)
        except NotPicklable as error:
            if copy:  # otherwise this only looks for hidden handles, as far as it gets
                yield f"{error}. Build it where the node runs instead: Deferred(function, *args)"
        except Exception as error:  # raised by a user's `__reduce__`
            if copy:
                yield f"{path} cannot be pickled: {type(error).__name__}: {error}"
        finally:
            hidden = set(pickled_handles.get()).difference(handle.name for _, handle in handles_in(value))
            pickled_handles.reset(noted)
        for name in sorted(hidden):
            yield (
                f"{path} refers to the handle {name!r} where it is not looked for, and so it would stay a handle; "
                "give it as an argument, in a list, a dictionary or a dataclass"
            )


def _threads(spec: NodeSpec) -> Iterator[str]:
    refusal = spec.node.refuses_threads()
    remedy = 'launch with mode="processes"'
    if refusal:
        yield f"cannot run as a thread: {refusal}; {remedy}"
    if spec.environment:
        yield f"cannot have an environment as a thread, which shares that of its process; {remedy}"
    if spec.resources.memory_bytes is not None:
        yield f"cannot have memory of its own as a thread, which shares that of its process; {remedy}"
