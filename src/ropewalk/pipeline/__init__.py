"""Pipelines: profile a model, cut it into stages for a topology, schedule, verify, simulate and play them.

    profiler ──▶ Profile ──▶ partitioners ──▶ Plan ──▶ schedules ──▶ actions ──▶ verifier
    (or JSON, graph.txt)      Topology ─▲                              ├───────▶ simulator ──▶ Timeline
                                                                       └───────▶ player

Importing loads nothing else: planning needs numpy, and only tracing, profiling and
playing need torch (`pip install 'ropewalk[torch]'`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ropewalk.lazy_names import lazy_names

if TYPE_CHECKING:
    from ropewalk.pipeline.actions import Action
    from ropewalk.pipeline.graph_text import read_graph_text, write_graph_text
    from ropewalk.pipeline.partitioners import make_partitioner, register_partitioner
    from ropewalk.pipeline.planning import plan
    from ropewalk.pipeline.plans import Edge, Plan, Stage, Worker
    from ropewalk.pipeline.player import Player
    from ropewalk.pipeline.probing import probe
    from ropewalk.pipeline.profiler import profile
    from ropewalk.pipeline.profiles import Operator, Profile
    from ropewalk.pipeline.schedules import make_schedule, register_schedule
    from ropewalk.pipeline.schedules.schedule import Schedule
    from ropewalk.pipeline.simulation.simulator import simulate
    from ropewalk.pipeline.simulation.timeline import Timeline
    from ropewalk.pipeline.topology import DeviceKind, Level, Topology
    from ropewalk.pipeline.topology_text import load_topology, parse_topology
    from ropewalk.pipeline.tracing.marks import cut_here
    from ropewalk.pipeline.tracing.model_graph import ModelGraph
    from ropewalk.pipeline.tracing.tracer import trace
    from ropewalk.pipeline.verifier import verify

_HOMES = {
    "Action": "actions",
    "read_graph_text": "graph_text",
    "write_graph_text": "graph_text",
    "make_partitioner": "partitioners",
    "register_partitioner": "partitioners",
    "plan": "planning",
    "Edge": "plans",
    "Plan": "plans",
    "Stage": "plans",
    "Worker": "plans",
    "Player": "player",
    "probe": "probing",
    "profile": "profiler",
    "Operator": "profiles",
    "Profile": "profiles",
    "make_schedule": "schedules",
    "register_schedule": "schedules",
    "Schedule": "schedules.schedule",
    "simulate": "simulation.simulator",
    "Timeline": "simulation.timeline",
    "DeviceKind": "topology",
    "Level": "topology",
    "Topology": "topology",
    "load_topology": "topology_text",
    "parse_topology": "topology_text",
    "cut_here": "tracing.marks",
    "ModelGraph": "tracing.model_graph",
    "trace": "tracing.tracer",
    "verify": "verifier",
}

__all__ = [
    "Action",
    "DeviceKind",
    "Edge",
    "Level",
    "ModelGraph",
    "Operator",
    "Plan",
    "Player",
    "Profile",
    "Schedule",
    "Stage",
    "Timeline",
    "Topology",
    "Worker",
    "cut_here",
    "load_topology",
    "make_partitioner",
    "make_schedule",
    "parse_topology",
    "plan",
    "probe",
    "profile",
    "read_graph_text",
    "register_partitioner",
    "register_schedule",
    "simulate",
    "trace",
    "verify",
    "write_graph_text",
]

#: What an install line brings, for each package that a part needs.
EXTRAS = {"torch": "torch", "numpy": "plan"}

if not TYPE_CHECKING:  # a checker that saw it would take each misspelt name for one of any type
    __getattr__, __dir__ = lazy_names(__name__, _HOMES, EXTRAS)
