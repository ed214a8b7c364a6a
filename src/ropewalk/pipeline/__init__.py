"""Pipelines: profile a model, cut it into stages for a topology, and schedule, verify, simulate and execute them.

    profiler ──▶ Profile ──▶ partitioners ──▶ Plan ──▶ schedules ──▶ actions ──▶ verifier
    (or JSON, graph.txt)      Topology ─▲                              ├───────▶ simulator ──▶ Timeline
                                                                       └───────▶ executor

Importing this package loads none of its modules. Planning needs numpy; only tracing,
profiling and executing need torch (`pip install 'ropewalk[torch]'`).
"""

from __future__ import annotations

from ropewalk.lazy_names import LazyNames

EXTRAS = {"torch": "torch", "numpy": "plan"}
"""The extra of `pip install 'ropewalk[...]'` that brings each optional package."""
_lazy = LazyNames(globals(), EXTRAS)

with _lazy:
    from ropewalk.pipeline.actions import Action as Action
    from ropewalk.pipeline.graph_text import read_graph_text as read_graph_text
    from ropewalk.pipeline.graph_text import write_graph_text as write_graph_text
    from ropewalk.pipeline.local_executor import LocalExecutor as LocalExecutor
    from ropewalk.pipeline.partitioners import make_partitioner as make_partitioner
    from ropewalk.pipeline.partitioners import register_partitioner as register_partitioner
    from ropewalk.pipeline.planning import plan as plan
    from ropewalk.pipeline.plans import Edge as Edge
    from ropewalk.pipeline.plans import Plan as Plan
    from ropewalk.pipeline.plans import PlanWorker as PlanWorker
    from ropewalk.pipeline.plans import Stage as Stage
    from ropewalk.pipeline.probing import probe as probe
    from ropewalk.pipeline.profiler import profile as profile
    from ropewalk.pipeline.profiles import Operator as Operator
    from ropewalk.pipeline.profiles import Profile as Profile
    from ropewalk.pipeline.schedules import make_schedule as make_schedule
    from ropewalk.pipeline.schedules import register_schedule as register_schedule
    from ropewalk.pipeline.schedules.schedule import Schedule as Schedule
    from ropewalk.pipeline.simulation.simulator import simulate as simulate
    from ropewalk.pipeline.simulation.timeline import Timeline as Timeline
    from ropewalk.pipeline.stages.losses import Loss as Loss
    from ropewalk.pipeline.stages.optimizer_maker import OptimizerMaker as OptimizerMaker
    from ropewalk.pipeline.stages.training_options import TrainingOptions as TrainingOptions
    from ropewalk.pipeline.topology import DeviceKind as DeviceKind
    from ropewalk.pipeline.topology import Level as Level
    from ropewalk.pipeline.topology import Topology as Topology
    from ropewalk.pipeline.topology_text import load_topology as load_topology
    from ropewalk.pipeline.topology_text import parse_topology as parse_topology
    from ropewalk.pipeline.tracing.marks import cut_here as cut_here
    from ropewalk.pipeline.tracing.model_graph import ModelGraph as ModelGraph
    from ropewalk.pipeline.tracing.tracer import trace as trace
    from ropewalk.pipeline.verifier import verify as verify
