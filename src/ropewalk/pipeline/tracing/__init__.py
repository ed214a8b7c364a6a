"""Tracing: the graph of a model, and programs for pieces of it."""

from ropewalk.pipeline.tracing.marks import cut_here
from ropewalk.pipeline.tracing.model_graph import ModelGraph, TracedOperator
from ropewalk.pipeline.tracing.stage_program import BatchNormCall, StageProgram
from ropewalk.pipeline.tracing.tracer import trace

__all__ = ["BatchNormCall", "ModelGraph", "StageProgram", "TracedOperator", "cut_here", "trace"]
