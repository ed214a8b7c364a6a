"""`fixed`: the user decides where to cut; replicas, devices and recomputation are chosen as by `exact`.

Cuts are the last operators, or modules, of all stages except the last one, in program order:

    program order   input.x  conv1  relu  |  conv2  add  |  head       cuts ("relu", "add")

or the stage of each operator, or the places where the model calls `cut_here()`. An input
without a stage belongs to the first stage that reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ropewalk.errors import PlanInvalid
from ropewalk.near_names import did_you_mean
from ropewalk.pipeline.down_sets import BitGraph
from ropewalk.pipeline.partitioners.exact import plan_within
from ropewalk.pipeline.partitioners.partitioner import Partition, PlanRequest
from ropewalk.pipeline.plans import Stage, assemble
from ropewalk.pipeline.profiles import Profile
from ropewalk.quantities import listed

MARK = "cut_here"
"""The description of an operator that is a call of `cut_here()`."""
_SHOWN = 8
"""Operators that a message lists."""


class Fixed:
    """Makes the stages that the user's cuts give; without any cut, one stage."""

    name = "fixed"

    def partition(self, request: PlanRequest) -> Partition:
        """Place the stages.

        Raises:
            PlanInvalid: a cut names no operator, or a stage would be empty or read from a later one.
            NoPlanFits: no choice of devices and replicas fits these stages.
        """
        stage_of = stages_of(request.profile, request.fixed_cuts)
        num_stages = max(stage_of.values()) + 1
        if request.num_stages not in (None, num_stages):
            raise PlanInvalid(
                f"the cuts make {num_stages} stages, and num_stages is {request.num_stages}; leave it out, or change "
                f"the cuts"
            )
        order = request.profile.order
        stages = [tuple(id for id in order if stage_of[id] == stage) for stage in range(num_stages)]
        for stage, ids in enumerate(stages):
            if all(request.profile.by_id[id].is_input for id in ids):
                raise PlanInvalid(f"stage {stage} of {num_stages} has nothing to compute; leave out the cut before it")
        # Raises for stages that read from later ones.
        assemble(
            request.profile,
            [Stage(stage, ids, (stage,)) for stage, ids in enumerate(stages)],
            schedule=request.schedule.name,
            micro_batches=request.micro_batches,
        )
        graph, sets = BitGraph.of(request.profile), [0]
        for ids in stages:
            sets.append(sets[-1] | sum(1 << order.index(id) for id in ids))
        return plan_within(replace(request, num_stages=num_stages), graph, sets)


def stages_of(profile: Profile, cuts: tuple[str, ...] | Mapping[str, int]) -> dict[str, int]:
    """Return the stage of each operator.

    Args:
        profile: the operators.
        cuts: the last operator, or module, of each stage except the last one, or the stage of each operator.

    Raises:
        PlanInvalid: a cut names an unknown operator, an operator has no stage, or the numbers of stages have a gap.
    """
    last = [id if isinstance(cuts, Mapping) else _last_operator(profile, id) for id in cuts]
    if unknown := next((id for id in last if id not in profile.by_id), None):
        hint = did_you_mean(unknown, profile.by_id) or f"; its operators are {listed(profile.order, _SHOWN)}"
        raise PlanInvalid(f"a cut names {unknown!r}, which is not an operator of the profile, nor a module{hint}")
    if isinstance(cuts, Mapping):
        found = dict(cuts)
        if missing := [id for id in profile.order if id not in found and not profile.by_id[id].is_input]:
            raise PlanInvalid(f"{len(missing)} operators have no stage, the first is {missing[0]!r}")
        numbers = sorted(set(found.values()))
        if numbers != list(range(len(numbers))):
            raise PlanInvalid(f"stages are numbered 0, 1, ... without a gap, not {numbers}")
    else:
        found = _by_order(profile, set(last) or {id for id in profile.order if profile.by_id[id].description == MARK})
    for id in reversed(profile.order):
        operator = profile.by_id[id]
        if operator.is_input and (id not in found or not isinstance(cuts, Mapping)):
            found[id] = min((found[target] for target in profile.targets[id]), default=0)
    return found


def _last_operator(profile: Profile, name: str) -> str:
    """Return the operator with a name, or the last one of the module with that name; the name itself for neither."""
    if name in profile.by_id:
        return name
    of_module = [id for id in profile.order if id.startswith((f"{name}:", f"{name}."))]
    return of_module[-1] if of_module else name


def _by_order(profile: Profile, last: set[str]) -> dict[str, int]:
    """The stages with a cut after each of these operators; cuts with nothing to compute between them count as one."""
    found: dict[str, int] = {}
    stage, is_empty = 0, True
    cut = False
    for id in profile.order:
        operator = profile.by_id[id]
        if cut and not is_empty and not operator.is_input and operator.description != MARK:
            stage, is_empty, cut = stage + 1, True, False
        found[id] = stage
        is_empty = is_empty and (operator.is_input or operator.description == MARK)
        cut = cut or id in last
    return found
